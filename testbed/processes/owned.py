"""Processes that never outlive their owner.

A directory owns processes: each has `MARKER=<directory>` in its environment. Children inherit
it, however often they fork or detach. So one pass over `/proc` finds all processes of a
directory, and one loop ends them.

A keeper is a process in its own session that holds one end of a pipe. When the owner closes
the other end, or exits in any way, the keeper ends every process with the marker and removes
the directory.

This file also runs as a script, as the keeper. It therefore imports only the standard library.
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
"""Environment variable that names the directory a process belongs to."""

GRACE_SECONDS = 5.0
"""Seconds from SIGTERM to SIGKILL for a process that does not exit."""


class ProcessFailedError(RuntimeError):
    """A required process exited or did not answer; the message has the end of its log."""


def marked_environment(
    directory: Path, environment: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return `environment` (default: this process's) with the marker of `directory`."""
    inherited = os.environ if environment is None else environment
    return {**inherited, MARKER: str(directory.absolute())}


def belonging_to(directory: Path) -> list[int]:
    """Return the IDs of all other processes that belong to `directory` or a path below it."""
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            owner = _owner(entry)
            if owner is not None and owner.is_relative_to(directory.absolute()):
                pids.append(int(entry.name))
    return sorted(pids)


def end_all(directory: Path, *, grace_seconds: float = GRACE_SECONDS) -> None:
    """End every process that belongs to `directory`.

    Each process gets SIGTERM, and SIGKILL after `grace_seconds`. The loop ends only when no process
    is left, so children started meanwhile are ended too.
    """
    identities: dict[int, str | None] = {}
    deadline = time.monotonic() + grace_seconds
    while alive := _running_processes(directory, identities):
        for pid in alive:
            if time.monotonic() > deadline:
                _signal(pid, signal.SIGKILL)
            elif pid not in identities:
                _signal(pid, signal.SIGTERM)
            identities.setdefault(pid, identity(pid))
        time.sleep(0.02)


def await_end(processes: Mapping[int, str | None]) -> None:
    """Wait until `processes` (ID → `identity`), which are stopping, are gone and their ports free.

    Waits at most `GRACE_SECONDS`; a process that does not stop is left to `end_all`. `end_all` does
    not replace this wait: an exiting process loses the marker before its ports.
    """
    deadline = time.monotonic() + GRACE_SECONDS
    while any(known and identity(pid) == known for pid, known in processes.items()):
        if time.monotonic() > deadline:
            return
        time.sleep(0.02)


def _running_processes(directory: Path, identities: Mapping[int, str | None]) -> set[int]:
    # An exiting process loses its environment before its ports. Processes that were found once
    # are therefore followed to their end.
    dying = {pid for pid, known in identities.items() if known and identity(pid) == known}
    return dying | set(belonging_to(directory))


def identity(pid: int) -> str | None:
    """Return a string that distinguishes a process from later ones with its ID; None if gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        threads = len(list(Path(f"/proc/{pid}/task").iterdir()))
    except OSError:
        return None
    # The name in parentheses may contain anything; the state follows it, then the start time
    # as the 20th field.
    state, *numbers = stat.rpartition(")")[2].split()
    # The main thread may be a zombie while other threads still hold files and ports open.
    return None if state == "Z" and threads <= 1 else f"{pid}@{numbers[18]}"


def command_of(pid: int) -> str:
    """Return the command line of a process, or an empty string if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip()
    except OSError:
        return ""


def log_tail(log: Path, *, lines: int = 12, width: int = 300) -> str:
    """Return the last lines of a log, with long lines cut, or a note that there is no log."""
    try:
        written = log.read_text(errors="replace").splitlines()
    except OSError:
        return f"({log.name}: no log)"
    return "\n".join(line[:width] for line in written[-lines:]) or f"({log.name} is empty)"


@dataclass(kw_only=True)
class Process:
    """A process of a directory. Its stderr goes to a log, as does its stdout unless piped."""

    name: str
    command: Sequence[str]
    directory: Path
    environment: Mapping[str, str] | None = None
    working_directory: Path | None = None
    """Directory in which the process starts; None is that of its owner."""

    log: Path
    pipe_output: bool = False
    running: subprocess.Popen[str] | None = field(default=None, init=False)

    def start(self) -> None:
        """Start the process in its own session, so that Ctrl-C reaches only its owner."""
        with self.log.open("a") as log:
            self.running = subprocess.Popen(
                self.command,
                cwd=self.working_directory,
                env=marked_environment(self.directory, self.environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if self.pipe_output else log,
                stderr=log,
                text=True,
                start_new_session=True,
            )

    def stop(self) -> None:
        """Stop the process: SIGTERM, then SIGKILL. Does nothing if it does not run."""
        if self.running is None:
            return
        self.running.terminate()
        try:
            self.running.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self.running.kill()
            self.running.wait()
        if self.running.stdout:
            self.running.stdout.close()
        self.running = None

    @property
    def pid(self) -> int | None:
        """The process ID while the process runs, else None."""
        return self.running.pid if self.is_alive and self.running else None

    @property
    def is_alive(self) -> bool:
        """Whether the process was started and has not exited."""
        return self.running is not None and self.running.poll() is None

    def check(self) -> None:
        """Raise `ProcessFailedError` with the end of the log if the process has exited."""
        if not self.is_alive:
            code = self.running.returncode if self.running else None
            raise ProcessFailedError(f"{self.name} ended (exit code {code}):\n{log_tail(self.log)}")


@contextlib.contextmanager
def temporary_directory(directory: Path) -> Iterator[Path]:
    """Create a directory that is removed, with all of its processes, at the end of the block.

    This also happens if the process that runs the block is killed. Raises `FileExistsError` if the
    directory exists, so that a directory of another owner is never removed.
    """
    directory.mkdir(parents=True)
    keeper = subprocess.Popen(
        [sys.executable, "-I", "-S", str(Path(__file__).resolve()), str(directory)],
        env=marked_environment(directory),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield directory
    finally:
        keeper.communicate()  # closes the pipe, and returns once the keeper has exited


def keep(directory: Path, owner: IO[bytes]) -> None:
    """Wait until the owner's end of the pipe closes, then remove `directory` and its processes."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    owner.read()
    end_all(directory)
    shutil.rmtree(directory, ignore_errors=True)


def _owner(entry: Path) -> Path | None:
    try:
        environment = (entry / "environ").read_bytes()
    except OSError:
        return None  # the process has exited, or belongs to another user
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
