"""A model of kube-scheduler that binds one pod after the other, first in, first out.

A pod nominated for a node that accepts pods is bound to it if it fits. Every other pod goes to the
node with the best score by kube-scheduler's default weights: least allocated, and CPU and memory
allocated evenly. Capacity on a node for which pods are nominated is reserved for those pods. The
model enforces node selectors, topology spread over zones, and anti-affinity between a workload's
own pods. It omits taints and preferences, since no trace has them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from bench.trace.cluster import Cluster, Node
from bench.trace.workloads import Member, Workload


def bind(cluster: Cluster) -> list[Member]:
    """Bind the pending pods that fit now; return the pods that were bound."""
    open_ = [one for one in cluster.nodes.values() if one.open]
    bound = []
    hopeless: set[Workload] = set()
    for member in list(cluster.waiting.values()):
        node = _nominated_node(cluster, member)
        if node is None:
            if member.workload in hopeless:
                continue
            found = [one for one in _allowed_nodes(cluster, member, open_) if _fits(member, one)]
            if not found:
                hopeless.add(member.workload)
                continue
            node = max(found, key=lambda one: (_score(member, one), one.name))
        cluster.bind(member, node)
        bound.append(member)
    return bound


def _nominated_node(cluster: Cluster, member: Member) -> Node | None:
    """Return the open node for which the pod is nominated, if the pod still fits there."""
    node = cluster.nodes.get(member.nominated)
    if node is None or not node.open:
        return None
    if next(iter(_allowed_nodes(cluster, member, [node])), None) and _fits(member, node):
        return node
    cluster.nominate(member, None)  # the nomination failed
    return None


def _fits(member: Member, node: Node) -> bool:
    size = member.workload.size
    cpu, memory, slots = node.cpu - size.cpu, node.memory - size.memory, node.slots - 1
    if cpu < 0 or memory < 0 or slots < 0:
        return False
    for other in node.promised.values():
        if other is not member:
            cpu -= other.workload.size.cpu
            memory -= other.workload.size.memory
            slots -= 1
    return cpu >= 0 and memory >= 0 and slots >= 0


def _score(member: Member, node: Node) -> float:
    """Return kube-scheduler's score of a node for a pod, from its two resource scores."""
    size, allocatable = member.workload.size, node.allocatable
    cpu = (node.cpu - size.cpu) / allocatable.cpu
    memory = (node.memory - size.memory) / allocatable.memory
    return (cpu + memory) / 2 + 1 - abs(cpu - memory) / 2


def _allowed_nodes(cluster: Cluster, member: Member, nodes: Iterable[Node]) -> Iterable[Node]:
    workload = member.workload
    nodes = [one for one in nodes if _is_selected(workload, one)]
    if workload.apart:
        nodes = [
            one
            for one in nodes
            if not any(other.workload is workload for other in one.pods.values())
        ]
    if not workload.spread:
        return nodes
    zones: Counter[str] = Counter(
        {one.zone: 0 for one in cluster.nodes.values() if one.up and _is_selected(workload, one)}
    )
    zones.update(cluster.nodes[other.node].zone for other in workload.pods.values() if other.node)
    return [one for one in nodes if _is_level(zones, member, one)]


def _is_level(zones: Counter[str], member: Member, node: Node) -> bool:
    """Whether one more pod in the node's zone keeps the topology spread within its skew.

    A pod nominated for the node counts as bound to it.
    """
    coming = sum(
        other.workload is member.workload and other is not member
        for other in node.promised.values()
    )
    there = {**zones, node.zone: zones[node.zone] + coming}
    return there[node.zone] - min(there.values()) < 1


def _is_selected(workload: Workload, node: Node) -> bool:
    carried = node.state.labels
    return all(carried.get(key) == value for key, value in workload.selector.items())
