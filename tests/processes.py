"""Plugin of pytest that fails a unit test that starts a process."""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from typing import Any

import pytest

_running: list[pytest.Item] = []
"""The test that runs now, if any."""


def pytest_configure() -> None:
    """Intercept the two ways in which Python starts a process."""
    _refuse_in_unit_tests(subprocess.Popen, "__init__")
    _refuse_in_unit_tests(BaseProcess, "start")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Note which test runs, with the set-up of its fixtures."""
    _running.append(item)
    try:
        return (yield)
    finally:
        _running.clear()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown() -> None:
    """Exempt the teardown: with the last test of a package end the fixtures of all its tests."""
    _running.clear()


def _refuse_in_unit_tests(kind: type, method: str) -> None:
    """Fail a unit test that starts a process, which would take longer than the test itself."""
    start = getattr(kind, method)

    @functools.wraps(start)
    def starting(self: Any, *arguments: Any, **options: Any) -> Any:
        for item in _running:
            if item.get_closest_marker("unit"):
                pytest.fail(f"{item.nodeid} starts a process, so it needs the marker `process`")
        return start(self, *arguments, **options)

    setattr(kind, method, starting)
