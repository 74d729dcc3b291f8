"""Memory capacity that nodes reported, by instance type and AMI.

EC2 returns the memory of an instance type, but not how much of it hypervisor and firmware use. The
controller estimates this share with `VM_MEMORY_OVERHEAD_PERCENT` until the first node of an
instance type and AMI reports its memory. The smallest reported value is used, because a pod that
fits into it fits on every node of the instance type and AMI. It expires 60 days after the last
report for this instance type and AMI.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from cachetools import TTLCache

TTL = 60 * 24 * 3600.0
"""Seconds until a value is forgotten unless a node reports it again; as in Karpenter."""

MOST_KEPT = 10_000
"""Maximum number of pairs of instance type and AMI that are remembered."""


class DiscoveredCapacity:
    """Memory capacity by instance type and AMI, in thousandths of a byte."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.revision = 0
        """Grows whenever a value changes."""

        self._least: TTLCache[tuple[str, str], int] = TTLCache(MOST_KEPT, TTL, clock)

    def record(self, instance_type: str, image_id: str, memory: int) -> None:
        """Record a node's memory capacity, in thousandths of a byte."""
        if instance_type and image_id and memory > 0:
            key = instance_type, image_id
            known = self._least.get(key)
            self._least[key] = memory if known is None else min(memory, known)
            self.revision += self._least[key] != known

    def of(self, instance_type: str, image_id: str) -> int | None:
        """Return the memory of an instance type with an AMI, in thousandths of a byte.

        None if no node has reported it.
        """
        known: int | None = self._least.get((instance_type, image_id))
        return known
