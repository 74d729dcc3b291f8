"""The real Pulumi engine on the programs next to these tests."""

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
    """Creates an engine for the program of a name."""

    def __call__(self, program: str, *, show: Callable[[str], None] = print) -> PulumiEngine:
        """Return an engine with its own directory."""


@pytest.fixture
def engine_on(tmp_path: Path) -> Iterator[EngineOn]:
    """Yield a function that creates engines; at the end, no process of theirs is left."""
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
    """Yield an empty test cloud."""
    with Cloud() as running:
        yield running
