"""Asking what should be disrupted, and remembering when there is no need to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from controller.cloudprovider.instancetypes import InstanceType
from controller.disruption.commands import Confirmation, Decision
from controller.disruption.problem import DisruptionProblem

PERIOD = timedelta(seconds=10)
AT_ONCE = timedelta(0)
UNSYNCED = timedelta(seconds=1)

STEADY = timedelta(minutes=5)
"""How long at most a cluster in which nothing changes is not thought about again.

Time alone changes answers too (a nomination ends, a cool-down is over, a workload has run for
longer), the sooner the less of it has passed: the first pause is `PERIOD`, each one twice the last.
"""


class Judge(Protocol):
    """Asks what should be disrupted, in whatever process that is thought about."""

    async def decide(self, problem: DisruptionProblem) -> Decision:
        """Return what to do now."""

    async def confirm(self, problem: DisruptionProblem, decision: Decision) -> Confirmation:
        """Return what of a decision still stands."""


@dataclass(slots=True)
class Steadiness:
    """A cluster in which nothing was found to do, and what there was to buy."""

    _revision: int = -1
    _offer: Mapping[str, Sequence[InstanceType]] | None = None
    _at: datetime | None = None
    _pause: timedelta = PERIOD

    def note(self, revision: int, problem: DisruptionProblem) -> None:
        """Take note that there is nothing to do in a cluster of this revision."""
        again = self._at is not None and self._is_the_same(revision, problem)
        self._pause = min(2 * self._pause, STEADY) if again else PERIOD
        self._revision, self._at = revision, problem.now
        self._offer = problem.snapshot.instance_types

    def forget(self) -> None:
        """Have the cluster thought about again."""
        self._at = None

    def holds(self, revision: int, problem: DisruptionProblem) -> bool:
        """Whether nothing was found to do a moment ago, and nothing has changed since."""
        return (
            self._at is not None
            and self._at <= problem.now < self._at + self._pause
            and self._is_the_same(revision, problem)
        )

    def _is_the_same(self, revision: int, problem: DisruptionProblem) -> bool:
        return self._revision == revision and self._offer == problem.snapshot.instance_types
