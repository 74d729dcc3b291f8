"""Turns the cloud's notices into the graceful end of the nodes they name."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from controller.apis import conditions, labels
from controller.apis.kinds import NODE, NODE_CLAIM
from controller.apis.nodeclaim import REGISTERED, NodeClaim
from controller.apiserver.errors import NotFoundError
from controller.apiserver.port import ApiServer
from controller.cloudprovider.provider import CloudProvider, Notice
from controller.reconcilers.clock import Clock
from controller.reconcilers.writing import with_drain_over
from controller.state.cluster import Cluster
from controller.state.registrations import Failure, Registrations
from controller.telemetry.events import EventType, Recorder
from controller.telemetry.metrics import Metrics

EVENTS: Mapping[str, tuple[EventType, str, str]] = {
    "spot_interrupted": ("Warning", "SpotInterrupted", "Spot interruption warning was triggered"),
    "rebalance_recommendation": (
        "Normal",
        "SpotRebalanceRecommendation",
        "Spot rebalance recommendation was triggered",
    ),
    "instance_stopped": ("Warning", "InstanceStopping", "Instance is stopping"),
    "instance_terminated": ("Warning", "InstanceTerminating", "Instance is terminating"),
    "scheduled_change": ("Warning", "InstanceUnhealthy", "An unhealthy warning was triggered"),
    "instance_status": ("Warning", "InstanceUnhealthy", "An instance status check failed"),
    "system_status": ("Warning", "InstanceUnhealthy", "A system status check failed"),
    "capacity_reservation_interrupted": (
        "Warning",
        "CapacityReservationInstanceInterrupted",
        "Capacity reservation interruption warning was triggered",
    ),
}
"""Per kind of notice: the event's type, reason and message."""

ENDS = EVENTS.keys() - {"rebalance_recommendation"}
"""Kinds that mean the end of the node; the others are only told."""

RECLAIMED = {"spot_interrupted", "rebalance_recommendation"}
"""Kinds that say that the cloud wants spot instances of such a type and zone back, or will soon."""

AT_ONCE = {"instance_status", "system_status"}
"""Kinds that mean a machine that no longer works: its drain must not wait for budgets."""

GONE = {"instance_stopped", "instance_terminated"}
"""Kinds that say that the instance is no more; of one that had not joined, that it never will."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """Waits for notices and acts on each; one that cannot be handled stays in the queue."""

    api: ApiServer
    cloud: CloudProvider
    cluster: Cluster
    recorder: Recorder
    metrics: Metrics
    clock: Clock
    registrations: Registrations

    async def run_once(self) -> timedelta:
        """Wait for the next notices and handle them; returns at once, to wait again."""
        notices = await self.cloud.notices()
        await asyncio.gather(*(self._handle(n) for n in notices))
        return timedelta(0)

    async def _handle(self, notice: Notice) -> None:
        self.metrics.notice_received(notice, self.clock())
        for instance_id in notice.instance_ids:
            for claim in self.cluster.claims_on(instance_id):
                await self._report_notice(claim, notice.kind)
                await self._act(claim, notice.kind)
        await self.cloud.acknowledge(notice)
        self.metrics.notice_deleted()

    async def _report_notice(self, claim: NodeClaim, kind: str) -> None:
        if kind not in EVENTS:
            return
        type_, reason, message = EVENTS[kind]
        await self.recorder.publish(NODE_CLAIM, claim, type_, reason, message)
        node = self.cluster.get(NODE, claim.status.node_name)
        if node is not None:
            await self.recorder.publish(NODE, node, type_, reason, message)

    async def _act(self, claim: NodeClaim, kind: str) -> None:
        if kind in RECLAIMED:
            self.cloud.avoid(
                claim.metadata.labels.get(labels.INSTANCE_TYPE, ""),
                claim.metadata.labels.get(labels.ZONE, ""),
                labels.SPOT,
            )
        if kind not in ENDS:
            return
        if claim.metadata.is_deleting:
            return
        log.info(
            "deleting nodeclaim from interruption message",
            extra={"NodeClaim": claim.metadata.name, "kind": kind},
        )
        self._count(claim, kind)
        self.metrics.disrupted(claim, kind, pods=self.cluster.moving_from(claim))
        await self.recorder.publish(
            NODE_CLAIM,
            claim,
            "Warning",
            "TerminatingOnInterruption",
            "Interruption triggered termination for the NodeClaim",
        )
        try:
            if kind in AT_ONCE:
                await with_drain_over(self.api, self.cluster, claim, self.clock())
            await self.api.delete(NODE_CLAIM, claim.metadata.name, uid=claim.metadata.uid)
        except NotFoundError:
            return

    def _count(self, claim: NodeClaim, kind: str) -> None:
        """Count against its pool a node that ended before it joined: EC2 accepts a launch and ends
        it at once, as where a disk's key may not be used, and would be asked again without end.
        """
        if kind not in GONE or conditions.is_true(claim.status.conditions, REGISTERED):
            return
        pool = self.cluster.owner_of(claim)
        if pool is not None:
            why = (
                f"{claim.status.provider_id} ended before its node joined: look up its StateReason "
                "in EC2; may the key of its volumes be used?"
            )
            self.registrations.failed(pool, Failure("RegistrationFailed", why, self.clock()))
