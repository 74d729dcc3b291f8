"""Whether PodDisruptionBudgets let a pod be evicted."""

from __future__ import annotations

from collections.abc import Iterable

from controller.apis import conditions
from controller.apis.pods import Pod
from controller.apis.workloads import PodDisruptionBudget
from controller.constraints.selectors import selects

ALWAYS_ALLOW = "AlwaysAllow"


def budget_obstacle(pod: Pod, budgets: Iterable[PodDisruptionBudget]) -> str | None:
    """Return why the budgets forbid this eviction now, or None.

    The rule is the API server's: a pod with more than one budget cannot be evicted at all, and
    one that is not ready may be where its budget says so.
    """
    guards = [
        budget
        for budget in budgets
        if budget.metadata.namespace == pod.metadata.namespace
        and selects(budget.spec.selector, pod.metadata.labels)
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
