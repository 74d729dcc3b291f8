"""Assigns pods that are alike to new nodes in the order in which they wait.

The engine has no reason to give one replica this node and another that one. The scheduler
has: it tries pods first come, first served, as soon as the first of the nodes opens. If the
pods it tries first are those of the node that opens first, and the next those of the second,
none is tried in vain while the others are still opening. One that is tried in vain loses its
nomination, and with it its room, to whoever is tried next and finds its own node closed.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from controller.apis.pods import Pod
from controller.scheduling.results import NewNode
from controller.state.pods import are_alike, controller_of


def assigned(nodes: Sequence[NewNode], queue: Iterable[Pod]) -> list[NewNode]:
    """Return the nodes with as many pods of each sort, and the head of the queue on few of them."""
    placed = {key for node in nodes for key in node.pods}
    owner_of = _owners_of_alike([pod for pod in queue if pod.key in placed])
    shares = _shares(
        [Counter(owner_of[key] for key in node.pods if key in owner_of) for node in nodes], owner_of
    )
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
    """Return the pods for each node by owner, in the order of the queue: as many as `wanted`.

    Pods go to nodes that were begun already, as long as these want more of their owner's. The
    node that is begun next is one that wants pods of most of the owners that are out of such
    nodes; of those the one that takes most.
    """
    shares: list[Mapping[str, deque[str]]] = [defaultdict(deque) for _ in wanted]
    alike: defaultdict[frozenset[str], list[int]] = defaultdict(list)
    for place in sorted(range(len(wanted)), key=lambda place: (wanted[place].total(), -place)):
        alike[frozenset(wanted[place])].append(place)
    begun: defaultdict[str, deque[int]] = defaultdict(deque)
    for key, owner in owner_of.items():
        if not begun[owner]:
            owners = max(
                (owners for owners, places in alike.items() if owner in owners and places),
                key=lambda owners: (
                    sum(not begun[each] for each in owners),
                    wanted[alike[owners][-1]].total(),
                ),
            )
            place = alike[owners].pop()
            for each in owners:
                begun[each].append(place)
        place = begun[owner][0]
        shares[place][owner].append(key)
        if len(shares[place][owner]) == wanted[place][owner]:
            begun[owner].popleft()
    return shares


def _owners_of_alike(pods: Iterable[Pod]) -> Mapping[str, str]:
    """Return the owner of each pod that is the like of its owner's first, in the same order."""
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
    """Whether the pod has volumes or devices, which may tie it to a place; or a node to leave."""
    return bool(
        pod.spec.node_name
        or pod.spec.resource_claims
        or any(volume.persistent_volume_claim or volume.ephemeral for volume in pod.spec.volumes)
    )
