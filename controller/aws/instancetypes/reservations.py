"""Capacity reservations, and the available instance count of each.

EC2 returns the count. Between two responses, this module updates it: one less per launch, one more
per terminated instance, and 0 when EC2 reports that the reservation is full.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from cachetools import TTLCache

from controller.apis.karpenter.ec2nodeclass import (
    CAPACITY_BLOCK,
    CapacityReservationStatus,
    SelectorTerm,
)
from controller.aws.errors import AwsError
from controller.aws.selectors import tag_filters
from controller.aws.session import Aws

PERIOD = 60.0
"""Seconds for which a response of EC2 is cached."""


class Reservations:
    """Finds capacity reservations and counts the available instances of each."""

    def __init__(self, aws: Aws, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._aws = aws
        self._selected: TTLCache[object, tuple[CapacityReservationStatus, ...]] = TTLCache(
            math.inf, PERIOD, clock
        )
        self._left: dict[str, int] = {}
        self._lock = asyncio.Lock()
        self.revision = 0
        """Grows whenever a count changes."""

    async def find(
        self, terms: Sequence[SelectorTerm], *, fresh: bool = False
    ) -> tuple[CapacityReservationStatus, ...]:
        """Return the active reservations that any term selects; `fresh` bypasses the cache."""
        if not terms:
            return ()
        key = tuple(
            sorted(
                (t.id, t.owner_id, t.instance_match_criteria, tuple(sorted(t.tags.items())))
                for t in terms
            )
        )
        async with self._lock:
            active = None if fresh else self._selected.get(key)
            if active is None:
                active = self._selected[key] = await self._query(terms)
            return active

    def available_count(self, reservation_id: str) -> int:
        """Return the number of available instances of a reservation; 0 if it is unknown."""
        return self._left.get(reservation_id, 0)

    def mark_launched(self, reservation_id: str) -> None:
        """Decrease the available instances of a reservation by one after a launch; 0 stays 0."""
        self._set(reservation_id, max(self.available_count(reservation_id) - 1, 0))

    def mark_terminated(self, reservation_id: str) -> None:
        """Increase the available instances of a reservation by one after one terminated."""
        self._set(reservation_id, self.available_count(reservation_id) + 1)

    def mark_unavailable(self, reservation_id: str) -> None:
        """Set the available instances to 0, because EC2 reported that the reservation is full."""
        self._set(reservation_id, 0)

    def _set(self, reservation_id: str, count: int) -> None:
        self._left[reservation_id] = count
        self.revision += 1

    async def _query(self, terms: Sequence[SelectorTerm]) -> tuple[CapacityReservationStatus, ...]:
        now = datetime.now(UTC)
        by_id: dict[str, CapacityReservationStatus] = {}
        for request in _requests(terms):
            try:
                described = await self._aws.pages(
                    "ec2", "describe_capacity_reservations", "CapacityReservations", **request
                )
            except AwsError as exc:
                if not exc.is_not_found:
                    raise
                continue
            for reservation in described:
                end = reservation.get("EndDate")
                if reservation.get("State") != "active" or (end is not None and end <= now):
                    continue
                status = _status(reservation, now)
                by_id[status.id] = status
                self._set(status.id, reservation.get("AvailableInstanceCount", 0))
        return tuple(by_id[i] for i in sorted(by_id))


def _requests(terms: Sequence[SelectorTerm]) -> Iterator[dict[str, Any]]:
    """Yield the parameters of one request per term; EC2 has no filter for reservation IDs."""
    for term in terms:
        if term.id:
            yield {"CapacityReservationIds": [term.id]}
        elif filters := _filters(term):  # without a filter, EC2 returns all reservations
            yield {"Filters": [*filters, {"Name": "state", "Values": ["active"]}]}


def _filters(term: SelectorTerm) -> list[dict[str, Any]]:
    filters: list[dict[str, Any]] = tag_filters(term.tags)
    if term.owner_id:
        filters.append({"Name": "owner-id", "Values": [term.owner_id]})
    if term.instance_match_criteria:
        filters.append(
            {"Name": "instance-match-criteria", "Values": [term.instance_match_criteria]}
        )
    return filters


def _status(reservation: dict[str, Any], now: datetime) -> CapacityReservationStatus:
    end = reservation.get("EndDate")
    block = reservation.get("ReservationType") == CAPACITY_BLOCK
    status = CapacityReservationStatus(
        id=reservation["CapacityReservationId"],
        availability_zone=reservation.get("AvailabilityZone", ""),
        instance_type=reservation["InstanceType"],
        instance_match_criteria=reservation.get("InstanceMatchCriteria", ""),
        owner_id=reservation.get("OwnerId", ""),
        end_time=end.strftime("%Y-%m-%dT%H:%M:%SZ") if end else None,
        interruptible=bool(reservation.get("Interruptible", False)),
        reservation_type=CAPACITY_BLOCK if block else "default",
    )
    return msgspec.structs.replace(status, state="expiring") if status.is_expiring(now) else status
