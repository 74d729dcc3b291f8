"""The stand-in for kube-scheduler: one pod after the other, first come, first served.

A pod that is nominated for an open node goes there when it fits. Every other goes to the node
that scores best by what kube-scheduler weighs by default: that least of it is allocated, and that
its CPU and memory are allocated evenly. Room on a node for which others are nominated is
theirs. Node selectors, spreads over zones and anti-affinity between a workload's own pods bind;
taints and preferences are left out, since no trace has them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from tests.trace.cluster import Cluster, Machine
from tests.trace.workloads import Member, Workload


def bind(cluster: Cluster) -> list[Member]:
    """Bind what fits now; returns the pods that came to a node."""
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
    """Return the open node for which the pod is nominated, if it still fits there."""
    machine = cluster.machines.get(member.nominated)
    if machine is None or not machine.open:
        return None
    if next(iter(_allowed(cluster, member, [machine])), None) and _fits(member, machine):
        return machine
    cluster.nominate(member, None)  # tried in vain
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
    """Return how well kube-scheduler would like it, by the two scores that weigh resources."""
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
    """Whether the machine's zone may have one more: who is nominated for the machine in question
    counts as if it were there already.
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
