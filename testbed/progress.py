"""What long work tells the person who waits.

On a terminal a stage is a live line with a bar and the time elapsed; in a log it
is a plain line now and then, so that a CI run never looks hung.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.progress import Progress as Bars
from rich.table import Column

LOG_SECONDS = 10.0
"""How often a stage speaks in a log: often enough to see it live, rarely enough to read."""


class Stage(Protocol):
    """One piece of long work."""

    def update(self, *, completed: int, total: int | None = None, detail: str = "") -> None:
        """Say how far it is: so many of `total`, and what it is busy with."""


class Progress(Protocol):
    """Somebody to tell."""

    def note(self, text: str) -> None:
        """Tell a fact worth a line of its own."""

    @contextmanager
    def stage(self, title: str) -> Iterator[Stage]:
        """Open a piece of long work; leaving the block closes it."""
        yield from ()


@dataclass(frozen=True)
class Silence:
    """Nobody to tell."""

    def note(self, text: str) -> None:
        """Keep it."""

    @contextmanager
    def stage(self, title: str) -> Iterator[Stage]:
        """Work in silence."""
        yield self

    def update(self, *, completed: int, total: int | None = None, detail: str = "") -> None:
        """Keep it."""


SILENCE: Progress = Silence()


@dataclass(frozen=True)
class Terminal:
    """A person at a terminal, or the reader of a log; the console knows which."""

    console: Console = field(
        default_factory=lambda: Console(stderr=True, markup=False, emoji=False)
    )

    def note(self, text: str) -> None:
        """Print one line."""
        self.console.print(text, highlight=False, soft_wrap=True)

    @contextmanager
    def stage(self, title: str) -> Iterator[Stage]:
        """Show a live bar on a terminal, plain lines elsewhere; at the end, the time it took."""
        began = time.monotonic()
        if self.console.is_terminal:
            with self._bars() as bars:
                yield _Bar(bars, title)
        else:
            self.note(f"{title} …")
            yield _Lines(self.console, title)
        self.note(f"{title}: done in {time.monotonic() - began:.1f} s")

    def _bars(self) -> Bars:
        return Bars(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True)),
            BarColumn(bar_width=16, table_column=Column(width=16)),
            MofNCompleteColumn(table_column=Column(no_wrap=True, min_width=9)),
            TimeElapsedColumn(table_column=Column(no_wrap=True, min_width=7)),
            # What a narrow terminal cuts is the detail, never the count or the clock.
            TextColumn(
                "{task.fields[detail]}",
                style="dim",
                markup=False,
                table_column=Column(ratio=1, no_wrap=True),
            ),
            console=self.console,
            transient=True,
            expand=True,
        )


class _Bar:
    def __init__(self, bars: Bars, title: str) -> None:
        self._bars = bars
        self._task = bars.add_task(title, total=None, detail="")

    def update(self, *, completed: int, total: int | None = None, detail: str = "") -> None:
        self._bars.update(self._task, completed=completed, total=total, detail=detail)


class _Lines:
    def __init__(self, console: Console, title: str) -> None:
        self._console = console
        self._title = title
        self._spoke = time.monotonic()

    def update(self, *, completed: int, total: int | None = None, detail: str = "") -> None:
        if time.monotonic() - self._spoke >= LOG_SECONDS:
            self._spoke = time.monotonic()
            known = f"{completed} of {total}" if total else f"{completed}"
            Terminal(self._console).note(f"{self._title}: {known} {detail}")
