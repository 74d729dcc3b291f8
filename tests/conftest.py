"""What every test stands on."""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterator, Sequence
from typing import Any

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


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let the scenario of consolidation be as large as in life."""
    parser.addoption(
        "--under-used-nodes", type=int, default=20, help="how many nodes are consolidated"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Hear Ctrl-C also where the shell has put the run in the background.

    Such a shell lets its children ignore the signal, and they pass that on; some tests
    press Ctrl-C on the programs they start.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Have every binary before there are workers: nobody would see how they build it."""
    has_workers = session.config.getoption("numprocesses", None)
    if has_workers and not session.config.option.collectonly:
        _obtain(
            session.config,
            (binaries.kubernetes(), binaries.pulumi(), engines.toolset(), engines.hashing()),
        )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Share the tests out among workers."""
    from tests.workers import FilesAndClusters  # a run without workers need not know of them

    return FilesAndClusters(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what one worker alone may run."""
    for item in items:
        if _needs_control_plane(item):
            item.add_marker(pytest.mark.xdist_group("cluster"))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Have every binary before the first test begins: a build takes longer than a test may."""
    if session.config.option.collectonly:
        return
    _obtain(session.config, [toolset for item in session.items for toolset in _needed(item)])
    # Spares every later garbage collection the quarter of a million objects that are imported.
    gc.collect()
    gc.freeze()


def _obtain(config: pytest.Config, toolsets: Sequence[Toolset]) -> None:
    capture = config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        for toolset in {toolset.key: toolset for toolset in toolsets}.values():
            Supply(progress=Terminal()).obtain(toolset)


def _needs_control_plane(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(name) for name in ("cluster", "system"))


def _needed(item: pytest.Item) -> Iterator[Toolset]:
    if _needs_control_plane(item):
        yield from (binaries.kubernetes(), binaries.pulumi())
    if "plugins" in item.path.parts:
        yield binaries.pulumi()
    if "parity" in item.path.parts:
        yield from (engines.toolset(), engines.hashing())
