"""The terminal user interface of `top`.

Only the lines on the screen are rendered, so a key press costs the same in every cluster.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual._xterm_parser import XTermParser
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.drivers.linux_driver import LinuxDriver
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widgets import Footer, Input, Static

from controller.console.feed import Content, Feed
from controller.console.top import tables
from controller.console.top.tables import Arrangement, Line, Sheet

Describe = Callable[[str], Sequence[tuple[str, str]]]
"""Returns names and values of the properties of a pod, given as `namespace/name`."""

STATES = {
    "nodes": "nodes (Enter: pods)",
    "pools": "NodePools (Enter: nodes)",
    "pending": "pending pods (Enter: pods)",
    "decisions": "decisions",
    "help": "keys (Escape: nodes)",
}

NOTE_SECONDS = 0.5
INTERRUPTED = 128 + signal.SIGINT
"""Exit status of a command that Ctrl-C ends."""

THEMES = {"terminal": "ansi-dark", "dark": "textual-dark", "light": "textual-light"}
"""The names of Textual's themes. The first has the colours of the terminal, light or dark."""

NOTHING = tables.sheet_of((), ())

TITLE = Style(bold=True, underline=True)
HEADING = Style(bold=True)
CURSOR = Style(reverse=True)
MARKED = Style(color="red")
PLAIN = Style()


class Lines(ScrollView, can_focus=True):
    """A table with a cursor that renders only the lines on the screen."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "move up", show=False),
        Binding("down,j", "move(1)", "move down", show=False),
        Binding("pageup", "page(-1)", "move up by a screen", show=False),
        Binding("pagedown", "page(1)", "move down by a screen", show=False),
        Binding("home", "move(-1000000)", "move to the first line", show=False),
        Binding("end", "move(1000000)", "move to the last line", show=False),
        Binding("left", "scroll(-8)", "scroll left", show=False),
        Binding("right", "scroll(8)", "scroll right", show=False),
        Binding("enter", "open", "open the line: pods of a node, nodes of a NodePool", show=False),
    ]

    class Opened(Message):
        """A line was opened; `key` identifies its object."""

        def __init__(self, key: str) -> None:
            super().__init__()
            self.key = key

    class Moved(Message):
        """The cursor is on another line, or the line has changed."""

    def __init__(self) -> None:
        super().__init__()
        self._sheet = NOTHING
        self.cursor = 0

    def show(self, sheet: Sheet, *, at: str | None = None) -> None:
        """Show another table, with the cursor on the line with the key `at`.

        If `at` is None, the cursor stays on the key of its line. If there is no such line, the
        cursor is on the first one.
        """
        if at is None:
            at = self._sheet.keys[self.cursor] if self._sheet.keys else ""
        self._sheet = sheet
        self.cursor = sheet.keys.index(at) if at and at in sheet.keys else 0
        self.virtual_size = Size(sheet.width, len(sheet.keys) + 1)
        self._reveal()
        self.refresh()
        self.post_message(self.Moved())

    @property
    def line(self) -> Line | None:
        """The line under the cursor; None if the table has no lines."""
        return self._sheet.line(self.cursor) if self.cursor < len(self._sheet.keys) else None

    def action_move(self, steps: int) -> None:
        """Move the cursor."""
        self.cursor = min(max(self.cursor + steps, 0), max(len(self._sheet.keys) - 1, 0))
        self._reveal()
        self.refresh()
        self.post_message(self.Moved())

    def action_page(self, pages: int) -> None:
        """Move the cursor by pages."""
        self.action_move(pages * max(self.size.height - 2, 1))

    def action_scroll(self, columns: int) -> None:
        """Scroll sideways."""
        self.scroll_relative(x=columns, animate=False)

    def action_open(self) -> None:
        """Open the line under the cursor."""
        line = self.line
        if line is not None and line.key:
            self.post_message(self.Opened(line.key))

    def on_click(self, event: events.Click) -> None:
        """Put the cursor where the mouse was clicked."""
        self.cursor = 0
        self.action_move(event.y - 1 + self.scroll_offset.y)

    def _reveal(self) -> None:
        height, top = max(self.size.height - 1, 1), self.scroll_offset.y
        if self.cursor < top:
            self.scroll_to(y=self.cursor, animate=False)
        elif self.cursor >= top + height:
            self.scroll_to(y=self.cursor - height + 1, animate=False)

    def render_line(self, y: int) -> Strip:
        """Return one line of the screen; the first has the titles."""
        sheet, width = self._sheet, self.size.width
        left, number = self.scroll_offset.x, y - 1 + self.scroll_offset.y
        if y == 0:
            text, style = sheet.text(sheet.titles), TITLE
        elif number < len(sheet.keys):
            line = sheet.line(number)
            text, style = sheet.text(line.cells), PLAIN if line.key else HEADING
            if line.is_marked:
                style = MARKED
            if number == self.cursor and self.has_focus:
                style += CURSOR
        else:
            text, style = sheet.empty if not sheet.keys and y == 2 else "", PLAIN
        text = text[: sheet.fixed_width] + text[sheet.fixed_width + left :]
        return Strip([Segment(text[:width].ljust(width), self.rich_style + style)], width)


class Terminal(LinuxDriver):
    """Draws on standard output, and ignores input that is not UTF-8.

    Textual's driver draws on standard error, which the user may redirect to a file for errors. It
    ends the application at input that is not UTF-8.
    """

    def __init__(
        self,
        app: App[Any],
        *,
        debug: bool = False,
        mouse: bool = True,
        size: tuple[int, int] | None = None,
    ) -> None:
        """See `LinuxDriver`."""
        super().__init__(app, debug=debug, mouse=mouse, size=size)
        self._file = sys.__stdout__

    def run_input_thread(self) -> None:
        """Read until the application ends."""
        while True:
            try:
                super().run_input_thread()
            except UnicodeDecodeError as error:
                for event in XTermParser().feed(error.object.decode(errors="ignore")):
                    self.process_message(event)
            else:
                return


class Top(App[None]):
    """The nodes, NodePools, pending pods and decisions of a cluster."""

    CSS = """
    #note { display: none; height: 2; padding: 0 1; color: $text-warning; }
    #source { height: 1; padding: 0 1; background: $boost; text-style: bold; }
    #head { height: auto; padding: 0 1; background: $boost; }
    #state { height: 1; padding: 0 1; color: $text-muted; }
    #detail { height: 2; padding: 0 1; background: $boost; }
    #filter { display: none; height: 3; }
    Lines { height: 1fr; scrollbar-size-horizontal: 0; }
    """
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("n", "view('nodes')", "nodes"),
        Binding("p", "view('pools')", "pools", tooltip="NodePools"),
        Binding("w", "view('pending')", "pending", tooltip="pending pods"),
        Binding("d", "view('decisions')", "decisions"),
        Binding("g", "group", "group", tooltip="group the nodes by the next property"),
        Binding("s", "sort", "sort", tooltip="sort the nodes by the next column"),
        Binding("r", "reverse", "reverse the order", show=False),
        Binding("slash", "filter", "filter", tooltip="filter the nodes by a text"),
        Binding("escape", "close", "back", tooltip="go back, or remove the filter"),
        # A terminal's Escape also begins the sequences of other keys, so Textual waits 100 ms.
        Binding("backspace", "close", show=False),
        Binding("question_mark", "view('help')", "help", tooltip="this list"),
        Binding("q", "quit", "quit"),
        Binding("ctrl+c", "interrupt", show=False, priority=True),
    ]

    def __init__(
        self, feed: Feed, describe: Describe, *, note: Path | None = None, theme: str = "terminal"
    ) -> None:
        """`note` is a file whose text is shown above the table; `theme` is a key of `THEMES`."""
        super().__init__(driver_class=Terminal)
        self.theme = THEMES[theme]
        self._feed, self._describe, self._note = feed, describe, note
        self._errors = sys.stderr
        self._table = tables.Nodes()
        self._taken: tuple[Content | None, Content | None] = None, None
        self._view = "nodes"
        self._opened: list[str] = []
        """The keys of the opened lines: a node or a group of pending pods, then a pod."""

        self._arranged = Arrangement()
        self._offered: list[bool | None] = []

    def compose(self) -> ComposeResult:
        """Return the widgets, from the top to the bottom."""
        yield Static("", id="note", markup=False)
        yield Static(self._feed.source, id="source", markup=False)
        yield Static("reading the cluster …", id="head", markup=False)
        yield Static("", id="state", markup=False)
        yield Lines()
        yield Static("", id="detail", markup=False)
        yield Input(placeholder="name, NodePool, type, zone or pod", id="filter")
        yield Footer(compact=True)

    def on_mount(self) -> None:
        """Draw the data of the `Feed`, and draw it again after each change."""
        if not self._errors.isatty():
            sys.stderr = self._errors  # Textual drops errors, which would spoil its screen
        self.query_one(Lines).focus()
        self.run_worker(self._follow())
        if self._note is not None:
            self.query_one("#note").display = True
            self._read_note(self._note)
            self.set_interval(NOTE_SECONDS, partial(self._read_note, self._note))

    async def _follow(self) -> None:
        while True:
            changed = asyncio.ensure_future(self._feed.wait_for_change())
            self._draw()
            await changed

    def _read_note(self, note: Path) -> None:
        self._write("note", note.read_text(errors="replace") if note.exists() else "")

    def on_resize(self) -> None:
        """Choose the columns that fit."""
        self._draw()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Return whether a key has an effect in the current view."""
        if action in ("group", "sort", "reverse", "filter"):
            return self._is_arranged
        if action == "close":
            chosen = self._arranged.wanted or self._arranged.pool
            is_help = self._view == "help"
            return bool(self._opened or is_help or (self._is_arranged and chosen))
        return True

    def action_view(self, name: str) -> None:
        """Show another view."""
        self._view, self._opened = name, []
        self._draw(at="")

    def action_interrupt(self) -> None:
        """End with the exit status of an interrupted command, so that its caller may end too."""
        self.exit(return_code=INTERRUPTED)

    def action_group(self) -> None:
        """Group the nodes by the next property."""
        number = tables.GROUPINGS.index(self._arranged.group) + 1
        self._arrange(
            replace(self._arranged, group=tables.GROUPINGS[number % len(tables.GROUPINGS)])
        )

    def action_sort(self) -> None:
        """Sort the nodes by the next column."""
        self._arrange(
            replace(self._arranged, column=(self._arranged.column + 1) % len(tables.COLUMNS))
        )

    def action_reverse(self) -> None:
        """Reverse the order of the nodes."""
        self._arrange(replace(self._arranged, is_reversed=not self._arranged.is_reversed))

    def action_filter(self) -> None:
        """Let the user type a filter."""
        box = self.query_one("#filter", Input)
        box.display = True
        box.focus()

    def action_close(self) -> None:
        """Close the last opened line; if none is open, remove the filter."""
        if self._opened:
            self._draw(at=self._opened.pop())
        elif self._view == "help":
            self.action_view("nodes")
        else:
            self._close_filter()
            self._arrange(replace(self._arranged, wanted="", pool=""))

    def on_key(self, event: events.Key) -> None:
        """Leave the filter's field with Escape."""
        if event.key == "escape" and self.query_one("#filter", Input).has_focus:
            event.stop()
            self._close_filter()
            self._arrange(replace(self._arranged, wanted=""))

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while the user types."""
        if event.value != self._arranged.wanted:  # Escape has drawn already
            self._arrange(replace(self._arranged, wanted=event.value))

    def on_input_submitted(self) -> None:
        """Return to the table; the filter stays."""
        self.query_one(Lines).focus()

    def on_lines_opened(self, event: Lines.Opened) -> None:
        """Show the pods of a node or of a group, the nodes of a NodePool, or a pod."""
        if self._view == "pools":
            self._view = "nodes"
            self._arrange(replace(self._arranged, pool=event.key))
        elif self._view in ("nodes", "pending") and len(self._opened) < 2:
            self._opened.append(event.key)
            self._draw(at="")

    def on_lines_moved(self) -> None:
        """Show the detail of the line under the cursor; it is displayed below the table."""
        line = self.query_one(Lines).line
        self._write("detail", line.detail if line else "")

    @property
    def _is_arranged(self) -> bool:
        """Whether nodes are shown, which can be grouped, sorted and filtered."""
        return self._view == "nodes" and not self._opened

    def _arrange(self, arranged: Arrangement) -> None:
        self._arranged = arranged
        self._draw()

    def _close_filter(self) -> None:
        box = self.query_one("#filter", Input)
        box.value, box.display = "", False
        self.query_one(Lines).focus()

    def _draw(self, *, at: str | None = None) -> None:
        page, plan = self._feed.page, self._feed.plan
        if page is None:
            self._write("state", self._feed.error or self._feed.progress)
            return
        if self._taken != (page, plan):
            self._taken = page, plan
            self._table.update(page, plan)
        self._write("head", tables.headline(page, plan))
        self._write("state", self._feed.error or self._state())
        self.query_one(Lines).show(self._sheet(page, plan), at=at)
        offered = [self.check_action(action, ()) for action in ("sort", "close")]
        if offered != self._offered:  # every refresh rebuilds the footer
            self._offered = offered
            self.refresh_bindings()

    def _write(self, name: str, text: str) -> None:
        """Set the text of a widget; the layout is computed again only if the height changes."""
        widget = self.query_one(f"#{name}", Static)
        if widget.content != text:
            widget.update(text, layout=name == "head")

    def _sheet(self, page: Content, plan: Content | None) -> Sheet:
        if len(self._opened) == 2:
            return tables.pod(self._describe(self._opened[1]))
        if self._opened and self._view == "pending":
            return tables.group(page, self._opened[0])
        if self._opened:
            return tables.pods(page, self._opened[0])
        if self._view == "pools":
            return tables.pools(page)
        if self._view == "pending":
            return tables.pending_sheet(page)
        if self._view == "decisions":
            return tables.decisions(page, plan)
        if self._view == "help":
            return self._keys()
        width = self.size.width - self.query_one(Lines).styles.scrollbar_size_vertical
        return self._table.sheet(self._arranged, columns=width)

    def _keys(self) -> Sheet:
        """Return all keys and what they do."""
        lines = [
            Line((self._name_of(each), each.tooltip or each.description))
            for each in (*self.BINDINGS, *Lines.BINDINGS)
            if isinstance(each, Binding) and each.description
        ]
        return tables.sheet_of(("key", "what it does"), lines)

    def _name_of(self, binding: Binding) -> str:
        keys = binding.key.split(",")
        return ", ".join(self.get_key_display(replace(binding, key=key)) for key in keys)

    def _state(self) -> str:
        if len(self._opened) == 2:
            return f"pod {self._opened[1]} (Escape: back)"
        if self._opened and self._view == "nodes":
            return f"pods of node {self._opened[0]} (Enter: one pod, Escape: back)"
        if self._opened:
            return "pods that are pending for the same causes (Enter: one pod, Escape: back)"
        parts = [STATES[self._view]]
        if self._is_arranged:
            if self._arranged.pool:
                parts.append(f"of NodePool {self._arranged.pool} (Escape: all)")
            if self._arranged.wanted:
                parts.append(f"filter {self._arranged.wanted!r}")
            if self._arranged.group:
                parts.append(f"by {tables.TITLES[self._arranged.group]}")
            parts.append(f"sorted by {tables.COLUMNS[self._arranged.column].title}")
        if self._feed.plan is None:
            parts.append("deciding what happens next …")
        return " · ".join(parts)
