"""Whether PodDisruptionBudgets let a pod be evicted."""

from __future__ import annotations

from collections.abc import Iterable

from controller.apis import conditions
from controller.apis.pods import Pod
from controller.apis.workloads import PodDisruptionBudget
from controller.constraints.selectors import selects

ALWAYS_ALLOW = "AlwaysAllow"

_UNCOUNTED = 10**9
"""So many pods a budget may have whose pods have not been counted yet."""


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
        return (
            f'Pod "{pod.key}" is guarded by more than one PodDisruptionBudget, with which it can '
            "never be evicted"
        )
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
    """Return why the budget can allow no eviction at all while its pods are as many as now.

    The arithmetic is that of kube-controller-manager: what is a share of the pods is rounded up.
    """
    most, least = budget.spec.max_unavailable, budget.spec.min_available
    expected = budget.status.expected_pods or _UNCOUNTED
    if most is not None and _of(expected, most) == 0:
        return f"its maxUnavailable is {most}"
    if least is not None and _of(expected, least) >= expected:
        of_pods = f", of {expected} pods" if expected != _UNCOUNTED else ""
        return f"its minAvailable is {least}{of_pods}"
    return None


def _of(pods: int, amount: int | str) -> int:
    """Return how many of the pods an amount is, such as 2 or `30%`; one if it cannot be read."""
    text = str(amount)
    if not text.removesuffix("%").isdecimal():
        return 1
    return -(-int(text[:-1]) * pods // 100) if text.endswith("%") else int(text)
