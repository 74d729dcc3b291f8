"""The terminal user interface of `top`.

Only the lines on the screen are rendered, so a key press costs the same in every cluster.
"""

from __future__ import annotations

import asyncio
from typing import ClassVar

import orjson
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widgets import Footer, Input, Static

from controller.console.top import tables
from controller.console.top.tables import Content, Line, Sheet
from controller.console.web.server import Feed

GAP = "  "
VIEWS = ("nodes", "pools", "pending", "decisions")

TITLE = Style(bold=True, underline=True)
HEADING = Style(bold=True)
CURSOR = Style(reverse=True)
LEAVING = Style(color="red")
PLAIN = Style()


class Lines(ScrollView, can_focus=True):
    """A table with a cursor that renders only what is on the screen."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "up", show=False),
        Binding("down,j", "move(1)", "down", show=False),
        Binding("pageup", "page(-1)", "page up", show=False),
        Binding("pagedown", "page(1)", "page down", show=False),
        Binding("home", "move(-1000000)", "first", show=False),
        Binding("end", "move(1000000)", "last", show=False),
        Binding("left", "scroll(-8)", "left", show=False),
        Binding("right", "scroll(8)", "right", show=False),
        Binding("enter", "open", "open", show=False),
    ]

    class Opened(Message):
        """A line was opened."""

        def __init__(self, line: Line) -> None:
            super().__init__()
            self.line = line

    class Moved(Message):
        """The cursor is on another line, or the line has changed."""

    def __init__(self) -> None:
        super().__init__()
        self._sheet = Sheet((), ())
        self._widths: list[int] = []
        self.cursor = 0

    def show(self, sheet: Sheet, *, keep: bool = True) -> None:
        """Show another table; the cursor stays on the same line if it is still there."""
        current = self.line.key if keep and self.line else ""
        self._sheet = sheet
        rows = [sheet.titles, *(line.cells for line in sheet.lines if line.key)]
        self._widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        self.cursor = next(
            (number for number, line in enumerate(sheet.lines) if line.key and line.key == current),
            0,
        )
        width = sum(self._widths) + len(GAP) * len(self._widths)
        self.virtual_size = Size(width, len(sheet.lines) + 1)
        self._reveal()
        self.refresh()
        self.post_message(self.Moved())

    @property
    def line(self) -> Line | None:
        """The line under the cursor."""
        lines = self._sheet.lines
        return lines[self.cursor] if self.cursor < len(lines) else None

    def action_move(self, steps: int) -> None:
        """Move the cursor."""
        self.cursor = min(max(self.cursor + steps, 0), max(len(self._sheet.lines) - 1, 0))
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
        if self.line is not None and self.line.key:
            self.post_message(self.Opened(self.line))

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
        left, width = self.scroll_offset.x, self.size.width
        if y == 0:
            text, style = self._text(self._sheet.titles), TITLE
        else:
            number = y - 1 + self.scroll_offset.y
            if number >= len(self._sheet.lines):
                return Strip.blank(width)
            line = self._sheet.lines[number]
            text = self._text(line.cells) if line.key else line.cells[0]
            style = HEADING if not line.key else PLAIN
            if any(cell.startswith("disrupt:") for cell in line.cells):
                style = LEAVING
            if number == self.cursor and self.has_focus:
                style += CURSOR
        padded = text[left : left + width].ljust(width)
        return Strip([Segment(padded, style)], width)

    def _text(self, cells: tuple[str, ...]) -> str:
        return GAP.join(
            cell.rjust(width) if number in self._sheet.right else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(cells, self._widths, strict=True))
        )


class Top(App[None]):
    """The nodes, NodePools, pending pods and decisions of a cluster."""

    CSS = """
    #head { height: auto; padding: 0 1; background: $boost; }
    #state { height: auto; padding: 0 1; color: $text-muted; }
    #detail { height: auto; min-height: 1; padding: 0 1; background: $boost; }
    #filter { display: none; height: 3; }
    Lines { height: 1fr; }
    """
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("n", "view('nodes')", "nodes"),
        Binding("p", "view('pools')", "NodePools"),
        Binding("w", "view('pending')", "pending pods"),
        Binding("d", "view('decisions')", "decisions"),
        Binding("g", "group", "group"),
        Binding("s", "sort", "sort"),
        Binding("r", "reverse", "reverse"),
        Binding("slash", "filter", "filter"),
        Binding("escape", "close", "back"),
        Binding("q", "quit", "quit"),
    ]

    def __init__(self, feed: Feed) -> None:
        super().__init__()
        self._feed = feed
        self._page: Content | None = None
        self._plan: Content | None = None
        self._view, self._node = "nodes", ""
        self._group, self._column, self._is_reversed, self._wanted = "", 1, False, ""

    def compose(self) -> ComposeResult:
        """Return the widgets, from the top to the bottom."""
        yield Static("reading the cluster …", id="head", markup=False)
        yield Static("", id="state", markup=False)
        yield Lines()
        yield Static("", id="detail", markup=False)
        yield Input(placeholder="name, NodePool, type, zone or pod", id="filter")
        yield Footer()

    def on_mount(self) -> None:
        """Show what the feed has, and then each change."""
        self.query_one(Lines).focus()
        self.run_worker(self._follow())

    async def _follow(self) -> None:
        while True:
            changed = asyncio.ensure_future(self._feed.changed())
            self._page = orjson.loads(self._feed.page)
            self._plan = orjson.loads(self._feed.plan)
            self._draw()
            await changed

    def action_view(self, name: str) -> None:
        """Show another view."""
        self._view, self._node = name, ""
        self._draw(keep=False)

    def action_group(self) -> None:
        """Group the nodes by the next property."""
        number = tables.GROUPINGS.index(self._group) + 1
        self._group = tables.GROUPINGS[number % len(tables.GROUPINGS)]
        self._draw()

    def action_sort(self) -> None:
        """Sort the nodes by the next column."""
        self._column = (self._column + 1) % tables.SORTABLE
        self._draw()

    def action_reverse(self) -> None:
        """Reverse the order of the nodes."""
        self._is_reversed = not self._is_reversed
        self._draw()

    def action_filter(self) -> None:
        """Let the user type a filter."""
        box = self.query_one("#filter", Input)
        box.display = True
        box.focus()

    def action_close(self) -> None:
        """Close the filter, or the node that is open."""
        box = self.query_one("#filter", Input)
        if box.display:
            box.value = self._wanted = ""
            box.display = False
            self.query_one(Lines).focus()
        self._node = ""
        self._draw()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while the user types."""
        self._wanted = event.value
        self._draw()

    def on_input_submitted(self) -> None:
        """Return to the table; the filter stays."""
        self.query_one(Lines).focus()

    def on_lines_opened(self, event: Lines.Opened) -> None:
        """Show the pods of a node, or the nodes of a NodePool."""
        if self._view == "nodes" and not self._node:
            self._node = event.line.key
        elif self._view == "pools":
            self._view = "nodes"
            self.query_one("#filter", Input).value = self._wanted = event.line.key
        else:
            return
        self._draw(keep=False)

    def on_lines_moved(self) -> None:
        """Show the last column of the line in full, because it is often wider than the screen."""
        line = self.query_one(Lines).line
        self.query_one("#detail", Static).update(line.cells[-1] if line and line.key else "")

    def _draw(self, *, keep: bool = True) -> None:
        if self._feed.error:
            self.query_one("#state", Static).update(self._feed.error)
        if self._page is None:
            return
        self.query_one("#head", Static).update(tables.headline(self._page, self._plan))
        if not self._feed.error:
            self.query_one("#state", Static).update(self._state())
        self.query_one(Lines).show(self._sheet(self._page), keep=keep)

    def _sheet(self, page: Content) -> Sheet:
        if self._node and any(node["name"] == self._node for node in page["nodes"]):
            return tables.pods(page, self._node)
        if self._view == "pools":
            return tables.pools(page)
        if self._view == "pending":
            return tables.pending(self._plan)
        if self._view == "decisions":
            return tables.decisions(page, self._plan)
        return tables.nodes(
            page,
            self._plan,
            group=self._group,
            column=self._column,
            is_reversed=self._is_reversed,
            wanted=self._wanted,
        )

    def _state(self) -> str:
        if self._node:
            return f"pods of node {self._node} (Escape: back)"
        parts = [self._view]
        if self._view == "nodes":
            order = "descending" if self._is_reversed else "ascending"
            parts.append(f"sorted by {tables.NODE_TITLES[self._column]}, {order}")
            if self._group:
                parts.append(f"grouped by {tables.TITLES[self._group]}")
            if self._wanted:
                parts.append(f"filter {self._wanted!r}")
        if self._plan is None:
            parts.append("deciding what happens next …")
        return " · ".join(parts)
