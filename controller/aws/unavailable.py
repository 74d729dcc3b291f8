"""Offerings that were refused a moment ago, and are not asked for again for a while.

A mark lives three minutes, and twice as long as the last time where that has only just expired:
capacity that was refused twice is likely to be refused again, at the cost of a launch each.
Every type has a sequence number that grows when a mark is made or expires, so that whoever
caches offerings knows when to look again.
A quota that is used up closes, of its kind, the machines that are too large for the rest. It opens
early once as much has been launched in it as it had not left: there is room again.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple

from controller.aws.quotas import quota_of

TTL = 180.0
"""Seconds a refused offering is avoided at first: capacity comes back in minutes."""

LONGEST_TTL = 8 * TTL
"""Seconds it is avoided at most: prices and capacity of half an hour ago say little of now."""


class CapacityMark(NamedTuple):
    """What is avoided; what is empty means all there are.

    A placement group takes less than its zone has: what it lacked, others may have.
    """

    instance_type: str
    zone: str
    capacity_type: str
    group: str = ""


class QuotaMark(NamedTuple):
    """A quota that holds no more machines of so many vCPUs, or of more."""

    capacity_type: str
    quota: str
    cpus: int


class Refused(NamedTuple):
    """Until when something is avoided, and for how many seconds that was, by the clock; of a quota,
    how many vCPUs it has held since then all the same.
    """

    until: float
    length: float
    launched: int = 0


class Unavailable:
    """Remembers refusals."""

    def __init__(self, *, ttl: float = TTL, clock: Callable[[], float] = time.monotonic) -> None:
        self._ttl = ttl
        self._clock = clock
        self._refused: dict[CapacityMark | QuotaMark, Refused] = {}
        self._active: set[CapacityMark | QuotaMark] = set()
        self._sequence: defaultdict[str, int] = defaultdict(int)
        self._everywhere = 0

    def mark(self, instance_type: str, zone: str, capacity_type: str, *, group: str = "") -> None:
        """Avoid one offering, or what a placement group (by id) has of it."""
        self._add(CapacityMark(instance_type, zone, capacity_type, group))

    def mark_group(self, group: str, zone: str) -> None:
        """Avoid a zone for a placement group that takes no more machines there."""
        self._add(CapacityMark("", zone, "", group))

    def mark_capacity_type(self, capacity_type: str) -> None:
        """Avoid a whole capacity type, as when its quota is used up."""
        self._add(CapacityMark("", "", capacity_type))

    def mark_quota(self, capacity_type: str, quota: str, cpus: int) -> None:
        """Avoid the machines of a quota from this size on: so many vCPUs it had not left."""
        self._add(QuotaMark(capacity_type, quota, cpus))

    def launched(self, instance_type: str, cpus: int, capacity_type: str) -> None:
        """Count a machine against what its quota is held to have left."""
        now = self._clock()
        for mark in self._quotas():
            if mark.capacity_type == capacity_type and mark.quota == quota_of(instance_type):
                refused = self._refused[mark]
                held = refused.launched + cpus
                until = now if held >= mark.cpus else refused.until
                self._refused[mark] = refused._replace(until=until, launched=held)

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
        return [
            mark
            for mark, refused in self._refused.items()
            if isinstance(mark, QuotaMark) and refused.until > now
        ]

    def is_marked(
        self, instance_type: str, zone: str, capacity_type: str, *, group: str = ""
    ) -> bool:
        """Whether the offering is to be avoided now, in a placement group if one is named."""
        now = self._clock()
        marks = [
            CapacityMark(instance_type, zone, capacity_type),
            CapacityMark("", "", capacity_type),
        ]
        if group:
            marks += [
                CapacityMark(instance_type, zone, capacity_type, group),
                CapacityMark("", zone, "", group),
            ]
        return any(
            refused.until > now for refused in map(self._refused.get, marks) if refused is not None
        )

    def sequence(self, instance_type: str) -> int:
        """Return a number that differs whenever what is known of the type may."""
        return self._sequence[instance_type] + self._everywhere

    def sweep(self) -> int:
        """Let marks expire; return a number that grows with every change of any mark."""
        now = self._clock()
        for mark in [mark for mark in self._active if self._refused[mark].until <= now]:
            self._active.remove(mark)
            self._bump(mark)
        # Those that have been good for as long as they were bad begin anew.
        forgotten = [m for m, refused in self._refused.items() if _is_past(refused, now)]
        for mark in forgotten:
            del self._refused[mark]
        return sum(self._sequence.values()) + self._everywhere

    def _add(self, mark: CapacityMark | QuotaMark) -> None:
        now = self._clock()
        last = self._refused.get(mark)
        if last is None or _is_past(last, now):
            length = self._ttl
        elif last.until > now:  # launches side by side are refused together: that is one refusal
            length = last.length
        else:
            length = min(2 * last.length, self._ttl * LONGEST_TTL / TTL)
        self._refused[mark] = Refused(now + length, length)
        self._active.add(mark)
        self._bump(mark)

    def _bump(self, mark: CapacityMark | QuotaMark) -> None:
        if isinstance(mark, CapacityMark) and mark.instance_type:
            self._sequence[mark.instance_type] += 1
        else:
            self._everywhere += 1


def _is_past(refused: Refused, now: float) -> bool:
    return refused.until + refused.length <= now
