"""The display of the demo ends, or goes on in plain lines, as the user asks."""

from __future__ import annotations

import io
import os
import sys
import threading
from pathlib import Path

import pytest
from rich.console import Console

from testbed.demo.liveview import LiveView


def view_of(program: str) -> tuple[LiveView, io.StringIO]:
    """Return a view on a terminal, with this Python program in place of `joiner top`."""
    said = io.StringIO()
    console = Console(file=said, force_terminal=True, markup=False, color_system=None)
    return LiveView(console, program=(sys.executable, "-c", program)), said


@pytest.mark.process
def test_ctrl_c_in_top_ends_the_demo(tmp_path: Path) -> None:
    view, said = view_of("import sys; sys.exit(130)")

    def demo() -> None:
        with view.shown(tmp_path, os.environ):
            view.end("pods", 1.0, "all bound")
            threading.Event().wait(60)  # the interrupt ends it

    with pytest.raises(KeyboardInterrupt):
        demo()

    assert "all bound" in said.getvalue()


@pytest.mark.process
def test_after_q_in_top_plain_lines_follow(tmp_path: Path) -> None:
    view, said = view_of("")

    with view.shown(tmp_path, os.environ):
        assert view.top is not None
        view.top.wait()
        view.end("pods", 1.0, "all bound")
        assert "all bound" in said.getvalue()
