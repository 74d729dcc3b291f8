"""Walks a Node that is being deleted to its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from controller.apis import conditions, labels
from controller.apis.kinds import NODE, NODE_CLAIM
from controller.apis.meta import to_wire
from controller.apis.nodeclaim import (
    DISRUPTION_REASON,
    DRAINED,
    INSTANCE_TERMINATING,
    VOLUMES_DETACHED,
    NodeClaim,
)
from controller.apis.nodes import Node
from controller.apis.pods import Pod
from controller.apiserver.errors import NotFoundError
from controller.apiserver.port import ApiServer
from controller.cloudprovider.errors import CloudProviderError, NodeClaimNotFoundError
from controller.cloudprovider.provider import CloudProvider
from controller.constraints.resources import parsed
from controller.disruption.pods import DISRUPTED, is_drainable
from controller.reconcilers.clock import Clock, noted
from controller.reconcilers.termination import volumes
from controller.reconcilers.termination.drain import look
from controller.reconcilers.termination.eviction import Eviction
from controller.reconcilers.termination.surge import Surge
from controller.reconcilers.writing import patched, with_condition
from controller.state.cluster import Cluster
from controller.telemetry.events import Recorder
from controller.telemetry.metrics import Metrics

POLL = timedelta(seconds=1)
SETTLE = timedelta(seconds=5)
"""Time after the taint in which the scheduler may still bind a pod it had already decided on.

It runs from when the terminator first sees the taint, whoever set it, and when that was.
"""

READY_POLL = timedelta(seconds=10)
"""How often the cloud is asked about an instance whose node still says Ready: a kubelet that is
gone is noticed after 40 s, and a drain may take hours."""

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Terminator:
    """Taints, drains, waits for volumes, terminates the instance, drops the finalizer."""

    api: ApiServer
    cloud: CloudProvider
    cluster: Cluster
    recorder: Recorder
    metrics: Metrics
    clock: Clock
    eviction: Eviction
    surge: Surge | None = None
    _tainted_at: dict[str, datetime] = field(default_factory=dict)
    _asked_at: dict[str, datetime] = field(default_factory=dict)
    _evicted: Counter[str] = field(default_factory=Counter)

    async def reconcile(self, name: str) -> timedelta | None:
        """Take the node's next steps; returns when to look again, None when there are none."""
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
        if await self._instance_vanished(node):
            await self._finish(node)
            return None
        node = await self._taint(node)
        deadline = claim.drain_deadline if claim is not None else None
        done = (
            await self._drained(node, claim, deadline)
            and await self._volumes_detached(node, claim, deadline)
            and await self._instance_gone(node, claim)
        )
        if not done:
            return POLL
        await self._finish(node)
        return None

    async def _delete_claim(self, claim: NodeClaim) -> None:
        try:
            await self.api.delete(NODE_CLAIM, claim.metadata.name, uid=claim.metadata.uid)
        except NotFoundError:
            return

    async def _instance_vanished(self, node: Node) -> bool:
        """Whether the instance is gone; asked rarely while its kubelet was heard a moment ago."""
        now = self.clock()
        uid = node.metadata.uid
        asked_at = self._asked_at.get(uid)
        if (
            conditions.is_true(node.status.conditions, "Ready")
            and asked_at is not None
            and asked_at <= now < asked_at + READY_POLL
        ):
            return False
        self._asked_at[uid] = now
        try:
            await self.cloud.get(node.spec.provider_id)
        except NodeClaimNotFoundError:
            return True
        except CloudProviderError as error:
            # Pods can go without the answer, and out of an impaired zone they should.
            log.warning(
                "cannot tell whether the instance still exists",
                extra={"Node": node.metadata.name, "error": str(error)},
            )
        return False

    async def _taint(self, node: Node) -> Node:
        """Keep pods and load balancers off the node; disruption may have set the taint before."""
        if DISRUPTED in node.spec.taints and (
            labels.EXCLUDE_FROM_LOAD_BALANCERS in node.metadata.labels
        ):
            return node
        taints = [*(t for t in node.spec.taints if t.key != DISRUPTED.key), DISRUPTED]
        patch = {
            "spec": {"taints": to_wire(taints)},
            "metadata": {"labels": {labels.EXCLUDE_FROM_LOAD_BALANCERS: "karpenter"}},
        }
        updated = await patched(self.api, self.cluster, NODE, node, patch)
        log.info("tainted node", extra={"Node": node.metadata.name})
        return updated

    async def _drained(
        self, node: Node, claim: NodeClaim | None, deadline: datetime | None
    ) -> bool:
        if _holds(claim, DRAINED):
            return True
        now, uid = self.clock(), node.metadata.uid
        tainted_at = self._tainted_at[uid] = noted(self._tainted_at.get(uid), now)
        drain = look(
            self.cluster.pods_on(node.metadata.name),
            room=parsed(node.status.allocatable),
            deadline=deadline,
            now=now,
        )
        if deadline is not None:
            await asyncio.gather(
                *(self.eviction.force(p, deadline=deadline, now=now) for p in drain.force)
            )
        gone = await asyncio.gather(*(self._let_go(p, node) for p in drain.evict))
        self._evicted[uid] += sum(gone) + len(drain.force)
        if not drain.is_done or now - tainted_at < SETTLE:
            await self._set(
                claim, DRAINED, "Unknown", reason="Draining", message=_waiting_for(drain.waiting)
            )
            return False
        pods = self._evicted.pop(uid, 0)
        self.metrics.drained(node, _reason(claim), pods=pods)
        await self._set(claim, DRAINED, "True")
        log.info("drained node", extra={"Node": node.metadata.name})
        return True

    async def _let_go(self, pod: Pod, node: Node) -> bool:
        """Evict the pod unless its Deployment takes it away itself; returns whether it goes."""
        if self.surge is not None and await self.surge.keeps(pod, node):
            return False
        return await self.eviction.evict(pod, node)

    async def _volumes_detached(
        self, node: Node, claim: NodeClaim | None, deadline: datetime | None
    ) -> bool:
        claim = self._current(claim)
        if _holds(claim, VOLUMES_DETACHED):
            return True
        now = self.clock()
        # Volumes of pods that stay with the node (daemons, static pods) never detach.
        stay = [p for p in self.cluster.pods_on(node.metadata.name) if not is_drainable(p, now)]
        held = volumes.attached(self.cluster, node.metadata.name, but_not_of=stay)
        if not held:
            await self._set(claim, VOLUMES_DETACHED, "True")
            return True
        if deadline is not None and now >= deadline:
            await self._set(
                claim,
                VOLUMES_DETACHED,
                "False",
                reason="TerminationGracePeriodElapsed",
                message=f"still attached: {', '.join(held[:5])}",
            )
            return True
        await self.recorder.publish(
            NODE,
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
            message=f"{len(held)} volumes are still attached",
        )
        return False

    async def _instance_gone(self, node: Node, claim: NodeClaim | None) -> bool:
        if claim is None:
            # Someone took the claim away by force: the instance is the collector's to find.
            return True
        try:
            await self.cloud.terminate(node.spec.provider_id)
        except NodeClaimNotFoundError:
            return True
        await self._set(self._current(claim), INSTANCE_TERMINATING, "True")
        return False

    async def _finish(self, node: Node) -> None:
        # As it was read: others take finalizers of theirs off in the same moment, and a list
        # that still has one of those would be refused.
        left = [f for f in node.metadata.finalizers if f != labels.TERMINATION_FINALIZER]
        with contextlib.suppress(NotFoundError):
            await patched(self.api, self.cluster, NODE, node, {"metadata": {"finalizers": left}})
            self.metrics.node_terminated(node, self.clock())
            log.info("deleted node", extra={"Node": node.metadata.name})
        self._tainted_at.pop(node.metadata.uid, None)
        self._asked_at.pop(node.metadata.uid, None)
        self.eviction.forget(node)
        if self.surge is not None:
            self.surge.forget(node)

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
        if claim is None:
            return
        with contextlib.suppress(NotFoundError):
            await with_condition(
                self.api, self.cluster, claim, kind, status,
                reason=reason, message=message, now=self.clock(),
            )  # fmt: skip


def _holds(claim: NodeClaim | None, kind: str) -> bool:
    return claim is not None and conditions.is_true(claim.status.conditions, kind)


def _reason(claim: NodeClaim | None) -> str:
    if claim is None:
        return ""
    reason = conditions.find(claim.status.conditions, DISRUPTION_REASON)
    return reason.reason if reason else "Forceful Termination"


def _waiting_for(pods: tuple[Pod, ...]) -> str:
    if not pods:
        return "waiting for the scheduler to see the taint"
    named = ", ".join(p.key for p in pods[:5])
    return f"{len(pods)} pods are waiting to be evicted: {named}"
