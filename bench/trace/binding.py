"""A model of kube-scheduler that binds one pod after the other, first in, first out.

A pod nominated for an open node is bound to it if it fits. Every other pod goes to the node with
the best score by kube-scheduler's default weights: least allocated, and CPU and memory allocated
evenly. Capacity on a node for which pods are nominated is reserved for those pods. The model
enforces node selectors, topology spread over zones, and anti-affinity between a workload's own
pods. It omits taints and preferences, since no trace has them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from bench.trace.cluster import Cluster, Machine
from bench.trace.workloads import Member, Workload


def bind(cluster: Cluster) -> list[Member]:
    """Bind the pending pods that fit now; return the pods that were bound."""
    open_ = [one for one in cluster.machines.values() if one.open]
    bound = []
    hopeless: set[Workload] = set()
    for member in list(cluster.waiting.values()):
        machine = _nominated(cluster, member)
        if machine is None:
            if member.workload in hopeless:
                continue
            found = [one for one in _allowed(cluster, member, open_) if _fits(member, one)]
            if not found:
                hopeless.add(member.workload)
                continue
            machine = max(found, key=lambda one: (_score(member, one), one.name))
        cluster.bind(member, machine)
        bound.append(member)
    return bound


def _nominated(cluster: Cluster, member: Member) -> Machine | None:
    """Return the open node for which the pod is nominated, if the pod still fits there."""
    machine = cluster.machines.get(member.nominated)
    if machine is None or not machine.open:
        return None
    if next(iter(_allowed(cluster, member, [machine])), None) and _fits(member, machine):
        return machine
    cluster.nominate(member, None)  # the nomination failed
    return None


def _fits(member: Member, machine: Machine) -> bool:
    size = member.workload.size
    cpu, memory, slots = machine.cpu - size.cpu, machine.memory - size.memory, machine.slots - 1
    if cpu < 0 or memory < 0 or slots < 0:
        return False
    for other in machine.promised.values():
        if other is not member:
            cpu -= other.workload.size.cpu
            memory -= other.workload.size.memory
            slots -= 1
    return cpu >= 0 and memory >= 0 and slots >= 0


def _score(member: Member, machine: Machine) -> float:
    """Return kube-scheduler's score of a machine for a pod, from its two resource scores."""
    size, room = member.workload.size, machine.room
    cpu = (machine.cpu - size.cpu) / room.cpu
    memory = (machine.memory - size.memory) / room.memory
    return (cpu + memory) / 2 + 1 - abs(cpu - memory) / 2


def _allowed(cluster: Cluster, member: Member, machines: Iterable[Machine]) -> Iterable[Machine]:
    workload = member.workload
    machines = [one for one in machines if _is_selected(workload, one)]
    if workload.apart:
        machines = [
            one
            for one in machines
            if not any(other.workload is workload for other in one.pods.values())
        ]
    if not workload.spread:
        return machines
    zones: Counter[str] = Counter(
        {one.zone: 0 for one in cluster.machines.values() if one.up and _is_selected(workload, one)}
    )
    zones.update(
        cluster.machines[other.node].zone for other in workload.pods.values() if other.node
    )
    return [one for one in machines if _is_level(zones, member, one)]


def _is_level(zones: Counter[str], member: Member, machine: Machine) -> bool:
    """Whether one more pod in the machine's zone keeps the topology spread within its skew.

    A pod nominated for the machine counts as bound to it.
    """
    coming = sum(
        other.workload is member.workload and other is not member
        for other in machine.promised.values()
    )
    there = {**zones, machine.zone: zones[machine.zone] + coming}
    return there[machine.zone] - min(there.values()) < 1


def _is_selected(workload: Workload, machine: Machine) -> bool:
    carried = machine.state.labels
    return all(carried.get(key) == value for key, value in workload.selector.items())
