"""The story of a solve, as data: tables for people, and the fate of one pod."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from controller.apis import labels
from controller.apis.pods import Pod
from controller.apis.quantities import written
from controller.constraints.requirements import read
from controller.scheduling.buffers import Fill
from controller.scheduling.catalog.offerings import Catalog
from controller.scheduling.causes import pool_causes, text
from controller.scheduling.pods.classes import pod_classes
from controller.scheduling.pods.preferences import first_constraints
from controller.scheduling.results import NewNode, Results
from controller.scheduling.settings import IGNORE


@dataclass(frozen=True, slots=True)
class Table:
    """A title, column heads and rows, ready to be drawn."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Where one pod goes and why; `pools` says of each pool why it could not hold the pod."""

    pod: str
    fate: str
    causes: tuple[str, ...]
    pools: tuple[str, ...]


def summary(results: Results) -> str:
    """Return one sentence: what is placed where, at what cost, how near to the bound."""
    new = sum(len(node.pods) for node in results.new_nodes)
    old = sum(len(pods) for pods in results.existing_nodes.values())
    sentence = (
        f"{new} pods on {len(results.new_nodes)} new nodes for {results.cost:.4f} $/h, "
        f"{old} on {len(results.existing_nodes)} that exist, {len(results.unschedulable)} left out"
    )
    if results.lower_bound > 0:
        gap = results.cost / results.lower_bound - 1
        sentence += f"; no answer is below {results.lower_bound:.4f} $/h (gap {gap:.1%})"
    return sentence


def tables(results: Results, fills: Mapping[str, Fill] | None = None) -> tuple[Table, ...]:
    """Return the answer as tables: new nodes, nodes that exist, pods left out, buffers. Empty
    ones are left out.
    """
    equal = Counter(_looks(node) for node in results.new_nodes)
    every = (
        Table(
            "New nodes",
            ("nodes", "pool", "type", "types", "zone", "capacity", "$/h each", "pods each"),
            tuple((str(count), *row) for row, count in equal.items()),
        ),
        Table(
            "Nodes that exist",
            ("node", "pods"),
            tuple((name, str(len(pods))) for name, pods in results.existing_nodes.items()),
        ),
        Table(
            "Left out",
            ("pods", "why"),
            tuple(
                (str(count), "; ".join(why))
                for why, count in Counter(results.unschedulable.values()).most_common()
            ),
        ),
        Table(
            "Room for pods yet to come",
            ("buffer", "on nodes that exist", "on new nodes", "nowhere"),
            tuple(
                (name, str(fill.existing), str(fill.new), str(fill.nowhere))
                for name, fill in (fills or {}).items()
            ),
        ),
    )
    return tuple(table for table in every if table.rows)


def explain(results: Results, pod: Pod, catalog: Catalog) -> Explanation:
    """Tell the fate of a pod, and what each pool that could not hold it lacks."""
    (pod_class,) = pod_classes([pod])
    constraints = first_constraints(pod.spec, policy=IGNORE, soft_taints=False)
    return Explanation(
        pod=pod.key,
        fate=_fate(results, pod.key),
        causes=results.unschedulable.get(pod.key, ()),
        pools=pool_causes(catalog, pod_class, constraints),
    )


def _fate(results: Results, key: str) -> str:
    for name, pods in results.existing_nodes.items():
        if key in pods:
            return f"goes to node {name}, which has room"
    for node in results.new_nodes:
        if key in node.pods:
            requested = ", ".join(
                f"{name} {written(amount, name)}" for name, amount in sorted(node.requests.items())
            )
            return (
                f"goes to a new node of NodePool {node.node_pool}, {node.instance_types[0]} or one "
                f"of {len(node.instance_types) - 1} more types, {node.price:.4f} $/h, with "
                f"{len(node.pods) - 1} other pods; the node is asked for {requested}"
            )
    return "goes nowhere" if key in results.unschedulable else "was not waiting"


def _looks(node: NewNode) -> tuple[str, ...]:
    allowed = read(node.requirements)
    return (
        node.node_pool,
        node.instance_types[0],
        str(len(node.instance_types)),
        *(
            text(allowed[key], bare=True) if key in allowed else "any"
            for key in (labels.ZONE, labels.CAPACITY_TYPE)
        ),
        f"{node.price:.4f}",
        str(len(node.pods)),
    )
