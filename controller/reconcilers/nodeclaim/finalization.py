"""Finalizes a NodeClaim: deletes its Node, terminates its instance, removes the finalizer."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass
from datetime import timedelta

from controller.apis import labels
from controller.apis.karpenter import durations
from controller.apis.karpenter.nodeclaim import INSTANCE_TERMINATING, NodeClaim
from controller.apis.kubernetes import conditions
from controller.apis.kubernetes.nodes import Node
from controller.apiserver.errors import NotFoundError
from controller.reconcilers.instances import terminate
from controller.reconcilers.ports import Ports, PortUser
from controller.reconcilers.writing import apply_patch, delete, reason_for_end

NODE_WAIT = timedelta(seconds=10)
INSTANCE_POLL = timedelta(seconds=1)
"""How often to read from EC2 whether an instance is terminated. Karpenter waits 5 s. Joiner batches
the calls, so that it can read more often and remove the finalizer sooner."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Finalization(PortUser):
    """Advances a NodeClaim that is being deleted as far as possible."""

    ports: Ports

    async def reconcile(self, claim: NodeClaim) -> timedelta | None:
        """Take the next steps; returns when to continue, None once the finalizer is removed."""
        if labels.TERMINATION_FINALIZER not in claim.metadata.finalizers:
            return None
        if not self.cluster.is_adopted(claim):
            return None  # the finalizer belongs to the controller that launched it
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
        """Return the Node objects that must be deleted before the NodeClaim."""
        return list(self.cluster.nodes_of(claim)) if claim.status.provider_id else []

    async def _deadline(self, claim: NodeClaim) -> NodeClaim:
        """Write the time of forced termination to the NodeClaim, once."""
        grace = durations.parse(claim.spec.termination_grace_period)
        deletion = claim.metadata.deletion_timestamp
        if grace is None or deletion is None:
            return claim
        if claim.drain_deadline is not None:
            return claim
        deadline = (deletion + grace).strftime("%Y-%m-%dT%H:%M:%SZ")
        claim = await apply_patch(
            self.ports,
            claim,
            {"metadata": {"annotations": {labels.TERMINATION_TIMESTAMP: deadline}}},
        )
        message = f"All pods will be deleted by {deadline}"
        await self.recorder.publish_all(
            (claim, *self._nodes(claim)), "Warning", "TerminationGracePeriodExpiring", message
        )
        return claim

    async def _delete_node(self, node: Node) -> None:
        if node.metadata.is_deleting:
            return
        await delete(self.api, node)

    async def _instance_gone(self, claim: NodeClaim) -> bool:
        # A claim whose launch was interrupted has no provider ID but may have an instance:
        # EC2 finds it by the claim's tag.
        provider_id = claim.status.provider_id or await self._orphan(claim)
        if not provider_id:
            return True
        if conditions.find(claim.status.conditions, INSTANCE_TERMINATING) is None:
            log.info(
                "terminating instance of deleted nodeclaim",
                extra={
                    "NodeClaim": claim.metadata.name,
                    "provider-id": provider_id,
                    "reason": reason_for_end(claim),
                },
            )
        return await terminate(self.ports, claim, provider_id)

    async def _orphan(self, claim: NodeClaim) -> str:
        instance = await self.cloud.launched_for(claim)
        return instance.provider_id if instance is not None else ""

    async def _drop_finalizer(self, claim: NodeClaim) -> None:
        left = [f for f in claim.metadata.finalizers if f != labels.TERMINATION_FINALIZER]
        with contextlib.suppress(NotFoundError):
            await apply_patch(self.ports, claim, {"metadata": {"finalizers": left}})
        self.metrics.record_termination(claim, self.clock())
        log.info(
            "deleted nodeclaim",
            extra={"NodeClaim": claim.metadata.name, "provider-id": claim.status.provider_id},
        )
