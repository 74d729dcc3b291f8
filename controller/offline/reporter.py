"""The results of a solve as tables, and the explanation of one pod."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from controller.apis import labels
from controller.apis.kubernetes.pods import Pod
from controller.apis.kubernetes.quantities import format_quantity
from controller.apis.wording import with_count
from controller.constraints.requirements import read, text
from controller.offline.pending import PendingPods
from controller.scheduling.buffers import Fill
from controller.scheduling.catalog.offerings import Catalog
from controller.scheduling.causes import pool_causes
from controller.scheduling.pods.classes import pod_classes
from controller.scheduling.pods.preferences import initial_constraints
from controller.scheduling.results import NewNode, Results
from controller.scheduling.settings import IGNORE


@dataclass(frozen=True, slots=True)
class Table:
    """A table: title, column headers and rows; the columns in `right` are aligned to the right."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The outcome for one pod, its causes, and why NodePools reject it (`pools`)."""

    pod: str
    outcome: str
    causes: tuple[str, ...]
    pools: tuple[str, ...]


def summary(results: Results) -> str:
    """Return a sentence with the numbers of pods and nodes, the cost and the gap to the bound."""
    new = sum(len(node.pods) for node in results.new_nodes)
    existing = sum(len(pods) for pods in results.existing_nodes.values())
    sentence = (
        f"{with_count(new, 'pod')} on {with_count(len(results.new_nodes), 'new node')} "
        f"for {results.cost:.4f} $/h, {existing} on "
        f"{with_count(len(results.existing_nodes), 'existing node')}, "
        f"{len(results.unschedulable)} unschedulable"
    )
    if results.lower_bound > 0:
        gap = results.cost / results.lower_bound - 1
        sentence += f"; lower bound {results.lower_bound:.4f} $/h (gap {gap:.1%})"
    return sentence


def tables(
    results: Results, fills: Mapping[str, Fill] | None = None, *, is_wide: bool = False
) -> tuple[Table, ...]:
    """Return tables of new nodes, existing nodes, unschedulable pods and CapacityBuffers.

    `fills` are by `namespace/name` of a CapacityBuffer. Empty tables are omitted. If `is_wide`,
    the instance types that a new node may have are listed instead of counted.
    """
    equal_nodes = Counter(_row(node, is_wide=is_wide) for node in results.new_nodes)
    all_tables = (
        Table(
            "New nodes",
            ("nodes", "NodePool", "type", "types", "zone", "capacity", "$/h each", "pods each"),
            tuple((str(count), *row) for row, count in equal_nodes.items()),
        ),
        Table(
            "Existing nodes",
            ("node", "pods"),
            tuple((name, str(len(pods))) for name, pods in results.existing_nodes.items()),
        ),
        Table(
            "Unschedulable pods",
            ("pods", "reason"),
            tuple(
                (str(count), "; ".join(why))
                for why, count in Counter(results.unschedulable.values()).most_common()
            ),
        ),
        Table(
            "Capacity buffers",
            ("buffer", "on existing nodes", "on new nodes", "unschedulable"),
            tuple(
                (name, str(fill.existing), str(fill.new), str(fill.nowhere))
                for name, fill in (fills or {}).items()
            ),
        ),
    )
    return tuple(table for table in all_tables if table.rows)


def explain(results: Results, pod: Pod, catalog: Catalog, pending: PendingPods) -> Explanation:
    """Return the outcome for a pod, and why NodePools reject it.

    `causes` are empty if the pod schedules and the controller's last attempt did not fail.
    """
    (pod_class,) = pod_classes([pod])
    constraints = initial_constraints(pod.spec, policy=IGNORE, soft_taints=False)
    outcome, attempt = _outcome(results, pod.key, pending), pending.attempts.get(pod.key)
    causes = results.unschedulable.get(pod.key, ())
    if attempt is not None and not causes:
        outcome = (
            f"is pending: the controller's attempt at {attempt.at:%H:%M:%S} UTC failed. "
            f"Unless that lasts, it {outcome}"
        )
        causes = attempt.causes
    return Explanation(
        pod=pod.key,
        outcome=outcome,
        causes=causes,
        pools=pool_causes(catalog, pod_class, constraints),
    )


def _outcome(results: Results, key: str, pending: PendingPods) -> str:
    for name, pods in results.existing_nodes.items():
        if key in pods:
            return f"schedules on {pending.place(name)}"
    for node in results.new_nodes:
        if key in node.pods:
            requested = ", ".join(
                f"{name} {format_quantity(amount, name)}"
                for name, amount in sorted(node.requests.items())
            )
            types, neighbours = len(node.instance_types) - 1, len(node.pods) - 1
            others = f" or {with_count(types, 'other instance type')}" if types else ""
            beside = f", with {with_count(neighbours, 'other pod')}" if neighbours else ""
            return (
                f"schedules on a new node of NodePool {node.node_pool}: {node.instance_types[0]} "
                f"({node.price:.4f} $/h){others}{beside}; requests on the node: {requested}"
            )
    return "is unschedulable" if key in results.unschedulable else "is not pending"


def _row(node: NewNode, *, is_wide: bool) -> tuple[str, ...]:
    allowed = read(node.requirements)
    return (
        node.node_pool,
        node.instance_types[0],
        ", ".join(node.instance_types) if is_wide else str(len(node.instance_types)),
        *(
            text(allowed[key], bare=True) if key in allowed else "any"
            for key in (labels.ZONE, labels.CAPACITY_TYPE)
        ),
        f"{node.price:.4f}",
        str(len(node.pods)),
    )
