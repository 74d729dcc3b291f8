"""Offerings that were refused a moment ago, and are not asked for again for a while.

Each mark lives three minutes. Every type has a sequence number that grows when a
mark is made or expires, so that whoever caches offerings knows when to look again.
A quota that is used up closes, of its kind, the machines that are too large for the rest.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple

from controller.aws.quotas import quota_of

TTL = 180.0
"""Seconds a refused offering is avoided: capacity comes back in minutes."""


class Mark(NamedTuple):
    """What is avoided; an empty instance type or zone means all of the capacity type."""

    instance_type: str
    zone: str
    capacity_type: str


class QuotaMark(NamedTuple):
    """A quota that holds no more machines of so many vCPUs, or of more."""

    capacity_type: str
    quota: str
    cpus: int


class Unavailable:
    """Remembers refusals."""

    def __init__(self, *, ttl: float = TTL, clock: Callable[[], float] = time.monotonic) -> None:
        self._ttl = ttl
        self._clock = clock
        self._until: dict[Mark | QuotaMark, float] = {}
        self._sequence: defaultdict[str, int] = defaultdict(int)
        self._everywhere = 0

    def mark(self, instance_type: str, zone: str, capacity_type: str) -> None:
        """Avoid one offering."""
        self._add(Mark(instance_type, zone, capacity_type))

    def mark_capacity_type(self, capacity_type: str) -> None:
        """Avoid a whole capacity type, as when its quota is used up."""
        self._add(Mark("", "", capacity_type))

    def mark_quota(self, capacity_type: str, quota: str, cpus: int) -> None:
        """Avoid the machines of a quota from this size on: so many vCPUs it had not left."""
        self._add(QuotaMark(capacity_type, quota, cpus))

    def exceeded(self) -> list[QuotaMark]:
        """Return the quotas that are used up, each with the least that was refused."""
        least: dict[tuple[str, str], QuotaMark] = {}
        for mark in self._quotas():
            key = mark.capacity_type, mark.quota
            least[key] = min(mark, least.get(key, mark))
        return [least[key] for key in sorted(least)]

    def exceeds_quota(self, instance_type: str, cpus: int, capacity_type: str) -> bool:
        """Whether a machine of so many vCPUs was found to be too large for its quota."""
        return any(
            mark.capacity_type == capacity_type
            and mark.cpus <= cpus
            and mark.quota == quota_of(instance_type)
            for mark in self._quotas()
        )

    def _quotas(self) -> list[QuotaMark]:
        now = self._clock()
        return [m for m, until in self._until.items() if isinstance(m, QuotaMark) and until > now]

    def is_marked(self, instance_type: str, zone: str, capacity_type: str) -> bool:
        """Whether the offering is to be avoided now."""
        now = self._clock()
        marks = (Mark(instance_type, zone, capacity_type), Mark("", "", capacity_type))
        return any(self._until.get(mark, now) > now for mark in marks)

    def sequence(self, instance_type: str) -> int:
        """Return a number that differs whenever what is known of the type may."""
        return self._sequence[instance_type] + self._everywhere

    def sweep(self) -> int:
        """Forget what has expired; return a number that grows with every change of any mark."""
        now = self._clock()
        for mark in [m for m, until in self._until.items() if until <= now]:
            del self._until[mark]
            self._bump(mark)
        return sum(self._sequence.values()) + self._everywhere

    def _add(self, mark: Mark | QuotaMark) -> None:
        self._until[mark] = self._clock() + self._ttl
        self._bump(mark)

    def _bump(self, mark: Mark | QuotaMark) -> None:
        if isinstance(mark, Mark) and mark.instance_type:
            self._sequence[mark.instance_type] += 1
        else:
            self._everywhere += 1
