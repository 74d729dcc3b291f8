"""Resolves an EC2NodeClass: subnets, security groups, AMIs, profile; and finalizes it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from controller.apis import labels
from controller.apis.karpenter import hashes
from controller.apis.karpenter.ec2nodeclass import EC2NodeClass
from controller.apis.karpenter.nodeclaim import NodeClaim
from controller.apis.karpenter.nodeclasscauses import explain
from controller.apis.kinds import EC2_NODE_CLASS
from controller.apis.kubernetes import conditions
from controller.reconcilers.ports import Ports, PortUser
from controller.reconcilers.rehashing import update_hashes
from controller.reconcilers.writing import apply_patch, status_patch
from controller.telemetry.events import EventType

PERIOD = timedelta(minutes=1)
UNREADY_PERIOD = timedelta(seconds=10)
"""How often an EC2NodeClass that is not ready is resolved again: a user may be correcting it."""

CLAIMS_WAIT = timedelta(seconds=10)

UNMATCHED: tuple[tuple[EventType, str], ...] = (
    ("Warning", "AMINotFound"),
    ("Warning", "SecurityGroupsNotFound"),
    ("Warning", "SubnetsNotFound"),
)
"""The events about a selector that matches nothing; the reason is that of the condition."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Resolver(PortUser):
    """Resolves an EC2NodeClass through the AWS API, and writes its status when it changes."""

    ports: Ports
    ca_bundle: str = ""

    async def reconcile(self, name: str) -> timedelta | None:
        """Resolve the EC2NodeClass, or finalize it; returns when to run again."""
        node_class = self.cluster.get(EC2_NODE_CLASS, name)
        if node_class is None:
            return None
        if node_class.metadata.is_deleting:
            return await self._finalize(node_class)
        node_class = await self._metadata(node_class)
        resolved = await self.cloud.resolve(node_class, now=self.clock())
        if resolved.status != node_class.status:
            patch = status_patch(node_class.status, resolved.status)
            await apply_patch(self.ports, node_class, patch, subresource="status")
        await self._report(resolved)
        ready = conditions.is_true(resolved.status.conditions, "Ready")
        return PERIOD if ready else UNREADY_PERIOD

    async def _report(self, node_class: EC2NodeClass) -> None:
        """Publish what to change if a selector matches nothing: the condition does not say it."""
        for type_, reason in UNMATCHED:
            for condition in node_class.status.conditions:
                if condition.is_false and condition.reason == reason:
                    message = explain(node_class, condition)
                    await self.recorder.publish(node_class, type_, reason, message)

    async def _metadata(self, node_class: EC2NodeClass) -> EC2NodeClass:
        wanted = {
            labels.NODECLASS_HASH: hashes.node_class_hash(node_class, ca_bundle=self.ca_bundle),
            labels.NODECLASS_HASH_VERSION: hashes.NODE_CLASS_VERSION,
        }
        patch: dict[str, object] = {}
        if any(node_class.metadata.annotations.get(k) != v for k, v in wanted.items()):
            patch["annotations"] = wanted
            version = labels.NODECLASS_HASH_VERSION
            if node_class.metadata.annotations.get(version) != wanted[version]:
                users = self._users(node_class.metadata.name)
                await update_hashes(self.ports, users, wanted, version=version)
        if labels.NODECLASS_FINALIZER not in node_class.metadata.finalizers:
            patch["finalizers"] = [*node_class.metadata.finalizers, labels.NODECLASS_FINALIZER]
        if not patch:
            return node_class
        return await apply_patch(self.ports, node_class, {"metadata": patch})

    async def _finalize(self, node_class: EC2NodeClass) -> timedelta | None:
        name = node_class.metadata.name
        if labels.NODECLASS_FINALIZER not in node_class.metadata.finalizers:
            return None
        users = [c.metadata.name for c in self._users(name)]
        if users:
            await self.recorder.publish(
                node_class,
                "Normal",
                "WaitingOnNodeClaimTermination",
                f"Waiting on NodeClaim termination for {', '.join(users[:5])}",
            )
            return CLAIMS_WAIT
        await self.cloud.release(node_class)
        left = [f for f in node_class.metadata.finalizers if f != labels.NODECLASS_FINALIZER]
        await apply_patch(self.ports, node_class, {"metadata": {"finalizers": left}})
        log.info("deleted nodeclass", extra={"EC2NodeClass": name})
        return None

    def _users(self, name: str) -> Sequence[NodeClaim]:
        return self.cluster.claims_of_class(name)
