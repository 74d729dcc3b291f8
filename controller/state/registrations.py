"""Whether the new nodes of a NodePool register, from the results of the last few."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from datetime import datetime, timedelta

REMEMBERED = 4
"""How many of a pool's last nodes are remembered, as in Karpenter."""

TOO_MANY = 2
"""How many failures among those make a pool unhealthy; that many in a row start its backoff."""

PAUSES = tuple(timedelta(minutes=minutes) for minutes in (1, 5, 15, 60))
"""How long a pool in backoff waits before it tries one node: after the backoff started, after the
first such node failed, after the second, and so on."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a node did not register, for a condition, and when its NodeClaim was deleted.

    Attributes: created: when the NodeClaim was created; None if unknown.
    """

    reason: str
    message: str
    at: datetime
    created: datetime | None = None


@dataclass(slots=True)
class _Record:
    """The last results of a pool, None for a registered node, and its backoff."""

    outcomes: deque[Failure | None] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    in_a_row: int = 0
    """Counted failures since a node last registered."""

    counted: Failure | None = None
    """The last failure that started or lengthened the backoff."""

    tries_at_once: bool = False
    """Whether the rest of the wait is skipped."""

    @property
    def has_stopped(self) -> bool:
        return self.in_a_row >= TOO_MANY

    def count(self, why: Failure) -> None:
        """Count a failure, unless its NodeClaim is older than the last failure that counted."""
        last = self.counted
        if last is not None and why.created is not None and why.created < last.at <= why.at:
            # One cause fails all claims of a batch: they are one failure.
            return
        begins_again = last is not None and (self.tries_at_once or last.reason != why.reason)
        self.in_a_row = TOO_MANY if self.has_stopped and begins_again else self.in_a_row + 1
        if self.has_stopped:
            self.counted, self.tries_at_once = why, False


@dataclass(slots=True)
class Registrations:
    """The results of each pool's last nodes, by the pool's name."""

    _records: dict[str, _Record] = field(default_factory=dict)
    _circumstances: dict[str, object] = field(default_factory=dict)

    def joined(self, pool: str) -> None:
        """Record that a node of the pool registered."""
        record = self._of(pool)
        record.outcomes.append(None)
        record.in_a_row, record.tries_at_once = 0, False

    def failed(self, pool: str, why: Failure) -> None:
        """Record that a NodeClaim of the pool was deleted before its node registered.

        Two failures in a row start the backoff. After that, a failure lengthens the wait only if
        its NodeClaim was created after the last counted failure. A failure for another reason
        starts with the shortest wait again.
        """
        record = self._of(pool)
        record.outcomes.append(why)
        record.count(why)

    def restore(self, pool: str, trouble: Failure | None) -> None:
        """Restore the result of an earlier process: one registered node, or too many failures.

        Results that are known already take precedence.
        """
        if self.is_known(pool):
            return
        if trouble is None:
            self.joined(pool)
        else:
            for _ in range(TOO_MANY):
                self.failed(pool, trouble)

    def observe(self, pool: str, circumstances: object) -> None:
        """Record what new nodes of the pool depend on.

        If it changes while the pool is in backoff, the pool tries a node at once.
        """
        if self._circumstances.setdefault(pool, circumstances) != circumstances:
            self._circumstances[pool] = circumstances
            self.retry(pool)

    def retry(self, pool: str) -> None:
        """Let a pool in backoff try one node at once; no effect on other pools."""
        record = self._records.get(pool)
        if record is not None and record.has_stopped:
            record.tries_at_once = True

    def forget(self, pool: str) -> None:
        """Forget a pool that changed or was deleted."""
        self._records.pop(pool, None)
        self._circumstances.pop(pool, None)

    def is_known(self, pool: str) -> bool:
        """Whether any result of the pool is known."""
        return pool in self._records

    def trouble(self, pool: str) -> Failure | None:
        """Return the last failure if there were too many, else None."""
        record = self._records.get(pool)
        failures = [outcome for outcome in record.outcomes if outcome is not None] if record else []
        return failures[-1] if len(failures) >= TOO_MANY else None

    def next_try(self, pool: str) -> datetime | None:
        """Return when a pool in backoff may try one node; None for other pools."""
        record = self._records.get(pool)
        if record is None or not record.has_stopped:
            return None
        assert record.counted is not None
        if record.tries_at_once:
            return record.counted.at
        return record.counted.at + PAUSES[min(record.in_a_row - TOO_MANY, len(PAUSES) - 1)]

    def is_in_backoff(self, pool: str, now: datetime) -> bool:
        """Whether a pool in backoff may not try a node yet.

        If the last failure is later than `now`, the clock was set back: the pool may try one node.
        """
        next_try = self.next_try(pool)
        if next_try is None:
            return False
        counted = self._records[pool].counted
        return counted is not None and counted.at <= now < next_try

    def _of(self, pool: str) -> _Record:
        return self._records.setdefault(pool, _Record())
