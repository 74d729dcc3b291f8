"""Questions about recorded worlds: `solve` a world, `explain` one pod of it.

The engine runs as it does in the controller, on a file in place of a cluster, and
writes nothing. Formats are in docs/formats.md.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console
from rich.table import Table

from controller.offline import reporter
from controller.offline import world as worlds
from controller.offline.answers import answer
from controller.offline.narration import Narrator
from controller.offline.wirevalues import WorldError
from controller.scheduling.buffers import Fill, apart
from controller.scheduling.catalog import offerings
from controller.scheduling.dra.devices import promised
from controller.scheduling.reporter import SILENT, Reporter
from controller.scheduling.results import Results
from controller.scheduling.scheduler import least_cost, schedule
from controller.scheduling.settings import Settings, from_names


class QuestionError(Exception):
    """The question cannot be asked; the message says what to change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Solved:
    """An answer with how long it took: prepared, and from nothing."""

    world: worlds.World
    catalog: offerings.Catalog
    results: Results
    fills: Mapping[str, Fill]
    seconds: tuple[float, ...]
    seconds_from_nothing: float


def read(path: Path) -> worlds.World:
    """Read a world from a file, and its instance types from theirs if it names one.

    Raises:
        QuestionError: a file is missing or not JSON, or an object in it is not right.

    """
    content = read_json(path)
    try:
        named = worlds.types_file(content) if isinstance(content, Mapping) else None
        types = read_json(path.parent / named) if named else None
        world = worlds.load(content, types=types)
        _check_devices(world)
    except WorldError as error:
        raise QuestionError(f"{path}: {error}") from error
    # It stays to the end: no collection need look through it.
    gc.freeze()
    return world


def _check_devices(world: worlds.World) -> None:
    for types in world.snapshot.instance_types.values():
        for instance_type in types:
            try:
                promised(instance_type.dynamic_resources, "")
            except ValueError as error:
                where = f"instanceTypes {instance_type.name}: dynamicResources"
                raise WorldError(f"{where}: {error}") from error


def solved(
    path: Path,
    *,
    repeat: int = 1,
    seconds: float = 60.0,
    prove: bool = False,
    reporter: Reporter = SILENT,
) -> Solved:
    """Solve a world so many times; each solve may take so many seconds at most, and so may the
    proof of a bound that holds for every answer. `reporter` is told how they go.
    """
    began = time.perf_counter()
    world = read(path)
    try:
        settings = from_names(world.settings)
    except ValueError as error:
        raise QuestionError(f"{path}: settings: {error}") from error
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
    real, fills = apart(results, world.buffer_pods)
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
    """Return the answer with the bound that holds for every answer that places the same pods."""
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
    """Run the command `solve`."""
    parser = argparse.ArgumentParser(
        prog="python -m controller solve",
        description="Place the waiting pods of a recorded world: which nodes to make, at what"
        " cost, and why some pods go nowhere. Nothing is changed anywhere.",
    )
    add_world(parser)
    parser.add_argument("--output", choices=("table", "json"), default="table")
    parser.add_argument("--repeat", type=int, default=1, help="solve so often; the median counts")
    parser.add_argument(
        "--prove",
        action="store_true",
        help="bound the cost by what no answer at all can be below; takes longer than to solve",
    )
    parser.add_argument(
        "--verbose", action="store_true", help="tell on standard error how the solve goes"
    )
    chosen = parser.parse_args(argv)
    return answered(lambda: _print_solved(chosen))


def explain(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run the command `explain`."""
    parser = argparse.ArgumentParser(
        prog="python -m controller explain",
        description="Say where one pod of a recorded world goes, or what stands in its way. "
        "`explain node NODE` says why a node stays.",
    )
    add_world(parser)
    parser.add_argument("pod", metavar="POD", help="namespace/name, or a name in `default`")
    chosen = parser.parse_args(argv)
    return answered(lambda: _print_explained(chosen))


def add_world(parser: argparse.ArgumentParser) -> None:
    """Take a world's path and a time limit."""
    parser.add_argument("world", metavar="WORLD.json", type=Path, help="see docs/formats.md")
    parser.add_argument(
        "--time-limit",
        type=seconds,
        default=60.0,
        metavar="SECONDS",
        help="take the best answer found within so many seconds (60)",
    )


def seconds(text: str) -> float:
    """Read a time as people type it."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not number >= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds such as 60 or 0.5")
    return number


def answered(ask: Callable[[], int]) -> int:
    """Run a command; what cannot be asked becomes a sentence and exit code 2."""
    try:
        return ask()
    except QuestionError as error:
        print(error, file=sys.stderr)
        return 2


def _print_solved(chosen: argparse.Namespace) -> int:
    narrator = Narrator(write=partial(print, file=sys.stderr), clock=time.perf_counter)
    answered = solved(
        chosen.world,
        repeat=chosen.repeat,
        seconds=chosen.time_limit,
        prove=chosen.prove,
        reporter=narrator if chosen.verbose else SILENT,
    )
    seconds = statistics.median(answered.seconds)
    if chosen.output == "json":
        written = answer(answered.results, seconds=seconds, fills=answered.fills)
        written["secondsFromNothing"] = answered.seconds_from_nothing
        written["repetitions"] = list(answered.seconds)
        sys.stdout.write(json.dumps(written) + "\n")
        return 0
    console = Console(markup=False, emoji=False)
    for table in reporter.tables(answered.results, answered.fills):
        console.print(drawn_table(table))
    console.print(
        f"{reporter.summary(answered.results)}; solved in {seconds:.3f} s", highlight=False
    )
    return 0


def _print_explained(chosen: argparse.Namespace) -> int:
    name = chosen.pod if "/" in chosen.pod else f"default/{chosen.pod}"
    answered = solved(chosen.world, seconds=chosen.time_limit)
    pod = next((p for p in answered.world.pods if p.key == name), None)
    if pod is None:
        running = {p.key: p.spec.node_name for p in answered.world.snapshot.pods}
        if name not in running:
            raise QuestionError(f"{chosen.world}: there is no pod {name}")
        print(f"{name} runs on {running[name]} already.")
        return 0
    told = reporter.explain(answered.results, pod, answered.catalog)
    print(f"{told.pod} {told.fate}")
    for cause in told.causes or told.pools:
        print(f"  {cause}")
    return 0


def drawn_table(table: reporter.Table) -> Table:
    """Draw a table for people."""
    drawn = Table(title=table.title, header_style="bold", title_justify="left")
    for head in table.heads:
        drawn.add_column(head)
    for row in table.rows:
        drawn.add_row(*row)
    return drawn


def read_json(path: Path) -> Any:
    """Read a file.

    Raises:
        QuestionError: it is missing or not JSON.

    """
    try:
        return orjson.loads(path.read_bytes())
    except OSError as error:
        raise QuestionError(f"{path}: {os.strerror(error.errno or 0)}") from error
    except orjson.JSONDecodeError as error:
        raise QuestionError(f"{path}: not JSON: {error}") from error
    except ValueError as error:
        raise QuestionError(f"{str(path)!r}: not a path: {error}") from error


def deadline(end: float) -> Callable[[], bool]:
    """Return what turns true at a moment of `time.perf_counter`."""
    return lambda: time.perf_counter() > end
