"""What every test stands on."""

from __future__ import annotations

import signal

import pytest
from hypothesis import HealthCheck, settings

# The same examples in every run, however slow the machine. For others than these, of every
# property: pytest --hypothesis-profile=default
settings.register_profile(
    "steady", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("steady")


def pytest_configure(config: pytest.Config) -> None:
    """Hear Ctrl-C also where the shell has put the run in the background.

    Such a shell lets its children ignore the signal, and they pass that on; some tests
    press Ctrl-C on the programs they start.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
