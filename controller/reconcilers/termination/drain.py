"""Decides which pods of a draining node are evicted now, and which delay the drain."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from controller.apis.karpenter.durations import LONGEST
from controller.apis.kubernetes.pods import Pod
from controller.constraints.resources import Resources, pod_requests
from controller.disruption.pods import is_critical, is_drainable
from controller.state.pods import forbids_disruption, is_daemon

SECOND = timedelta(seconds=1)

DEFAULT_GRACE = 30 * SECOND


@dataclass(frozen=True, slots=True)
class Drain:
    """The pods of a draining node.

    `evict` are the pods to evict through the Eviction API, `force` the pods to delete regardless of
    PodDisruptionBudgets because of the deadline, and `waiting` all pods that delay the drain.
    """

    evict: tuple[Pod, ...] = ()
    force: tuple[Pod, ...] = ()
    waiting: tuple[Pod, ...] = ()

    @property
    def is_done(self) -> bool:
        """Whether no pod delays the drain."""
        return not self.waiting


def plan_drain(
    pods: Iterable[Pod], *, allocatable: Resources, deadline: datetime | None, now: datetime
) -> Drain:
    """Return which pods of a draining node to delete and to evict now.

    Pods are evicted in tiers: workloads, then DaemonSet pods, critical workloads, and critical
    DaemonSet pods, so that the pods that a workload depends on outlive it. In a tier, the largest
    pods are evicted first: kube-scheduler binds their replacements one by one, and a late large pod
    would find only fragmented capacity. `allocatable` is that of the node.

    Pods that would otherwise not end before `deadline` are deleted. None means no deadline.
    """
    waiting = tuple(p for p in pods if is_drainable(p, now))
    force = tuple(p for p in waiting if deadline is not None and is_due(p, deadline, now))
    due = {p.metadata.uid for p in force}
    rest = [p for p in waiting if p.metadata.uid not in due]
    tier = sorted(
        next((t for t in _tiers(rest) if t), []),
        key=lambda pod: _share(pod, allocatable),
        reverse=True,
    )
    evict = tuple(p for p in tier if not p.metadata.is_deleting and not forbids_disruption(p, now))
    return Drain(evict=evict, force=force, waiting=waiting)


def is_due(pod: Pod, deadline: datetime, now: datetime) -> bool:
    """Whether the pod must be deleted now so that it ends before the node's deadline."""
    deletion = pod.metadata.deletion_timestamp
    if deletion is not None:
        return deletion > deadline
    return now >= deadline - grace_period(pod)


def grace_period(pod: Pod) -> timedelta:
    """Return the pod's termination grace period, at most `LONGEST`."""
    seconds = pod.spec.termination_grace_period_seconds
    if seconds is None:
        return DEFAULT_GRACE
    return LONGEST if seconds >= LONGEST // SECOND else timedelta(seconds=seconds)


def _share(pod: Pod, allocatable: Resources) -> float:
    """Return the largest share of the node's resources that the pod requests."""
    asked = pod_requests(pod)
    return max(
        (asked.get(name, 0) / there for name, there in allocatable.items() if there), default=0.0
    )


def _tiers(pods: Sequence[Pod]) -> tuple[list[Pod], ...]:
    return tuple(
        [p for p in pods if is_critical(p) is critical and is_daemon(p) is daemon]
        for critical, daemon in ((False, False), (False, True), (True, False), (True, True))
    )
