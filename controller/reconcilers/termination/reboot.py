"""Reboots the node of a NodeClaim for repair: taint, drain, reboot, and wait for the new boot.

The progress is recorded in the NodeClaim's conditions `Rebooting` and `Initialized` and in its
annotation with the boot ID, so that another leader can continue. A node that does not become Ready
again is replaced.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from controller.apis import labels
from controller.apis.karpenter import durations
from controller.apis.karpenter.nodeclaim import INITIALIZED, REBOOTING, NodeClaim
from controller.apis.kinds import NODE_CLAIM
from controller.apis.kubernetes import conditions
from controller.apis.kubernetes.meta import to_wire
from controller.apis.kubernetes.nodes import Node
from controller.apis.kubernetes.taints import Taint
from controller.apiserver.errors import NotFoundError
from controller.cloudprovider.errors import (
    CloudProviderError,
    NodeClaimNotFoundError,
    RebootRefusedError,
)
from controller.constraints import taints
from controller.constraints.resources import parse_resources
from controller.disruption.methods.repair import reboots
from controller.reconcilers.concurrency import gather_all
from controller.reconcilers.ports import Ports, PortUser
from controller.reconcilers.termination.drain import plan_drain
from controller.reconcilers.termination.eviction import Eviction
from controller.reconcilers.termination.gangrestart import GangRestart
from controller.reconcilers.writing import apply_patch, delete, with_condition, with_drain_until

POLL = timedelta(seconds=5)

SHORTEST_DRAIN = timedelta(seconds=5)
"""The shortest drain: kube-scheduler may still bind a pod that it scheduled before the taint."""

ISSUANCE = timedelta(minutes=5)
"""How long the request to the cloud is retried, from its first attempt by this process."""

OBSERVATION = timedelta(minutes=20)
"""How long the node may take to become Ready with another boot ID."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Reboots(PortUser):
    """Carries out the reboots that the disruption method `repair` requests."""

    ports: Ports
    eviction: Eviction
    gangs: GangRestart | None = None
    _tried: dict[str, datetime] = field(default_factory=dict)
    """The time of the first request to the cloud, by the NodeClaim's UID."""

    async def reconcile(self, name: str) -> timedelta | None:
        """Take the next step of a reboot; returns when to continue, None if no step remains."""
        claim = self.cluster.get(NODE_CLAIM, name)
        if claim is None or claim.metadata.is_deleting or not self.cluster.is_adopted(claim):
            return None
        asked = conditions.find(claim.status.conditions, REBOOTING)
        if asked is None or not asked.is_true:
            return None
        node = self.cluster.node_of(claim)
        overdue = self._overdue_result(claim, asked)
        if overdue is not None:
            await self._fail(claim, node, *overdue)
            return None
        if node is None:
            return POLL
        if asked.reason == "RebootIssued":
            return await self._observe(claim, node)
        return await self._request(claim, node, asked)

    async def _request(
        self, claim: NodeClaim, node: Node, asked: conditions.Condition
    ) -> timedelta | None:
        """Taint and drain the node, and have the cloud reboot it."""
        try:
            bound = _drain_bound(claim)
        except ValueError as error:
            await self._refuse(claim, node, f"invalid reboot request: {error}")
            return None
        if not any(taints.are_same(taint, taints.REBOOTING) for taint in node.spec.taints):
            await self._write_taints(node, [*node.spec.taints, taints.REBOOTING])
            return POLL
        before = claim.metadata.annotations.get(labels.REBOOT_PRE_BOOT_ID)
        boot = node.status.node_info.boot_id
        if before is None:
            if not await self._drain(node, bound, _since(asked)):
                return POLL
            now = self.clock()
            # A reboot counts once it is requested from the cloud, not if it is refused before.
            times = [at.isoformat() for at in (*reboots(claim, now), now)]
            annotations = {
                labels.REBOOT_PRE_BOOT_ID: boot,
                labels.REBOOTED_AT: ",".join(times),
            }
            annotated = {"metadata": {"annotations": annotations}}
            claim = await apply_patch(self.ports, claim, annotated)
        elif before != boot:
            return await self._record_reboot(claim, node, asked)
        self._tried.setdefault(claim.metadata.uid, self.clock())
        try:
            await self.cloud.reboot(claim.status.provider_id)
        except (NodeClaimNotFoundError, RebootRefusedError) as error:
            why = f"reboot rejected by the cloud provider: {error}"
            await self._fail(claim, node, "provider_error", why)
            return None
        except CloudProviderError as error:
            log.warning(
                "cannot reboot instance; retrying",
                extra={
                    "NodeClaim": claim.metadata.name,
                    "Node": node.metadata.name,
                    "provider-id": claim.status.provider_id,
                    "error": str(error),
                },
            )
            return POLL
        return await self._record_reboot(claim, node, asked)

    async def _drain(self, node: Node, bound: timedelta | None, since: datetime) -> bool:
        """Evict pods, and delete none; returns whether no pod delays the reboot."""
        if bound == timedelta(0):
            return True
        now = self.clock()
        if bound is not None and now >= since + max(bound, SHORTEST_DRAIN):
            return True
        drain = plan_drain(
            self.cluster.pods_on(node.metadata.name),
            allocatable=parse_resources(node.status.allocatable),
            deadline=None,
            now=now,
        )
        evicted = await gather_all(*(self.eviction.evict(pod, node) for pod in drain.evict))
        if self.gangs is not None:
            lost = [pod for pod, done in zip(drain.evict, evicted, strict=True) if done]
            lost += [pod for pod in drain.waiting if pod.metadata.is_deleting]
            await self.gangs.follow(node, lost)
        return drain.is_done and now >= since + SHORTEST_DRAIN

    async def _record_reboot(
        self, claim: NodeClaim, node: Node, asked: conditions.Condition
    ) -> timedelta | None:
        claim = await with_condition(
            self.ports,
            claim,
            INITIALIZED,
            "Unknown",
            reason="Rebooting",
            message="node is rebooting",
        )
        await with_condition(
            self.ports, claim, REBOOTING, "True", reason="RebootIssued", message=asked.message
        )
        fields = {
            "NodeClaim": claim.metadata.name,
            "Node": node.metadata.name,
            "provider-id": claim.status.provider_id,
            "why": asked.message,
        }
        log.info("rebooting instance", extra=fields)
        await self._forget_initialization(node)
        return POLL

    async def _forget_initialization(self, node: Node) -> None:
        if labels.INITIALIZED in node.metadata.labels:
            without = {"metadata": {"labels": {labels.INITIALIZED: None}}}
            await apply_patch(self.ports, node, without)

    async def _observe(self, claim: NodeClaim, node: Node) -> timedelta | None:
        """Wait until the node is Ready after another boot."""
        await self._forget_initialization(node)
        if node.status.node_info.boot_id == claim.metadata.annotations.get(
            labels.REBOOT_PRE_BOOT_ID
        ):
            return POLL
        if any(taints.are_same(taint, taints.REBOOTING) for taint in node.spec.taints):
            await self._untaint(node)
            await self.recorder.publish(claim, "Normal", "RebootObserved", "Node booted again")
            return POLL
        if not conditions.is_true(node.status.conditions, "Ready"):
            return POLL
        issued = conditions.find(claim.status.conditions, INITIALIZED)
        if issued is not None:
            self.metrics.record_reboot_recovery(self.clock() - _since(issued))
        await self._end(claim, "RebootSucceeded", "node rebooted and rejoined the cluster")
        self._count(claim, "succeeded")
        return None

    def _overdue_result(
        self, claim: NodeClaim, asked: conditions.Condition
    ) -> tuple[str, str] | None:
        """Return the result and the reason of a reboot that takes too long, or None."""
        now = self.clock()
        issued = conditions.find(claim.status.conditions, INITIALIZED)
        if asked.reason == "RebootIssued":
            if issued is not None and now > _since(issued) + OBSERVATION:
                return "recovery_timeout", "node did not recover within the observation window"
            return None
        tried = self._tried.get(claim.metadata.uid)
        if tried is not None and now > tried + ISSUANCE:
            return "provider_error", "reboot was not issued within the issuance timeout"
        return None

    async def _fail(self, claim: NodeClaim, node: Node | None, result: str, why: str) -> None:
        """Replace the node, as repair would have done without a reboot."""
        if node is not None:
            await self._untaint(node)
        bound = None
        with contextlib.suppress(ValueError):  # the NodeClaim's own bound applies
            bound = _drain_bound(claim)
        if bound is not None:
            try:
                await with_drain_until(self.ports, claim, self.clock() + bound)
            except NotFoundError:
                return
        if not await delete(self.api, claim):
            return
        fields = {
            "NodeClaim": claim.metadata.name,
            "Node": claim.status.node_name,
            "provider-id": claim.status.provider_id,
            "why": why,
        }
        log.info("reboot failed, replacing node", extra=fields)
        await self.recorder.publish(claim, "Warning", "RebootFailed", why)
        self._count(claim, result)

    async def _refuse(self, claim: NodeClaim, node: Node, why: str) -> None:
        """End a reboot that cannot be carried out; the node stays, as in Karpenter.

        Repair requests the reboot again once the condition is no longer tolerated.
        """
        await self._untaint(node)
        await self._end(claim, "RebootFailed", why)
        await self.recorder.publish(claim, "Warning", "RebootFailed", why)
        self._count(claim, "invalid_request")

    async def _end(self, claim: NodeClaim, reason: str, message: str) -> None:
        without = {"metadata": {"annotations": {labels.REBOOT_PRE_BOOT_ID: None}}}
        claim = await apply_patch(self.ports, claim, without)
        await with_condition(self.ports, claim, REBOOTING, "False", reason=reason, message=message)
        fields = {
            "NodeClaim": claim.metadata.name,
            "Node": claim.status.node_name,
            "provider-id": claim.status.provider_id,
            "why": message,
        }
        log.info("reboot ended", extra=fields)

    def _count(self, claim: NodeClaim, result: str) -> None:
        self._tried.pop(claim.metadata.uid, None)
        asked = conditions.find(claim.status.conditions, REBOOTING)
        if asked is not None:
            self.metrics.record_reboot(result, self.clock() - _since(asked))

    async def _untaint(self, node: Node) -> None:
        left = [taint for taint in node.spec.taints if not taints.are_same(taint, taints.REBOOTING)]
        if len(left) < len(node.spec.taints):
            await self._write_taints(node, left)

    async def _write_taints(self, node: Node, every: list[Taint]) -> None:
        patch = {"spec": {"taints": to_wire(every) or None}}
        await apply_patch(self.ports, node, patch)


def _drain_bound(claim: NodeClaim) -> timedelta | None:
    """Return how long the drain before a reboot may take; None without a bound.

    Raises:
        ValueError: the NodeClaim's annotation is not a duration.

    """
    return durations.parse(claim.metadata.annotations.get(labels.REBOOT_TERMINATION_GRACE_PERIOD))


def _since(condition: conditions.Condition) -> datetime:
    """Return the time of a condition's last transition; this controller always writes it."""
    assert condition.last_transition_time is not None
    return condition.last_transition_time
