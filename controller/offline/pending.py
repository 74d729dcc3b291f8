"""Why pods of a world are pending: one answer for `explain pod`, `solve`, `top` and the page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from controller.apis.karpenter.nodeclaim import LAUNCHED, REGISTERED, NodeClaim
from controller.apis.kinds import EVENT
from controller.apis.kubernetes import conditions
from controller.apis.kubernetes.pods import Pod
from controller.apis.kubernetes.workloads import Event
from controller.apis.ownership import has_unsupported_class, is_ours
from controller.apis.wording import with_count
from controller.apiserver.port import ApiServer
from controller.offline.world import World
from controller.reconcilers.provisioning.unplaced import Unplaced
from controller.scheduling.results import Results
from controller.state.pods import is_terminal
from controller.state.snapshot import Snapshot
from controller.telemetry.events import COMPONENT

FAILURES = ("FailedScheduling", "InsufficientCapacityError")
"""The reasons of the controller's events about a pod that has no node."""

FRESH = timedelta(minutes=10)
"""How long an attempt of the controller counts: it repeats the event every 8 minutes at least."""

PREFIX = "Failed to schedule pod, "


@dataclass(frozen=True, slots=True)
class Attempt:
    """The controller's last attempt to schedule a pod, which failed: its time and the causes."""

    at: datetime
    causes: tuple[str, ...]


async def failure_events(api: ApiServer) -> list[Event]:
    """Return the controller's events about pods without a node."""
    return [
        event
        for reason in FAILURES
        for event in await api.list(EVENT, field_selector=f"reason={reason},source={COMPONENT}")
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingPods:
    """What the cluster's objects say about pending pods, beside the engine's answer.

    `attempts` are by pod key. `launching` are the NodeClaims without a node, by name.
    """

    unplaced: Unplaced
    attempts: Mapping[str, Attempt]
    launching: Mapping[str, NodeClaim]

    def causes(self, pod: Pod, causes: Iterable[str]) -> tuple[str, ...]:
        """Return why a pod has no node, given the causes that the engine found."""
        attempt = self.attempts.get(pod.key)
        return self.unplaced.in_order(pod.spec, tuple(causes), attempt.causes if attempt else ())

    def place(self, node: str) -> str:
        """Return a pod's existing node as text; of a NodeClaim without a node, also its state."""
        claim = self.launching.get(node)
        if claim is None:
            return f"existing node {node}"
        launched = conditions.find(claim.status.conditions, LAUNCHED)
        if launched is not None and launched.is_true:
            registered = conditions.find(claim.status.conditions, REGISTERED)
            _, _, todo = (registered.message if registered else "").partition(": ")
            waits = f"NodeClaim {node}, whose instance has not joined the cluster yet"
            return f"{waits}: {todo}" if todo else waits
        why = launched.message if launched is not None else ""
        return f"NodeClaim {node}, which is not launched yet{f': {why}' if why else ''}"

    def nomination(self, pod: Pod, others: Iterable[Pod]) -> str:
        """Return the state of a pod with a nominated node, beside the world's `others`."""
        node = pod.spec.node_name
        terminating = [
            each
            for each in others
            if each.spec.node_name == node and each.metadata.is_deleting and not is_terminal(each)
        ]
        outcome = f"is nominated for {self.place(node)}"
        if not terminating:
            return outcome
        return (
            f"{outcome}, and waits until {with_count(len(terminating), 'pod')} there "
            f"{'has' if len(terminating) == 1 else 'have'} terminated (preemption is under way)"
        )

    def with_causes(self, results: Results, pods: Iterable[Pod]) -> Results:
        """Return the results with these causes for their unschedulable pods."""
        unschedulable = {
            pod.key: self.causes(pod, results.unschedulable[pod.key])
            for pod in pods
            if pod.key in results.unschedulable
        }
        return replace(results, unschedulable={**results.unschedulable, **unschedulable})


def pending_pods(world: World, now: datetime) -> PendingPods:
    """Return what the objects of a world say about its pending pods at a time."""
    pools = [pool for pool in world.node_pools if is_ours(pool) or has_unsupported_class(pool)]
    return PendingPods(
        unplaced=Unplaced(pools, ()),
        attempts=_attempts(world.events, now),
        launching=_claims_without_node(world.snapshot),
    )


def _claims_without_node(snapshot: Snapshot) -> dict[str, NodeClaim]:
    return {
        state.name: state.claim
        for state in snapshot.nodes
        if state.node is None and state.claim is not None
    }


def _attempts(events: Iterable[Event], now: datetime) -> dict[str, Attempt]:
    """Return the last attempt for each pod that is not older than `FRESH`."""
    found: dict[str, Attempt] = {}
    for event in events:
        at = event.last_timestamp or event.metadata.creation_timestamp
        key = f"{event.involved_object.namespace}/{event.involved_object.name}"
        if at is None or now - at > FRESH or (key in found and found[key].at >= at):
            continue
        found[key] = Attempt(at, tuple(event.message.removeprefix(PREFIX).split("; ")))
    return found
