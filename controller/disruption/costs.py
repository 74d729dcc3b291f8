"""The cost of disrupting a node: its pods' eviction costs, and the node's remaining lifetime."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property

from controller.apis import labels
from controller.apis.karpenter import durations
from controller.apis.karpenter.annotations import amount
from controller.apis.karpenter.nodeclaim import NodeClaim
from controller.apis.kubernetes.pods import Pod
from controller.disruption.pods import is_of_job
from controller.disruption.problem import DisruptionProblem, DisruptionSettings
from controller.state.pods import is_daemon

CHEAPEST, DEAREST = -10.0, 10.0

HOUR = timedelta(hours=1)

JOB_DOUBLING = timedelta(minutes=2)
"""The run time after which the eviction price of a Job's pod is twice the initial price."""

CHURN = 0.1
"""The share of all pods whose replacement bounds the time that a saving lasts."""


def eviction_cost(pod: Pod, settings: DisruptionSettings) -> float:
    """Return the relative cost of evicting a pod, −10 to 10; an ordinary pod costs 1.

    It is 1 plus the pod's priority and one annotation, each scaled as in Karpenter. The annotation
    is `karpenter.sh/disruption-cost`, or else `controller.kubernetes.io/pod-deletion-cost` unless
    Joiner writes it. A value that is not an int32 counts as 0.
    """
    annotations, priority = pod.metadata.annotations, pod.spec.priority or 0
    text = annotations.get(labels.DISRUPTION_COST)
    if text is None and not settings.writes_deletion_costs:
        text = annotations.get(labels.POD_DELETION_COST)
    if text is None and not priority:
        return 1.0
    cost = 1.0 + _int32(text or "0") / 2**27 + priority / 2**25
    return min(max(cost, CHEAPEST), DEAREST)


def _int32(text: str) -> int:
    """Return the number that a text is, or 0 if it is not an int32."""
    if not re.fullmatch(r"[+-]?[0-9]{1,10}", text, re.ASCII):
        return 0
    number = int(text)
    return number if -(2**31) <= number < 2**31 else 0


def rescheduling_cost(pods: Iterable[Pod], settings: DisruptionSettings) -> float:
    """Return the sum of the eviction costs of these pods; an ordinary pod costs 1."""
    return sum((eviction_cost(pod, settings) for pod in pods), 0.0)


def disturbance(moving: Iterable[Pod], settings: DisruptionSettings) -> float:
    """Return the sum of the eviction costs of these pods, with negative costs counted as 0."""
    return sum(max(eviction_cost(pod, settings), 0.0) for pod in moving)


def lifetime_remaining(claim: NodeClaim, now: datetime) -> float:
    """Return the remaining share of a node's lifetime; 1 if it never expires."""
    whole = durations.parse(claim.spec.expire_after)
    created = claim.metadata.creation_timestamp
    if whole is None or created is None:
        return 1.0
    if not whole:
        return 0.0
    return min(max((whole - (now - created)) / whole, 0.0), 1.0)


def eviction_price(pod: Pod, settings: DisruptionSettings, now: datetime) -> float:
    """Return the price of evicting a pod, in $.

    It is the annotation `joiner.dev/eviction-price` if that is an amount of at least 0, or else
    DISRUPTION_EVICTION_PRICE times the pod's eviction cost. A pod that just started costs up to
    three times as much, less as it gets older. A Job's pod starts over after an eviction, so
    without the annotation its price grows with its run time. If DISRUPTION_EVICTION_PRICE is 0,
    every price is 0.
    """
    if not settings.eviction_price:
        return 0.0
    price = named = amount(pod.metadata.annotations.get(labels.EVICTION_PRICE))
    if price is None:
        price = settings.eviction_price * max(eviction_cost(pod, settings), 0.0)
    started = pod.status.start_time
    if started is None:
        return price
    age = max(now - started, timedelta(0))
    if named is None and is_of_job(pod):
        price *= 1.0 + age / JOB_DOUBLING
    young = 1.0 - min(age / settings.cool_down, 1.0)
    return price * (1.0 + 2.0 * young)


def workload_starts(pods: Iterable[Pod], before: Mapping[str, datetime]) -> dict[str, datetime]:
    """Return the start time of each workload of these pods, by its owner's UID.

    A workload starts with its oldest pod. `before` is the result of the previous call, so that a
    pod that has ended since still counts.
    """
    since: dict[str, datetime] = {}
    for pod in pods:
        if is_daemon(pod):
            continue
        owner, started = _owner(pod), pod.status.start_time
        oldest = since.get(owner) or before.get(owner)
        if oldest is None or (started is not None and started < oldest):
            oldest = started
        if oldest is not None:
            since[owner] = oldest
    return since


@dataclass
class SavingDurations:
    """The time over which the saving from moving a pod is expected to last.

    It is the shorter of the age of the pod's workload and the time since a tenth of all pods were
    replaced by rollouts or Jobs. As many new pods will probably come within the same time from now,
    and need the capacity.
    `cool_down` and `horizon` of the settings are its bounds.
    """

    problem: DisruptionProblem
    _known_lives: dict[str, timedelta] = field(default_factory=dict)

    @cached_property
    def _running(self) -> Sequence[Pod]:
        pods = self.problem.snapshot.pods
        return [p for p in pods if p.status.start_time is not None and not is_daemon(p)]

    @cached_property
    def _since(self) -> Mapping[str, datetime]:
        return workload_starts(self._running, self.problem.workload_start_times)

    @cached_property
    def _quiet_since(self) -> datetime | None:
        """The time since which a tenth of all pods have started, by the age of their workloads."""
        pods_of = Counter(map(_owner, self._running))
        many = CHURN * pods_of.total()
        for owner in sorted(pods_of, key=lambda owner: self._since[owner], reverse=True):
            many -= pods_of[owner]
            if many <= 0:
                return self._since[owner]
        return None

    def hourly_price(self, pod: Pod) -> float:
        """Return the price of evicting the pod, spread over the saving's duration, in $/h."""
        price = eviction_price(pod, self.problem.settings, self.problem.now)
        if not price:
            return 0.0
        owner = _owner(pod)
        if owner not in self._known_lives:
            self._known_lives[owner] = self._life(owner)
        return price / (self._known_lives[owner] / HOUR)

    def _life(self, owner: str) -> timedelta:
        """Return how long a saving from moving the workload's pods is expected to last."""
        moments = (self._since.get(owner), self._quiet_since)
        since = max((moment for moment in moments if moment is not None), default=None)
        settings = self.problem.settings
        if since is None:
            return settings.horizon
        return min(max(self.problem.now - since, settings.cool_down), settings.horizon)


def _owner(pod: Pod) -> str:
    owners = pod.metadata.owner_references
    return owners[0].uid if owners else pod.metadata.uid or pod.key
