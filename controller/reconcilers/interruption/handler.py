"""Handles a notice from AWS: publishes events, marks offerings unavailable, deletes NodeClaims."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from controller.apis import labels
from controller.apis.karpenter.nodeclaim import REGISTERED, NodeClaim
from controller.apis.kubernetes import conditions
from controller.apiserver.errors import NotFoundError
from controller.cloudprovider.errors import CloudProviderError
from controller.cloudprovider.provider import Notice
from controller.reconcilers.ports import Ports, PortUser
from controller.reconcilers.writing import delete, with_drain_until
from controller.state.registrations import Failure, Registrations
from controller.telemetry.events import EventType

UNHEALTHY: tuple[EventType, str, str] = (
    "Warning",
    "InstanceUnhealthy",
    "An unhealthy warning was triggered for the instance",
)

EVENTS: Mapping[str, tuple[EventType, str, str]] = {
    "spot_interrupted": ("Warning", "SpotInterrupted", "Spot interruption warning was triggered"),
    "rebalance_recommendation": (
        "Normal",
        "SpotRebalanceRecommendation",
        "Spot rebalance recommendation was triggered",
    ),
    "instance_stopped": ("Warning", "InstanceStopping", "Instance is stopping"),
    "instance_terminated": ("Warning", "InstanceTerminating", "Instance is terminating"),
    "scheduled_change": UNHEALTHY,
    "instance_status": UNHEALTHY,
    "system_status": UNHEALTHY,
    "event_status": UNHEALTHY,
    "capacity_reservation_interrupted": (
        "Warning",
        "CapacityReservationInstanceInterrupted",
        "Capacity Reservation interruption warning was triggered",
    ),
}
"""Per kind of notice: the event's type, reason and message, as Karpenter writes them."""

DELETING = EVENTS.keys() - {"rebalance_recommendation"}
"""The kinds of notice after which the NodeClaim is deleted; other kinds only cause an event."""

SPOT_RECLAIMED = {"spot_interrupted", "rebalance_recommendation"}
"""The kinds of notice that mean that EC2 reclaims this spot capacity, now or soon."""

WITHOUT_BUDGETS = {"instance_status", "system_status"}
"""The kinds of notice about failed instances: PodDisruptionBudgets do not delay their drain."""

TERMINATED = {"instance_stopped", "instance_terminated"}
"""The kinds of notice about stopped or terminated instances: their nodes will never register."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NoticeHandler(PortUser):
    """Handles notices about the instances of NodeClaims."""

    ports: Ports
    registrations: Registrations

    async def handle(self, notice: Notice) -> bool:
        """Handle a notice and acknowledge it; returns whether it names a NodeClaim's instance.

        Raises:
            ApiError: a NodeClaim could not be changed; the notice is not acknowledged.
            CloudProviderError: the notice could not be acknowledged.

        """
        claims = [c for instance in notice.instance_ids for c in self.cluster.claims_on(instance)]
        for claim in claims:
            if await self._is_outdated(claim, notice.kind):
                fields = {"NodeClaim": claim.metadata.name, "kind": notice.kind}
                log.info("ignoring old interruption message: the instance runs", extra=fields)
                continue
            if notice.kind in EVENTS:
                await self.recorder.publish_all(
                    (claim, self.cluster.node_of(claim)), *EVENTS[notice.kind]
                )
            await self._act(claim, notice.kind)
        await self.cloud.acknowledge(notice)
        return bool(claims)

    async def _is_outdated(self, claim: NodeClaim, kind: str) -> bool:
        """Whether a notice says that the instance stopped or terminated, but it runs.

        SQS may deliver a message again after the instance was started again. EC2 is only asked
        while the node is Ready; garbage collection finds an instance that stops later.
        """
        node = self.cluster.node_of(claim) if kind in TERMINATED else None
        if node is None or not conditions.is_true(node.status.conditions, "Ready"):
            return False
        try:
            instance = await self.cloud.get(claim.status.provider_id)
        except CloudProviderError:
            return False
        return not (instance.deleting or instance.stopped)

    async def _act(self, claim: NodeClaim, kind: str) -> None:
        if kind in SPOT_RECLAIMED:
            self.cloud.mark_unavailable(
                claim.metadata.labels.get(labels.INSTANCE_TYPE, ""),
                claim.metadata.labels.get(labels.ZONE, ""),
                labels.SPOT,
            )
        if kind not in DELETING or claim.metadata.is_deleting or not self.cluster.is_adopted(claim):
            return
        pods = self.cluster.moving_from(claim)
        try:
            if kind in WITHOUT_BUDGETS:
                await with_drain_until(self.ports, claim, self.clock())
        except NotFoundError:
            return
        if not await delete(self.api, claim):
            return
        log.info(
            "deleting nodeclaim from interruption message",
            extra={
                "NodeClaim": claim.metadata.name,
                "provider-id": claim.status.provider_id,
                "kind": kind,
            },
        )
        self._count(claim, kind)
        self.metrics.record_disruption(claim, kind, pods=pods)
        await self._report_termination(claim)

    async def _report_termination(self, claim: NodeClaim) -> None:
        event: tuple[EventType, str] = ("Warning", "TerminatingOnInterruption")
        message = "Interruption triggered termination for the NodeClaim"
        await self.recorder.publish(claim, *event, message)
        node = self.cluster.node_of(claim)
        if node is not None:
            message = "Interruption triggered termination for the Node"
            await self.recorder.publish(node, *event, message)

    def _count(self, claim: NodeClaim, kind: str) -> None:
        """Count an instance that terminated before its node registered as a registration failure.

        EC2 accepts a launch and terminates the instance at once if, for example, it may not use
        the KMS key of a volume. Without the count the pool would launch instances endlessly.
        """
        if kind not in TERMINATED or conditions.is_true(claim.status.conditions, REGISTERED):
            return
        pool = self.cluster.owner_of(claim)
        if pool is not None:
            why = (
                f"{claim.status.provider_id} terminated before its node registered: look up its "
                "StateReason in EC2, and check that EC2 may use the KMS key of its volumes"
            )
            created = claim.metadata.creation_timestamp
            failure = Failure("RegistrationFailed", why, self.clock(), created)
            self.registrations.record_failure(pool, failure)
