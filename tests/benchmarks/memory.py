"""How much memory a controller holds, all of its processes together.

Proportional memory (PSS): a page that several processes share is divided among them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from testbed.processes import owned

PAUSE_SECONDS = 0.2

Groups = Callable[[], Mapping[str, Sequence[int]]]
"""Answers which processes there are, by the replica they belong to."""


@dataclass(slots=True)
class Meter:
    """Looks at the memory of every replica, again and again; figures in MiB."""

    groups: Groups
    now: dict[str, float] = field(default_factory=dict)
    peak: dict[str, float] = field(default_factory=dict)

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(PAUSE_SECONDS)

    def look(self) -> dict[str, float]:
        """Look once; the largest replica is the one that acts."""
        self.now = {replica: sum(map(pss, pids)) for replica, pids in self.groups().items()}
        for replica, mib in self.now.items():
            self.peak[replica] = max(mib, self.peak.get(replica, 0.0))
        return self.now


def pss(pid: int) -> float:
    """Return the proportional memory of a process in MiB, 0 when it is gone."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1024
    return 0.0


def families(directory: Path, command: str) -> dict[str, list[int]]:
    """Return the processes below `directory` whose command line has `command`, with descendants."""
    pids = owned.belonging_to(directory)
    parents = {pid: _parent(pid) for pid in pids}
    heads = [pid for pid in pids if command in owned.command_of(pid)]
    return {
        str(head): [pid for pid in pids if head in _ancestry(pid, parents)]
        for head in heads
        if parents[head] not in heads
    }


def _ancestry(pid: int, parents: Mapping[int, int]) -> list[int]:
    line = [pid]
    while (pid := parents.get(pid, 0)) and pid not in line:
        line.append(pid)
    return line


def _parent(pid: int) -> int:
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0
