"""Instances that EC2 itself finds broken, or has appointed for maintenance.

EC2 is asked every minute. A check that has failed for two minutes, or an event that
is scheduled, becomes a notice, once until it is over.
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
"""Seconds between two questions."""

PATIENCE = timedelta(minutes=2)
"""How long a check may fail before it counts: machines stumble."""

BARRED = timedelta(minutes=15)
"""How long EC2 is not asked again after it has said that we may not: a right that is granted counts
some time later."""

EVENTS = (
    "instance-reboot",
    "system-reboot",
    "system-maintenance",
    "instance-retirement",
    "instance-stop",
)
OVER = ("[Completed]", "[Canceled]")
"""How the description of an event begins that EC2 goes on telling of, for up to a week."""

_CHECKS = {"instance_status": "InstanceStatus", "system_status": "SystemStatus"}
_QUESTIONS: Sequence[tuple[str, Sequence[str]]] = (
    ("instance-status.status", ("impaired",)),
    ("system-status.status", ("impaired",)),
    ("event.code", EVENTS),
)
_RECEIPT = "status"

log = logging.getLogger(__name__)


def findings(status: Mapping[str, Any], now: datetime) -> Iterator[str]:
    """Yield the kinds of notices that one instance's status calls for."""
    for kind, part in _CHECKS.items():
        details = (status.get(part) or {}).get("Details") or []
        since = [
            d["ImpairedSince"]
            for d in details
            if d.get("Status") == "failed" and d.get("ImpairedSince")
        ]
        if any(now - moment >= PATIENCE for moment in since):
            yield kind
    if any(_is_to_come(event) for event in status.get("Events") or []):
        yield "scheduled_change"


def _is_to_come(event: Mapping[str, Any]) -> bool:
    return event.get("Code") in EVENTS and not event.get("Description", "").startswith(OVER)


class InstanceStatuses:
    """Keeps what EC2 finds until it has been dealt with."""

    def __init__(self, aws: Aws) -> None:
        self._aws = aws
        self._barred_until = datetime.min.replace(tzinfo=UTC)
        self._dealt_with: set[str] = set()
        self._waiting: dict[str, Notice] = {}

    async def refresh(self, now: datetime) -> None:
        """Ask EC2, unless it has said lately that we may not.

        Raises:
            CloudProviderError: EC2 gave no answer.

        """
        if now < self._barred_until:
            return
        notices: dict[str, Notice] = {}
        try:
            for name, values in _QUESTIONS:
                notices |= await self._ask(name, values, now)
        except AwsError as exc:
            if not exc.is_unauthorized:
                raise
            self._barred_until = now + BARRED
            log.error("not asking for instance status for a while", extra={"error": str(exc)})
            return
        # What is over may come again, and is news then.
        self._dealt_with &= notices.keys()
        self._waiting = {r: n for r, n in notices.items() if r not in self._dealt_with}

    def waiting(self) -> Sequence[Notice]:
        """Return what has not been dealt with."""
        return tuple(self._waiting.values())

    def acknowledge(self, notice: Notice) -> bool:
        """Note that a notice has been dealt with; False for one that did not come from here."""
        if not notice.receipt.startswith(f"{_RECEIPT}/"):
            return False
        self._waiting.pop(notice.receipt, None)
        self._dealt_with.add(notice.receipt)
        return True

    async def _ask(self, name: str, values: Sequence[str], now: datetime) -> dict[str, Notice]:
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
