"""What a run may spend, in money and in time.

* AllowanceSpentError    the money or the time is up
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from tests.account.sweep import Machine

STANDING = 0.40
"""$/h of what stands without a single pod: control plane 0.10, NAT 0.05, two endpoints in three
zones 0.06, two nodes 0.07. List prices of us-west-2, and two fifths more for other regions."""

CPU = 0.10
"""$/h of one vCPU, more than any on-demand price of families c, m and r: spot is cheaper."""


class AllowanceSpentError(Exception):
    """The money or the time is up; the message says which."""


@dataclass
class Allowance:
    """Money and time; both are counted from the first question on, and never too low."""

    dollars: float
    lasting: timedelta
    clock: Callable[[], datetime]
    machines: Callable[[], list[Machine]]
    """Joiner's instances as they are."""

    _began: datetime | None = field(default=None, init=False)
    _counted: datetime | None = field(default=None, init=False)
    _spent: float = field(default=0.0, init=False)

    @property
    def spent(self) -> float:
        """$ so far, by list prices rounded up."""
        return self._spent

    def check(self) -> None:
        """Count what has been spent since the last time; raises `AllowanceSpentError`."""
        now = self.clock()
        began, counted = self._began or now, self._counted or now
        cpus = sum(machine.cpus for machine in self.machines())
        self._spent += (now - counted) / timedelta(hours=1) * (STANDING + cpus * CPU)
        self._began, self._counted = began, now
        if self._spent > self.dollars:
            raise AllowanceSpentError(f"${self._spent:.2f} of ${self.dollars:.2f} are spent")
        if now - began > self.lasting:
            raise AllowanceSpentError(f"the time of {self.lasting} is up")
