"""The launches of a NodePool that were refused in a row, and how long to wait before the next.

If the offerings of a NodePool are unavailable, its pods are scheduled to other NodePools. A static
NodePool has no such choice: without a pause it would create the NodeClaims again as soon as the
refused ones are deleted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

LONGEST_PAUSE = timedelta(seconds=30)
"""The longest wait after a refused launch."""


@dataclass(slots=True)
class Refused:
    """The refused launches of a NodePool since one succeeded.

    `message` and `at` are those of the last one. All launches of one batch count once: they usually
    fail for the same cause. `is_counted`: a refusal of the present batch is counted already.
    """

    message: str
    at: datetime
    consecutive: int = 0
    is_counted: bool = False

    @property
    def pause(self) -> timedelta:
        """The wait after the last refusal: none after the first, then 1 s, 2 s, 4 s, …, 30 s."""
        if self.consecutive < 2:
            return timedelta(0)
        return min(timedelta(seconds=2 ** min(self.consecutive - 2, 10)), LONGEST_PAUSE)


@dataclass(slots=True)
class LaunchRefusals:
    """The refused launches of each NodePool, by its name."""

    _refused: dict[str, Refused] = field(default_factory=dict)

    def record_refusal(self, pool: str, message: str, at: datetime) -> None:
        """Record that a NodeClaim of the pool is deleted because its launch was refused."""
        record = self._refused.setdefault(pool, Refused(message, at))
        record.message, record.at = message, at
        record.consecutive += not record.is_counted
        record.is_counted = True

    def record_batch(self, pool: str) -> None:
        """Record that the pool gets a new batch of NodeClaims."""
        if (record := self._refused.get(pool)) is not None:
            record.is_counted = False

    def forget(self, pool: str) -> None:
        """Forget the refusals of a pool that launched a node, changed or was deleted."""
        self._refused.pop(pool, None)

    def remaining_wait(self, pool: str, now: datetime) -> tuple[timedelta, str]:
        """Return how long the pool has to wait, and the message of the last refusal.

        Without refusals, the wait is zero and the message is empty.

        If the last refusal is later than `now`, the clock was set back, and the pool need not wait.
        """
        record = self._refused.get(pool)
        if record is None or record.at > now:
            return timedelta(0), ""
        return max(record.at + record.pause - now, timedelta(0)), record.message
