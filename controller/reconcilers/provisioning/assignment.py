"""Assigns pods that are alike to new nodes in the order in which they wait.

The engine has no reason to give one replica this node and another that one. The scheduler
has: it tries pods first come, first served, as soon as the first of the nodes opens. If the
pods it tries first are those of the node that opens first, none is tried in vain while the
others are still opening.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from controller.apis.pods import Pod
from controller.scheduling.results import NewNode
from controller.state.pods import are_alike, controller_of


def assigned(nodes: Sequence[NewNode], queue: Iterable[Pod]) -> list[NewNode]:
    """Return the nodes with as many pods of each sort, those at the head of the queue first."""
    placed = {key for node in nodes for key in node.pods}
    owner_of = _owners_of_alike([pod for pod in queue if pod.key in placed])
    waiting: dict[str, deque[str]] = {}
    for key, owner in owner_of.items():
        waiting.setdefault(owner, deque()).append(key)
    return [
        replace(
            node,
            pods=tuple(
                waiting[owner_of[key]].popleft() if key in owner_of else key for key in node.pods
            ),
        )
        for node in nodes
    ]


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
