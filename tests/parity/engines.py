"""Both engines as processes: the same world in, an answer in the same form out."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from testbed.environment import cache_directory
from testbed.processes import binaries
from testbed.progress import SILENCE, Progress

MODULE = Path(__file__).parent
CHECKOUT = MODULE.parents[1]
KARPENTER = "sigs.k8s.io/karpenter"


class EngineFailedError(RuntimeError):
    """An engine gave no answer."""


class TooSlowError(EngineFailedError):
    """An engine gave no answer within the limit."""


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer, and the most memory the process held, in MiB."""

    answer: dict[str, Any]
    peak_mib: float


@cache
def toolset() -> binaries.Toolset:
    """Return Karpenter's engine behind our program, and its kwok provider as it comes."""
    return _ours("karpenter", MODULE, {"parity": ".", "kwok": f"{KARPENTER}/kwok"})


@cache
def hashing() -> binaries.Toolset:
    """Return the program that prints Karpenter's hashes; apart, for it brings EC2's types along."""
    return _ours("karpenter-hashes", MODULE / "hashes", {"hashes": "./hashes"})


def _ours(name: str, sources: Path, packages: Mapping[str, str]) -> binaries.Toolset:
    """Name a set by Karpenter's version and by our own sources."""
    text = b"".join(path.read_bytes() for path in sorted(sources.glob("*.go")))
    own = hashlib.sha256(text).hexdigest()[:8]
    return binaries.Toolset(
        name=f"{name}-{binaries.pinned(MODULE, KARPENTER)}-{own}",
        module=MODULE,
        packages=packages,
        releases=[],
        ldflags="-s -w",
    )


def binary(name: str, progress: Progress = SILENCE) -> Path:
    """Return `parity` or `kwok` (Karpenter with its kwok provider), built when need be."""
    return binaries.Supply(progress=progress).obtain(toolset()) / name


def karpenter_hashes(
    objects: Iterable[Mapping[str, Any]], *, ca_bundle: str, progress: Progress = SILENCE
) -> list[str]:
    """Ask Karpenter for its hashes of NodePools and EC2NodeClasses, in their order.

    Raises EngineFailedError.
    """
    done = subprocess.run(
        [binaries.Supply(progress=progress).obtain(hashing()) / "hashes", ca_bundle],
        input=b"\n".join(json.dumps(one).encode() for one in objects),
        capture_output=True,
        env={**os.environ, "TZ": "UTC"},
    )
    if done.returncode:
        raise EngineFailedError(done.stderr.decode(errors="replace")[-2000:])
    return done.stdout.decode().split()


def module_file(path: str, progress: Progress = SILENCE) -> Path:
    """Return a file of Karpenter's module where it lies in the module cache."""
    go = binaries.find_go(cache_directory(), progress=progress)
    found = subprocess.run(
        [go, "list", "-m", "-f", "{{.Dir}}", KARPENTER],
        cwd=MODULE,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    return Path(found) / path


def karpenter(world: Path, *, repeat: int = 1, limit: float | None = None) -> Answered:
    """Ask Karpenter's engine, for at most `limit` seconds.

    Raises EngineFailedError, or TooSlowError.
    """
    return _asked([str(binary("parity")), "-repeat", str(repeat), str(world)], limit=limit)


def karpenter_batch(worlds: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Ask Karpenter's engine about many worlds in one process.

    Returns an answer for each, in their order; `{"error": why}` where there is none.
    Raises EngineFailedError.
    """
    done = subprocess.run(
        [binary("parity"), "-batch"],
        input=b"\n".join(json.dumps(world).encode() for world in worlds),
        capture_output=True,
    )
    if done.returncode:
        raise EngineFailedError(done.stderr.decode(errors="replace")[-2000:])
    return [json.loads(line) for line in done.stdout.splitlines()]


SOLVE = (sys.executable, "-m", "controller", "solve", "--output", "json")


def joiner(world: Path, *, repeat: int = 1) -> Answered:
    """Ask ours. Raises EngineFailedError."""
    return _asked([*SOLVE, "--repeat", str(repeat), str(world)])


def proven(world: Path) -> float:
    """Ask ours what no answer that places the same pods costs less than.

    Raises EngineFailedError.
    """
    bound = _asked([*SOLVE, "--prove", str(world)]).answer["lowerBound"]
    assert isinstance(bound, float)
    return bound


def _asked(command: list[str], *, limit: float | None = None) -> Answered:
    with tempfile.NamedTemporaryFile(prefix="joiner-peak-") as peak:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(MODULE / "peak.py"), peak.name, *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=CHECKOUT,
            env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
            start_new_session=True,
        )
        try:
            printed, complaint = process.communicate(timeout=limit)
        except BaseException as broken:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            if isinstance(broken, subprocess.TimeoutExpired):
                raise TooSlowError(f"{command[0]} had no answer after {limit:.0f} s") from None
            raise
        if process.returncode != 0:
            words = complaint.decode(errors="replace")[-2000:]
            raise EngineFailedError(f"{command[0]} ended with {process.returncode}: {words}")
        return Answered(json.loads(printed), int(peak.read()) / 1024)
