"""Instances whose EC2 status checks fail or for which EC2 scheduled an event.

The controller calls DescribeInstanceStatus every minute. A finding is a check that has failed for 2
minutes, or a scheduled event. It becomes a notice, which is not repeated while the finding lasts.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from controller.aws.errors import AwsError
from controller.aws.session import Aws
from controller.cloudprovider.provider import Notice

PERIOD = 60.0
"""Seconds between two calls."""

FAILED_FOR = timedelta(minutes=2)
"""How long a status check must have failed before Joiner acts on it: checks can fail briefly."""

DENIED_BACKOFF = timedelta(minutes=15)
"""How long the controller does not call EC2 after it was not authorized.

A permission that is granted takes effect with a delay.
"""

EVENTS = (
    "instance-reboot",
    "system-reboot",
    "system-maintenance",
    "instance-retirement",
    "instance-stop",
)
FINISHED = ("[Completed]", "[Canceled]")
"""The start of the description of a finished event; EC2 lists such events for up to a week."""

_CHECKS = {"instance_status": "InstanceStatus", "system_status": "SystemStatus"}
_QUERIES: Sequence[tuple[str, Sequence[str]]] = (
    ("instance-status.status", ("impaired",)),
    ("system-status.status", ("impaired",)),
    ("event.code", EVENTS),
)
_RECEIPT = "status"

log = logging.getLogger(__name__)


def findings(status: Mapping[str, Any], now: datetime) -> Iterator[str]:
    """Yield the notice kind of each finding in the status of one instance."""
    for kind, part in _CHECKS.items():
        details = (status.get(part) or {}).get("Details") or []
        since = [
            d["ImpairedSince"]
            for d in details
            if d.get("Status") == "failed" and d.get("ImpairedSince")
        ]
        if any(now - moment >= FAILED_FOR for moment in since):
            yield kind
    if any(_is_pending(event) for event in status.get("Events") or []):
        yield "event_status"


def _is_pending(event: Mapping[str, Any]) -> bool:
    return event.get("Code") in EVENTS and not event.get("Description", "").startswith(FINISHED)


class InstanceStatuses:
    """Holds the notices of failed status checks and scheduled events until acknowledged."""

    def __init__(self, aws: Aws) -> None:
        self._aws = aws
        self._denied_until = datetime.min.replace(tzinfo=UTC)
        self._dealt_with: set[str] = set()
        self._waiting: dict[str, Notice] = {}

    async def refresh(self, now: datetime) -> None:
        """Read the status checks and scheduled events of all instances, and update the notices.

        If EC2 refuses authorization, nothing is read for `DENIED_BACKOFF`.

        Raises:
            CloudProviderError: the call failed.

        """
        if now < self._denied_until:
            return
        notices: dict[str, Notice] = {}
        try:
            for name, values in _QUERIES:
                notices |= await self._call(name, values, now)
        except AwsError as exc:
            if not exc.is_unauthorized:
                raise
            self._denied_until = now + DENIED_BACKOFF
            log.error(
                "not authorized to call ec2:DescribeInstanceStatus; pausing instance status "
                "checks: allow the action in the controller's IAM role",
                extra={"error": str(exc), "seconds": DENIED_BACKOFF.total_seconds()},
            )
            return
        # A finding that ended is a new finding if it occurs again.
        self._dealt_with &= notices.keys()
        self._waiting = {r: n for r, n in notices.items() if r not in self._dealt_with}

    def unacknowledged_notices(self) -> Sequence[Notice]:
        """Return the notices that are not acknowledged."""
        return tuple(self._waiting.values())

    def acknowledge(self, notice: Notice) -> bool:
        """Record that a notice was handled; False if it is not an instance status notice."""
        if not notice.receipt.startswith(f"{_RECEIPT}/"):
            return False
        self._waiting.pop(notice.receipt, None)
        self._dealt_with.add(notice.receipt)
        return True

    async def _call(self, name: str, values: Sequence[str], now: datetime) -> dict[str, Notice]:
        listed = await self._aws.pages(
            "ec2",
            "describe_instance_status",
            "InstanceStatuses",
            Filters=[{"Name": name, "Values": list(values)}],
        )
        notices = (
            Notice(kind, (status["InstanceId"],), f"{_RECEIPT}/{kind}/{status['InstanceId']}", now)
            for status in listed
            for kind in findings(status, now)
        )
        return {notice.receipt: notice for notice in notices}
