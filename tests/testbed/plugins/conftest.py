"""The real engine on the programs beside these tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest

from testbed.cloud import Cloud
from testbed.plugins.engine import PulumiEngine
from testbed.plugins.home import Plugins
from testbed.processes import owned

PROGRAMS = Path(__file__).parent / "programs"


class EngineOn(Protocol):
    """Makes an engine for the program of that name."""

    def __call__(self, program: str, *, show: Callable[[str], None] = print) -> PulumiEngine:
        """Make it, with a directory of its own."""


@pytest.fixture
def engine_on(tmp_path: Path) -> Iterator[EngineOn]:
    """Engines that leave no process behind."""
    directory = tmp_path / "engine"

    def make(program: str, *, show: Callable[[str], None] = print) -> PulumiEngine:
        return PulumiEngine(
            directory=directory,
            project=PROGRAMS / program,
            plugins=Plugins.STAND_IN,
            show=show,
        )

    yield make
    assert owned.belonging_to(directory) == []
    written = {path.name for path in PROGRAMS.rglob("*") if path.suffix == ".yaml"}
    assert written == {"Pulumi.yaml"}, "the engine wrote into the project's folder"


@pytest.fixture
def cloud() -> Iterator[Cloud]:
    """A test cloud in which nothing has been made yet."""
    with Cloud() as running:
        yield running
