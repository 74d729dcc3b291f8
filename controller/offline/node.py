"""The command `explain node`: why a node is not disrupted, live or in a recorded world."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from controller.apis.kinds import EVENT
from controller.apiserver.errors import ApiError
from controller.disruption.explanation import NodeExplanation, as_wire, explained
from controller.kube.client import Client
from controller.offline.disrupt import moment, problem_of
from controller.offline.record import access_of, live
from controller.offline.reporter import Table
from controller.offline.solve import (
    QuestionError,
    answered,
    deadline,
    drawn_table,
    parsed_with_settings,
    read,
    seconds,
)
from controller.offline.world import World, load

TOLD = frozenset(
    {
        "Unconsolidatable",
        "DisruptionBlocked",
        "ConsolidationCandidate",
        "ConsolidationApproved",
        "ConsolidationRejected",
    }
)
"""The reasons of events that say that the controller evaluated a node."""


@dataclass(frozen=True, slots=True)
class LastLook:
    """The time and message of the controller's last event about a node."""

    at: datetime
    message: str


def explain(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run the command `explain node`."""
    parser = argparse.ArgumentParser(
        prog="python -m controller explain node",
        description="Print why a node is not disrupted: what blocks each of its pods, the cheapest "
        "alternative, when the controller last evaluated it, and what would change the answer. "
        "Reads the cluster of KUBECONFIG, or a recorded world. The command changes nothing.",
    )
    parser.add_argument("node", metavar="NODE", help="the name of the node")
    parser.add_argument(
        "--world",
        type=Path,
        metavar="WORLD.json",
        help="read this recorded world (docs/formats.md) instead of the cluster",
    )
    parser.add_argument("--output", choices=("table", "json"), default="table")
    parser.add_argument(
        "--now",
        type=moment,
        default=None,
        metavar="TIME",
        help="decide as of this time, such as 2026-11-22T08:00:00Z (default: now)",
    )
    parser.add_argument(
        "--time-limit",
        type=seconds,
        default=60.0,
        metavar="SECONDS",
        help="use the best answer found within this time (default 60)",
    )
    chosen, settings = parsed_with_settings(parser, argv)
    if chosen.world is not None and settings:
        parser.error(f"--world takes its settings from the world; remove {' '.join(settings)}")
    return answered(lambda: _print(chosen, settings, environ))


def _print(chosen: argparse.Namespace, settings: Sequence[str], environ: Mapping[str, str]) -> int:
    last: LastLook | None = None
    if chosen.world is not None:
        world: World = read(chosen.world)
    else:
        world = load(live(settings, environ))
        last = asyncio.run(_last_look(chosen.node, environ))
    explanation = _asked(world, chosen)
    if chosen.output == "json":
        looked = {"at": last.at.isoformat(), "message": last.message} if last else None
        sys.stdout.write(json.dumps({**as_wire(explanation), "lastTried": looked}) + "\n")
        return 0
    console = Console(markup=False, emoji=False)
    console.print(_summary(explanation, last), highlight=False)
    console.print(drawn_table(_table(explanation)))
    for change in explanation.changes:
        console.print(f"To disrupt this node: {change}", highlight=False)
    return 0


def _asked(world: World, chosen: argparse.Namespace) -> NodeExplanation:
    try:
        problem = problem_of(world, now=chosen.now or datetime.now(UTC), with_eviction_cost=True)
    except ValueError as error:
        raise QuestionError(f"settings: {error}") from error
    expired = deadline(time.perf_counter() + chosen.time_limit)
    explanation = explained(problem, chosen.node, expired=expired)
    if explanation is None:
        raise QuestionError(f'node "{chosen.node}" not found')
    return explanation


async def _last_look(node: str, environ: Mapping[str, str]) -> LastLook | None:
    """Return the controller's last event about a node, or None if there is none."""
    async with Client(access_of(environ), user_agent="joiner") as api:
        try:
            events = await api.list(EVENT, field_selector=f"involvedObject.name={node}")
        except ApiError as error:
            print(f"cannot list events: {error}", file=sys.stderr)
            return None
    looks = [
        LastLook(at, event.message)
        for event in events
        if event.reason in TOLD
        and (at := event.last_timestamp or event.metadata.creation_timestamp)
    ]
    return max(looks, key=lambda look: look.at, default=None)


def _summary(explanation: NodeExplanation, last: LastLook | None) -> str:
    price = "price unknown" if explanation.price is None else f"{explanation.price:.4f} $/h"
    pool = f" of NodePool {explanation.node_pool}" if explanation.node_pool else ""
    lines = [f"{explanation.node}, {explanation.instance_type}{pool}, {price}: {explanation.why}"]
    if explanation.alternative is None:
        lines.append("Without this node, not all of its pods would schedule.")
    else:
        bought = ", ".join(
            f"{new.instance_types[0]} {new.price:.4f}" for new in explanation.new_nodes
        )
        lines.append(
            f"Without this node, capacity for its pods costs {explanation.alternative:.4f} $/h"
            f"{f' ({bought})' if bought else ''}; evicting them costs {explanation.moves:.4f} $/h "
            "while the saving lasts."
        )
    if last is not None:
        lines.append(f"Last evaluated at {last.at:%Y-%m-%d %H:%M:%SZ}: {last.message}")
    return "\n".join(lines)


def _table(explanation: NodeExplanation) -> Table:
    return Table(
        "Pods on this node",
        ("pod", "blocked by", "would move to", "eviction $", "to unblock it"),
        tuple(
            (pod.pod, pod.holds or "nothing", pod.elsewhere, f"{pod.price:.4f}", pod.change)
            for pod in explanation.pods
        ),
    )
