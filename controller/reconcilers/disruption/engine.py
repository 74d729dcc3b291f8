"""The disruption engine's interface, and the backoff while the cluster does not change."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol, TypeVar

from controller.cloudprovider.instancetypes import InstanceType
from controller.disruption.commands import Confirmation, Decision
from controller.disruption.problem import DisruptionProblem
from controller.scheduling.settings import Settings

Result = TypeVar("Result")

PERIOD = timedelta(seconds=10)
AT_ONCE = timedelta(0)
UNSYNCED = timedelta(seconds=1)

LONGEST_PAUSE = timedelta(minutes=5)
"""The longest pause before an unchanged cluster is evaluated again.

Decisions also change with time: a nomination expires, a cool-down ends, a workload has run for
longer. So the first pause is `PERIOD`, and each further pause is twice the one before.
"""


class DisruptionEngine(Protocol):
    """Decides which nodes to disrupt, in this process or another."""

    @property
    def scheduling(self) -> Settings:
        """The scheduling settings."""

    async def in_thread(self, function: Callable[..., Result], *arguments: object) -> Result:
        """Return the result of a pure function without blocking the event loop."""

    async def decide(self, problem: DisruptionProblem) -> Decision:
        """Return the commands to begin now."""

    async def confirm(self, problem: DisruptionProblem, decision: Decision) -> Confirmation:
        """Validate a decision; returns its commands that are still valid."""


@dataclass(slots=True)
class IdleBackoff:
    """Pauses evaluation while the cluster is as in the last evaluation that found no command.

    The pause is `PERIOD`, and doubles up to `LONGEST_PAUSE`. In the methods, `revision` is the
    mirror's revision when the problem was read.
    """

    _revision: int = -1
    _offer: Mapping[str, Sequence[InstanceType]] | None = None
    _at: datetime | None = None
    _pause: timedelta = PERIOD

    def note(self, revision: int, problem: DisruptionProblem) -> None:
        """Record that an evaluation of this revision of the cluster found no command."""
        again = self._at is not None and self._is_the_same(revision, problem)
        self._pause = min(2 * self._pause, LONGEST_PAUSE) if again else PERIOD
        self._revision, self._at = revision, problem.now
        self._offer = problem.snapshot.instance_types

    def forget(self) -> None:
        """End the pause, so that the cluster is evaluated again."""
        self._at = None

    def holds(self, revision: int, problem: DisruptionProblem) -> bool:
        """Whether to skip an evaluation: the pause has not elapsed and the cluster is unchanged."""
        return (
            self._at is not None
            and self._at <= problem.now < self._at + self._pause
            and self._is_the_same(revision, problem)
        )

    def _is_the_same(self, revision: int, problem: DisruptionProblem) -> bool:
        return self._revision == revision and self._offer == problem.snapshot.instance_types
