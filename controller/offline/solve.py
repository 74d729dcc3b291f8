"""The commands `solve` and `explain` for recorded worlds.

The scheduling engine runs as in the controller, on a file instead of a cluster. The commands
write nothing. docs/formats.md describes the formats.
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
from typing import Any, NoReturn

import orjson
from rich.console import Console
from rich.table import Table

from controller.offline import reporter
from controller.offline import world as worlds
from controller.offline.answers import answer
from controller.offline.narration import Narrator
from controller.offline.wirevalues import WorldError
from controller.options import SETTINGS, nearest
from controller.scheduling.buffers import Fill, apart
from controller.scheduling.catalog import offerings
from controller.scheduling.dra.devices import promised
from controller.scheduling.reporter import SILENT, Reporter
from controller.scheduling.results import Results
from controller.scheduling.scheduler import least_cost, schedule
from controller.scheduling.settings import Settings, from_names


class QuestionError(Exception):
    """The command cannot run; the message says what to change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Solved:
    """An answer, and its duration in seconds: of each solve, and of the first with reading."""

    world: worlds.World
    catalog: offerings.Catalog
    results: Results
    fills: Mapping[str, Fill]
    seconds: tuple[float, ...]
    seconds_from_nothing: float


def read(path: Path) -> worlds.World:
    """Return the world in a file, with its instance types from a second file if it names one.

    Raises:
        QuestionError: a file is missing or not JSON, or an object in it is invalid.

    """
    content = read_json(path)
    try:
        named = worlds.types_file(content) if isinstance(content, Mapping) else None
        types = read_json(path.parent / named) if named else None
        world = worlds.load(content, types=types)
        _check_devices(world)
    except WorldError as error:
        raise QuestionError(f"{path}: {error}") from error
    # The world lives until the process ends; a garbage collection would scan it in vain.
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
    """Solve a world `repeat` times and return the last answer.

    Each solve takes at most `seconds`. `prove` computes a lower bound on the cost of any answer,
    which takes at most `seconds` more. `reporter` receives the progress.
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
    """Run the command `solve`."""
    parser = argparse.ArgumentParser(
        prog="python -m controller solve",
        description="Schedule the pending pods of a recorded world: print which nodes to launch, "
        "their cost, and why some pods are unschedulable. The command changes nothing.",
    )
    add_world(parser)
    parser.add_argument("--output", choices=("table", "json"), default="table")
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
    chosen = parsed(parser, argv)
    return answered(lambda: _print_solved(chosen))


def explain(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run the command `explain`."""
    parser = argparse.ArgumentParser(
        prog="python -m controller explain",
        description="Print where one pending pod of a recorded world is scheduled, or why it is "
        "unschedulable. `explain node NODE` prints why a node is not disrupted.",
    )
    add_world(parser)
    parser.add_argument(
        "pod", metavar="POD", help="namespace/name, or a name in the namespace `default`"
    )
    chosen = parsed(parser, argv)
    return answered(lambda: _print_explained(chosen))


def add_world(parser: argparse.ArgumentParser) -> None:
    """Add the arguments for the path of a world and for the time limit."""
    parser.add_argument(
        "world", metavar="WORLD.json", type=Path, help="a recorded world (docs/formats.md)"
    )
    parser.add_argument(
        "--time-limit",
        type=seconds,
        default=60.0,
        metavar="SECONDS",
        help="use the best answer found within this time (default 60)",
    )


def seconds(text: str) -> float:
    """Parse a number of seconds from the command line."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not number >= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds such as 60 or 0.5")
    return number


def positive(text: str) -> int:
    """Parse a number of repetitions from the command line."""
    if not text.isascii() or not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def parsed(parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments; exit with code 2 and suggest a similar option if one is unknown."""
    chosen, unknown = parser.parse_known_args(argv)
    if unknown:
        _refuse(parser, chosen, unknown)
    return chosen


def parsed_with_settings(
    parser: argparse.ArgumentParser, argv: Sequence[str]
) -> tuple[argparse.Namespace, list[str]]:
    """Parse the arguments of a command that also takes the flags of `run`, and return both."""
    chosen, rest = parser.parse_known_args(argv)
    flags = [f"--{setting.flag}" for setting in SETTINGS]
    unknown = [each for each in rest if each.startswith("--") and _name(each) not in flags]
    if unknown:
        _refuse(parser, chosen, unknown, flags)
    return chosen, rest


def _refuse(
    parser: argparse.ArgumentParser,
    chosen: argparse.Namespace,
    unknown: Sequence[str],
    flags: Sequence[str] = (),
) -> NoReturn:
    options = [f"--{name.replace('_', '-')}" for name in vars(chosen)]
    similar = nearest(_name(unknown[0]), [*options, *flags])
    parser.error(f"unrecognized arguments: {' '.join(unknown)}{similar}")


def _name(argument: str) -> str:
    return argument.partition("=")[0]


def answered(ask: Callable[[], int]) -> int:
    """Run a command; print a `QuestionError` to standard error and return exit code 2."""
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
            raise QuestionError(f'{chosen.world}: pod "{name}" not found')
        print(f"{name} already runs on {running[name]}.")
        return 0
    explanation = reporter.explain(answered.results, pod, answered.catalog)
    print(f"{explanation.pod} {explanation.fate}")
    for cause in explanation.causes or explanation.pools:
        print(f"  {cause}")
    return 0


def drawn_table(table: reporter.Table) -> Table:
    """Return the table as `rich` prints it."""
    drawn = Table(title=table.title, header_style="bold", title_justify="left")
    for head in table.heads:
        drawn.add_column(head)
    for row in table.rows:
        drawn.add_row(*row)
    return drawn


def read_json(path: Path) -> Any:
    """Return the content of a JSON file.

    Raises:
        QuestionError: the file is missing or not JSON.

    """
    try:
        return orjson.loads(path.read_bytes())
    except OSError as error:
        raise QuestionError(f"{path}: {os.strerror(error.errno or 0)}") from error
    except orjson.JSONDecodeError as error:
        raise QuestionError(f"{path}: not JSON: {error}") from error
    except ValueError as error:
        raise QuestionError(f"{str(path)!r} is not a path: {error}") from error


def deadline(end: float) -> Callable[[], bool]:
    """Return a function that is true after `end`, a time of `time.perf_counter`."""
    return lambda: time.perf_counter() > end
