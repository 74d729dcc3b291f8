"""Whether PodDisruptionBudgets let a pod be evicted."""

from __future__ import annotations

from collections.abc import Iterable

from controller.apis import conditions
from controller.apis.pods import Pod
from controller.apis.workloads import PodDisruptionBudget
from controller.constraints.selectors import selects

ALWAYS_ALLOW = "AlwaysAllow"


def budget_obstacle(
    pod: Pod, budgets: Iterable[PodDisruptionBudget], *, surges: bool = False
) -> str | None:
    """Return why the budgets forbid this eviction now, or None.

    A pod that `surges` is no concern of the budgets of a single pod: it is not evicted.

    The rule is the API server's: a pod with more than one budget cannot be evicted at all, and
    one that is not ready may be where its budget says so.
    """
    guards = [
        budget
        for budget in budgets
        if budget.metadata.namespace == pod.metadata.namespace
        and selects(budget.spec.selector, pod.metadata.labels)
    ]
    if surges and guards and all(guard.status.expected_pods == 1 for guard in guards):
        return None
    if len(guards) > 1:
        return f'Pod "{pod.key}" is guarded by more than one PodDisruptionBudget'
    ready = conditions.is_true(pod.status.conditions, "Ready")
    for guard in guards:
        if not ready and guard.spec.unhealthy_pod_eviction_policy == ALWAYS_ALLOW:
            continue
        if guard.status.disruptions_allowed <= 0:
            name = f"{guard.metadata.namespace}/{guard.metadata.name}"
            text = f'PodDisruptionBudget "{name}" prevents the eviction of pod "{pod.key}"'
            always = why_never(guard)
            return f"{text}, and always will: {always}" if always else text
    return None


def why_never(budget: PodDisruptionBudget) -> str | None:
    """Return why the budget can allow no eviction at all while its pods are as many as now."""
    most, least = budget.spec.max_unavailable, budget.spec.min_available
    if most in (0, "0", "0%"):
        return f"its maxUnavailable is {most}"
    expected = budget.status.expected_pods
    if least == "100%" or (isinstance(least, int) and least >= expected > 0):
        return f"its minAvailable is {least}, of {expected} pods"
    return None
