"""PodDisruptionBudgets: whether they allow evictions, and why not."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from controller.apis.kubernetes import conditions
from controller.apis.kubernetes.pods import Pod
from controller.apis.kubernetes.workloads import PodDisruptionBudget
from controller.constraints.selectors import selects

ALWAYS_ALLOW = "AlwaysAllow"

_UNCOUNTED = 10**9
"""The assumed number of pods of a budget whose pods have not been counted yet."""


class EvictionGuards:
    """PodDisruptionBudgets, matched with many pods; equal labels are matched once."""

    def __init__(self, budgets: Iterable[PodDisruptionBudget]) -> None:
        self._by_namespace: defaultdict[str, list[PodDisruptionBudget]] = defaultdict(list)
        for budget in budgets:
            self._by_namespace[budget.metadata.namespace].append(budget)
        self._cached: dict[tuple[object, ...], Sequence[PodDisruptionBudget]] = {}

    def of(self, pod: Pod) -> Sequence[PodDisruptionBudget]:
        """Return the PodDisruptionBudgets that select the pod."""
        namespace, labels = pod.metadata.namespace, pod.metadata.labels
        if namespace not in self._by_namespace:
            return ()
        key = (namespace, *labels.items())
        if key not in self._cached:
            budgets = self._by_namespace[namespace]
            self._cached[key] = [b for b in budgets if selects(b.spec.selector, labels)]
        return self._cached[key]

    def obstacle(self, pod: Pod, *, surges: bool = False) -> str | None:
        """Return why a budget prevents the eviction, or None (see `budget_obstacle`)."""
        budgets = self.of(pod)
        if surges and budgets and all(budget.status.expected_pods == 1 for budget in budgets):
            return None
        if len(budgets) > 1:
            return (
                f'Pod "{pod.key}" matches more than one PodDisruptionBudget, so it can never be '
                "evicted"
            )
        ready = conditions.is_true(pod.status.conditions, "Ready")
        for budget in budgets:
            if not ready and budget.spec.unhealthy_pod_eviction_policy == ALWAYS_ALLOW:
                continue
            if budget.status.disruptions_allowed <= 0:
                name = budget.metadata.key
                text = f'PodDisruptionBudget "{name}" prevents the eviction of pod "{pod.key}"'
                permanent = permanent_obstacle(budget)
                return f"{text}, and always will: {permanent}" if permanent else text
        return None

    def obstacle_to_all(self, pods: Iterable[Pod]) -> str | None:
        """Return why the budgets do not allow the eviction of all these pods at once, or None."""
        evicted: Counter[str] = Counter()
        budgets: dict[str, PodDisruptionBudget] = {}
        for pod in pods:
            ready = conditions.is_true(pod.status.conditions, "Ready")
            for budget in self.of(pod):
                if ready or budget.spec.unhealthy_pod_eviction_policy != ALWAYS_ALLOW:
                    evicted[budget.metadata.key] += 1
                    budgets[budget.metadata.key] = budget
        for name, count in evicted.items():
            if (allowed := budgets[name].status.disruptions_allowed) < count:
                return f'PodDisruptionBudget "{name}" allows {allowed} of the {count} evictions'
        return None


def budget_obstacle(
    pod: Pod, budgets: Iterable[PodDisruptionBudget], *, surges: bool = False
) -> str | None:
    """Return why a PodDisruptionBudget prevents the eviction now, or None.

    `surges`: a drain restarts the pod's Deployment instead of evicting the pod. Then a
    PodDisruptionBudget prevents nothing if it counts only this pod.

    The rules are the same as in the API server: a pod with more than one budget cannot be evicted,
    and a pod that is not Ready can be evicted if its budget has the policy `AlwaysAllow`.
    """
    return EvictionGuards(budgets).obstacle(pod, surges=surges)


def permanent_obstacle(budget: PodDisruptionBudget) -> str | None:
    """Return why the budget never allows an eviction with its present number of pods, or None.

    As in kube-controller-manager, percentages are rounded up.
    """
    max_unavailable, min_available = budget.spec.max_unavailable, budget.spec.min_available
    expected = budget.status.expected_pods or _UNCOUNTED
    if max_unavailable is not None and _of(expected, max_unavailable) == 0:
        return f"its maxUnavailable is {max_unavailable}"
    if min_available is not None and _of(expected, min_available) >= expected:
        of_pods = f", of {expected} pods" if expected != _UNCOUNTED else ""
        return f"its minAvailable is {min_available}{of_pods}"
    return None


def remedy(budget: PodDisruptionBudget) -> str:
    """Return the change that makes the budget allow a disruption."""
    if permanent_obstacle(budget) is None:
        return "wait until its pods are ready, or run one more pod"
    if budget.spec.max_unavailable is not None:
        return "set its maxUnavailable to 1"
    return "lower its minAvailable, or run one more pod"


def _of(pods: int, amount: int | str) -> int:
    """Return an amount such as 2 or `30%` as a number of pods; 1 if it is malformed."""
    text = str(amount)
    if not text.removesuffix("%").isdecimal():
        return 1
    return -(-int(text[:-1]) * pods // 100) if text.endswith("%") else int(text)
