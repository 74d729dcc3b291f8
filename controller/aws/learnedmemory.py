"""How much memory the kernels of machines were found to have.

EC2 tells what a machine has, not what its hypervisor and firmware keep for themselves. That is
guessed at first, by `VM_MEMORY_OVERHEAD_PERCENT`, and known from the first node of a type and
image on. The least that was seen counts: what fits there fits on every one of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from cachetools import TTLCache

TTL = 60 * 24 * 3600.0
"""Seconds for which a type of which no node is seen any more is remembered, as with Karpenter."""

MOST = 10_000
"""How many pairs of types and images are remembered."""


class LearnedMemory:
    """Memory by type and image, in thousandths of bytes."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.revision = 0
        """Grows whenever something is learned."""

        self._least: TTLCache[tuple[str, str], int] = TTLCache(MOST, TTL, clock)

    def learn(self, instance_type: str, image_id: str, memory: int) -> None:
        """Take note of a node; seeing the same again keeps it in mind."""
        if instance_type and image_id and memory > 0:
            key = instance_type, image_id
            known = self._least.get(key)
            self._least[key] = memory if known is None else min(memory, known)
            self.revision += self._least[key] != known

    def of(self, instance_type: str, image_id: str) -> int | None:
        """Return what a machine with the image has, None where none has been seen."""
        known: int | None = self._least.get((instance_type, image_id))
        return known
