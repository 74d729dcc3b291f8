"""Assigns interchangeable pods to new nodes in kube-scheduler's order.

For the engine, replicas of a workload are interchangeable. kube-scheduler tries them in queue order
as soon as the first node opens. It clears the nomination of a pod that it tries before the pod's
own node opens, and another pod may then take the capacity. So the first pods of the queue are
assigned to the node that opens first, and the next pods to the next node.

Pods with topology spread are assigned to the domains in turn, so that kube-scheduler tries each pod
when its domain may have one more.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from controller.apis.kubernetes.pods import Pod
from controller.scheduling.results import NewNode
from controller.state.pods import are_alike, controller_of


def assign_pods(nodes: Sequence[NewNode], queue: Iterable[Pod]) -> list[NewNode]:
    """Return the nodes, with the queue's first pods on as few nodes as possible.

    Only pods of the same owner are exchanged: each node keeps its number of pods of each owner.
    """
    placed = {key for node in nodes for key in node.pods}
    alike = [pod for pod in queue if pod.key in placed]
    owner_of = _owners_of_alike(alike)
    wanted = [Counter(owner_of[key] for key in node.pods if key in owner_of) for node in nodes]
    spread = {
        owner_of[pod.key]: keys
        for pod in alike
        if pod.key in owner_of and (keys := _spread_over(pod))
    }
    together = [
        Counter({owner: many for owner, many in want.items() if owner not in spread})
        for want in wanted
    ]
    shares = _shares(
        together, {key: owner for key, owner in owner_of.items() if owner not in spread}
    )
    for owner, keys in spread.items():
        turns = _in_turns([want[owner] for want in wanted], [_domain(node, keys) for node in nodes])
        mine = (key for key, each in owner_of.items() if each == owner)
        for index, key in zip(turns, mine, strict=True):
            shares[index][owner].append(key)
    return [
        replace(
            node,
            pods=tuple(
                share[owner_of[key]].popleft() if key in owner_of else key for key in node.pods
            ),
        )
        for node, share in zip(nodes, shares, strict=True)
    ]


def _shares(
    wanted: Sequence[Counter[str]], owner_of: Mapping[str, str]
) -> list[Mapping[str, deque[str]]]:
    """Return the pods for each node by owner, in queue order, as many as `wanted`.

    A pod is assigned to a node that already has pods, if one needs more pods of its owner.
    Otherwise, the next node is the one that needs pods of the most such owners; among equals, the
    one with the most pods.
    """
    shares: list[Mapping[str, deque[str]]] = [defaultdict(deque) for _ in wanted]
    alike: defaultdict[frozenset[str], list[int]] = defaultdict(list)
    for index in sorted(range(len(wanted)), key=lambda index: (wanted[index].total(), -index)):
        alike[frozenset(wanted[index])].append(index)
    partly_filled: defaultdict[str, deque[int]] = defaultdict(deque)
    for key, owner in owner_of.items():
        if not partly_filled[owner]:
            owners = max(
                (owners for owners, indices in alike.items() if owner in owners and indices),
                key=lambda owners: (
                    sum(not partly_filled[each] for each in owners),
                    wanted[alike[owners][-1]].total(),
                ),
            )
            index = alike[owners].pop()
            for each in owners:
                partly_filled[each].append(index)
        index = partly_filled[owner][0]
        shares[index][owner].append(key)
        if len(shares[index][owner]) == wanted[index][owner]:
            partly_filled[owner].popleft()
    return shares


def _spread_over(pod: Pod) -> tuple[str, ...]:
    """Return the topology keys over which the pod must be spread."""
    return tuple(
        constraint.topology_key
        for constraint in pod.spec.topology_spread_constraints
        if constraint.when_unsatisfiable == "DoNotSchedule"
    )


def _domain(node: NewNode, keys: Iterable[str]) -> tuple[str, ...]:
    """Return the node's fixed values of these labels."""
    chosen = {term.key: term.values for term in node.requirements if term.operator == "In"}
    return tuple(value for key in keys for value in sorted(chosen.get(key) or ()))


def _in_turns(wanted: Sequence[int], domains: Sequence[tuple[str, ...]]) -> list[int]:
    """Return the node index of each pod, in queue order, alternating between domains.

    The first pod of every node comes first, because it can be nominated for the node.
    """
    slots: defaultdict[tuple[str, ...], list[tuple[int, int]]] = defaultdict(list)
    for index, many in enumerate(wanted):
        slots[domains[index]].extend((number, index) for number in range(many))
    turns = [
        (turn, number > 0, index)
        for of_domain in slots.values()
        for turn, (number, index) in enumerate(sorted(of_domain))
    ]
    return [index for _, _, index in sorted(turns)]


def _owners_of_alike(pods: Iterable[Pod]) -> Mapping[str, str]:
    """Return the owner of each pod that is equal to its owner's first pod, in the same order."""
    first: dict[str, Pod] = {}
    owners: dict[str, str] = {}
    for pod in pods:
        owner = controller_of(pod)
        if not owner or _has_its_own(pod):
            continue
        if are_alike(pod, first.setdefault(owner, pod)):
            owners[pod.key] = owner
    return owners


def _has_its_own(pod: Pod) -> bool:
    """Whether the pod has volumes or devices, which may bind it to a node, or is on a node."""
    return bool(
        pod.spec.node_name
        or pod.spec.resource_claims
        or any(volume.persistent_volume_claim or volume.ephemeral for volume in pod.spec.volumes)
    )
