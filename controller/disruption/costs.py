"""What it costs to disrupt a node: the harm to its pods, and the life it has left."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime

from controller.apis import durations, labels
from controller.apis.nodeclaim import NodeClaim
from controller.apis.pods import Pod
from controller.disruption.problem import DisruptionSettings

CHEAPEST, DEAREST = -10.0, 10.0


def eviction_cost(pod: Pod) -> float:
    """Return the harm of evicting a pod, −10 to 10; one is that of a pod nobody speaks of.

    `controller.kubernetes.io/pod-deletion-cost` and priority count, each over the range it may
    have.
    """
    try:
        named = float(pod.metadata.annotations.get(labels.POD_DELETION_COST, "0"))
    except ValueError:
        named = 0.0
    cost = 1.0 + named / 2**27 + (pod.spec.priority or 0) / 2**25
    return min(max(cost, CHEAPEST), DEAREST)


def rescheduling_cost(pods: Iterable[Pod]) -> float:
    """Return the harm of evicting them all."""
    return sum(map(eviction_cost, pods), 0.0)


def lifetime_remaining(claim: NodeClaim, now: datetime) -> float:
    """Return the share of its life that a machine has left, 1 for one that never expires."""
    whole = durations.parse(claim.spec.expire_after)
    created = claim.metadata.creation_timestamp
    if whole is None or created is None:
        return 1.0
    if not whole:
        return 0.0
    return min(max((whole - (now - created)) / whole, 0.0), 1.0)


def moving_price(pod: Pod, settings: DisruptionSettings, now: datetime) -> float:
    """Return what moving a pod costs, in $.

    What its owner says (`joiner.dev/eviction-price`), else the price of a move times the
    pod's eviction cost. A pod that started a moment ago, perhaps because it was moved, costs up
    to three times as much, less as it grows older.
    """
    price = settings.eviction_price * max(eviction_cost(pod), 0.0)
    named = pod.metadata.annotations.get(labels.EVICTION_PRICE)
    if named is not None and settings.eviction_price:
        with suppress(ValueError):
            price = max(float(named), 0.0)
    started = pod.status.start_time
    if started is None:
        return price
    young = 1.0 - min(max((now - started) / settings.cool_down, 0.0), 1.0)
    return price * (1.0 + 2.0 * young)
