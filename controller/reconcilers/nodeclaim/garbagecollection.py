"""Deletes NodeClaims without an instance or node, and instances without a NodeClaim."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from controller.apis import labels
from controller.apis.karpenter.nodeclaim import LAUNCHED, REGISTERED, NodeClaim
from controller.apis.kinds import NODE, NODE_CLAIM
from controller.apis.kubernetes import conditions
from controller.apis.ownership import is_ours
from controller.cloudprovider.errors import CloudProviderError, NodeClaimNotFoundError
from controller.cloudprovider.provider import Instance
from controller.reconcilers.clock import first_past
from controller.reconcilers.ports import Ports, PortUser
from controller.reconcilers.writing import delete
from controller.state.pods import is_reschedulable

PERIOD = timedelta(minutes=2)
EAGER_PERIOD = timedelta(seconds=10)
LAUNCHING_PERIOD = timedelta(seconds=20)
LAUNCHING_FOR = timedelta(minutes=5)
"""How long to compare cluster and EC2 more often after a NodeClaim was created: after a crash, the
instances of a CreateFleet call for several NodeClaims may belong to none."""

EAGER_RUNS = 20
"""How many runs after a start use `EAGER_PERIOD`, because restarts leave most garbage."""

GRACE = timedelta(seconds=30)
"""An instance younger than this may belong to a NodeClaim whose status is not written yet."""

NODELESS = timedelta(minutes=5)
"""How long a registered NodeClaim may be without a Node: kubelet creates the Node again when it
starts, and a reboot takes a few minutes."""

STARTING = timedelta(minutes=2)
"""How long EC2 may not list a new instance. Afterwards, an instance that EC2 does not list counts
as terminated, so that its pods do not wait for the registration timeout."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class GarbageCollection(PortUser):
    """Deletes NodeClaims without instance or node, and Joiner's instances without NodeClaim."""

    ports: Ports
    runs: int = 0
    _nodeless: dict[str, datetime] = field(default_factory=dict)

    async def run_once(self) -> timedelta:
        """Compare cluster and EC2 once; returns when to compare again."""
        if self.cluster.synced:
            # First the checks without AWS calls, because AWS calls may fail.
            await self._report_changed_status()
            await self._claims_without_node()
            instances = await self.cloud.instances()
            await self._claims_without_instance(instances)
            await self._instances_without_claim(instances)
            self.runs += 1
        now, period = self.clock(), EAGER_PERIOD if self.runs < EAGER_RUNS else self._period()
        waits = (since + NODELESS - now for since in self._nodeless.values())
        return min([period, *(wait for wait in waits if wait > timedelta(0))])

    def _period(self) -> timedelta:
        """Return when to compare again: sooner after NodeClaims were created."""
        since, claims = self.clock() - LAUNCHING_FOR, self.cluster.list(NODE_CLAIM)
        is_recent = any((claim.metadata.creation_timestamp or since) > since for claim in claims)
        return LAUNCHING_PERIOD if is_recent else PERIOD

    def _claims(self) -> list[NodeClaim]:
        """Return the NodeClaims that this installation manages and that are not being deleted."""
        claims, is_adopted = self.cluster.list(NODE_CLAIM), self.cluster.is_adopted
        return [c for c in claims if is_ours(c) and is_adopted(c) and not c.metadata.is_deleting]

    async def _claims_without_instance(self, instances: Sequence[Instance]) -> None:
        alive = {instance.provider_id for instance in instances if not instance.deleting}
        stopped = {instance.provider_id for instance in instances if instance.stopped}
        for claim in self._claims():
            # The interruption message may have come before the NodeClaim named the instance.
            if claim.status.provider_id in stopped and not self._node_ready(claim):
                await self._delete(claim, "garbage collecting nodeclaim whose instance is stopped")
                continue
            lost = claim.status.provider_id not in alive and self._is_listed(claim)
            if not lost or self._node_ready(claim) or not await self._is_gone(claim):
                continue
            await self._delete(
                claim, "garbage collecting nodeclaim whose instance no longer exists in EC2"
            )

    def _is_listed(self, claim: NodeClaim) -> bool:
        """Whether EC2 lists the NodeClaim's instance if it exists."""
        if conditions.is_true(claim.status.conditions, REGISTERED):
            return True
        launched = conditions.find(claim.status.conditions, LAUNCHED)
        if launched is None or not launched.is_true:
            return False
        now, created = self.clock(), claim.metadata.creation_timestamp
        return now - first_past(now, launched.last_transition_time, created) >= STARTING

    async def _is_gone(self, claim: NodeClaim) -> bool:
        """Whether EC2 no longer has the instance.

        A list without it does not prove that, for example if it was launched after the list, or
        during a zonal shift of its zone.
        """
        try:
            instance = await self.cloud.get(claim.status.provider_id)
        except NodeClaimNotFoundError:
            return True
        except CloudProviderError as error:
            log.warning(
                "cannot check whether the instance of a nodeclaim exists; retrying",
                extra={
                    "NodeClaim": claim.metadata.name,
                    "provider-id": claim.status.provider_id,
                    "error": str(error),
                },
            )
            return False
        return instance.deleting

    async def _claims_without_node(self) -> None:
        """Delete registered NodeClaims whose Node was removed together with its finalizers.

        kube-scheduler can bind no pod there, but pending pods would wait for the NodeClaim.
        """
        now, nodes_of = self.clock(), self.cluster.nodes_of
        nodeless = [
            claim
            for claim in self._claims()
            if conditions.is_true(claim.status.conditions, REGISTERED) and not nodes_of(claim)
        ]
        self._nodeless = {
            claim.metadata.uid: first_past(now, self._nodeless.get(claim.metadata.uid))
            for claim in nodeless
        }
        late = [c for c in nodeless if now - self._nodeless[c.metadata.uid] >= NODELESS]
        if not late:
            return
        there = {node.spec.provider_id for node in await self.api.list(NODE)}
        for claim in late:
            if claim.status.provider_id not in there:
                await self._delete(claim, "garbage collecting nodeclaim whose node was deleted")

    async def _delete(self, claim: NodeClaim, why: str) -> None:
        fields = {"NodeClaim": claim.metadata.name, "provider-id": claim.status.provider_id}
        log.warning(why, extra=fields)
        self.metrics.record_disruption(
            claim, "garbage_collected", pods=self.cluster.moving_from(claim)
        )
        await delete(self.api, claim)

    def _node_ready(self, claim: NodeClaim) -> bool:
        return any(
            conditions.is_true(n.status.conditions, "Ready") for n in self.cluster.nodes_of(claim)
        )

    async def _instances_without_claim(self, instances: Sequence[Instance]) -> None:
        orphans = self._orphans(instances, self.cluster.list(NODE_CLAIM))
        if orphans:
            # The mirror may be out of date, so read the NodeClaims from the API server.
            orphans = self._orphans(orphans, await self.api.list(NODE_CLAIM))
        for instance in orphans:
            log.warning(
                "garbage collecting instance that has no nodeclaim",
                extra={"provider-id": instance.provider_id},
            )
            try:
                await self.cloud.terminate(instance.provider_id)
            except NodeClaimNotFoundError:
                pass
            except CloudProviderError as error:
                # One failure does not stop the other terminations.
                fields = {"provider-id": instance.provider_id, "error": str(error)}
                log.warning(
                    "cannot terminate instance that has no nodeclaim; retrying", extra=fields
                )
                continue
            await self._delete_node(instance.provider_id)

    def _orphans(
        self, instances: Iterable[Instance], claims: Sequence[NodeClaim]
    ) -> list[Instance]:
        """Return this installation's instances that belong to no NodeClaim, now or later."""
        known = {claim.status.provider_id for claim in claims}
        unknown = [
            instance
            for instance in instances
            if instance.is_ours
            and not instance.deleting
            and not self._young(instance)
            and instance.provider_id not in known
        ]
        if not unknown:
            return []
        # A status that was changed by hand must not end an instance that runs pods.
        own = {
            claim.metadata.annotations.get(labels.OWN_INSTANCE)
            for claim in claims
            if not claim.metadata.is_deleting
        }
        names = {claim.metadata.name for claim in claims}
        waiting = [claim for claim in claims if not claim.status.provider_id]
        launching = {claim.metadata.name for claim in waiting}
        return [
            instance
            for instance in unknown
            if instance.provider_id not in own
            and instance.tags.get(labels.TAG_NODECLAIM) not in launching
            and not (labels.SHARED_LAUNCH in instance.tags and _may_be_for_any(instance, waiting))
            and not (instance.tags.get(labels.TAG_NODECLAIM) in names and self._runs_pods(instance))
        ]

    def _runs_pods(self, instance: Instance) -> bool:
        """Whether pods that need another node run on the instance's Node."""
        return any(
            is_reschedulable(pod)
            for node in self.cluster.list(NODE)
            if node.spec.provider_id == instance.provider_id
            for pod in self.cluster.pods_on(node.metadata.name)
        )

    async def _report_changed_status(self) -> None:
        """Publish an event about each NodeClaim whose status names another instance than its own.

        The installation manages neither instance until the status is restored.
        """
        key = labels.OWN_INSTANCE
        marked = [c for c in self.cluster.list(NODE_CLAIM) if key in c.metadata.annotations]
        changed = [c for c in marked if c.metadata.annotations[key] != c.status.provider_id]
        for claim in changed:
            if claim.status.provider_id:
                message = (
                    f"status.providerID names {claim.status.provider_id}, but Joiner launched "
                    f"{claim.metadata.annotations[key]}, and manages neither: set "
                    "status.providerID back"
                )
                await self.recorder.publish(claim, "Warning", "ProviderIDChanged", message)

    async def _delete_node(self, provider_id: str) -> None:
        """Delete the Node of an instance without a NodeClaim."""
        for node in self.cluster.list(NODE):
            if node.spec.provider_id == provider_id and not node.metadata.is_deleting:
                await delete(self.api, node)

    def _young(self, instance: Instance) -> bool:
        return instance.launched_at is None or self.clock() - instance.launched_at < GRACE


def _may_be_for_any(instance: Instance, waiting: Iterable[NodeClaim]) -> bool:
    """Whether an instance of a call for several NodeClaims may be for one without an instance.

    The call may still be in progress, or be repeated and return the same instances.
    """
    pool, launched = instance.tags.get(labels.NODEPOOL, ""), instance.launched_at
    return any(
        claim.metadata.labels.get(labels.NODEPOOL, "") == pool
        and (created := claim.metadata.creation_timestamp) is not None
        and (launched is None or created <= launched)
        for claim in waiting
    )
