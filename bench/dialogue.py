"""A conversation with a program that answers each line of JSON with a line of JSON."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any


@dataclass(frozen=True, slots=True)
class Dialogue:
    """A running program. `failure` is raised if it gives no answer, or an error."""

    process: subprocess.Popen[bytes]
    complaints: IO[bytes]
    failure: type[Exception]

    def ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer. Raises `failure`."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(question).encode() + b"\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = b""
        if not line:
            self.complaints.seek(0)
            raise self.failure(self.complaints.read().decode(errors="replace")[-2000:])
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise self.failure(answer["error"])
        return answer


@contextmanager
def dialogue_with(command: Sequence[str], failure: type[Exception]) -> Iterator[Dialogue]:
    """Start a program; it ends with the block."""
    with (
        tempfile.TemporaryFile() as complaints,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=complaints
        ) as process,
    ):
        try:
            yield Dialogue(process, complaints, failure)
        finally:
            process.kill()
