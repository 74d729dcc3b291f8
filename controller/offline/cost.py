"""The command `cost`: the cost of a cluster's nodes, and a lower bound."""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from controller.apis import labels
from controller.apis.kubernetes.quantities import MILLI
from controller.apis.wording import with_count
from controller.constraints.resources import CPU, MEMORY, Resources, pod_requests, total
from controller.disruption import candidates
from controller.disruption.methods.bounds import lower_bound
from controller.disruption.problem import DisruptionProblem
from controller.offline.commandline import (
    CommandError,
    add_now,
    cluster_parser,
    run_on_cluster,
    write_data,
    write_tables,
)
from controller.offline.disrupt import problem_of
from controller.offline.record.command import world_of
from controller.offline.reporter import Table
from controller.offline.solve import deadline
from controller.state.nodes import StateNode
from controller.state.pods import is_terminal
from controller.state.usage import allocatable

GIB = 2**30
MONTH = 730
"""The hours of a month."""

NODE_GROUPS = ("eks.amazonaws.com/nodegroup", "alpha.eksctl.io/nodegroup-name")
"""The labels with the name of a node's managed or self-managed node group."""

PARTS = ("instance", "volumes", "address", "fee")
"""Parts of a price, in the order of the columns."""


@dataclass(slots=True)
class PoolCost:
    """The nodes of one NodePool: their number, price in $/h with its parts, and resources.

    `groups` are the node groups of nodes without a NodePool.
    """

    nodes: int = 0
    spot: int = 0
    unpriced: int = 0
    price: float = 0.0
    groups: set[str] = field(default_factory=set)
    parts: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    requested: Resources = field(default_factory=dict)
    allocatable: Resources = field(default_factory=dict)

    def share(self, resource: str) -> float:
        """Return the requested share of a resource, from 0 to 1."""
        most = self.allocatable.get(resource, 0)
        return self.requested.get(resource, 0) / most if most else 0.0


def cost(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run the command `cost`; return the exit code."""
    return run_on_cluster(parser(), _print, argv, environ)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = cluster_parser(
        "cost",
        "Print what the nodes of each NodePool cost, how much of them is requested, "
        "and a lower bound: no placement of the pods that can move costs less. Reads the cluster, "
        "or a recorded world.",
    )
    add_now(parser)
    return parser


def _print(chosen: argparse.Namespace, settings: Sequence[str], environ: Mapping[str, str]) -> int:
    world = world_of(chosen, settings, environ)
    problem = problem_of(world, now=chosen.now or datetime.now(UTC), with_eviction_cost=True)
    pools = costs(problem)
    if problem.snapshot.nodes and all(pool.unpriced == pool.nodes for pool in pools.values()):
        raise CommandError(
            "no node has a known price: the world has no instance types, or none of its nodes; "
            "`joiner record` with AWS credentials records them"
        )
    price = sum(pool.price for pool in pools.values())
    bound = lower_bound(problem, expired=deadline(time.perf_counter() + chosen.time_limit))
    bound = min(bound, price)
    outside = pools.get("", PoolCost())
    content = {
        "cost": round(price, 4),
        "lowerBound": round(bound, 4),
        "fixed": {"nodes": outside.nodes, "cost": round(outside.price, 4)},
        "nodePools": [_content(name, pool) for name, pool in pools.items()],
    }
    if not write_data(chosen.output, content):
        summary = f"{price:.4f} $/h ({price * MONTH:.0f} $ a month); {_bound(pools, price, bound)}"
        if unpriced := sum(pool.unpriced for pool in pools.values()):
            summary += f"\n{with_count(unpriced, 'node')} without a known price not counted."
        write_tables([_table(pools, is_wide=chosen.output == "wide")], after=summary)
    return 0


def _bound(pools: Mapping[str, PoolCost], price: float, bound: float) -> str:
    """Return the lower bound, the gap, and what the bound counts as fixed, as text."""
    outside = pools.get("")
    if outside is None:
        gap = f" (gap {price / bound - 1:.1%})" if bound else ""
        return f"lower bound {bound:.4f} $/h{gap}"
    fixed = with_count(outside.nodes, "node")
    advice = "`joiner advise` prints what the cluster would cost if Joiner replaced them"
    if len(pools) == 1:
        return f"no lower bound: {fixed} outside NodePools; {advice}"
    managed, least = price - outside.price, bound - outside.price
    gap = f" (gap {managed / least - 1:.1%})" if least > 0 else ""
    return (
        f"lower bound for the NodePools {least:.4f} $/h of {managed:.4f} $/h{gap}; {fixed} outside "
        f"NodePools fixed: {advice}"
    )


def costs(problem: DisruptionProblem) -> dict[str, PoolCost]:
    """Return the cost of each NodePool, the most expensive first; "" for nodes without NodePool."""
    offering_of = candidates.offerings(problem)
    requested: defaultdict[str, list[Resources]] = defaultdict(list)
    for pod in problem.snapshot.pods:
        if not is_terminal(pod):
            requested[pod.spec.node_name].append(pod_requests(pod))
    pools: defaultdict[str, PoolCost] = defaultdict(PoolCost)
    for state in problem.snapshot.nodes:
        pool = pools[state.node_pool]
        offering = offering_of(state)
        pool.nodes += 1
        pool.groups |= {node_group(state)} - {""}
        pool.spot += state.capacity_type == labels.SPOT
        pool.unpriced += offering is None or not offering.price
        if offering is not None:
            pool.price += offering.price
            for name, part in offering.price_parts.items():
                pool.parts[name] += part
        pool.requested = total((pool.requested, *requested[state.name]))
        pool.allocatable = total((pool.allocatable, allocatable(state)))
    return dict(sorted(pools.items(), key=lambda item: (-item[1].price, item[0])))


def node_group(state: StateNode) -> str:
    """Return the displayed node group of a node without a NodePool; empty if unknown."""
    name = next((state.labels[key] for key in NODE_GROUPS if key in state.labels), "")
    return f"node group {name}" if name else ""


def _content(name: str, pool: PoolCost) -> dict[str, Any]:
    return {
        "name": name,
        "nodes": pool.nodes,
        "spot": pool.spot,
        "withoutPrice": pool.unpriced,
        "cost": round(pool.price, 4),
        "parts": {name: round(part, 4) for name, part in pool.parts.items()},
        "cpu": [pool.requested.get(CPU, 0) / MILLI, pool.allocatable.get(CPU, 0) / MILLI],
        "memoryGiB": [
            round(amounts.get(MEMORY, 0) / MILLI / GIB, 3)
            for amounts in (pool.requested, pool.allocatable)
        ],
    }


def _table(pools: Mapping[str, PoolCost], *, is_wide: bool) -> Table:
    """Return a row for each NodePool; if `is_wide`, with the parts of its price."""
    heads = ("NodePool", "nodes", "spot", "$/h", "$/month", "CPU", "memory")
    return Table(
        "Cost by NodePool, and the share of CPU and memory that pods request",
        (*heads, *PARTS, "price unknown") if is_wide else heads,
        tuple(
            (
                name or ", ".join(sorted(pool.groups)) or "(no NodePool)",
                str(pool.nodes),
                str(pool.spot),
                f"{pool.price:.4f}",
                f"{pool.price * MONTH:,.0f}",
                f"{pool.share(CPU):.0%}",
                f"{pool.share(MEMORY):.0%}",
                *((f"{pool.parts[part]:.4f}" for part in PARTS) if is_wide else ()),
                *((str(pool.unpriced or ""),) if is_wide else ()),
            )
            for name, pool in pools.items()
        ),
        right=(*heads[1:], *PARTS),
    )
