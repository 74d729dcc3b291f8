"""Which nodes may be disrupted at all, and what forbids the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from controller.apis import conditions, labels
from controller.apis.nodepool import NodePool
from controller.apis.pods import Pod
from controller.apis.workloads import PodDisruptionBudget
from controller.constraints import selectors
from controller.disruption.commands import Candidate
from controller.disruption.pods import is_drainable
from controller.state.nodes import StateNode
from controller.state.pods import forbids_disruption

ALWAYS_ALLOW = "AlwaysAllow"


@dataclass(frozen=True, slots=True)
class Candidates:
    """Those that may go, and per blocked node the reason, as a sentence for an event."""

    admitted: tuple[Candidate, ...] = ()
    blocked: Mapping[str, str] = field(default_factory=dict)


def found(
    nodes: Sequence[StateNode],
    *,
    pods_on: Callable[[str], Sequence[Pod]],
    node_pools: Mapping[str, NodePool],
    disruption_budgets: Sequence[PodDisruptionBudget],
    now: datetime,
    eventual: bool = False,
) -> Candidates:
    """Sort the cluster's nodes into candidates and blocked ones; the rest are not ours to touch.

    `eventual`: pods do not protect a node whose claim has a termination grace period, which
    ends them anyway.
    """
    admitted: list[Candidate] = []
    blocked: dict[str, str] = {}
    for state in nodes:
        pool = node_pools.get(state.node_pool)
        if not state.initialized or state.deleting or state.node is None or state.claim is None:
            continue
        if pool is None:
            continue
        pods = tuple(pods_on(state.name))
        forced = eventual and state.claim.spec.termination_grace_period is not None
        obstacle = _node_obstacle(state) or (
            None if forced else _pod_obstacle(pods, disruption_budgets, now)
        )
        if obstacle is not None:
            blocked[state.name] = obstacle
            continue
        admitted.append(Candidate(state.node, state.claim, pool, pods, buffered=state.buffered))
    return Candidates(tuple(admitted), blocked)


def _node_obstacle(state: StateNode) -> str | None:
    assert state.node is not None
    if state.nominated:
        return "Node is nominated for a pending pod"
    if state.node.metadata.annotations.get(labels.DO_NOT_DISRUPT) == "true":
        return "Disruption is blocked through the karpenter.sh/do-not-disrupt annotation"
    return None


def _pod_obstacle(
    pods: Sequence[Pod], disruption_budgets: Sequence[PodDisruptionBudget], now: datetime
) -> str | None:
    protected = next((p for p in pods if forbids_disruption(p, now)), None)
    if protected is not None:
        return f'Pod "{protected.key}" has the karpenter.sh/do-not-disrupt annotation'
    return next(
        (
            reason
            for pod in pods
            if is_drainable(pod, now) and not pod.metadata.is_deleting
            if (reason := budget_obstacle(pod, disruption_budgets)) is not None
        ),
        None,
    )


def budget_obstacle(pod: Pod, disruption_budgets: Sequence[PodDisruptionBudget]) -> str | None:
    """Return why PodDisruptionBudgets forbid this eviction now, or None."""
    guards = [
        b
        for b in disruption_budgets
        if b.metadata.namespace == pod.metadata.namespace
        and selectors.selects(b.spec.selector, pod.metadata.labels)
    ]
    if len(guards) > 1:
        return f'Pod "{pod.key}" is guarded by more than one PodDisruptionBudget'
    ready = conditions.is_true(pod.status.conditions, "Ready")
    for guard in guards:
        if not ready and guard.spec.unhealthy_pod_eviction_policy == ALWAYS_ALLOW:
            continue
        if guard.status.disruptions_allowed <= 0:
            return (
                f'PodDisruptionBudget "{guard.metadata.namespace}/{guard.metadata.name}" '
                f'prevents the eviction of pod "{pod.key}"'
            )
    return None
