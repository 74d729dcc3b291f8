"""Display of the scenario: `joiner top` on a terminal, plain lines in a log.

On a terminal, the current step is a note above the table of `joiner top`. After `q`, plain lines
follow. Ctrl-C ends the demo: `joiner top` reads it as a key and ends with exit status 130.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from testbed.demo.observation import Observation
from testbed.demo.scenario import Viewer
from testbed.environment import CHECKOUT

DONE = "✓"

INTERRUPTED = 128 + signal.SIGINT
"""Exit status of `joiner top` after Ctrl-C."""

LOG_SECONDS = 5.0
"""Interval between observations in a log, in seconds."""


@dataclass(slots=True)
class LiveView(Viewer):
    """Shows completed steps, the lines of Pulumi's engine, and the numbers of pods and nodes.

    While `joiner top` has the terminal, lines are kept in `unsaid`. If the scenario succeeds, the
    kept lines of completed steps are printed at its end. After `q` in `joiner top`, or if the
    scenario fails, all kept lines are printed.
    """

    console: Console
    title: str = ""
    spoke: float = 0.0
    note: Path | None = None
    top: subprocess.Popen[bytes] | None = None
    unsaid: list[str] = field(default_factory=list)
    program: Sequence[str] = (sys.executable, "-m", "controller", "top")

    @contextmanager
    def shown(self, directory: Path, environment: Mapping[str, str]) -> Iterator[None]:
        """Show `joiner top` while the block runs; without a terminal, only lines are printed.

        The file with the note on the current step is in `directory`. The variables of `environment`
        point to the cluster.
        """
        if not self.console.is_terminal:
            yield
            return
        self.note = directory / "note"
        self.note.touch()
        self.top = subprocess.Popen(
            [*self.program, "--note", self.note],
            cwd=CHECKOUT,
            env={**environment, "PYTHONPATH": str(CHECKOUT)},
        )
        threading.Thread(target=_end_with, args=(self.top,), daemon=True).start()
        try:
            yield
            self.unsaid[:] = [text for text in self.unsaid if text.startswith(DONE)]
        finally:
            self.top.terminate()
            self.top.wait()
            self._catch_up()

    def begin(self, title: str) -> None:
        """Show that a step begins."""
        self.title = title
        self._say(f"▸ {title} …")

    def show(self, observation: Observation) -> None:
        """Print a line on an observation, at most one every `LOG_SECONDS`."""
        now = time.monotonic()
        if now - self.spoke >= LOG_SECONDS:
            self.spoke = now
            self._say(f"  {_counts(observation)}")

    def end(self, title: str, seconds: float, outcome: str) -> None:
        """Show that a step succeeded."""
        self._say(f"{DONE} {title} ({seconds:.1f} s): {outcome}")

    def engine_line(self, line: str) -> None:
        """Show a line that the Pulumi engine prints."""
        self._say(f"    {line}")

    def _say(self, text: str) -> None:
        if self.top is None or self.top.poll() is not None:
            self._catch_up()
            self.console.print(text, highlight=False, soft_wrap=True)
            return
        self.unsaid.append(text)
        assert self.note is not None
        step = f"▸ {self.title} …"
        self.note.write_text(text if text == step else f"{step}\n{text}")

    def _catch_up(self) -> None:
        """Print the lines that came while `joiner top` had the terminal."""
        for text in self.unsaid:
            self.console.print(text, highlight=False, soft_wrap=True)
        self.unsaid.clear()


def _end_with(top: subprocess.Popen[bytes]) -> None:
    """Interrupt this process if Ctrl-C ended `joiner top`."""
    if top.wait() == INTERRUPTED:
        os.kill(os.getpid(), signal.SIGINT)


def _counts(seen: Observation) -> str:
    return (
        f"pods {seen.running} running, {seen.bound} bound of {len(seen.pods)}; "
        f"nodes {len(seen.nodes)}, instances {len(seen.instances)}; {seen.cost:.3f} $/h"
    )
