"""The content of the page as JSON-ready values.

Prices are in $/h, CPU in cores and memory in GiB.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from controller.apis import labels
from controller.apis.karpenter.disruption import Disruption
from controller.apis.karpenter.nodepool import NodePool
from controller.apis.kubernetes.pods import Pod
from controller.apis.kubernetes.quantities import MILLI
from controller.constraints.resources import CPU, MEMORY, Resources, pod_requests
from controller.disruption import candidates
from controller.disruption.problem import DisruptionProblem
from controller.offline.disrupt import Course, answer
from controller.scheduling.results import Results
from controller.state.nodes import StateNode
from controller.state.pods import is_daemon, is_terminal
from controller.state.usage import allocatable

GIB = 2**30

SHOWN_PODS = 20
"""The maximum number of pods that are named with one cause; the count has all of them."""


def cluster(problem: DisruptionProblem) -> dict[str, Any]:
    """Return the nodes with their pods, the NodePools, and the totals."""
    there: defaultdict[str, list[Pod]] = defaultdict(list)
    for pod in problem.snapshot.pods:
        if not is_terminal(pod):
            there[pod.spec.node_name].append(pod)
    price = candidates.prices(problem)
    nodes = [_node(state, there[state.name], price(state)) for state in problem.snapshot.nodes]
    nodes.sort(key=lambda node: (node["pool"], -node["cpu"][1], -node["memory"][1], node["name"]))
    return {
        "time": _moment(problem.now),
        "cost": round(candidates.cost(problem), 4),
        "cpu": _summed(nodes, "cpu"),
        "memory": _summed(nodes, "memory"),
        "pods": sum(len(node["pods"]) for node in nodes),
        "nodes": nodes,
        "pools": [_pool(pool, nodes) for _, pool in sorted(problem.node_pools.items())],
        "evictionPrice": problem.settings.eviction_price,
    }


def plan(course: Course, results: Results) -> dict[str, Any]:
    """Return what would be done now: nodes to disrupt and to launch, and why others stay.

    `results` is the placement of the pending pods.
    """
    decided = answer(course)
    return {
        "commands": decided["commands"],
        "blocked": decided["blocked"],
        "costAfter": round(decided["costAfter"], 4),
        "lowerBound": round(decided["lowerBound"], 4),
        "pending": pending(results),
    }


def pending(results: Results) -> list[dict[str, Any]]:
    """Return the pending pods, in groups with equal causes; those with a node to come are last."""
    groups: defaultdict[tuple[tuple[str, ...], str], list[str]] = defaultdict(list)
    for key, causes in results.unschedulable.items():
        groups[tuple(causes), ""].append(key)
    for node in results.new_nodes:
        named = f"{node.instance_types[0]} ({node.price:.4f} $/h) of NodePool {node.node_pool}"
        for key in node.pods:
            groups[(), f"on a new {named}"].append(key)
    for name, keys in results.existing_nodes.items():
        for key in keys:
            groups[(), f"on node {name}"].append(key)
    return [
        {
            "causes": list(causes),
            "place": place,
            "count": len(keys),
            "pods": sorted(keys)[:SHOWN_PODS],
        }
        for (causes, place), keys in sorted(
            groups.items(), key=lambda group: (not group[0][0], -len(group[1]))
        )
    ]


def decisions(records: Iterable[Disruption]) -> list[dict[str, Any]]:
    """Return the recorded decisions, the newest first."""
    dated = sorted(
        ((record.status.begun_at or record.metadata.creation_timestamp, record)
         for record in records),
        key=lambda pair: pair[0].timestamp() if pair[0] is not None else 0.0,
        reverse=True,
    )  # fmt: skip
    return [
        {
            "name": record.metadata.name,
            "time": _moment(time),
            "state": record.status.state,
            "reason": record.spec.reason,
            "nodes": list(record.spec.nodes),
            "newNodes": [
                new.instance_types[0] if new.instance_types else new.node_pool
                for new in record.spec.new_nodes
            ],
            "saving": round(record.spec.saving, 4),
            "evictions": record.spec.evictions,
            "why": record.status.message or record.spec.why,
        }
        for time, record in dated
    ]


def _node(state: StateNode, pods: Sequence[Pod], price: float) -> dict[str, Any]:
    room = allocatable(state)
    drawn = [
        (pod.key, _cores(requests), _gib(requests), int(is_daemon(pod)))
        for pod in pods
        for requests in [pod_requests(pod)]
    ]
    drawn.sort(key=lambda pod: (-pod[1], -pod[2], pod[0]))
    born = state.claim or state.node
    return {
        "name": state.name,
        "pool": state.node_pool,
        "type": state.labels.get(labels.INSTANCE_TYPE, ""),
        "zone": state.labels.get(labels.ZONE, ""),
        "capacityType": state.labels.get(labels.CAPACITY_TYPE, ""),
        "price": round(price, 4),
        "created": _moment(born.metadata.creation_timestamp if born is not None else None),
        "state": _state(state),
        "cpu": [round(sum(pod[1] for pod in drawn), 3), _cores(room)],
        "memory": [round(sum(pod[2] for pod in drawn), 3), _gib(room)],
        "pods": drawn,
    }


def _state(state: StateNode) -> str:
    if state.deleting:
        return "terminating"
    if not state.registered:
        return "launching"
    return "ready" if state.initialized else "registered"


def _pool(pool: NodePool, nodes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    name = pool.metadata.name
    own = [node for node in nodes if node["pool"] == name]
    return {
        "name": name,
        "nodes": len(own),
        "cost": round(sum(node["price"] for node in own), 4),
        "cpu": _summed(own, "cpu"),
        "memory": _summed(own, "memory"),
        "limits": {key: str(value) for key, value in (pool.spec.limits or {}).items()},
        "budgets": [
            " ".join(filter(None, (budget.nodes, ", ".join(budget.reasons or ()), budget.schedule)))
            for budget in pool.spec.disruption.budgets
        ],
        "policy": pool.spec.disruption.consolidation_policy,
    }


def _summed(parts: Iterable[Mapping[str, Any]], key: str) -> list[float]:
    pairs = [part[key] for part in parts]
    return [round(sum(pair[0] for pair in pairs), 3), round(sum(pair[1] for pair in pairs), 3)]


def _cores(amounts: Resources) -> float:
    return round(amounts.get(CPU, 0) / MILLI, 3)


def _gib(amounts: Resources) -> float:
    return round(amounts.get(MEMORY, 0) / MILLI / GIB, 3)


def _moment(moment: datetime | None) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}" if moment is not None else ""
