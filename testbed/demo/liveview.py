"""Display of the scenario: a live view on a terminal, plain lines in a log."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from testbed.demo.observation import NodeView, Observation

SHOWN_NODES = 18
SHOWN_LINES = 6
LOG_SECONDS = 5.0
"""Interval between observations in a log, in seconds."""


@dataclass(slots=True)
class LiveView:
    """Draws the scenario: completed steps, the engine's last lines, pods, and nodes."""

    console: Console
    done: list[str] = field(default_factory=list)
    title: str = ""
    began: float = 0.0
    latest: Observation = field(default_factory=Observation)
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=SHOWN_LINES))
    live: Live | None = None
    spoke: float = 0.0

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the live view while the block runs; without a terminal, lines are printed."""
        if not self.console.is_terminal:
            yield
            return
        with Live(get_renderable=self.drawn, console=self.console, refresh_per_second=4) as live:
            self.live = live
            yield
        self.live = None

    def begin(self, title: str) -> None:
        """Show that a step begins."""
        self.title, self.began = title, time.monotonic()
        self.lines.clear()
        self._say(f"▸ {title} …")

    def show(self, observation: Observation) -> None:
        """Keep the latest observation; a log gets one line every `LOG_SECONDS`."""
        self.latest = observation
        now = time.monotonic()
        if now - self.spoke >= LOG_SECONDS:
            self.spoke = now
            self._say(f"  {_counts(observation)}")

    def end(self, title: str, seconds: float, outcome: str) -> None:
        """Show that a step succeeded."""
        self.title = ""
        line = f"✓ {title} ({seconds:.1f} s): {outcome}"
        if self.live is not None:
            self.done.append(line)
        self._say(line)

    def engine_line(self, line: str) -> None:
        """Show a line that the Pulumi engine prints."""
        self.lines.append(line)
        self._say(f"    {line}")

    def drawn(self) -> RenderableType:
        """Return the whole view."""
        parts: list[RenderableType] = [Text(line, style="green") for line in self.done]
        if self.title:
            elapsed = time.monotonic() - self.began
            parts.append(Text(f"▸ {self.title} … {elapsed:.0f} s", style="bold yellow"))
            parts += [
                Text(f"    {line}", style="dim", overflow="ellipsis", no_wrap=True)
                for line in self.lines
            ]
        parts.append(_pods(self.latest))
        if self.latest.instances:
            parts.append(_nodes(self.latest))
        return Group(*parts)

    def _say(self, text: str) -> None:
        if self.live is None:
            self.console.print(text, highlight=False, soft_wrap=True)


def _counts(seen: Observation) -> str:
    return (
        f"pods {seen.running} running, {seen.bound} bound of {len(seen.pods)}; "
        f"nodes {len(seen.nodes)}, instances {len(seen.instances)}; {seen.cost:.3f} $/h"
    )


def _pods(observation: Observation) -> RenderableType:
    total = max(len(observation.pods), 1)
    width = 50
    running = round(width * observation.running / total)
    bound = round(width * observation.bound / total) - running
    bar = Text("█" * running, style="green")
    bar.append("▒" * max(bound, 0), style="yellow")
    bar.append("·" * (width - running - max(bound, 0)), style="dim")
    bar.append(f"  {_counts(observation)}", style="")
    return bar


def _nodes(observation: Observation) -> RenderableType:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("instance", "type", "zone", "capacity", "$/h", "state", "pods"):
        table.add_column(column, justify="right" if column in ("$/h", "pods") else "left")
    by_id = {n.instance.instance_id: n for n in observation.nodes}
    for instance in sorted(observation.instances, key=lambda i: i.launch_time)[:SHOWN_NODES]:
        node = by_id.get(instance.instance_id)
        table.add_row(
            instance.instance_id,
            instance.instance_type,
            instance.zone,
            instance.capacity_type,
            f"{instance.price:.4f}",
            _state(instance.state, node),
            str(len(observation.pods_on(node.name))) if node else "",
        )
    hidden = len(observation.instances) - SHOWN_NODES
    if hidden > 0:
        table.add_row(f"… and {hidden} more")
    return table


def _state(instance: str, node: NodeView | None) -> str:
    if node is None:
        return instance
    if node.terminating:
        return "draining"
    if node.initialized:
        return "ready"
    return "registered" if node.ready else "joining"
