"""Reads notices from the interruption queue and from EC2's status checks.

Each source has its own loop, so that a notice that cannot be handled delays only its own source.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from controller.cloudprovider.provider import Notice
from controller.reconcilers.concurrency import gather_all
from controller.reconcilers.interruption.handler import NoticeHandler
from controller.reconcilers.ports import Ports, PortUser

STATUS_PERIOD = timedelta(seconds=5)
"""How often to read the failed status checks that the cloud provider holds.

Reading them does not call EC2; the cloud provider requests them on its own schedule.
"""

CATEGORIES = {
    "instance_status": "InstanceStatus",
    "system_status": "SystemStatus",
    "event_status": "EventStatus",
}
"""The label value in Karpenter's metric of each kind of status notice."""


@dataclass(frozen=True, slots=True)
class Listener(PortUser):
    """Handles messages of the interruption queue; SQS delivers failed messages again."""

    ports: Ports
    handler: NoticeHandler

    async def run_once(self) -> timedelta:
        """Wait for the next messages and handle them; returns zero, to wait again at once."""
        notices = await self.cloud.notices()
        await gather_all(*map(self._handle, notices))
        return timedelta(0)

    async def _handle(self, notice: Notice) -> None:
        self.metrics.record_message(notice, self.clock())
        await self.handler.handle(notice)
        self.metrics.record_message_deletion()


@dataclass(frozen=True, slots=True)
class StatusListener(PortUser):
    """Handles EC2's status checks; the next run retries a failure."""

    ports: Ports
    handler: NoticeHandler

    async def run_once(self) -> timedelta:
        """Handle failed status checks and scheduled events; returns when to read them again."""
        notices = await self.cloud.status_notices()
        await gather_all(*map(self._handle, notices))
        return STATUS_PERIOD

    async def _handle(self, notice: Notice) -> None:
        if await self.handler.handle(notice):
            self.metrics.unhealthy_status(CATEGORIES[notice.kind])
