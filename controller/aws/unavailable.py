"""The unavailable offerings: EC2 refused them recently, so launches avoid them for a while.

Each refusal is recorded as a mark, which lasts 3 minutes. If the previous mark of the same offering
expired less than its own duration ago, the new one lasts twice as long, up to 24 minutes: EC2 will
probably refuse the offering again, which would delay a launch.

Each instance type has a sequence number that grows when a mark is added or expires. A cache of
offerings compares it to detect changes.

An exhausted quota excludes the instance types of its group that need more vCPUs than remain. The
exclusion ends early once the controller has launched as many vCPUs in the quota as EC2 refused:
then the quota has capacity again.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple

from controller.apis.karpenter.ec2nodeclass import EC2NodeClass
from controller.aws.quotas import quota_of

TTL = 180.0
"""Seconds for which a refused offering is avoided at first: capacity returns within minutes."""

LONGEST_TTL = 8 * TTL
"""Maximum seconds for which an offering is avoided: capacity may have changed since."""


class CapacityMark(NamedTuple):
    """The offerings to avoid; an empty field matches every value.

    A placement group can run out of capacity before its zone does, so a mark of one group does not
    apply to launches outside it. If EC2 refuses an offering for another reason than capacity, the
    settings of the EC2NodeClass may be the cause. The mark then applies to this class alone, until
    its `spec` changes; `node_class` is its `class_key`.
    """

    instance_type: str
    zone: str
    capacity_type: str
    group: str = ""
    node_class: str = ""


class QuotaMark(NamedTuple):
    """An exhausted vCPU quota: EC2 refused an instance with `cpus` vCPUs because of it."""

    capacity_type: str
    quota: str
    cpus: int


class Refused(NamedTuple):
    """When a mark expires, how long it lasts, and the vCPUs launched in its quota since.

    `until` is a time of the clock, in seconds; `length` is in seconds; `launched` counts vCPUs.
    """

    until: float
    length: float
    launched: int = 0
    reason: str = ""
    """EC2's code and message, if the cause is not known to be missing capacity."""


class Unavailable:
    """Records refused offerings and exhausted quotas until their marks expire."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._refused: dict[CapacityMark | QuotaMark, Refused] = {}
        self._active: set[CapacityMark | QuotaMark] = set()
        self._sequence: defaultdict[str, int] = defaultdict(int)
        self._everywhere = 0

    def mark(self, instance_type: str, zone: str, capacity_type: str, *, group: str = "") -> None:
        """Avoid one offering; with `group` (see `PlacementGroup.part`), only in that group."""
        self._add(CapacityMark(instance_type, zone, capacity_type, group))

    def mark_refused(
        self, instance_type: str, zone: str, capacity_type: str, *, node_class: str, reason: str
    ) -> None:
        """Avoid one offering for one EC2NodeClass, and keep EC2's reason."""
        self._add(CapacityMark(instance_type, zone, capacity_type, "", node_class), reason)

    def refused_by_reason(self, node_class: str) -> dict[str, list[CapacityMark]]:
        """Return what EC2 refuses to launch for an EC2NodeClass now, by EC2's reason."""
        now = self._clock()
        refused: dict[str, list[CapacityMark]] = {}
        for mark in self._active:
            if isinstance(mark, CapacityMark) and mark.node_class == node_class:
                known = self._refused[mark]
                if known.until > now:
                    refused.setdefault(known.reason, []).append(mark)
        return {reason: sorted(refused[reason]) for reason in sorted(refused)}

    def mark_group(self, group: str, zone: str) -> None:
        """Avoid a zone for a placement group that has no more capacity there."""
        self._add(CapacityMark("", zone, "", group))

    def mark_capacity_type(self, capacity_type: str) -> None:
        """Avoid a capacity type altogether, for example because its quota is exhausted."""
        self._add(CapacityMark("", "", capacity_type))

    def mark_quota(self, capacity_type: str, quota: str, cpus: int) -> None:
        """Avoid a quota's instance types with `cpus` vCPUs or more: fewer remain in the quota."""
        self._add(QuotaMark(capacity_type, quota, cpus))

    def record_launch(self, instance_type: str, cpus: int, capacity_type: str) -> None:
        """Count a launched instance's vCPUs in its quota.

        Once as many vCPUs are launched as EC2 refused, the mark of the quota ends.
        """
        now = self._clock()
        for mark in self._quotas():
            if mark.capacity_type == capacity_type and mark.quota == quota_of(instance_type):
                refused = self._refused[mark]
                held = refused.launched + cpus
                until = now if held >= mark.cpus else refused.until
                self._refused[mark] = refused._replace(until=until, launched=held)

    def exceeded_quotas(self) -> list[QuotaMark]:
        """Return the exhausted quotas, each with the smallest number of vCPUs that EC2 refused."""
        least: dict[tuple[str, str], QuotaMark] = {}
        for mark in self._quotas():
            key = mark.capacity_type, mark.quota
            least[key] = min(mark, least.get(key, mark))
        return [least[key] for key in sorted(least)]

    def exceeds_quota(self, instance_type: str, cpus: int, capacity_type: str) -> bool:
        """Whether an unexpired mark says that EC2 refused `cpus` vCPUs or fewer for the quota."""
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
        self,
        instance_type: str,
        zone: str,
        capacity_type: str,
        *,
        group: str = "",
        node_class: str = "",
    ) -> bool:
        """Whether launches avoid the offering now, in the placement group if one is given."""
        if not self._refused:  # as usual; a refresh asks for each of thousands of offerings
            return False
        now = self._clock()
        marks = [
            CapacityMark(instance_type, zone, capacity_type),
            CapacityMark("", "", capacity_type),
        ]
        if node_class:
            marks.append(CapacityMark(instance_type, zone, capacity_type, "", node_class))
        if group:
            marks += [
                CapacityMark(instance_type, zone, capacity_type, group),
                CapacityMark("", zone, "", group),
            ]
        return any(
            refused.until > now for refused in map(self._refused.get, marks) if refused is not None
        )

    def sequence(self, instance_type: str) -> int:
        """Return a number that changes with the marks that affect the instance type.

        It changes when such a mark is added and when `sweep` removes it.
        """
        return self._sequence[instance_type] + self._everywhere

    def sweep(self) -> int:
        """Remove expired marks; return a number that grows with every change of any mark."""
        now = self._clock()
        for mark in [mark for mark in self._active if self._refused[mark].until <= now]:
            self._active.remove(mark)
            self._bump(mark)
        # Once a mark has been expired for as long as it lasted, the next one lasts 3 minutes again.
        forgotten = [m for m, refused in self._refused.items() if _is_past(refused, now)]
        for mark in forgotten:
            del self._refused[mark]
        return sum(self._sequence.values()) + self._everywhere

    def _add(self, mark: CapacityMark | QuotaMark, reason: str = "") -> None:
        now = self._clock()
        last = self._refused.get(mark)
        if last is None or _is_past(last, now):
            length = TTL
        elif last.until > now:  # concurrent launches: their refusals count once
            length = last.length
        else:
            length = min(2 * last.length, LONGEST_TTL)
        self._refused[mark] = Refused(now + length, length, reason=reason)
        self._active.add(mark)
        self._bump(mark)

    def _bump(self, mark: CapacityMark | QuotaMark) -> None:
        if isinstance(mark, CapacityMark) and mark.instance_type:
            self._sequence[mark.instance_type] += 1
        else:
            self._everywhere += 1


def class_key(node_class: EC2NodeClass) -> str:
    """Return the key of an EC2NodeClass for marks; it changes with the `spec`."""
    return f"{node_class.metadata.name}/{node_class.metadata.generation}"


def _is_past(refused: Refused, now: float) -> bool:
    return refused.until + refused.length <= now
