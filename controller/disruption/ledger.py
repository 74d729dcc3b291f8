"""What a decision brought: what the pods cost since, and whether they run again."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec

from controller.apis import conditions
from controller.apis.disruption import (
    Balance,
    Disruption,
    DisruptionStatus,
    MovedPods,
    Outcome,
)
from controller.apis.pods import Pod
from controller.cloudprovider.instancetypes import InstanceType
from controller.disruption.prices import node_price
from controller.state.nodes import StateNode
from controller.state.pods import controller_of, is_reschedulable

PROMPT = timedelta(minutes=10)
"""How soon after a decision a node must have come for the decision to be held for its cause."""

HOUR, DAY = timedelta(hours=1), timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """The cluster as a decision is judged by: its machines, their pods, and prices by pool.

    `planned` names the claims that decisions have made.
    """

    nodes: Sequence[StateNode]
    pods: Sequence[Pod]
    types: Mapping[str, Iterable[InstanceType]]
    planned: Collection[str]
    now: datetime

    def price(self, state: StateNode) -> float:
        """Return what a machine costs, in $/h; nothing when nobody knows."""
        types = {
            instance_type.name: instance_type
            for instance_type in self.types.get(state.node_pool, ())
        }
        return node_price(state, types) or 0.0


def pods_outcome(record: Disruption, pods: Iterable[Pod]) -> MovedPods:
    """Return how many of the moved pods run again: of each workload, those made since, at most as
    many as were moved.
    """
    moved = sum(workload.pods for workload in record.spec.workloads)
    running, slowest = 0, 0.0
    heirs = _successors(record, pods)
    for workload in record.spec.workloads:
        ready = sorted(
            t for pod in heirs.get(workload.uid, ()) if (t := _start_up(pod)) is not None
        )
        running += min(len(ready), workload.pods)
        slowest = max([slowest, *ready[: workload.pods]])
    return MovedPods(moved=moved, running=running, slowest_seconds=slowest)


def outcome(record: Disruption, scene: Scene) -> Outcome:
    """Return what a decision has brought by now."""
    here = {
        node.claim.metadata.name
        for node in scene.nodes
        if node.claim is not None and not node.deleting
    }
    unplanned = _unplanned(record, scene)
    cost = record.status.replacements_cost + sum(unplanned)
    return Outcome(
        at=scene.now,
        cost=round(cost, 4),
        saving=round(record.spec.price - cost, 4),
        unplanned_nodes=len(unplanned),
        replacements_disrupted=sum(name not in here for name in record.status.replacements),
    )


def replacements_cost(record: Disruption, scene: Scene) -> float:
    """Return what the nodes made in the place of others cost, as they were bought, in $/h."""
    mine = frozenset(record.status.replacements)
    return sum(
        (
            scene.price(node)
            for node in scene.nodes
            if node.claim is not None and node.claim.metadata.name in mine
        ),
        0.0,
    )


def carried(balance: Balance, *, before: DisruptionStatus, after: Disruption) -> Balance | None:
    """Return the balance once a record has changed; None when that changes nothing of it."""
    now = after.status
    closed = now.state if now.state != before.state else ""
    counted = Balance(
        sequence=balance.sequence,
        done=balance.done + (closed == "Done"),
        failed=balance.failed + (closed == "Failed"),
        predicted=_sum(balance.predicted, after.spec.saving if closed == "Done" else 0.0),
        after_hour=_sum(balance.after_hour, _saved(now.after_hour) - _saved(before.after_hour)),
        after_day=_sum(balance.after_day, _saved(now.after_day) - _saved(before.after_day)),
        moved=balance.moved + _moved(now.pods) - _moved(before.pods),
        running=balance.running + _running(now.pods) - _running(before.pods),
        replacements_disrupted=(
            balance.replacements_disrupted + _lost(now.after_day) - _lost(before.after_day)
        ),
    )
    if counted == balance:
        return None
    return msgspec.structs.replace(counted, sequence=balance.sequence + 1)


def _unplanned(record: Disruption, scene: Scene) -> list[float]:
    """Return the share, in $/h, of each node that came soon after and that nobody had planned:
    as much of it as the moved pods are of those that run there.
    """
    since = record.status.begun_at
    if since is None:
        return []
    heirs = {pod.metadata.uid for pods in _successors(record, scene.pods).values() for pod in pods}
    costs = []
    for node in scene.nodes:
        if node.claim is None or node.claim.metadata.name in scene.planned:
            continue
        born = node.claim.metadata.creation_timestamp
        if born is None or not since <= born <= since + PROMPT:
            continue
        there = [p for p in scene.pods if p.spec.node_name == node.name and is_reschedulable(p)]
        mine = sum(pod.metadata.uid in heirs for pod in there)
        if mine:
            costs.append(scene.price(node) * mine / len(there))
    return costs


def _successors(record: Disruption, pods: Iterable[Pod]) -> dict[str, list[Pod]]:
    """Return the pods that its workloads have made since, by the workload's uid."""
    begun = record.status.begun_at
    asked = {workload.uid for workload in record.spec.workloads if workload.uid}
    heirs: dict[str, list[Pod]] = {}
    for pod in pods:
        born = pod.metadata.creation_timestamp
        owner = controller_of(pod)
        # Creation times are whole seconds.
        if owner not in asked or begun is None or born is None:
            continue
        if born >= begun.replace(microsecond=0):
            heirs.setdefault(owner, []).append(pod)
    return heirs


def _start_up(pod: Pod) -> float | None:
    """Return the seconds from a pod's creation until it was ready; None while it is not."""
    ready = conditions.find(pod.status.conditions, "Ready")
    born = pod.metadata.creation_timestamp
    if ready is None or not ready.is_true or ready.last_transition_time is None or born is None:
        return None
    return max((ready.last_transition_time - born).total_seconds(), 0.0)


def _saved(measured: Outcome | None) -> float:
    return measured.saving if measured is not None else 0.0


def _lost(measured: Outcome | None) -> int:
    return measured.replacements_disrupted if measured is not None else 0


def _moved(moved_pods: MovedPods | None) -> int:
    return moved_pods.moved if moved_pods is not None else 0


def _running(moved_pods: MovedPods | None) -> int:
    return moved_pods.running if moved_pods is not None else 0


def _sum(amount: float, other: float) -> float:
    return round(amount + other, 4)


def with_status(record: Disruption, **changes: object) -> Disruption:
    """Return the record with another status."""
    status = msgspec.structs.replace(record.status, **changes)
    return msgspec.structs.replace(record, status=status)
