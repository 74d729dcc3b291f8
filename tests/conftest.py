"""Configuration of all tests."""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from bench.parity import engines
from testbed.processes import binaries
from testbed.processes.binaries import Supply, Toolset
from testbed.progress import Terminal

# Hypothesis uses the same examples in every run, however slow the machine. For random examples of
# every property: pytest --hypothesis-profile=default
settings.register_profile(
    "steady", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("steady")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that runs the consolidation scenario at the size of a real cluster."""
    parser.addoption(
        "--under-used-nodes", type=int, default=20, help="how many nodes are consolidated"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Restore Ctrl-C if the shell has started the run in the background.

    Such a shell makes its children ignore SIGINT, and they pass that on to the programs that some
    tests start and interrupt.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Build every binary before workers start, since workers show no progress of a build."""
    has_workers = session.config.getoption("numprocesses", None)
    if has_workers and not session.config.option.collectonly:
        _obtain(
            session.config,
            (binaries.kubernetes(), binaries.pulumi(), engines.toolset(), engines.hashing()),
        )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Return the scheduler that distributes tests over workers."""
    from tests.workers import FilesAndClusters  # a run without workers must not import it

    return FilesAndClusters(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that must share one worker."""
    for item in items:
        if _needs_control_plane(item):
            item.add_marker(pytest.mark.xdist_group("cluster"))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build every binary before the first test: a build takes longer than a test's time limit."""
    if session.config.option.collectonly:
        return
    _obtain(session.config, [toolset for item in session.items for toolset in _needed(item)])
    # Excludes the 250,000 objects of the imports from every later garbage collection.
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
        yield from (binaries.control_plane(), binaries.kubernetes(), binaries.pulumi())
    if "plugins" in item.path.parts:
        yield binaries.pulumi()
    if "parity" in item.path.parts:
        yield from (engines.toolset(), engines.hashing())
