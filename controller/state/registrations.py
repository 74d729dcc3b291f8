"""Whether the new nodes of a pool join the cluster, by what became of the last few."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from datetime import datetime, timedelta

REMEMBERED = 4
"""Of how many nodes of a pool it is remembered whether they joined, as Karpenter does."""

TOO_MANY = 2
"""How many failures among those make a pool unhealthy; in a row, they stop it."""

PAUSES = tuple(timedelta(minutes=minutes) for minutes in (1, 5, 15, 60))
"""How long a pool that has stopped waits before it tries one node again: after its second
failure in a row, its third, and so on."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a node did not join, for a condition, and when it was given up."""

    reason: str
    message: str
    at: datetime


@dataclass(slots=True)
class _Record:
    """The last outcomes, None for a node that joined; and how many failures came in a row."""

    outcomes: deque[Failure | None] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    in_a_row: int = 0


@dataclass(slots=True)
class Registrations:
    """What became of the last nodes of each pool, by the pool's name."""

    _records: dict[str, _Record] = field(default_factory=dict)

    def joined(self, pool: str) -> None:
        """Remember that a node of the pool joined."""
        record = self._of(pool)
        record.outcomes.append(None)
        record.in_a_row = 0

    def failed(self, pool: str, why: Failure) -> None:
        """Remember that a node of the pool was given up before it joined."""
        record = self._of(pool)
        record.outcomes.append(why)
        record.in_a_row += 1

    def restore(self, pool: str, trouble: Failure | None) -> None:
        """Go on from what an earlier process found: one node that joined, or too many failures.
        What is known already counts more.
        """
        if self.is_known(pool):
            return
        if trouble is None:
            self.joined(pool)
        else:
            for _ in range(TOO_MANY):
                self.failed(pool, trouble)

    def forget(self, pool: str) -> None:
        """Begin anew: the pool is another now, or has gone."""
        self._records.pop(pool, None)

    def is_known(self, pool: str) -> bool:
        """Whether anything is remembered of the pool's nodes."""
        return pool in self._records

    def trouble(self, pool: str) -> Failure | None:
        """Return the last failure when there were too many, else None."""
        record = self._records.get(pool)
        failures = [outcome for outcome in record.outcomes if outcome is not None] if record else []
        return failures[-1] if len(failures) >= TOO_MANY else None

    def next_try(self, pool: str) -> datetime | None:
        """Return when a pool that has stopped may try one node again; None for others."""
        record = self._records.get(pool)
        if record is None or record.in_a_row < TOO_MANY:
            return None
        last = record.outcomes[-1]
        assert last is not None
        return last.at + PAUSES[min(record.in_a_row - TOO_MANY, len(PAUSES) - 1)]

    def is_resting(self, pool: str, now: datetime) -> bool:
        """Whether a pool that has stopped may not try yet.

        A failure that is still to come was noted before the clock was set back: whether nodes join
        again is found out by one more.
        """
        next_try, failure = self.next_try(pool), self.trouble(pool)
        return next_try is not None and failure is not None and failure.at <= now < next_try

    def _of(self, pool: str) -> _Record:
        return self._records.setdefault(pool, _Record())
