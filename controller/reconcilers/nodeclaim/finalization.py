"""Takes a NodeClaim down: its Node first, then its instance, then the finalizer."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass
from datetime import timedelta

from controller.apis import durations, labels
from controller.apis.kinds import NODE, NODE_CLAIM
from controller.apis.nodeclaim import INSTANCE_TERMINATING, NodeClaim
from controller.apis.nodes import Node
from controller.apiserver.errors import NotFoundError
from controller.apiserver.port import ApiServer
from controller.cloudprovider.errors import NodeClaimNotFoundError
from controller.cloudprovider.provider import CloudProvider
from controller.reconcilers.clock import Clock
from controller.reconcilers.writing import patched, with_condition
from controller.state.cluster import Cluster
from controller.telemetry.events import EventType, Recorder
from controller.telemetry.metrics import Metrics

NODE_WAIT = timedelta(seconds=10)
INSTANCE_POLL = timedelta(seconds=1)
"""How often the cloud is asked whether an instance is gone. Karpenter waits 5 s; the calls are
joined into batches, so asking sooner costs nothing and frees the finalizer sooner."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finalization:
    """Moves a claim that is being deleted as far as it can go now."""

    api: ApiServer
    cloud: CloudProvider
    cluster: Cluster
    recorder: Recorder
    metrics: Metrics
    clock: Clock

    async def reconcile(self, claim: NodeClaim) -> timedelta | None:
        """Take the next steps; returns when to look again, None once the finalizer is off."""
        if labels.TERMINATION_FINALIZER not in claim.metadata.finalizers:
            return None
        claim = await self._deadline(claim)
        nodes = self._nodes(claim)
        if nodes:
            for node in nodes:
                await self._delete_node(node)
            return NODE_WAIT
        if not await self._instance_gone(claim):
            return INSTANCE_POLL
        await self._drop_finalizer(claim)
        return None

    def _nodes(self, claim: NodeClaim) -> list[Node]:
        """Return the nodes that must have gone before the claim does, whoever else holds them."""
        return list(self.cluster.nodes_of(claim)) if claim.status.provider_id else []

    async def _deadline(self, claim: NodeClaim) -> NodeClaim:
        """Write down when the drain turns to force, once."""
        grace = durations.parse(claim.spec.termination_grace_period)
        deletion = claim.metadata.deletion_timestamp
        if grace is None or deletion is None:
            return claim
        if claim.drain_deadline is not None:
            return claim
        deadline = (deletion + grace).strftime("%Y-%m-%dT%H:%M:%SZ")
        claim = await patched(
            self.api,
            self.cluster,
            NODE_CLAIM,
            claim,
            {"metadata": {"annotations": {labels.TERMINATION_TIMESTAMP: deadline}}},
        )
        told: tuple[EventType, str, str] = (
            "Warning",
            "TerminationGracePeriodExpiring",
            f"Pods that are still there will be deleted so that they end by {deadline}",
        )
        await self.recorder.publish(NODE_CLAIM, claim, *told)
        for node in self._nodes(claim):
            await self.recorder.publish(NODE, node, *told)
        return claim

    async def _delete_node(self, node: Node) -> None:
        if node.metadata.is_deleting:
            return
        try:
            await self.api.delete(NODE, node.metadata.name, uid=node.metadata.uid)
        except NotFoundError:
            return

    async def _instance_gone(self, claim: NodeClaim) -> bool:
        # A claim whose launch was cut off has no provider ID but may have an instance:
        # the cloud finds it by the claim's tag.
        provider_id = claim.status.provider_id or await self._orphan(claim)
        if not provider_id:
            return True
        try:
            await self.cloud.terminate(provider_id)
        except NodeClaimNotFoundError:
            return True
        await with_condition(
            self.api, self.cluster, claim, INSTANCE_TERMINATING, "True", now=self.clock()
        )
        return False

    async def _orphan(self, claim: NodeClaim) -> str:
        instance = await self.cloud.launched_for(claim)
        return instance.provider_id if instance is not None else ""

    async def _drop_finalizer(self, claim: NodeClaim) -> None:
        left = [f for f in claim.metadata.finalizers if f != labels.TERMINATION_FINALIZER]
        with contextlib.suppress(NotFoundError):
            await patched(
                self.api, self.cluster, NODE_CLAIM, claim, {"metadata": {"finalizers": left}}
            )
        self.metrics.terminated(claim, self.clock())
        log.info(
            "deleted nodeclaim",
            extra={"NodeClaim": claim.metadata.name, "provider-id": claim.status.provider_id},
        )
