"""Terminates a Node that is being deleted: taint, drain, volumes, instance, finalizer."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from controller.apis import labels
from controller.apis.karpenter.nodeclaim import (
    DRAINED,
    INSTANCE_TERMINATING,
    VOLUMES_DETACHED,
    NodeClaim,
)
from controller.apis.kinds import NODE, NODE_CLAIM, PERSISTENT_VOLUME_CLAIM, POD
from controller.apis.kubernetes import conditions
from controller.apis.kubernetes.meta import to_wire
from controller.apis.kubernetes.nodes import Node
from controller.apis.kubernetes.pods import Pod
from controller.apiserver.errors import ApiError, NotFoundError
from controller.cloudprovider.errors import CloudProviderError, NodeClaimNotFoundError
from controller.constraints.resources import parse_resources
from controller.disruption.pods import DISRUPTED, is_drainable
from controller.reconcilers.clock import first_past
from controller.reconcilers.concurrency import gather_all
from controller.reconcilers.instances import terminate
from controller.reconcilers.ports import Ports, PortUser
from controller.reconcilers.termination.drain import Drain, plan_drain
from controller.reconcilers.termination.eviction import Eviction
from controller.reconcilers.termination.gangrestart import GangRestart
from controller.reconcilers.termination.surge import Surge
from controller.reconcilers.writing import (
    MESSAGE_LIMIT,
    apply_patch,
    delete,
    reason_for_end,
    with_condition,
)
from controller.state.cluster import Cluster
from controller.state.pods import forbids_disruption

POLL = timedelta(seconds=1)
TAINT_DELAY = timedelta(seconds=5)
"""How long after the taint kube-scheduler may still bind a pod that it scheduled before.

The time starts when the terminator first reads the taint.
"""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Progress:
    """The state of a node's drain in this process.

    `removed` holds the UIDs of the pods that were evicted or deleted. `is_counted` is True once
    the node counts as drained in the metrics.
    """

    tainted_at: datetime
    removed: set[str] = field(default_factory=set)
    is_counted: bool = False


@dataclass(slots=True)
class Terminator(PortUser):
    """Taints and drains nodes, waits for volumes, terminates instances, removes finalizers."""

    ports: Ports
    eviction: Eviction
    surge: Surge | None = None
    gangs: GangRestart | None = None
    _progress: dict[str, _Progress] = field(default_factory=dict)
    """The progress of each termination, by the node's UID."""

    async def reconcile(self, name: str) -> timedelta | None:
        """Take the node's next steps; returns when to continue, None if there are none."""
        node = self.cluster.get(NODE, name)
        if node is None or not node.metadata.is_deleting:
            return None
        if labels.TERMINATION_FINALIZER not in node.metadata.finalizers:
            return None
        if not self.cluster.manages(node):
            return None
        claim = self.cluster.claim_of(node)
        if claim is not None and not claim.metadata.is_deleting:
            await self._delete_claim(claim)
            return POLL
        if await self._instance_is_gone(node):
            await self._restart_gangs(node, self.cluster.pods_on(name))
            await self._finish(node)
            return None
        node = await self._taint(node)
        deadline = claim.drain_deadline if claim is not None else None
        done = (
            await self._drain(node, claim, deadline)
            and await self._are_volumes_detached(node, claim, deadline)
            and await self._instance_gone(node, claim, deadline)
        )
        if not done:
            return POLL
        await self._finish(node)
        return None

    async def _delete_claim(self, claim: NodeClaim) -> None:
        fields = {"NodeClaim": claim.metadata.name, "Node": claim.status.node_name}
        log.info("deleting nodeclaim of deleted node", extra=fields)
        await delete(self.api, claim)

    async def _instance_is_gone(self, node: Node) -> bool:
        """Whether the instance is terminated, so that draining the node is pointless.

        EC2 is not called for a Ready node, because its kubelet runs.
        """
        if conditions.is_true(node.status.conditions, "Ready"):
            return False
        try:
            await self.cloud.get(node.spec.provider_id)
        except NodeClaimNotFoundError:
            return True
        except CloudProviderError as error:
            # Evictions do not depend on EC2, and pods should leave an impaired zone.
            log.warning(
                "cannot check whether the instance exists; draining the node",
                extra={
                    "Node": node.metadata.name,
                    "provider-id": node.spec.provider_id,
                    "error": str(error),
                },
            )
        return False

    async def _taint(self, node: Node) -> Node:
        """Set the taint, and the label that excludes the node from load balancers, if missing."""
        if DISRUPTED in node.spec.taints and (
            labels.EXCLUDE_FROM_LOAD_BALANCERS in node.metadata.labels
        ):
            return node
        taints = [*(t for t in node.spec.taints if t.key != DISRUPTED.key), DISRUPTED]
        patch = {
            "spec": {"taints": to_wire(taints)},
            "metadata": {"labels": {labels.EXCLUDE_FROM_LOAD_BALANCERS: "karpenter"}},
        }
        updated = await apply_patch(self.ports, node, patch)
        fields = {"Node": node.metadata.name, "taint.Key": DISRUPTED.key}
        log.info("tainted node", extra=fields)
        return updated

    async def _drain(self, node: Node, claim: NodeClaim | None, deadline: datetime | None) -> bool:
        """Evict or delete the pods that may be removed now; returns whether the drain is done.

        Pods are removed also after the node was drained once, because kube-scheduler may have bound
        one before it read the taint. A terminating instance does not wait for pods.
        """
        progress = self._progress_of(node)
        drain = self._plan_drain(node, deadline)
        try:
            await gather_all(
                *(self._delete(p, node, deadline) for p in drain.force),
                *(self._evict(p, node) for p in drain.evict),
            )
        except ApiError:
            await self._set_draining(node, claim)
            raise
        lost = [p for p in drain.waiting if _is_lost(p, progress)]
        await self._restart_gangs(node, lost)
        if _holds(self._current(claim), INSTANCE_TERMINATING):
            return True
        is_taint_seen = _holds(claim, DRAINED) or self.clock() - progress.tainted_at >= TAINT_DELAY
        if not drain.is_done:
            await self._report_waiting(node, drain.waiting)
        if not drain.is_done or not is_taint_seen:
            await self._set_draining(node, claim)
            return False
        if not _holds(claim, DRAINED):
            await self._set(claim, DRAINED, "True")
            log.info("drained node", extra={"Node": node.metadata.name})
            if not progress.is_counted:
                progress.is_counted = True
                self.metrics.record_drain(node, _reason(claim), pods=len(progress.removed))
        return True

    async def _set_draining(self, node: Node, claim: NodeClaim | None) -> None:
        """Set the condition `Drained` to Unknown, with what refuses evictions beside budgets."""
        if why := self.eviction.refusal(node):
            message = f"cannot evict pod {why}"[:MESSAGE_LIMIT]
            await self._set(claim, DRAINED, "Unknown", reason="EvictionRefused", message=message)
            return
        # The message does not name pods: each pod would cost a write of the status.
        await self._set(claim, DRAINED, "Unknown", reason="Draining", message="Draining")

    async def _restart_gangs(self, node: Node, lost: Sequence[Pod]) -> None:
        if self.gangs is not None:
            await self.gangs.follow(node, lost)

    async def _report_waiting(self, node: Node, pods: Sequence[Pod]) -> None:
        waiting = "1 pod is" if len(pods) == 1 else f"{len(pods)} pods are"
        message = f"Failed to drain node, {waiting} waiting to be evicted"
        now = self.clock()
        if protected := min((p.key for p in pods if forbids_disruption(p, now)), default=""):
            message += f', pod has "{labels.DO_NOT_DISRUPT}" annotation (Pod={protected})'
        await self.recorder.publish(
            node, "Warning", "FailedDraining", message, dedupe_by="pods are waiting"
        )

    def _progress_of(self, node: Node) -> _Progress:
        now = self.clock()
        progress = self._progress.setdefault(node.metadata.uid, _Progress(now))
        progress.tainted_at = first_past(now, progress.tainted_at)
        return progress

    def _plan_drain(self, node: Node, deadline: datetime | None) -> Drain:
        return plan_drain(
            self.cluster.pods_on(node.metadata.name),
            allocatable=parse_resources(node.status.allocatable),
            deadline=deadline,
            now=self.clock(),
        )

    async def _delete(self, pod: Pod, node: Node, deadline: datetime | None) -> None:
        assert deadline is not None  # without a deadline no pod is force-deleted
        await self.eviction.force(pod, node, deadline=deadline, now=self.clock())
        self._progress_of(node).removed.add(pod.metadata.uid)

    async def _evict(self, pod: Pod, node: Node) -> None:
        """Evict the pod unless its Deployment replaces it first."""
        if self.surge is not None and await self.surge.keeps(pod, node):
            return
        if await self.eviction.evict(pod, node):
            self._progress_of(node).removed.add(pod.metadata.uid)

    async def _are_volumes_detached(
        self, node: Node, claim: NodeClaim | None, deadline: datetime | None
    ) -> bool:
        claim = self._current(claim)
        if _holds(claim, INSTANCE_TERMINATING):
            return True
        now = self.clock()
        # Volumes of pods that are not evicted (DaemonSet and static pods) never detach.
        stay = [p for p in self.cluster.pods_on(node.metadata.name) if not is_drainable(p, now)]
        held = attached_volumes(self.cluster, node.metadata.name, but_not_of=stay)
        if not held:
            await self._set(claim, VOLUMES_DETACHED, "True")
            return True
        if deadline is not None and now >= deadline:
            await self._set(
                claim,
                VOLUMES_DETACHED,
                "False",
                reason="TerminationGracePeriodElapsed",
                message=f"Volumes are still attached: {', '.join(held[:5])}",
            )
            return True
        await self.recorder.publish(
            node,
            "Normal",
            "AwaitingVolumeDetachment",
            f"Awaiting deletion of volume attachments ({', '.join(held[:5])})",
        )
        await self._set(
            claim,
            VOLUMES_DETACHED,
            "Unknown",
            reason="AwaitingVolumeDetachment",
            message="AwaitingVolumeDetachment",
        )
        return False

    async def _instance_gone(
        self, node: Node, claim: NodeClaim | None, deadline: datetime | None
    ) -> bool:
        if claim is None:
            # The NodeClaim's finalizer was removed: garbage collection terminates the instance.
            return True
        if not _holds(self._current(claim), INSTANCE_TERMINATING):
            await self._read_pods(node)
            if not self._plan_drain(node, deadline).is_done:
                return False  # a pod was bound meanwhile, or its watch event is late
            log.info(
                "terminating instance of drained node",
                extra={
                    "Node": node.metadata.name,
                    "NodeClaim": claim.metadata.name,
                    "provider-id": node.spec.provider_id,
                    "reason": reason_for_end(claim),
                },
            )
        claim = self._current(claim) or claim
        with contextlib.suppress(NotFoundError):
            return await terminate(self.ports, claim, node.spec.provider_id)
        return False

    async def _read_pods(self, node: Node) -> None:
        """Read the node's pods from the API server, because a late watch does not report them."""
        selector = f"spec.nodeName={node.metadata.name}"
        for pod in await self.api.list(POD, field_selector=selector):
            self.cluster.observe(POD, pod)

    async def _finish(self, node: Node) -> None:
        # The list is that of the Node as read. Other controllers remove their finalizers at the
        # same time, and the API server refuses a list that adds one again.
        left = [f for f in node.metadata.finalizers if f != labels.TERMINATION_FINALIZER]
        with contextlib.suppress(NotFoundError):
            await apply_patch(self.ports, node, {"metadata": {"finalizers": left}})
            self.metrics.record_node_termination(node, self.clock())
            log.info("deleted node", extra={"Node": node.metadata.name})
        self._progress.pop(node.metadata.uid, None)
        self.eviction.forget(node)
        if self.surge is not None:
            self.surge.forget(node)
        if self.gangs is not None:
            self.gangs.forget(node)

    def _current(self, claim: NodeClaim | None) -> NodeClaim | None:
        return self.cluster.get(NODE_CLAIM, claim.metadata.name) if claim is not None else None

    async def _set(
        self,
        claim: NodeClaim | None,
        kind: str,
        status: conditions.ConditionStatus,
        *,
        reason: str = "",
        message: str = "",
    ) -> None:
        claim = self._current(claim)
        if claim is None:
            return
        with contextlib.suppress(NotFoundError):
            await with_condition(self.ports, claim, kind, status, reason=reason, message=message)


def _is_lost(pod: Pod, progress: _Progress) -> bool:
    return pod.metadata.is_deleting or pod.metadata.uid in progress.removed


def _holds(claim: NodeClaim | None, kind: str) -> bool:
    return claim is not None and conditions.is_true(claim.status.conditions, kind)


def _reason(claim: NodeClaim | None) -> str:
    return "" if claim is None else reason_for_end(claim)


def attached_volumes(cluster: Cluster, node_name: str, *, but_not_of: Iterable[Pod]) -> list[str]:
    """Return the names of the PersistentVolumes attached to a node, sorted.

    Volumes of the pods `but_not_of` are left out.
    """
    stay = {volume for pod in but_not_of for volume in _volumes(cluster, pod)}
    names = (a.spec.source.persistent_volume_name for a in cluster.attachments_to(node_name))
    return sorted(name for name in names if name is not None and name not in stay)


def _volumes(cluster: Cluster, pod: Pod) -> Iterable[str]:
    for volume in pod.spec.volumes:
        if volume.persistent_volume_claim is not None:
            name = volume.persistent_volume_claim.claim_name
        elif volume.ephemeral is not None:
            name = f"{pod.metadata.name}-{volume.name}"
        else:
            continue
        claim = cluster.get(PERSISTENT_VOLUME_CLAIM, name, pod.metadata.namespace)
        if claim is not None and claim.spec.volume_name:
            yield claim.spec.volume_name
