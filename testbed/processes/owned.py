"""Processes that never outlive their owner.

A directory owns processes: each of them carries `MARKER=<directory>` in its
environment, which children inherit however often they fork or detach. So one
look at `/proc` tells what belongs to a directory, and one loop ends it.

A `Keeper` is the witness: a process of its own session which holds one end of
a pipe. When the owner closes the other end, or dies in any way, the keeper ends
everything that still carries the marker and removes the directory.

This file is also run by itself, as the keeper, and therefore imports nothing
but the standard library.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

MARKER = "JOINER_TESTBED"
"""The environment variable that names the directory a process belongs to."""

GRACE_SECONDS = 5.0
"""How long a process may take to end after SIGTERM before it gets SIGKILL."""


class ProcessFailedError(RuntimeError):
    """A process ended, or kept silent, when it was needed; carries its last words."""


def marked(directory: Path, environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Give `environment` (default: ours) the marker of `directory`."""
    inherited = os.environ if environment is None else environment
    return {**inherited, MARKER: str(directory.absolute())}


def belonging_to(directory: Path) -> list[int]:
    """List the ids of all processes, but this one, that belong to `directory` or a part of it."""
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            owner = _owner(entry)
            if owner is not None and owner.is_relative_to(directory.absolute()):
                pids.append(int(entry.name))
    return sorted(pids)


def end_all(directory: Path, *, grace_seconds: float = GRACE_SECONDS) -> list[int]:
    """End every process that belongs to `directory`; answer which were found.

    They get SIGTERM first and SIGKILL after `grace_seconds`; the loop ends only
    when none is left, so children born meanwhile are ended too.
    """
    identities: dict[int, str | None] = {}
    deadline = time.monotonic() + grace_seconds
    while alive := _still_alive(directory, identities):
        for pid in alive:
            if time.monotonic() > deadline:
                _signal(pid, signal.SIGKILL)
            elif pid not in identities:
                _signal(pid, signal.SIGTERM)
            identities.setdefault(pid, identity(pid))
        time.sleep(0.02)
    return sorted(identities)


def await_end(processes: Mapping[int, str | None], *, seconds: float = GRACE_SECONDS) -> None:
    """Wait until processes, id → `identity`, that were told to end are gone with their ports.

    For at most `seconds`: one that does not end is still found by `end_all`, while one that is
    about to may have lost the environment by which it is found.
    """
    deadline = time.monotonic() + seconds
    while any(known and identity(pid) == known for pid, known in processes.items()):
        if time.monotonic() > deadline:
            return
        time.sleep(0.02)


def _still_alive(directory: Path, identities: Mapping[int, str | None]) -> set[int]:
    # A process that dies loses its environment before its ports, so those that were found once
    # are followed to their end.
    dying = {pid for pid, known in identities.items() if known and identity(pid) == known}
    return dying | set(belonging_to(directory))


def identity(pid: int) -> str | None:
    """Answer what tells a process from a later one with the same id, or None when it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        threads = len(list(Path(f"/proc/{pid}/task").iterdir()))
    except OSError:
        return None
    # The name in parentheses may hold anything; after it come the state and, 20th, the start.
    state, *numbers = stat.rpartition(")")[2].split()
    # The first thread is a zombie early; while others end, the files and ports are still open.
    return None if state == "Z" and threads <= 1 else f"{pid}@{numbers[18]}"


def command_of(pid: int) -> str:
    """Answer the command line of a process, or nothing when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip()
    except OSError:
        return ""


def last_words(log: Path, *, lines: int = 12, width: int = 300) -> str:
    """Answer the last lines of a log, long ones cut, or a remark that there is none."""
    try:
        written = log.read_text(errors="replace").splitlines()
    except OSError:
        return f"({log.name}: no log)"
    return "\n".join(line[:width] for line in written[-lines:]) or f"({log.name} is empty)"


@dataclass(kw_only=True)
class Process:
    """One process of a directory; its standard error, and output unless piped, go to a log."""

    name: str
    command: Sequence[str]
    directory: Path
    environment: Mapping[str, str] | None = None
    log: Path
    pipe_output: bool = False
    running: subprocess.Popen[str] | None = field(default=None, init=False)

    def start(self) -> None:
        """Start it in a session of its own, so that Ctrl-C reaches only its owner."""
        with self.log.open("a") as log:
            self.running = subprocess.Popen(
                self.command,
                env=marked(self.directory, self.environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if self.pipe_output else log,
                stderr=log,
                text=True,
                start_new_session=True,
            )

    def stop(self, *, grace_seconds: float = GRACE_SECONDS) -> None:
        """End it, gently first. Does nothing when it has ended or was never started."""
        if self.running is None:
            return
        self.running.terminate()
        try:
            self.running.wait(grace_seconds)
        except subprocess.TimeoutExpired:
            self.running.kill()
            self.running.wait()
        if self.running.stdout:
            self.running.stdout.close()
        self.running = None

    @property
    def pid(self) -> int | None:
        """Its process id while it runs."""
        return self.running.pid if self.is_alive and self.running else None

    @property
    def is_alive(self) -> bool:
        """Whether it was started and has not ended."""
        return self.running is not None and self.running.poll() is None

    def check(self) -> None:
        """Raise `ProcessFailedError` with its last words when it has ended."""
        if not self.is_alive:
            code = self.running.returncode if self.running else None
            raise ProcessFailedError(
                f"{self.name} ended (exit code {code}):\n{last_words(self.log)}"
            )


@dataclass(kw_only=True)
class Keeper:
    """Ends what belongs to a directory, and removes it, when the owner lets go or dies."""

    directory: Path
    witness: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def start(self) -> None:
        """Start the witness."""
        self.witness = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(__file__).resolve()), str(self.directory)],
            env=marked(self.directory),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def stop(self) -> None:
        """Let go, and return when nothing is left of the directory."""
        if self.witness is None:
            return
        pipe: IO[bytes] | None = self.witness.stdin
        if pipe:
            pipe.close()
        self.witness.wait()
        self.witness = None


@contextlib.contextmanager
def kept(directory: Path) -> Iterator[Path]:
    """Make a directory that is gone, with all that belongs to it, when the block is left.

    Also when the process that is in the block gets killed. Raises `FileExistsError`
    when the directory exists: what somebody else made is never removed.
    """
    directory.mkdir(parents=True)
    keeper = Keeper(directory=directory)
    keeper.start()
    try:
        yield directory
    finally:
        keeper.stop()


def keep(directory: Path, owner: IO[bytes]) -> None:
    """Wait for the owner's end of the pipe to close, then leave nothing of `directory`."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    owner.read()
    end_all(directory)
    shutil.rmtree(directory, ignore_errors=True)


def _owner(entry: Path) -> Path | None:
    try:
        environment = (entry / "environ").read_bytes()
    except OSError:
        return None  # it ended meanwhile, or belongs to another user
    prefix = f"{MARKER}=".encode()
    for variable in environment.split(b"\0"):
        if variable.startswith(prefix):
            return Path(os.fsdecode(variable.removeprefix(prefix)))
    return None


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


if __name__ == "__main__":
    keep(Path(sys.argv[1]), sys.stdin.buffer)
