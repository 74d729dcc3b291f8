"""The command `solve`: schedules the pending pods of a recorded world.

docs/reference/formats.md describes the formats.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from controller.apis.kubernetes.pods import Pod
from controller.offline import reporter
from controller.offline import world as worlds
from controller.offline.commandline import (
    CommandError,
    add_output,
    add_world,
    parse_arguments,
    positive,
    read_json,
    run_command,
    write_data,
    write_tables,
)
from controller.offline.jsonresults import results_content
from controller.offline.narration import Narrator
from controller.offline.pending import PendingPods, pending_pods
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
    """The results of a solve, and durations in seconds.

    `seconds` are the durations of the solves, `seconds_from_nothing` the duration of reading the
    world and the first solve.
    """

    world: worlds.World
    catalog: offerings.Catalog
    pending: PendingPods
    results: Results
    fills: Mapping[str, Fill]
    seconds: tuple[float, ...]
    seconds_from_nothing: float


def read(path: Path, content: Any = None) -> worlds.World:
    """Return the world in a file, with its instance types from a second file if it names one.

    `content` is the file's JSON if it has been read already.

    Raises:
        CommandError: a file is missing or not JSON, or an object in it is invalid.

    """
    content = content or read_json(path)
    try:
        types_path = worlds.types_file(content) if isinstance(content, Mapping) else None
        types = read_json(path.parent / types_path) if types_path else None
        world = worlds.load(content, types=types)
        _check_devices(world)
        from_names(world.settings)
    except WorldError as error:
        raise CommandError(f"{path}: {error}") from error
    except ValueError as error:
        raise CommandError(f"{path}: settings: {error}") from error
    # The world exists until the process ends, so garbage collections need not scan it.
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


def solve_world(
    read_world: Callable[[], worlds.World],
    *,
    repeat: int = 1,
    seconds: float = 60.0,
    prove: bool = False,
    reporter: Reporter = SILENT,
    now: datetime | None = None,
) -> Solved:
    """Solve a world `repeat` times and return the last results.

    Each solve takes at most `seconds`. If `prove` is set, a lower bound on the cost is computed,
    which takes at most `seconds` more. `reporter` receives the progress. As of `now`, the present
    time by default, the controller's events are recent or old.
    """
    started = time.perf_counter()
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
            from_nothing = time.perf_counter() - started
    if prove:
        results = _with_lower_bound(results, world, settings, catalog, seconds)
    real, fills = split_fills(_with_nominated(results, world.nominated_pods), world.buffer_pods)
    pending = pending_pods(world, now or datetime.now(UTC))
    return Solved(
        world=world,
        catalog=catalog,
        pending=pending,
        results=pending.with_causes(real, world.pods),
        fills=fills,
        seconds=tuple(times),
        seconds_from_nothing=from_nothing,
    )


def _with_nominated(results: Results, nominated: Iterable[Pod]) -> Results:
    """Return the results with the pods that have a nominated node on that node."""
    existing = {name: list(keys) for name, keys in results.existing_nodes.items()}
    for pod in nominated:
        existing.setdefault(pod.spec.node_name, []).append(pod.key)
    return replace(
        results, existing_nodes={name: tuple(keys) for name, keys in sorted(existing.items())}
    )


def _with_lower_bound(
    results: Results,
    world: worlds.World,
    settings: Settings,
    catalog: offerings.Catalog,
    seconds: float,
) -> Results:
    """Return the results with a lower bound on the cost of scheduling the same pods."""
    pending = [*world.pods, *world.buffer_pods]
    placed = [pod for pod in pending if pod.key not in results.unschedulable]
    bound = least_cost(
        placed,
        snapshot=world.snapshot,
        settings=settings,
        catalog=catalog,
        expired=deadline(time.perf_counter() + seconds),
    )
    return replace(results, lower_bound=bound)


def solve(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run the command `solve`; return the exit code, which is 1 if a pod is unschedulable."""
    chosen = parse_arguments(solve_parser(), argv)
    return run_command(lambda: _print_solved(chosen))


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
    result = solve_world(
        partial(read, chosen.world),
        repeat=chosen.repeat,
        seconds=chosen.time_limit,
        prove=chosen.prove,
        reporter=narrator if chosen.verbose else SILENT,
    )
    seconds = statistics.median(result.seconds)
    content = results_content(result.results, seconds=seconds, fills=result.fills)
    content["secondsFromNothing"] = result.seconds_from_nothing
    content["repetitions"] = list(result.seconds)
    if not write_data(chosen.output, content):
        write_tables(
            reporter.tables(result.results, result.fills, is_wide=chosen.output == "wide"),
            after=f"{reporter.summary(result.results)}; solved in {seconds:.3f} s",
        )
    return 1 if result.results.unschedulable else 0


def deadline(end: float) -> Callable[[], bool]:
    """Return a function that returns True after `end`, a time of `time.perf_counter`."""
    return lambda: time.perf_counter() > end
