"""Which pods leave a node so that the kubelet can apply its deferred in-place resizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime

from controller.apis.kubernetes.pods import Pod
from controller.constraints.resources import Resources, pod_requests, subtract, total
from controller.disruption.costs import eviction_price
from controller.disruption.pods import is_critical, local_claims, uses_any
from controller.disruption.problem import DisruptionSettings
from controller.state.evictions import EvictionGuards
from controller.state.gangs import GangReader
from controller.state.pods import (
    controller_of,
    forbids_disruption,
    is_reschedulable,
    pending_resize,
)
from controller.state.snapshot import Snapshot


def shortfall(pods: Iterable[Pod], allocatable: Resources) -> dict[str, int]:
    """Return the requests of a node's pods beyond its allocatable resources, by resource name.

    Amounts are in thousandths of the resource's unit: millicores, and thousandths of a byte.
    """
    free = subtract(allocatable, total(map(pod_requests, pods)))
    return {name: -amount for name, amount in free.items() if amount < 0}


def evictions(
    pods: Sequence[Pod],
    missing: Resources,
    snapshot: Snapshot,
    settings: DisruptionSettings,
    now: datetime,
) -> tuple[Pod, ...]:
    """Return the cheapest pods of a node whose eviction frees the missing resources.

    Empty if the pods that may be evicted do not suffice. A pod may be evicted if its owner
    recreates it, if it is not system-critical and its own resize is not pending, and if its
    priority is at most that of each pod whose resize is pending. No PodDisruptionBudget,
    annotation, gang or local volume may prevent the eviction.
    """
    guards = EvictionGuards(snapshot.pod_disruption_budgets)
    gangs = GangReader(snapshot.pod_groups)
    local = local_claims(snapshot)
    highest = min((_priority(pod) for pod in pods if pending_resize(pod) is not None), default=0)
    movable = [
        pod
        for pod in pods
        if is_reschedulable(pod)
        and not pod.metadata.is_deleting
        and controller_of(pod)
        and pending_resize(pod) is None
        and _priority(pod) <= highest
        and not is_critical(pod)
        and not forbids_disruption(pod, now)
        and not gangs.gang_of(pod)
        and not uses_any(pod, local)
        and guards.obstacle(pod) is None
    ]
    return _cheapest(movable, missing, lambda pod: eviction_price(pod, settings, now), guards)


def _cheapest(
    movable: Sequence[Pod],
    missing: Resources,
    price: Callable[[Pod], float],
    guards: EvictionGuards,
) -> tuple[Pod, ...]:
    """Return pods that free the missing resources at a low price, none of them superfluous."""
    sizes = {pod.key: pod_requests(pod) for pod in movable}
    shares = {key: _share(size, missing) for key, size in sizes.items()}
    chosen: list[Pod] = []
    spent: Counter[tuple[str, str]] = Counter()
    ranked = sorted(
        (pod for pod in movable if shares[pod.key]),
        key=lambda pod: (price(pod) / shares[pod.key], -shares[pod.key], pod.key),
    )
    for pod in ranked:
        if _covers(chosen, sizes, missing):
            break
        budgets = {
            (budget.metadata.namespace, budget.metadata.name): budget.status.disruptions_allowed
            for budget in guards.of(pod)
        }
        if all(spent[key] < allowed for key, allowed in budgets.items()):
            chosen.append(pod)
            spent.update(budgets.keys())
    if not _covers(chosen, sizes, missing):
        return ()
    for pod in sorted(chosen, key=price, reverse=True):
        rest = [other for other in chosen if other is not pod]
        if _covers(rest, sizes, missing):
            chosen = rest
    return tuple(chosen)


def _share(size: Resources, missing: Resources) -> float:
    """Return how much of the missing resources a pod frees: 1 for each resource in full."""
    return sum(min(size.get(name, 0), amount) / amount for name, amount in missing.items())


def _covers(pods: Iterable[Pod], sizes: Mapping[str, Resources], missing: Resources) -> bool:
    freed = total(sizes[pod.key] for pod in pods)
    return all(freed.get(name, 0) >= amount for name, amount in missing.items())


def _priority(pod: Pod) -> int:
    return pod.spec.priority or 0
