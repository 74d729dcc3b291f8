"""Progress is reported correctly, on a terminal and in a log."""

from __future__ import annotations

from testbed.progress import Progress


def test_text_in_brackets_is_shown_unchanged() -> None:
    terminal = Progress()
    terminal.console.width = 200
    bars = terminal._bars()
    bars.add_task("building [a] :key:", total=None, detail="download [/b]")

    with terminal.console.capture() as captured:
        terminal.note("linking [c] :key:")
        terminal.console.print(bars.get_renderable())

    shown = captured.get()
    assert "linking [c] :key:" in shown
    assert "building [a] :key:" in shown
    assert "download [/b]" in shown
