"""The displayed data of a cluster, as JSON-ready values.

Prices are in $/h, CPU in cores and memory in GiB.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from controller.apis import labels
from controller.apis.karpenter import durations
from controller.apis.karpenter.disruption import Disruption
from controller.apis.karpenter.nodeclaim import NodeClaim
from controller.apis.karpenter.nodepool import NodePool
from controller.apis.kubernetes.pods import Pod
from controller.apis.kubernetes.quantities import MILLI, format_quantity
from controller.constraints.resources import CPU, MEMORY, Resources, pod_requests
from controller.disruption import candidates
from controller.disruption.advice.explanation import deletion
from controller.disruption.draining import hold
from controller.disruption.problem import DisruptionProblem
from controller.offline.cost import node_group
from controller.offline.disrupt import Course, course_content
from controller.offline.pending import PendingPods
from controller.reconcilers.provisioning.unplaced import not_ready
from controller.scheduling.results import Results
from controller.state.nodes import StateNode
from controller.state.pods import is_daemon, is_terminal
from controller.state.usage import allocatable

GIB = 2**30

NEW_NODE = "on a new "
"""How a placement on a node to launch begins; one on an existing node is the node's name."""

SHOWN_PODS = 20
"""The maximum number of pods that are named with one cause; the count includes all pods."""


class Nodes:
    """The displayed data of nodes, cached while a node does not change."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[tuple[object, ...], dict[str, Any]]] = {}

    def of(self, problem: DisruptionProblem) -> list[dict[str, Any]]:
        """Return the nodes with their pods, sorted by NodePool and size."""
        there: defaultdict[str, list[Pod]] = defaultdict(list)
        for pod in problem.snapshot.pods:
            if not is_terminal(pod):
                there[pod.spec.node_name].append(pod)
        price = candidates.prices(problem)
        known, self._known = self._known, {}
        for state in problem.snapshot.nodes:
            pods = there[state.name]
            made_of = (state.node, state.claim, state.deleting, price(state), *pods)
            before, node = known.get(state.name, ((), {}))
            if made_of != before:
                node = _node(state, pods, price(state))
            self._known[state.name] = made_of, node
        for state in problem.snapshot.nodes:
            if state.deleting:
                of, node = self._known[state.name]
                told = {"deletion": deletion(state, there[state.name], problem)}
                self._known[state.name] = of, {**node, **told}
        return sorted(
            (node for _, node in self._known.values()),
            key=lambda node: (
                node["pool"], -node["cpu"][1], -node["memory"][1], node["name"]
            ),
        )  # fmt: skip


def cluster(problem: DisruptionProblem, known: Nodes | None = None) -> dict[str, Any]:
    """Return the nodes with their pods, the NodePools, the pending pods and the totals.

    `known` has the nodes of the last read.
    """
    nodes = (known or Nodes()).of(problem)
    return {
        "time": _moment(problem.now),
        "cost": round(candidates.cost(problem), 4),
        "unpriced": sum(not node["price"] for node in nodes),
        "fixed": fixed_nodes(problem),
        "cpu": _sum_pairs(nodes, "cpu"),
        "memory": _sum_pairs(nodes, "memory"),
        "pods": sum(len(node["pods"]) for node in nodes),
        "nodes": nodes,
        "pools": [_pool(pool, nodes) for _, pool in sorted(problem.node_pools.items())],
        "pendingPods": [
            pod.key for pod in problem.pending if labels.BUFFER_POD not in pod.metadata.annotations
        ],
        "evictionPrice": problem.settings.eviction_price,
    }


def fixed_nodes(problem: DisruptionProblem) -> dict[str, Any]:
    """Return the number and the cost of the nodes that Joiner does not manage.

    A lower bound counts them as they are.
    """
    price = candidates.prices(problem)
    outside = [state for state in problem.snapshot.nodes if not state.managed]
    return {"nodes": len(outside), "cost": round(sum(map(price, outside)), 4)}


def plan(course: Course, results: Results) -> dict[str, Any]:
    """Return the present decisions: nodes to disrupt and to launch, and why others stay.

    `results` has the placements of the pending pods.
    """
    decided = course_content(course)
    return {
        "commands": decided["commands"],
        "blocked": decided["blocked"],
        "costAfter": round(decided["costAfter"], 4),
        "lowerBound": round(decided["lowerBound"], 4),
        "placements": placements(results),
    }


Placement = tuple[Sequence[str], str]
"""The causes for which a pod is pending, and the node on which it will run, as text.

If both are given, the controller's last attempt failed, and the pod will run there unless the
causes last.
"""


def placements(results: Results) -> dict[str, Placement]:
    """Return what the engine decides for each pending pod, by pod key."""
    found: dict[str, Placement] = {
        key: (tuple(causes), "") for key, causes in results.unschedulable.items()
    }
    for node in results.new_nodes:
        named = f"{node.instance_types[0]} ({node.price:.4f} $/h) of NodePool {node.node_pool}"
        found |= dict.fromkeys(node.pods, ((), f"{NEW_NODE}{named}"))
    for name, keys in results.existing_nodes.items():
        found |= dict.fromkeys(keys, ((), name))
    return found


def placements_in_words(
    decided: Mapping[str, Placement], pods: Iterable[Pod], pending: PendingPods
) -> dict[str, Placement]:
    """Return the placements with the causes and nodes that `explain pod` prints."""
    return {
        pod.key: _placement_of(pod, decided[pod.key], pending) for pod in pods if pod.key in decided
    }


def _placement_of(pod: Pod, decided: Placement, pending: PendingPods) -> Placement:
    causes, place = decided
    if causes:
        return pending.causes(pod, causes), ""
    attempt = pending.attempts.get(pod.key)
    is_new = place.startswith(NEW_NODE)
    return attempt.causes if attempt else (), place if is_new else f"on {pending.place(place)}"


def pending_groups(keys: Iterable[str], placed: Mapping[str, Placement]) -> list[dict[str, Any]]:
    """Return pending pods in groups with equal causes; pods that can be scheduled are last.

    `placed` is the result of `placements`. A pod that is not in it has not been evaluated yet: it
    has neither causes nor a node. A group names at most `SHOWN_PODS` pods, and counts all of them.
    """
    groups: defaultdict[Placement, list[str]] = defaultdict(list)
    for key in keys:
        groups[placed.get(key, ((), ""))].append(key)
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


def pod(problem: DisruptionProblem, key: str) -> list[tuple[str, str]]:
    """Return names and values of a pod's properties; empty if the pod does not exist."""
    every = (*problem.snapshot.pods, *problem.pending)
    found = next((pod for pod in every if pod.key == key), None)
    if found is None:
        return []
    holds, change = hold(found, problem)
    owner = next(iter(found.metadata.owner_references), None)
    requests, is_bound = pod_requests(found), bool(found.spec.node_name)
    facts = {
        "pod": key,
        "node": found.spec.node_name or "none: the pod is pending",
        "owner": f"{owner.kind} {owner.name}" if owner is not None else "none",
        "phase": "Terminating" if found.metadata.is_deleting else found.status.phase,
        "created": _moment(found.metadata.creation_timestamp),
        "started": _moment(found.status.start_time),
        "requests": ", ".join(
            f"{name} {format_quantity(amount, name)}" for name, amount in sorted(requests.items())
        ),
        "priority": f"{found.spec.priority or 0}",
        "labels": ", ".join(f"{k}={v}" for k, v in sorted(found.metadata.labels.items())),
        "eviction": f"blocked: {holds} ({change})" if holds else "allowed" if is_bound else "",
        **{
            f"condition {condition.type}": f"{condition.reason}: {condition.message}"
            for condition in found.status.conditions
            if condition.status == "False"
        },
    }
    return [(name, value) for name, value in facts.items() if value]


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
            "why": _why(record),
        }
        for time, record in dated
    ]


def _why(record: Disruption) -> str:
    """Return the message of a decision's state; of a proposal, also why it was made."""
    status, why = record.status, record.spec.why
    if status.state != "Proposed":
        return status.message or why
    return "; ".join(filter(None, (status.message, why)))


def _node(state: StateNode, pods: Sequence[Pod], price: float) -> dict[str, Any]:
    total = allocatable(state)
    drawn = [
        (pod.key, _cores(requests), _gib(requests), int(is_daemon(pod)))
        for pod in pods
        for requests in [pod_requests(pod)]
    ]
    drawn.sort(key=lambda pod: (-pod[1], -pod[2], pod[0]))
    born = state.claim or state.node
    return {
        "name": state.name,
        "pool": state.node_pool or node_group(state),
        "managed": state.managed,
        "type": state.labels.get(labels.INSTANCE_TYPE, ""),
        "zone": state.labels.get(labels.ZONE, ""),
        "capacityType": state.capacity_type,
        "price": round(price, 4),
        "created": _moment(born.metadata.creation_timestamp if born is not None else None),
        "expires": _moment(_expiration(state.claim)),
        "state": _state(state),
        "deletedAt": _moment(state.deleted_at),
        "deletion": "",
        "cpu": [round(sum(pod[1] for pod in drawn), 3), _cores(total)],
        "memory": [round(sum(pod[2] for pod in drawn), 3), _gib(total)],
        "pods": drawn,
    }


def _expiration(claim: NodeClaim | None) -> datetime | None:
    """Return when a node is replaced because of its age; None if never."""
    born = claim.metadata.creation_timestamp if claim is not None else None
    life = durations.parse(claim.spec.expire_after) if claim is not None else None
    return born + life if born is not None and life is not None else None


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
        "notReady": not_ready(pool),
        "nodes": len(own),
        "cost": round(sum(node["price"] for node in own), 4),
        "cpu": _sum_pairs(own, "cpu"),
        "memory": _sum_pairs(own, "memory"),
        "limits": {key: str(value) for key, value in (pool.spec.limits or {}).items()},
        "budgets": [
            " ".join(filter(None, (budget.nodes, ", ".join(budget.reasons or ()), budget.schedule)))
            for budget in pool.spec.disruption.budgets
        ],
        "policy": pool.spec.disruption.consolidation_policy,
    }


def _sum_pairs(parts: Iterable[Mapping[str, Any]], key: str) -> list[float]:
    pairs = [part[key] for part in parts]
    return [round(sum(pair[0] for pair in pairs), 3), round(sum(pair[1] for pair in pairs), 3)]


def _cores(amounts: Resources) -> float:
    return round(amounts.get(CPU, 0) / MILLI, 3)


def _gib(amounts: Resources) -> float:
    return round(amounts.get(MEMORY, 0) / MILLI / GIB, 3)


def _moment(moment: datetime | None) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}" if moment is not None else ""
