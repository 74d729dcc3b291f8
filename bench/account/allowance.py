"""Limits on what a run may spend, in money and in time.

* AllowanceSpentError    the money or the time is used up
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from bench.account.sweep import Instance

FIXED = 0.40
"""$/h of the stack without any pods of the test.

Control plane 0.10, NAT 0.05, two endpoints in three zones 0.06, two nodes 0.07. These are list
prices of us-west-2; the value adds two fifths for other regions.
"""

CPU = 0.10
"""$/h of one vCPU: above every on-demand price of families c, m and r, hence also above spot."""


class AllowanceSpentError(Exception):
    """The money or the time is used up; the message says which."""


@dataclass
class Allowance:
    """Limits on money and time, which count from the first check.

    Each check charges the time since the last one at the rate of the instances that exist now.
    """

    dollars: float
    """Limit on money, at list prices rounded up."""

    lasting: timedelta
    """Limit on time."""

    clock: Callable[[], datetime]
    instances: Callable[[], list[Instance]]
    """Returns Joiner's current instances."""

    _began: datetime | None = field(default=None, init=False)
    _counted: datetime | None = field(default=None, init=False)
    _spent: float = field(default=0.0, init=False)

    @property
    def spent(self) -> float:
        """Dollars spent until the last check, at list prices rounded up."""
        return self._spent

    def check(self) -> None:
        """Add what has been spent since the last check.

        Raises `AllowanceSpentError` past a limit.
        """
        now = self.clock()
        began, counted = self._began or now, self._counted or now
        cpus = sum(instance.cpus for instance in self.instances())
        self._spent += (now - counted) / timedelta(hours=1) * (FIXED + cpus * CPU)
        self._began, self._counted = began, now
        if self._spent > self.dollars:
            raise AllowanceSpentError(f"${self._spent:.2f} of ${self.dollars:.2f} are spent")
        if now - began > self.lasting:
            raise AllowanceSpentError(f"the time of {self.lasting} is up")
