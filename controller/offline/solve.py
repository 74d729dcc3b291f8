"""The commands `solve` and `explain` for recorded worlds.

The scheduling engine runs as in the controller, on a file instead of a cluster. The commands
write nothing. docs/reference/formats.md describes the formats.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from controller.offline import reporter
from controller.offline import world as worlds
from controller.offline.answers import answer
from controller.offline.commandline import (
    QuestionError,
    add_output,
    add_world,
    answered,
    parsed,
    positive,
    read_json,
    write_data,
    write_tables,
)
from controller.offline.narration import Narrator
from controller.offline.wirevalues import WorldError
from controller.scheduling.buffers import Fill, split_fills
from controller.scheduling.catalog import offerings
from controller.scheduling.dra.devices import expected_devices
from controller.scheduling.reporter import SILENT, Reporter
from controller.scheduling.results import Results
from controller.scheduling.scheduler import least_cost, schedule
from controller.scheduling.settings import Settings, from_names


@dataclass(frozen=True, slots=True, kw_only=True)
class Solved:
    """An answer, and its duration in seconds: of each solve, and of the first with reading."""

    world: worlds.World
    catalog: offerings.Catalog
    results: Results
    fills: Mapping[str, Fill]
    seconds: tuple[float, ...]
    seconds_from_nothing: float


def read(path: Path, content: Any = None) -> worlds.World:
    """Return the world in a file, with its instance types from a second file if it names one.

    `content` is the file's JSON if it has been read already.

    Raises:
        QuestionError: a file is missing or not JSON, or an object in it is invalid.

    """
    content = content or read_json(path)
    try:
        named = worlds.types_file(content) if isinstance(content, Mapping) else None
        types = read_json(path.parent / named) if named else None
        world = worlds.load(content, types=types)
        _check_devices(world)
        from_names(world.settings)
    except WorldError as error:
        raise QuestionError(f"{path}: {error}") from error
    except ValueError as error:
        raise QuestionError(f"{path}: settings: {error}") from error
    # The world lives until the process ends; a garbage collection would scan it in vain.
    gc.freeze()
    return world


def _check_devices(world: worlds.World) -> None:
    for types in world.snapshot.instance_types.values():
        for instance_type in types:
            try:
                expected_devices(instance_type.dynamic_resources, "")
            except ValueError as error:
                where = f"instanceTypes {instance_type.name}: dynamicResources"
                raise WorldError(f"{where}: {error}") from error


def solved(
    read_world: Callable[[], worlds.World],
    *,
    repeat: int = 1,
    seconds: float = 60.0,
    prove: bool = False,
    reporter: Reporter = SILENT,
) -> Solved:
    """Solve a world `repeat` times and return the last answer.

    Each solve takes at most `seconds`. `prove` computes a lower bound on the cost of any answer,
    which takes at most `seconds` more. `reporter` receives the progress.
    """
    began = time.perf_counter()
    world = read_world()
    settings = from_names(world.settings)
    catalog = offerings.catalog(world.snapshot)
    times: list[float] = []
    for _ in range(repeat):
        start = time.perf_counter()
        results = schedule(
            [*world.pods, *world.buffer_pods],
            snapshot=world.snapshot,
            settings=settings,
            catalog=catalog,
            expired=deadline(start + seconds),
            reporter=reporter,
        )
        times.append(time.perf_counter() - start)
        if len(times) == 1:
            from_nothing = time.perf_counter() - began
    if prove:
        results = _proven(results, world, settings, catalog, seconds)
    real, fills = split_fills(results, world.buffer_pods)
    return Solved(
        world=world,
        catalog=catalog,
        results=real,
        fills=fills,
        seconds=tuple(times),
        seconds_from_nothing=from_nothing,
    )


def _proven(
    results: Results,
    world: worlds.World,
    settings: Settings,
    catalog: offerings.Catalog,
    seconds: float,
) -> Results:
    """Return the answer with a lower bound on the cost of any answer that places the same pods."""
    waiting = [*world.pods, *world.buffer_pods]
    placed = [pod for pod in waiting if pod.key not in results.unschedulable]
    bound = least_cost(
        placed,
        snapshot=world.snapshot,
        settings=settings,
        catalog=catalog,
        expired=deadline(time.perf_counter() + seconds),
    )
    return replace(results, lower_bound=bound)


def solve(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run the command `solve`; returns 1 if a pod is unschedulable."""
    chosen = parsed(solve_parser(), argv)
    return answered(lambda: _print_solved(chosen))


def solve_parser() -> argparse.ArgumentParser:
    """Return the parser of the command `solve`."""
    parser = argparse.ArgumentParser(
        prog="joiner solve",
        description="Schedule the pending pods of a recorded world: print which nodes to launch, "
        "their cost, and why some pods are unschedulable. The exit code is 1 if a pod is "
        "unschedulable. The command changes nothing.",
    )
    add_world(parser)
    add_output(parser)
    parser.add_argument(
        "--repeat",
        type=positive,
        default=1,
        metavar="N",
        help="repeat N times and report the median time (default 1)",
    )
    parser.add_argument(
        "--prove",
        action="store_true",
        help="compute a lower bound on the cost of any answer; takes longer than the solve",
    )
    parser.add_argument(
        "--verbose", action="store_true", help="print the progress to standard error"
    )
    return parser


def _print_solved(chosen: argparse.Namespace) -> int:
    narrator = Narrator(write=partial(print, file=sys.stderr), clock=time.perf_counter)
    answered = solved(
        partial(read, chosen.world),
        repeat=chosen.repeat,
        seconds=chosen.time_limit,
        prove=chosen.prove,
        reporter=narrator if chosen.verbose else SILENT,
    )
    seconds = statistics.median(answered.seconds)
    written = answer(answered.results, seconds=seconds, fills=answered.fills)
    written["secondsFromNothing"] = answered.seconds_from_nothing
    written["repetitions"] = list(answered.seconds)
    if not write_data(chosen.output, written):
        write_tables(
            reporter.tables(answered.results, answered.fills),
            after=f"{reporter.summary(answered.results)}; solved in {seconds:.3f} s",
        )
    return 1 if answered.results.unschedulable else 0


def deadline(end: float) -> Callable[[], bool]:
    """Return a function that is true after `end`, a time of `time.perf_counter`."""
    return lambda: time.perf_counter() > end
