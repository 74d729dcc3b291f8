"""The results of the last node registrations of each NodePool, and the registration backoff.

A NodePool is unhealthy if at least `MIN_FAILURES` of its last `MAX_RESULTS` nodes did not register.
After `MIN_FAILURES` failures in a row it is in backoff until a node registers: it launches one node
at a time, and waits in between (`PAUSES`).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from controller.state.launchrefusals import LaunchRefusals

MAX_RESULTS = 4
"""The number of results that are kept for a NodePool, as in Karpenter."""

MIN_FAILURES = 2
"""The number of failures among the last `MAX_RESULTS` results that make a NodePool unhealthy; this
number of consecutive failures starts its backoff."""

PAUSES = tuple(timedelta(minutes=minutes) for minutes in (1, 5, 15, 60))
"""The waiting times of a NodePool in backoff before it tries one node: after the backoff started,
after the first such node failed, after the second one failed, and so on."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A node that did not register, with reason and message as in a condition.

    `at` is the time of the NodeClaim's deletion, `created` the time of its creation, if known.
    """

    reason: str
    message: str
    at: datetime
    created: datetime | None = None


@dataclass(slots=True)
class _Record:
    """The last results of a NodePool (None for a registered node), and its backoff."""

    outcomes: deque[Failure | None] = field(default_factory=lambda: deque(maxlen=MAX_RESULTS))
    consecutive: int = 0
    """Counted failures since a node last registered."""

    counted: Failure | None = None
    """The last failure that started or lengthened the backoff."""

    tries_at_once: bool = False
    """Whether the rest of the backoff is skipped."""

    @property
    def has_backoff(self) -> bool:
        return self.consecutive >= MIN_FAILURES

    def count(self, failure: Failure) -> None:
        """Count a failure, unless its NodeClaim is older than the last failure that counted."""
        last = self.counted
        if (
            last is not None
            and failure.created is not None
            and failure.created < last.at <= failure.at
        ):
            # One cause makes all NodeClaims of a batch fail, so these failures count once.
            return
        restarts = last is not None and (self.tries_at_once or last.reason != failure.reason)
        self.consecutive = MIN_FAILURES if self.has_backoff and restarts else self.consecutive + 1
        if self.has_backoff:
            self.counted, self.tries_at_once = failure, False


@dataclass(slots=True)
class Registrations:
    """The results of the last nodes of each NodePool, by its name, and its refused launches."""

    refusals: LaunchRefusals = field(default_factory=LaunchRefusals)
    _records: dict[str, _Record] = field(default_factory=dict)
    _circumstances: dict[str, object] = field(default_factory=dict)

    def record_registration(self, pool: str) -> None:
        """Record that a node of the pool registered."""
        record = self._of(pool)
        record.outcomes.append(None)
        record.consecutive, record.tries_at_once = 0, False

    def record_failure(self, pool: str, failure: Failure) -> None:
        """Record that a NodeClaim of the pool was deleted before its node registered.

        Two failures in a row start the backoff. After that, a failure lengthens the wait only if
        its NodeClaim was created after the last counted failure. A failure for another reason
        starts with the shortest wait again.
        """
        record = self._of(pool)
        record.outcomes.append(failure)
        record.count(failure)

    def restore(self, pool: str, last_failure: Failure | None) -> None:
        """Restore the result of an earlier process.

        With `last_failure` the NodePool is unhealthy because of it. None stands for a node that
        registered. If the NodePool has results already, they are kept.
        """
        if self.is_known(pool):
            return
        if last_failure is None:
            self.record_registration(pool)
        else:
            for _ in range(MIN_FAILURES):
                self.record_failure(pool, last_failure)

    def observe(self, pool: str, circumstances: object) -> None:
        """Record the configuration that new nodes of the NodePool depend on.

        If it changes while the NodePool is in backoff, the NodePool may launch a node at once.
        """
        if self._circumstances.setdefault(pool, circumstances) != circumstances:
            self._circumstances[pool] = circumstances
            self.retry(pool)

    def retry(self, pool: str) -> None:
        """Let a pool in backoff launch one node at once; no effect on other pools."""
        record = self._records.get(pool)
        if record is not None and record.has_backoff:
            record.tries_at_once = True

    def forget(self, pool: str) -> None:
        """Forget a pool that changed or was deleted."""
        self._records.pop(pool, None)
        self.refusals.forget(pool)
        self._circumstances.pop(pool, None)

    def is_known(self, pool: str) -> bool:
        """Whether there is a result of the NodePool."""
        return pool in self._records

    def last_failure(self, pool: str) -> Failure | None:
        """Return the last failure if the NodePool is unhealthy, else None."""
        record = self._records.get(pool)
        failures = [outcome for outcome in record.outcomes if outcome is not None] if record else []
        return failures[-1] if len(failures) >= MIN_FAILURES else None

    def next_try(self, pool: str) -> datetime | None:
        """Return when a pool in backoff may launch one node; None for other pools."""
        record = self._records.get(pool)
        if record is None or not record.has_backoff:
            return None
        assert record.counted is not None
        if record.tries_at_once:
            return record.counted.at
        return record.counted.at + PAUSES[min(record.consecutive - MIN_FAILURES, len(PAUSES) - 1)]

    def is_in_backoff(self, pool: str, now: datetime) -> bool:
        """Whether a pool in backoff may not launch a node yet.

        If the last failure is later than `now`, the clock was set back, and the result is False.
        """
        next_try = self.next_try(pool)
        if next_try is None:
            return False
        counted = self._records[pool].counted
        return counted is not None and counted.at <= now < next_try

    def _of(self, pool: str) -> _Record:
        return self._records.setdefault(pool, _Record())
