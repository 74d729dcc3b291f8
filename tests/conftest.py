"""What every test stands on."""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from testbed.processes import binaries
from testbed.processes.binaries import Supply, Toolset
from testbed.progress import Terminal
from tests.parity import engines

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


def pytest_collection_finish(session: pytest.Session) -> None:
    """Have every binary before the first test begins: a build takes longer than a test may."""
    if session.config.option.collectonly:
        return
    capture = session.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        for toolset in {one.key: one for item in session.items for one in _needed(item)}.values():
            Supply(progress=Terminal()).obtain(toolset)
    # Spares every later garbage collection the quarter of a million objects that are imported.
    gc.collect()
    gc.freeze()


def _needed(item: pytest.Item) -> Iterator[Toolset]:
    if item.get_closest_marker("cluster") or item.get_closest_marker("system"):
        yield from (binaries.kubernetes(), binaries.pulumi())
    if "plugins" in item.path.parts:
        yield binaries.pulumi()
    if "parity" in item.path.parts:
        yield from (engines.toolset(), engines.hashing())
