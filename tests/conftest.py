"""Configuration of all tests."""

from __future__ import annotations

import functools
import gc
import signal
from collections.abc import Callable, Iterator, Sequence

import botocore.session
import croniter  # noqa: F401  # its import starts `file`, and no unit test may start a process
import pytest
from botocore.loaders import create_loader
from hypothesis import HealthCheck, settings

from bench.parity import engines
from testbed.processes import binaries
from testbed.processes.binaries import Supply, Toolset
from testbed.progress import Progress
from tests import processes

# Hypothesis uses the same examples in every run, however slow the machine. For random examples of
# every property: pytest --hypothesis-profile=default
settings.register_profile(
    "steady", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("steady")

# All sessions of botocore read the models of the AWS APIs once; each would take 0.3 s for EC2's.
botocore.session.create_loader = functools.cache(create_loader)

# The imports create 250,000 objects that stay until the end. `pytest_collection_finish` excludes
# them from every garbage collection, and enables it again.
gc.disable()

GARBAGE_THRESHOLDS = (20_000, 20, 50)
"""When the three generations of objects are collected. With Python's thresholds, a quarter of the
CPU time of the unit tests is spent on searching modules, models and caches, which stay until the
end, for garbage.
"""

BUILT: dict[str, Callable[[], tuple[Toolset, ...]]] = {
    "kubernetes": lambda: (binaries.control_plane(), binaries.kubernetes()),
    "pulumi": lambda: (binaries.pulumi(),),
    "pulumi-yaml": lambda: (binaries.pulumi(), binaries.pulumi_yaml()),
    "kubefilter": lambda: (binaries.kubefilter(),),
    "karpenter": lambda: (engines.toolset(), engines.hash_toolset()),
    "browser": tuple,  # its fixture downloads it, like the next one's
    "go": tuple,
    "registry": lambda: (binaries.registry(),),
}
"""What a test may need that is built or downloaded, by the argument of its marker `needs`."""

NEEDED = {
    "engine_on": "pulumi",
    "greeter": "pulumi",
    "judge": "kubefilter",
    "karpenter": "karpenter",
    "devtools": "browser",
    "go": "go",
    "registry": "registry",
}
"""What a fixture needs of it."""

SLOW_FOLDERS = ("trace",)
"""Folders of tests that take seconds each, and would be the last of the unit tests by name."""


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
    config.pluginmanager.register(processes)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Build every program before workers start, since workers show no progress of a build.

    Only the workers know which tests are selected, so only unit tests are exempt.
    """
    has_workers = session.config.getoption("numprocesses", None)
    options = session.config.option
    if has_workers and not options.collectonly and options.markexpr != "unit":
        _obtain(session.config, [toolset for built in BUILT.values() for toolset in built()])


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the unit tests; in a run with several workers, put the slow files first.

    Workers take the files in this order. A file that takes minutes would otherwise be the last one,
    while the other workers have nothing left to do.
    """
    slow = set()
    for item in items:
        for fixture in NEEDED.keys() & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.needs(NEEDED[fixture]))
        if item.path.parent.name in SLOW_FOLDERS:
            slow.add(item.path)
        if _needs_control_plane(item):
            slow.add(item.path)
        elif not any(item.get_closest_marker(name) for name in ("needs", "long", "process")):
            item.add_marker(pytest.mark.unit)
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: item.path not in slow)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build every binary before the first test: a build takes longer than a test's time limit."""
    gc.freeze()
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    gc.enable()
    if session.config.option.collectonly:
        return
    _obtain(session.config, [toolset for item in session.items for toolset in _needed(item)])


def _obtain(config: pytest.Config, toolsets: Sequence[Toolset]) -> None:
    capture = config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        wanted = list({toolset.key: toolset for toolset in toolsets}.values())
        for number, toolset in enumerate(wanted, start=1):
            Supply(progress=Progress(), upcoming=wanted[number:]).obtain(toolset)


def _needs_control_plane(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(name) for name in ("cluster", "system"))


def _needed(item: pytest.Item) -> Iterator[Toolset]:
    programs = [name for marker in item.iter_markers("needs") for name in marker.args]
    if _needs_control_plane(item):
        programs += ["kubernetes", "pulumi"]
    for name in programs:
        yield from BUILT[name]()
