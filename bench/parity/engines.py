"""Run both engines as processes, with worlds and answers in the same formats.

`karpenter` and `karpenter_batch` return answers of Karpenter's scheduler. A `dialogue` also runs
its disruption methods, at times that the caller chooses:

    with dialogue() as theirs:
        placed = theirs.schedule(world, now=moment)
        command = theirs.disrupt(world, now=moment)
        course = theirs.until_steady(world, now=moment)

Worlds have the format of `docs/reference/formats.md`, with `nodeClaims` and their conditions: as in
Joiner, only `Consolidatable` or `Drifted` nodes may be disrupted. `schedule` returns the same
format as a solve. `disrupt` runs one pass: Emptiness, StaticDrift, Drift, MultiNodeConsolidation
and SingleNodeConsolidation in Karpenter's order, up to the first that finds a command. The command
is validated at once, with the clock 15 s ahead. `until_steady` executes every command and runs
another pass. The last two return

    {"commands": [{"reason", "method", "nodes", "newNodes": [{"name", "instanceType", "zone",
      "capacityType", "nodePool", "instanceTypes", "requirements", "price", "pods"}],
      "existingNodes": {"node": ["namespace/pod"]}, "homeless", "saving", "evictions"}],
     "costBefore", "costAfter", "evictions", "seconds", "firstCommandSeconds",
     "lastPassSeconds", "cpuSeconds", "setupSeconds", "passes"}

in $/h and seconds. `homeless` (usually absent) lists pods that are evicted without a node to go to.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from bench.dialogue import Dialogue, dialogue_with
from testbed.environment import cache_directory
from testbed.processes import binaries
from testbed.progress import SILENCE, Progress

MODULE = Path(__file__).parent
CHECKOUT = MODULE.parents[1]
KARPENTER = "sigs.k8s.io/karpenter"
PROVIDER = "github.com/aws/karpenter-provider-aws"


class EngineFailedError(RuntimeError):
    """An engine gave no answer."""


class TooSlowError(EngineFailedError):
    """An engine gave no answer within the limit."""


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer, and the peak memory of the process in MiB."""

    answer: dict[str, Any]
    peak_mib: float


@cache
def toolset() -> binaries.Toolset:
    """Return the toolset of the programs that `binary` provides: `parity` and `kwok`.

    `parity` is our program that calls Karpenter's engine.
    """
    programs = {"parity": ".", "kwok": f"{KARPENTER}/kwok"}
    return _ours("karpenter", KARPENTER, MODULE, programs)


@cache
def hash_toolset() -> binaries.Toolset:
    """Return the toolset with the program that prints Karpenter's hashes of objects.

    It is not in `toolset`, because it depends on the Go types of Karpenter's AWS provider.
    """
    return _ours("karpenter-hashes", PROVIDER, MODULE / "hashes", {"hashes": "./hashes"})


def _ours(name: str, module: str, sources: Path, packages: Mapping[str, str]) -> binaries.Toolset:
    """Return a toolset whose version is that of a Go module and a hash of our sources."""
    text = b"".join(path.read_bytes() for path in sorted(sources.glob("*.go")))
    own = hashlib.sha256(text).hexdigest()[:8]
    return binaries.Toolset(
        name=f"{name}-{binaries.pinned_version(MODULE, module)}-{own}",
        module=MODULE,
        packages=packages,
        releases=[],
        ldflags="-s -w",
    )


def binary(name: str, progress: Progress = SILENCE) -> Path:
    """Return the path of `parity` or `kwok` (Karpenter with its kwok provider).

    The program is built if necessary.
    """
    return binaries.Supply(progress=progress).obtain(toolset()) / name


def karpenter_hashes(objects: Iterable[Mapping[str, Any]], *, ca_bundle: str) -> list[str]:
    """Return Karpenter's hashes of NodePools and EC2NodeClasses, in their order.

    `ca_bundle` is the cluster's CA, PEM in base64, which the hash of an EC2NodeClass includes.

    Raises EngineFailedError.
    """
    hashes = binaries.Supply().obtain(hash_toolset()) / "hashes"
    return _answer_lines([hashes, ca_bundle], objects, env={**os.environ, "TZ": "UTC"})


def module_file(path: str, progress: Progress = SILENCE) -> Path:
    """Return the path of a file of Karpenter's Go module, which is downloaded if necessary."""
    go = binaries.find_go(cache_directory(), MODULE, progress=progress)
    downloaded = subprocess.run(
        [go, "mod", "download", "-json", KARPENTER], cwd=MODULE, capture_output=True, check=True
    ).stdout
    return Path(json.loads(downloaded)["Dir"]) / path


def karpenter(world: Path, *, repeat: int = 1, limit: float | None = None) -> Answered:
    """Solve a world with Karpenter's engine, within `limit` seconds.

    The world is solved `repeat` times, and the answer's seconds are the median. Raises
    EngineFailedError, or TooSlowError after the limit.
    """
    return _ask([str(binary("parity")), "-repeat", str(repeat), str(world)], limit=limit)


def karpenter_batch(worlds: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Solve many worlds with Karpenter's engine in one process.

    Returns an answer for each, in their order; `{"error": why}` where there is none. Raises
    EngineFailedError.
    """
    return [json.loads(line) for line in _answer_lines([binary("parity"), "-batch"], worlds)]


def _answer_lines(
    command: Sequence[str | Path],
    questions: Iterable[Mapping[str, Any]],
    env: Mapping[str, str] | None = None,
) -> list[str]:
    asked = b"\n".join(json.dumps(one).encode() for one in questions)
    done = subprocess.run(command, input=asked, capture_output=True, env=env)
    if done.returncode:
        raise EngineFailedError(done.stderr.decode(errors="replace")[-2000:])
    return done.stdout.decode().splitlines()


@contextmanager
def dialogue() -> Iterator[Karpenter]:
    """Start Karpenter's provisioning and disruption in a process that answers many calls."""
    command = [str(binary("parity")), "-questions"]
    with dialogue_with(command, EngineFailedError) as conversation:
        yield Karpenter(conversation)


@dataclass(frozen=True, slots=True)
class Karpenter:
    """A running process with Karpenter's engine."""

    dialogue: Dialogue

    def schedule(self, world: Mapping[str, Any], *, now: datetime) -> dict[str, Any]:
        """Schedule the pending pods and return the answer. Raises EngineFailedError."""
        return self._answer({"op": "schedule", "world": world, "now": now.isoformat()})

    def disrupt(
        self, world: Mapping[str, Any], *, now: datetime, patient: bool = False
    ) -> dict[str, Any]:
        """Run one disruption pass.

        Karpenter limits multi-node consolidation to one minute, and single-node consolidation to
        three. `patient` lifts the second limit.

        Raises EngineFailedError.
        """
        settings = {"now": now.isoformat(), "patient": patient}
        return self._answer({"op": "disrupt", "world": world, **settings})

    def until_steady(
        self, world: Mapping[str, Any], *, now: datetime, limit: float | None = None
    ) -> dict[str, Any]:
        """Disrupt until no pass finds a command.

        Raises EngineFailedError. Raises TooSlowError after `limit` seconds in all, and the process
        is gone then.
        """
        question = {"op": "untilSteady", "world": world, "now": now.isoformat()}
        return self._answer(question, limit=limit)

    def _answer(self, question: Mapping[str, Any], *, limit: float | None = None) -> dict[str, Any]:
        late = threading.Event()

        def give_up() -> None:
            late.set()
            self.dialogue.process.kill()

        timer = threading.Timer(limit, give_up) if limit is not None else None
        try:
            if timer is not None:
                timer.start()
            return self.dialogue.ask(question)
        except EngineFailedError:
            if late.is_set():
                raise TooSlowError(f"Karpenter had no answer after {limit} s") from None
            raise
        finally:
            if timer is not None:
                timer.cancel()


UNSCHEDULABLE = 1
"""The exit code of `solve` if it leaves pods without a node."""

SOLVE = (sys.executable, "-m", "controller", "solve", "--output", "json")


def joiner(world: Path, *, repeat: int = 1, first: bool = False) -> Answered:
    """Solve a world with Joiner's engine, `repeat` times as `karpenter` does.

    If `first`, Joiner returns its first answer instead of its best. Raises EngineFailedError.
    """
    time_limit = ["--time-limit", "0"] if first else []
    return _ask([*SOLVE, "--repeat", str(repeat), *time_limit, str(world)])


def proven_bound(world: Path) -> float:
    """Return Joiner's lower bound on the cost of the new nodes for a world, in $/h.

    It holds for every answer that places at least the pods that Joiner places. Raises
    EngineFailedError.
    """
    bound = _ask([*SOLVE, "--prove", str(world)]).answer["lowerBound"]
    assert isinstance(bound, float)
    return bound


def _ask(command: list[str], *, limit: float | None = None) -> Answered:
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
        if process.returncode not in (0, UNSCHEDULABLE):
            words = complaint.decode(errors="replace")[-2000:]
            raise EngineFailedError(f"{command[0]} ended with {process.returncode}: {words}")
        return Answered(json.loads(printed), int(peak.read()) / 1024)
