"""The command `disrupt`: the nodes of a recorded world to disrupt, and their replacements."""

from __future__ import annotations

import argparse
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson

from controller.apis import labels
from controller.apis.kubernetes.meta import to_wire
from controller.apis.kubernetes.pods import Pod
from controller.apis.wording import first_three, with_count
from controller.disruption import candidates
from controller.disruption.advice import course as courses
from controller.disruption.advice.course import with_buffered_nodes
from controller.disruption.methods.bounds import lower_bound
from controller.disruption.problem import EVICTIONS_FREE, DisruptionProblem, settings_of
from controller.offline.commandline import (
    CommandError,
    add_now,
    add_output,
    add_world,
    parse_arguments,
    read_json,
    run_command,
    write_data,
    write_tables,
)
from controller.offline.daemonpods import daemon_pods, key_of
from controller.offline.jsonresults import node_content
from controller.offline.reporter import Table
from controller.offline.solve import deadline, read
from controller.offline.world import World
from controller.options import Options
from controller.scheduling.catalog.daemons import Daemon, daemons
from controller.scheduling.settings import from_names
from controller.state.snapshot import Snapshot

MAX_ROWS = 20
"""Maximum number of commands in the table; the JSON has all of them."""

DISRUPTION_SETTINGS = (
    "DISRUPTION_EVICTION_PRICE",
    "DISRUPTION_HORIZON",
    "DISRUPTION_COOL_DOWN",
    "DISRUPTION_IMAGE_SOAK",
    "SURGE_SINGLE_REPLICAS",
)
"""The settings of a world that affect disruption."""

SPOT_TO_SPOT_GATE = "SpotToSpotConsolidation"


@dataclass(slots=True, kw_only=True)
class Course(courses.Course):
    """The decisions about a world, and the lower bound of its cost in $/h.

    `seconds` is the duration of all evaluations. `first_command_seconds` is the time until the end
    of the first evaluation that found commands.
    """

    lower_bound: float = 0.0
    seconds: float = 0.0
    first_command_seconds: float = 0.0


def disrupt(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run the command `disrupt`; return the exit code."""
    chosen = parse_arguments(disrupt_parser(), argv)
    return run_command(lambda: _print(chosen))


def disrupt_parser() -> argparse.ArgumentParser:
    """Return the parser of the command `disrupt`."""
    parser = argparse.ArgumentParser(
        prog="joiner disrupt",
        description="Print which nodes of a recorded world to disrupt, and what replaces them. "
        "The command changes nothing.",
    )
    add_world(parser)
    add_output(parser)
    add_now(parser)
    parser.add_argument(
        "--until-steady",
        action="store_true",
        help="apply the commands to the world in memory and decide again, until none is left",
    )
    parser.add_argument(
        "--ignore-eviction-cost",
        action="store_true",
        help="consolidate for every saving, even if the evictions cost more",
    )
    parser.add_argument(
        "--write-world",
        type=Path,
        default=None,
        metavar="FILE",
        help="write the world as it would be after the commands to FILE",
    )
    return parser


def _print(chosen: argparse.Namespace) -> int:
    content = read_json(chosen.world)
    world = read(chosen.world, content)
    try:
        problem = problem_of(
            world,
            now=chosen.now or datetime.now(UTC),
            with_eviction_cost=not chosen.ignore_eviction_cost,
        )
    except CommandError as error:
        raise CommandError(f"{chosen.world}: {error}") from error
    if chosen.until_steady:
        problem = without_waits(problem)
    course = run_course(problem, until_steady=chosen.until_steady, seconds=chosen.time_limit)
    if chosen.write_world is not None:
        _write_world(chosen.write_world, content, course, daemons(problem.snapshot))
    if not write_data(chosen.output, course_content(course)):
        write_tables(tables(course, is_wide=chosen.output == "wide"), after=summary(course))
    return 0


def problem_of(world: World, *, now: datetime, with_eviction_cost: bool) -> DisruptionProblem:
    """Return the disruption problem of a recorded world at the time `now`.

    Without `with_eviction_cost`, evictions cost nothing, so every saving counts.

    Raises:
        CommandError: a setting has a value that is not allowed.

    """
    gates = world.settings.get("FEATURE_GATES", "").replace(" ", "").lower().split(",")
    named = {name: world.settings[name] for name in DISRUPTION_SETTINGS if name in world.settings}
    try:
        configured = settings_of(Options.parse([], {"CLUSTER_NAME": "world", **named}))
        scheduling = from_names(world.settings)
    except ValueError as error:
        raise CommandError(f"settings: {error}") from error
    settings = configured if with_eviction_cost else EVICTIONS_FREE
    # Without instalments, each command pays for its evictions by itself.
    settings = replace(settings, instalments=False)
    if f"{SPOT_TO_SPOT_GATE}=true".lower() in gates:
        settings = replace(settings, spot_to_spot=True)
    problem = DisruptionProblem(
        snapshot=world.snapshot,
        node_pools={pool.metadata.name: pool for pool in world.node_pools},
        now=now,
        pending=(*world.pods, *world.buffer_pods),
        scheduling=scheduling,
        settings=settings,
    )
    return with_buffered_nodes(problem)


def without_waits(problem: DisruptionProblem) -> DisruptionProblem:
    """Return the problem without the soak time of new AMIs.

    The time between two evaluations is then irrelevant.
    """
    return replace(problem, settings=replace(problem.settings, image_soak=timedelta(0)))


def run_course(problem: DisruptionProblem, *, until_steady: bool, seconds: float) -> Course:
    """Decide once and apply the commands to the problem, which changes no cluster.

    With `until_steady`, do so until a decision has no commands.

    Each evaluation, and the computation of the lower bound, takes at most `seconds`.
    """
    course = new_course(problem)
    while evaluate(course, seconds) and until_steady:
        pass
    course.lower_bound = lower_bound(problem, expired=deadline(time.perf_counter() + seconds))
    return course


def new_course(problem: DisruptionProblem) -> Course:
    """Return a course without decisions for a problem."""
    return Course(problem=problem, cost_before=candidates.cost(problem))


def evaluate(course: Course, seconds: float) -> bool:
    """Decide once, in at most `seconds`, and apply the commands to the course's problem.

    Returns whether there are any commands.
    """
    began = time.perf_counter()
    decision = course.decide(deadline(began + seconds))
    if decision.commands and not course.commands:
        course.first_command_seconds = course.seconds + time.perf_counter() - began
    course.execute(decision)
    course.seconds += time.perf_counter() - began
    return bool(decision.commands)


def course_content(course: Course) -> dict[str, Any]:
    """Return the course as JSON-ready values, in the format of `docs/reference/formats.md`."""
    return {
        "commands": [
            {
                "reason": command.reason.value,
                "nodes": [candidate.name for candidate in command.candidates],
                "newNodes": [
                    {
                        **node_content(new),
                        "name": node.name,
                        "instanceType": node.labels[labels.INSTANCE_TYPE],
                        "zone": node.labels[labels.ZONE],
                        "capacityType": node.labels[labels.CAPACITY_TYPE],
                    }
                    for new, node in zip(command.replacements, made, strict=True)
                ],
                "existingNodes": {name: list(keys) for name, keys in command.moves.items()},
                "saving": command.saving,
                "evictions": command.evictions,
                "why": command.why,
            }
            for command, made in course.commands
        ],
        "blocked": dict(sorted(course.blocked.items())),
        "costBefore": course.cost_before,
        "costAfter": course.cost_after,
        "lowerBound": min(course.lower_bound, course.cost_before),
        "seconds": course.seconds,
        "firstCommandSeconds": course.first_command_seconds,
    }


def tables(course: Course, *, is_wide: bool = False) -> tuple[Table, ...]:
    """Return the commands, and the reasons why other nodes stay, as tables; no empty ones.

    Unless `is_wide`, only the first commands are listed, with the first of their nodes.
    """
    stay = Counter(course.blocked.values())
    shown = len(course.commands) if is_wide else MAX_ROWS
    shortened = ", ".join if is_wide else first_three
    all_tables = (
        Table(
            f"Commands (the first {shown} of {len(course.commands)})"
            if len(course.commands) > shown
            else "Commands",
            ("reason", "nodes", "replacements", "evictions", "saving $/h"),
            tuple(
                (
                    command.reason.value,
                    shortened([candidate.name for candidate in command.candidates]),
                    shortened([node.labels[labels.INSTANCE_TYPE] for node in made]),
                    str(command.evictions),
                    f"{command.saving:.4f}",
                )
                for command, made in course.commands[:shown]
            ),
        ),
        Table(
            "Nodes that stay",
            ("nodes", "reason"),
            tuple((str(number), why) for why, number in stay.most_common()),
        ),
    )
    return tuple(table for table in all_tables if table.rows)


def summary(course: Course) -> str:
    """Return a sentence with the numbers of nodes and pods, the costs and the gap to the bound."""
    removed = sum(len(command.candidates) for command, _ in course.commands)
    launched = sum(len(nodes) for _, nodes in course.commands)
    evicted = sum(command.evictions for command, _ in course.commands)
    sentence = (
        f"{with_count(removed, 'node')} removed, {with_count(launched, 'node')} launched, "
        f"{with_count(evicted, 'pod')} moved: from {course.cost_before:.4f} $/h to "
        f"{course.cost_after:.4f} $/h"
    )
    if course.lower_bound > 0:
        gap = course.cost_after / course.lower_bound - 1
        sentence += f"; lower bound {course.lower_bound:.4f} $/h (gap {gap:.1%})"
    return f"{sentence}; decided in {course.seconds:.3f} s"


def _write_world(
    path: Path, world: dict[str, Any], course: Course, daemon_sets: Sequence[Daemon]
) -> None:
    """Write the world after the commands of the course.

    Nodes, NodeClaims, pods (DaemonSet pods included) and the remaining capacity of reservations are
    updated; the rest is unchanged. `daemon_sets` are the DaemonSets before the course.
    """
    snapshot = course.problem.snapshot
    remaining = {node.name: node for node in snapshot.nodes}
    running = {pod.key: pod for pod in (*snapshot.pods, *course.problem.pending)}
    made = [node for _, nodes in course.commands for node in nodes if node.name in remaining]
    claims = {node.claim.metadata.name for node in snapshot.nodes if node.claim is not None}
    world = {
        **world,
        "nodes": [
            *(node for node in world.get("nodes", []) if node["metadata"]["name"] in remaining),
            *(to_wire(node.node) for node in made),
        ],
        "nodeClaims": [
            *(
                claim
                for claim in world.get("nodeClaims", [])
                if claim["metadata"]["name"] in claims
            ),
            *(to_wire(node.claim) for node in made),
        ],
        "pods": [
            *(_on_current_node(pod, running) for pod in world["pods"] if _is_left(pod, running)),
            *daemon_pods(world, daemon_sets, made),
        ],
    }
    if isinstance(world["instanceTypes"], list):
        left = _reservations(snapshot)
        world["instanceTypes"] = [_with_left(row, left) for row in world["instanceTypes"]]
    try:
        path.write_bytes(orjson.dumps(world, option=orjson.OPT_INDENT_2))
    except OSError as error:
        raise CommandError(f"{path}: {os.strerror(error.errno or 0)}") from error


def _reservations(snapshot: Snapshot) -> dict[str, int]:
    """Return the number of instances left in each capacity reservation, by its ID."""
    return {
        offering.requirements[labels.RESERVATION_ID]: offering.reservation_capacity
        for types in snapshot.instance_types.values()
        for instance_type in types
        for offering in instance_type.offerings
        if labels.RESERVATION_ID in offering.requirements
    }


def _with_left(row: Mapping[str, Any], left: Mapping[str, int]) -> dict[str, Any]:
    """Return an instance type with the remaining capacity of its offerings' reservations."""
    return {
        **row,
        "offerings": [
            {**offering, "reservationCapacity": left[reservation]}
            if (reservation := offering["requirements"].get(labels.RESERVATION_ID)) in left
            else offering
            for offering in row["offerings"]
        ],
    }


def _is_left(pod: Mapping[str, Any], running: Mapping[str, Pod]) -> bool:
    """Whether a pod is pending or running; DaemonSet pods of removed nodes are neither."""
    return not pod["spec"].get("nodeName") or key_of(pod) in running


def _on_current_node(pod: dict[str, Any], running: Mapping[str, Pod]) -> dict[str, Any]:
    now = running.get(key_of(pod))
    if now is None:
        return pod
    moved = {**pod, "spec": {**pod["spec"], "nodeName": now.spec.node_name}}
    if now.status.start_time is not None:
        moved["status"] = {**pod["status"], "startTime": to_wire(now.status.start_time)}
    return moved
