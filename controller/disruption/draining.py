"""What prevents the eviction of a pod, and what a node in deletion waits for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

from controller.apis import labels
from controller.apis.kubernetes.pods import Pod
from controller.apis.kubernetes.workloads import PodDisruptionBudget
from controller.apis.wording import with_count
from controller.disruption.pods import local_claims, surges, uses_any
from controller.disruption.problem import DisruptionProblem
from controller.state.evictions import EvictionGuards, budget_obstacle, remedy
from controller.state.nodes import StateNode
from controller.state.pods import (
    forbids_disruption,
    is_daemon,
    is_reschedulable,
    is_static,
    protected_for,
)

Wait = Callable[[StateNode], str]
"""Returns for which pods a node in deletion waits, and why; empty if for none."""


def waits(
    problem: DisruptionProblem, pods_on: Callable[[str], Sequence[Pod]] | None = None
) -> Wait:
    """Return a function that says for what a node in deletion waits, as `drain_obstacle` does.

    `pods_on` returns the pods on the node with a name; without it, all pods of the snapshot are
    searched, which the event loop must not do.
    """
    deleting = {state.name: state for state in problem.snapshot.nodes if state.deleting}

    @cache
    def wait(name: str) -> str:
        if name not in deleting:
            return ""
        if pods_on is not None:
            return drain_obstacle(deleting[name], pods_on(name), problem)
        pods = [pod for pod in problem.snapshot.pods if pod.spec.node_name == name]
        return drain_obstacle(deleting[name], pods, problem)

    return lambda state: wait(state.name)


def drain_obstacle(state: StateNode, pods: Sequence[Pod], problem: DisruptionProblem) -> str:
    """Return for which of a node's pods its deletion waits, why, and until when at most.

    Empty if each pod that the drain evicts may be evicted now.
    """
    blocked = [(pod, why) for pod in drained_pods(pods) for why, _ in [hold(pod, problem)] if why]
    if not blocked:
        return ""
    pod, why = blocked[0]
    others = f" and {with_count(len(blocked) - 1, 'other pod')}" if blocked[1:] else ""
    why = why.replace(f' of pod "{pod.key}"', "")
    until = termination_time(state)
    end = (
        f"all its pods will be deleted by {until}"
        if until
        else "no terminationGracePeriod: it waits forever"
    )
    return f"waits for pod {pod.key}{others}: {why}; {end}"


def drained_pods(pods: Sequence[Pod]) -> list[Pod]:
    """Return the pods of a node that a drain evicts."""
    return [
        pod for pod in pods if is_reschedulable(pod) and not is_daemon(pod) and not is_static(pod)
    ]


def termination_time(state: StateNode) -> str:
    """Return when the node's terminationGracePeriod elapses; empty without one."""
    annotations = state.claim.metadata.annotations if state.claim is not None else {}
    return annotations.get(labels.TERMINATION_TIMESTAMP, "")


def hold(pod: Pod, problem: DisruptionProblem) -> tuple[str, str]:
    """Return why a pod cannot be evicted, and the remedy; both are empty if it can."""
    if forbids_disruption(pod, problem.now):
        said = pod.metadata.annotations[labels.DO_NOT_DISRUPT]
        protected, started = protected_for(pod), pod.status.start_time
        until = started + protected if protected is not None and started is not None else None
        change = f"expires at {until:%Y-%m-%dT%H:%M:%SZ}" if until else "remove the annotation"
        return f"{labels.DO_NOT_DISRUPT}: {said}", change
    budgets = problem.snapshot.pod_disruption_budgets
    obstacle = budget_obstacle(pod, budgets, surges=problem.settings.surge and surges(pod))
    if obstacle is not None:
        return obstacle, _budget_change(pod, budgets)
    if uses_any(pod, local_claims(problem.snapshot)):
        return "uses a volume on the local disk of this node", "use a network volume"
    return "", ""


def _budget_change(pod: Pod, budgets: Sequence[PodDisruptionBudget]) -> str:
    """Return the change that makes the pod's PodDisruptionBudgets allow its eviction."""
    budget, *others = EvictionGuards(budgets).of(pod)
    if others:
        return "let only one PodDisruptionBudget select the pod"
    return f"PodDisruptionBudget {budget.metadata.name}: {remedy(budget)}"
