"""Progress reports of long operations.

On a terminal, a stage is a live line with a bar and the elapsed time. In a log, it is a plain line
every `LOG_SECONDS`, so that a CI run never appears to hang.
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
"""Interval of a stage's lines in a log, in seconds.

Frequent enough to show that the stage runs, rare enough to read.
"""


class Stage(Protocol):
    """One long operation."""

    def update(self, *, completed: int, total: int | None = None, detail: str = "") -> None:
        """Report progress: `completed` of `total` units (None: unknown), and the current item."""


@dataclass(frozen=True)
class Progress:
    """Reports to a terminal or to a log; `console`, of the library rich, detects which."""

    console: Console = field(
        default_factory=lambda: Console(stderr=True, markup=False, emoji=False)
    )

    def note(self, text: str) -> None:
        """Print one line."""
        self.console.print(text, highlight=False, soft_wrap=True)

    @contextmanager
    def stage(self, title: str) -> Iterator[Stage]:
        """Show a live bar on a terminal, plain lines elsewhere, and the duration at the end."""
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
            # A narrow terminal truncates the detail, never the count or the clock.
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


SILENCE = Progress(Console(quiet=True, force_terminal=False, markup=False, emoji=False))
"""Reports nothing."""


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
            Progress(self._console).note(f"{self._title}: {known} {detail}")
