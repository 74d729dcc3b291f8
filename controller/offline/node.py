"""The command `explain node`: why a node of a cluster or of a recorded world is not disrupted."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from controller.apis.kinds import EVENT
from controller.apis.wording import first_three
from controller.apiserver.errors import ApiError
from controller.disruption.advice.explanation import (
    NodeExplanation,
    PodExplanation,
    as_wire,
    explain_node,
    node_named,
)
from controller.kube.client import Client
from controller.offline.commandline import (
    CommandError,
    add_now,
    cluster_parser,
    run_on_cluster,
    write_data,
    write_tables,
)
from controller.offline.disrupt import problem_of
from controller.offline.record.command import access_of, world_of
from controller.offline.reporter import Table
from controller.offline.solve import deadline
from controller.offline.world import World

DECISION_REASONS = frozenset(
    {
        "Unconsolidatable",
        "DisruptionBlocked",
        "ConsolidationCandidate",
        "ConsolidationApproved",
        "ConsolidationRejected",
    }
)
"""The reasons of events that the controller publishes when it has evaluated a node."""


@dataclass(frozen=True, slots=True)
class LastDecision:
    """The time and message of the controller's last event about a node."""

    at: datetime
    message: str


def explain(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run the command `explain node`; return the exit code."""
    return run_on_cluster(parser(), _print, argv, environ)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = cluster_parser(
        "explain node",
        "Print why a node is not disrupted: what blocks each of its pods, the cheapest "
        "alternative, when the controller last evaluated it, and what would change the answer. "
        "Reads the cluster with the settings of its controller, or a recorded world.",
        subject="NODE",
        subject_help="the name of the node or of its NodeClaim",
    )
    add_now(parser)
    return parser


def _print(chosen: argparse.Namespace, settings: Sequence[str], environ: Mapping[str, str]) -> int:
    last: LastDecision | None = None
    world = world_of(chosen, settings, environ)
    name = node_named(world.snapshot, chosen.node)
    explanation = _explanation(world, name, chosen)
    if chosen.world is None:
        last = asyncio.run(_last_decision(name, environ))
    last_tried = {"at": last.at.isoformat(), "message": last.message} if last else None
    if not write_data(chosen.output, {**as_wire(explanation), "lastTried": last_tried}):
        write_tables(
            [_table(explanation, is_wide=chosen.output == "wide")] if explanation.pods else [],
            before=_summary(explanation, last),
            after="\n".join(f"To disrupt this node: {each}" for each in explanation.changes),
        )
    return 0


def _explanation(world: World, node: str, chosen: argparse.Namespace) -> NodeExplanation:
    problem = problem_of(world, now=chosen.now or datetime.now(UTC), with_eviction_cost=True)
    expired = deadline(time.perf_counter() + chosen.time_limit)
    explanation = explain_node(problem, node, expired=expired)
    if explanation is None:
        raise CommandError(
            f'node "{chosen.node}" not found: give the name of a Node or of its NodeClaim, or the '
            "beginning that `joiner top` shows, if no other node has it"
        )
    return explanation


async def _last_decision(node: str, environ: Mapping[str, str]) -> LastDecision | None:
    """Return the controller's last event about a node, or None if there is none."""
    async with Client(access_of(environ), user_agent="joiner") as api:
        try:
            events = await api.list(EVENT, field_selector=f"involvedObject.name={node}")
        except ApiError as error:
            print(f"cannot list events: {error}", file=sys.stderr)
            return None
    decisions = [
        LastDecision(at, event.message)
        for event in events
        if event.reason in DECISION_REASONS
        and (at := event.last_timestamp or event.metadata.creation_timestamp)
    ]
    return max(decisions, key=lambda decision: decision.at, default=None)


def _summary(explanation: NodeExplanation, last: LastDecision | None) -> str:
    price = "price unknown" if explanation.price is None else _price(explanation)
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


def _price(explanation: NodeExplanation) -> str:
    """Return the price as text, with its parts if there are several."""
    parts = [f"{name} {part:.4f}" for name, part in explanation.price_parts.items() if part]
    detail = f" ({', '.join(parts)})" if len(parts) > 1 else ""
    return f"{explanation.price:.4f} $/h{detail}"


def _table(explanation: NodeExplanation, *, is_wide: bool) -> Table:
    """Return a row for each pod, or, unless `is_wide`, for all pods that differ in name only."""
    rows: dict[tuple[str, ...], list[PodExplanation]] = {}
    for pod in explanation.pods:
        price = f"{pod.price:.4f}"
        answer = (pod.holds.replace(pod.pod, ""), pod.elsewhere, price, pod.change)
        rows.setdefault((pod.pod, *answer) if is_wide else answer, []).append(pod)
    return Table(
        "Pods on this node",
        ("pod", "blocked by", "would move to", "eviction $", "to unblock it"),
        tuple(
            (first_three([pod.pod for pod in pods]), pods[0].holds or "nothing", *row[-3:])
            for row, pods in rows.items()
        ),
    )
