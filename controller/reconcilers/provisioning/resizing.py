"""Reports in-place resizes that the kubelet cannot apply, and frees capacity for deferred ones.

The new size belongs to the running pod, so the resized pod stays. If EVICT_FOR_RESIZE is set,
Joiner evicts the other pods of its node whose eviction costs least, provided that each of them gets
another node.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import msgspec

from controller.apis import labels
from controller.apis.kinds import NODE, NODE_POOL
from controller.apis.kubernetes.conditions import Condition
from controller.apis.kubernetes.nodes import Node
from controller.apis.kubernetes.pods import Pod, PodStatus
from controller.apis.kubernetes.quantities import format_quantity
from controller.apiserver.errors import ConflictError, NotFoundError, TooManyRequestsError
from controller.constraints.resources import (
    Resources,
    parse_resources,
    pod_requests,
    subtract,
    total,
)
from controller.disruption.modes import Mode, mode_of
from controller.disruption.problem import DisruptionSettings
from controller.disruption.resizing import evictions, shortfall
from controller.reconcilers.newnodes.registrationbackoff import RegistrationBackoff
from controller.reconcilers.newnodes.supply import ready_pools, supply
from controller.reconcilers.ports import Ports, PortUser
from controller.reconcilers.provisioning.provisioner import Solve
from controller.state.nodes import lifecycle_event
from controller.state.pods import is_terminal, pending_resize
from controller.state.snapshot import Snapshot, with_promised_capacity

CHECK_PERIOD = timedelta(minutes=1)
"""How often a node with a pending resize is checked again, and how long a resize is deferred before
pods are evicted for it: other pods may end by themselves."""

INFEASIBLE = "Infeasible"
WAITS = "The kubelet applies the resize when enough other pods have left the node"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resizing(PortUser):
    """Publishes why a resize is pending, and evicts pods for it if `evicts`."""

    ports: Ports
    solve: Solve
    registration_backoff: RegistrationBackoff
    settings: DisruptionSettings
    mode: Mode
    evicts: bool

    async def reconcile(self, node_name: str) -> timedelta | None:
        """Handle the pending resizes on a node of Joiner; returns when to check them again."""
        node = self.cluster.get(NODE, node_name)
        if node is None or self.cluster.claim_of(node) is None:
            return None
        pods = [pod for pod in self.cluster.pods_on(node_name) if not is_terminal(pod)]
        resized = [(pod, pending) for pod in pods if (pending := pending_resize(pod)) is not None]
        if not resized:
            return None
        missing = shortfall(pods, parse_resources(node.status.allocatable))
        deferred = [pending for _, pending in resized if pending.reason != INFEASIBLE]
        prospect = await self._free_capacity(node, pods, missing, deferred) if deferred else WAITS
        for pod, pending in resized:
            await self._report(pod, pending, node, pods, prospect)
        return CHECK_PERIOD

    async def _free_capacity(
        self, node: Node, pods: Sequence[Pod], missing: Resources, deferred: Sequence[Condition]
    ) -> str:
        """Evict pods if `evicts` and if possible; returns the text for the pod's event."""
        now = self.clock()
        since = min(pending.last_transition_time or now for pending in deferred)
        if not self.evicts or not missing or now - since < CHECK_PERIOD:
            return WAITS
        if any(pod.metadata.is_deleting for pod in pods):
            return "Pods on the node are terminating"
        if obstacle := self._obstacle(node):
            return f"No pods are evicted for it: {obstacle}"
        snapshot = await self._snapshot()
        # In a thread: it reads every volume and PodDisruptionBudget of the cluster.
        chosen = await asyncio.to_thread(evictions, pods, missing, snapshot, self.settings, now)
        if not chosen:
            return "No pods are evicted for it: evictable pods do not free enough capacity"
        if stranded := await self._stranded_pod(chosen, node, snapshot):
            return f"No pods are evicted for it: pod {stranded}"
        resized = ", ".join(pod.key for pod in pods if pending_resize(pod) in deferred)
        for pod in chosen:
            await self._evict(pod, resized)
        return f"Evicting {', '.join(pod.key for pod in chosen)}"

    def _obstacle(self, node: Node) -> str:
        """Return why the pods of a node may not be evicted, empty if they may."""
        if node.metadata.annotations.get(labels.DO_NOT_DISRUPT) == "true":
            return "node has the karpenter.sh/do-not-disrupt annotation"
        if node.metadata.is_deleting:
            return "node is being deleted"
        if event := lifecycle_event(node):
            return f"node condition {event} is True"
        name = node.metadata.labels.get(labels.NODEPOOL, "")
        pool = self.cluster.get(NODE_POOL, name)
        if pool is None:
            return f"NodePool {name} not found"
        mode = mode_of(pool, self.mode)
        return "" if mode is Mode.ACT else f"NodePool {name} is in mode {mode.value}"

    async def _snapshot(self) -> Snapshot:
        pools = self.registration_backoff.admit(ready_pools(self.cluster.list(NODE_POOL)))
        types = (await supply(self.cloud, self.cluster, pools)).types
        return with_promised_capacity(self.cluster.snapshot(types, pools, now=self.clock()))

    async def _stranded_pod(self, chosen: Sequence[Pod], node: Node, snapshot: Snapshot) -> str:
        """Return one of the pods that no other node could hold, with the cause; empty if none."""
        leaving = {pod.key for pod in chosen}
        world = snapshot.fork(closed={node.metadata.name}, unbound=leaving)
        results = await self.solve([*self.cluster.pending_pods(), *chosen], world)
        return next(
            (
                f"{key} would get no node: {'; '.join(causes)}"
                for key, causes in results.unschedulable.items()
                if key in leaving
            ),
            "",
        )

    async def _evict(self, pod: Pod, resized: str) -> None:
        own = pod.metadata
        try:
            await self.api.evict(own.name, own.namespace, uid=own.uid)
        except (NotFoundError, ConflictError):
            return
        except TooManyRequestsError as error:
            self.metrics.record_eviction(error.status)
            fields = {"Pod": pod.key, "resized": resized}
            log.info("cannot evict pod to free capacity for a resize: %s", error, extra=fields)
            return
        self.metrics.record_eviction(200)
        message = f"Evicted pod to free capacity for the resize of {resized}"
        await self.recorder.publish(pod, "Normal", "Evicted", message)

    async def _report(
        self, pod: Pod, pending: Condition, node: Node, pods: Sequence[Pod], prospect: str
    ) -> None:
        name = node.metadata.name
        if pending.reason == INFEASIBLE:
            message = (
                f"Resize is infeasible on node {name}: {pending.message}. "
                "Recreate the pod with these requests to have it run on a larger node"
            )
        elif lack := _lacking_resources(pod, node, pods):
            message = f"Resize is deferred: node {name} has {lack}. {prospect}"
        else:
            return  # Other pods have left: the kubelet is about to apply the resize.
        await self.recorder.publish(
            pod,
            "Warning",
            "ResizePending",
            message,
            dedupe_by=f"{pending.reason}/{pending.observed_generation}/{prospect}",
        )


def _lacking_resources(pod: Pod, node: Node, pods: Sequence[Pod]) -> str:
    """Return which resources the node lacks for the resized pod, empty if it lacks none."""
    others = total(pod_requests(other) for other in pods if other is not pod)
    available = subtract(parse_resources(node.status.allocatable), others)
    return ", ".join(
        f"{format_quantity(max(available.get(name, 0), 0), name)} {name} available for the pod, "
        f"{format_quantity(amount, name)} requested"
        for name, amount in sorted(_desired_requests(pod).items())
        if amount > available.get(name, 0)
    )


def _desired_requests(pod: Pod) -> Resources:
    """Return the requests of the pod's spec, applied or not."""
    return pod_requests(msgspec.structs.replace(pod, status=PodStatus()))
