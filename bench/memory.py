"""Memory of a controller's processes, summed per replica.

The figures are proportional memory (PSS): a page that several processes share is divided among
them.
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
"""Returns the process IDs of each replica, by the replica's name."""


@dataclass(slots=True)
class Meter:
    """Samples the memory of every replica periodically; `now` and `peak` are in MiB."""

    groups: Groups
    now: dict[str, float] = field(default_factory=dict)
    peak: dict[str, float] = field(default_factory=dict)

    async def run(self) -> None:
        """Sample until cancelled."""
        while True:
            self.sample()
            await asyncio.sleep(PAUSE_SECONDS)

    def sample(self) -> dict[str, float]:
        """Take one sample and return the memory of each replica in MiB."""
        self.now = {replica: sum(map(pss, pids)) for replica, pids in self.groups().items()}
        for replica, mib in self.now.items():
            self.peak[replica] = max(mib, self.peak.get(replica, 0.0))
        return self.now


def pss(pid: int) -> float:
    """Return the proportional memory of a process in MiB; 0 if the process has ended."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1024
    return 0.0


def families(directory: Path, command: str) -> dict[str, list[int]]:
    """Return, for each process that runs `command`, its ID and those of its descendants.

    Only processes that belong to `directory` count (`testbed.processes.owned`). A process runs
    `command` if its command line contains this text. A child of such a process counts only as a
    descendant. The keys are the IDs of the processes that run `command`.
    """
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
