"""The command `advise`: reads a cluster, computes the advice and prints it."""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from controller.apis.labels import NODEPOOL
from controller.disruption.advice.adoption import outside, translate_labels
from controller.disruption.advice.advising import (
    MAX_OBSTACLES,
    TIME_LIMITS,
    Question,
    Report,
    advise,
)
from controller.disruption.advice.drifting import drifting_nodes
from controller.disruption.advice.forecast import Deadline, Forecast
from controller.disruption.advice.replay import at_next_recording
from controller.disruption.problem import DisruptionProblem
from controller.offline.advise import manifests, report
from controller.offline.advise.report import AdviceResult, History, PullRequest, Recording
from controller.offline.commandline import (
    STDIN,
    CommandError,
    add_now,
    cluster_parser,
    positive,
    read_json,
    run_on_cluster,
    write_data,
    write_tables,
)
from controller.offline.disrupt import problem_of
from controller.offline.record.command import live
from controller.offline.solve import deadline, read
from controller.offline.wirevalues import WorldError
from controller.offline.world import World

Wire = dict[str, Any]

ROWS = 10
"""The maximum number of obstacles in the table; `--top` overrides it."""

TIME = re.compile(r"(\d{4})-?(\d\d)-?(\d\d)[T_ -]?(\d\d)[:.-]?(\d\d)(?:[:.-]?(\d\d))?", re.ASCII)
"""A time in a file's name, such as 2026-11-22T08-00-00Z or 20261122T080000."""


@dataclass(frozen=True, slots=True)
class _Source:
    """A world as JSON, and its path. The path of its types file is relative to that path."""

    content: Wire
    path: Path = STDIN

    def world(self, pools: list[Wire]) -> World:
        """Return the world with these NodePools added; with the default NodePool if it has none."""
        if not self.has_pools and not pools:
            pools = [manifests.DEFAULT]
        content = manifests.with_pools(self.content, pools) if pools else self.content
        return read(self.path, content)

    @property
    def has_pools(self) -> bool:
        """Whether the world has NodePools of its own; raises `CommandError` if it is invalid."""
        if not isinstance(self.content, dict):
            raise CommandError(f"{self.path}: expected a JSON object")
        try:
            return manifests.has_pools(self.content)
        except WorldError as error:
            raise CommandError(f"{self.path}: {error}") from error


def command(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run the command `advise`; return the exit code."""
    return run_on_cluster(parser(), _print, argv, environ)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = cluster_parser(
        "advise",
        "Print what the cluster costs, what it would cost under Joiner, and what "
        "prevents it from costing less: each obstacle with its price and the change that removes "
        "it, and a diff of the NodePools. The cluster may be run by Karpenter, Cluster "
        "Autoscaler or managed node groups. Reads the cluster, or a recorded world. If --world is "
        "a folder of worlds with times in their names, prints what the cluster would have cost "
        "over that time.",
    )
    add_now(parser)
    parser.add_argument(
        "--pools",
        type=Path,
        metavar="FOLDER",
        help="add the NodePools in the YAML files of this folder to those of the cluster",
    )
    parser.add_argument(
        "--diff",
        type=Path,
        metavar="FOLDER",
        help="print what a pull request with the NodePools in the YAML files of this folder would "
        "cost, and which nodes would drift",
    )
    parser.add_argument(
        "--write-pools",
        type=Path,
        metavar="FOLDER",
        help="write the NodePools, changed so that the cluster costs less, to this folder, one "
        "file each",
    )
    parser.add_argument(
        "--keep",
        type=_selector,
        default={},
        metavar="KEY=VALUE",
        help="nodes with this label stay unchanged, such as the node group of Joiner's controller",
    )
    parser.add_argument(
        "--top",
        type=positive,
        default=ROWS,
        metavar="N",
        help=f"show the N most expensive obstacles (default {ROWS}); -o wide shows all",
    )
    parser.add_argument(
        "--obstacles",
        type=positive,
        default=MAX_OBSTACLES,
        metavar="N",
        help=f"measure at most N obstacles (default {MAX_OBSTACLES})",
    )
    return parser


def _selector(text: str) -> dict[str, str]:
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is not a label such as {NODEPOOL}=system")
    return {key: value}


def _print(chosen: argparse.Namespace, settings: Sequence[str], environ: Mapping[str, str]) -> int:
    if chosen.world is not None and chosen.world != STDIN and chosen.world.is_dir():
        return _print_history(chosen)
    if chosen.world is not None:
        source = _Source(read_json(chosen.world), chosen.world)
    else:
        source = _Source(live(settings, environ, seconds=chosen.time_limit))
    pools = manifests.read_folder(chosen.pools) if chosen.pools is not None else []
    question = _question(source.world(pools), chosen)
    if chosen.diff is not None:
        return _print_pull_request(chosen, source, pools, question)
    with _progress() as tell:
        tell("the cluster under Joiner", 0, 1)
        steady = question.forecast()
        advice = advise(
            question,
            steady=steady,
            most=chosen.obstacles,
            expired=deadline(time.perf_counter() + TIME_LIMITS * chosen.time_limit),
            report=tell,
        )
    result = AdviceResult(
        question=question, advice=advice, had_pools=source.has_pools or bool(pools)
    )
    if not write_data(chosen.output, report.advice_content(result)):
        is_wide = chosen.output == "wide"
        write_tables(
            report.advice_tables(result, chosen.top, is_wide=is_wide),
            before=report.advice_summary(result),
            after=report.advice_notes(result, chosen.top, is_wide=is_wide),
        )
        report.write_diff(report.diff_of(result))
    if chosen.write_pools is not None:
        manifests.write_folder(chosen.write_pools, advice.pools)
    return 0


def _question(world: World, chosen: argparse.Namespace, now: datetime | None = None) -> Question:
    """Return the input of the advice for a world; raises `CommandError` if prices are missing."""
    at = now or chosen.now or datetime.now(UTC)
    problem = translate_labels(problem_of(world, now=at, with_eviction_cost=True))
    if not any(problem.snapshot.instance_types.values()):
        raise CommandError(
            "the recorded world has no instance types, so there are no prices: run `joiner record` "
            "with AWS credentials, which it needs to record them"
        )
    return Question(
        problem=problem,
        leaving=outside(problem, chosen.keep),
        deadline=_deadline(chosen.time_limit),
    )


def _deadline(seconds: float) -> Deadline:
    return lambda: deadline(time.perf_counter() + seconds)


# A pull request.


def _print_pull_request(
    chosen: argparse.Namespace, source: _Source, pools: list[Wire], before: Question
) -> int:
    changed = manifests.read_folder(chosen.diff)
    after = _question(source.world([*pools, *changed]), chosen)
    nodes = drifting_nodes(after.problem, before.problem.node_pools)
    moving = frozenset(node.node for node in nodes if not node.is_static)
    with _progress() as tell:
        tell("before the change", 0, 2)
        first = before.forecast()
        tell("after the change", 1, 2)
        second = Question(
            problem=after.problem, leaving=after.leaving | moving, deadline=after.deadline
        ).forecast()
    request = PullRequest(
        now=before.problem,
        before=first,
        after=second,
        drifting=nodes,
        diff=manifests.difference(before.problem.node_pools, after.problem.node_pools),
    )
    if not write_data(chosen.output, report.request_content(request)):
        write_tables(
            report.request_tables(request),
            before=report.request_summary(request),
            after=report.request_notes(request),
        )
    return 0


# A history.


def _print_history(chosen: argparse.Namespace) -> int:
    if chosen.diff is not None:
        raise CommandError(
            "--diff needs one recorded world: set --world to a file instead of a folder"
        )
    pools = manifests.read_folder(chosen.pools) if chosen.pools is not None else []
    paths = _by_time(chosen.world)
    recordings: list[Recording] = []
    before: Forecast | None = None
    with _progress() as tell:
        for number, (at, path) in enumerate(paths):
            tell(path.name, number, len(paths))
            question = _question(_Source(read_json(path), path).world(pools), chosen, at)
            before = _next_forecast(question, before)
            recordings.append(Recording.of(at, question.problem, before))
    history = History(tuple(recordings))
    if not write_data(chosen.output, report.history_content(history)):
        write_tables(report.history_tables(history), after=report.history_summary(history))
    return 0


def _next_forecast(question: Question, before: Forecast | None) -> Forecast:
    """Return the forecast of a recording, given the forecast of the recording before it."""
    if before is None:
        return question.forecast()
    problem: DisruptionProblem = at_next_recording(
        before, question.problem, question.leaving, expired=question.deadline()
    )
    existing_nodes = frozenset(state.name for state in problem.snapshot.nodes)
    leaving = existing_nodes & (question.leaving | before.staying.keys())
    return Question(problem=problem, leaving=leaving, deadline=question.deadline).forecast()


def _by_time(folder: Path) -> list[tuple[datetime, Path]]:
    """Return the worlds of a folder with the times in their names, in order.

    Raises:
        CommandError: a name has no time, or there are fewer than two worlds.

    """
    worlds = []
    for path in folder.glob("*.json"):
        try:
            worlds.append((_time_in(path.stem), path))
        except ValueError as error:
            raise CommandError(
                f"{path}: the name has no time such as 2026-11-22T08-00-00Z: rename the file"
            ) from error
    if len(worlds) < 2:
        raise CommandError(
            f"{folder}: allowed is a folder with at least two recorded worlds, such as "
            "2026-11-22T08-00-00Z.json"
        )
    return sorted(worlds)


def _time_in(name: str) -> datetime:
    """Return the time in a file's name, in UTC.

    Raises:
        ValueError: it has none.

    """
    match = TIME.search(name)
    if match is None:
        raise ValueError(name)
    year, month, day, hour, minute, second = (int(part or 0) for part in match.groups())
    return datetime(year, month, day, hour, minute, second, tzinfo=UTC)


@contextmanager
def _progress() -> Iterator[Report]:
    """Yield a function that shows progress if standard error is a terminal."""
    console = Console(stderr=True, markup=False, emoji=False)
    columns = (
        TextColumn("{task.description:.60}", markup=False),
        BarColumn(),
        TimeElapsedColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not sys.stderr.isatty()
    ) as bar:
        task = bar.add_task("", total=None)

        def tell(what: str, done: int, of: int) -> None:
            bar.update(task, description=what, completed=done, total=of)

        yield tell
