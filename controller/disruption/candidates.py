"""Which nodes may be disrupted at all, and what forbids the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from controller.apis import labels
from controller.apis.pods import Pod
from controller.apis.workloads import PodDisruptionBudget
from controller.cloudprovider.instancetypes import InstanceType
from controller.disruption.commands import Candidate
from controller.disruption.pods import is_drainable, local_claims, surges, uses_any
from controller.disruption.prices import node_price
from controller.disruption.problem import DisruptionProblem
from controller.state.evictions import budget_obstacle
from controller.state.nodes import StateNode
from controller.state.pods import forbids_disruption


@dataclass(frozen=True, slots=True)
class Candidates:
    """Those that may go, and per blocked node the reason, as a sentence for an event."""

    admitted: tuple[Candidate, ...] = ()
    blocked: Mapping[str, str] = field(default_factory=dict)


def survey(problem: DisruptionProblem, *, eventual: bool = False) -> Candidates:
    """Sort the cluster's nodes into candidates and blocked ones; the rest are not ours to touch.

    `eventual`: pods do not protect a node whose claim has a termination grace period, which
    ends them anyway.
    """
    budgets = problem.snapshot.pod_disruption_budgets
    admitted: list[Candidate] = []
    blocked = {
        state.name: f"NodePool not found (NodePool={state.node_pool})"
        for state in problem.snapshot.nodes
        if _is_running(state) and state.node_pool not in problem.node_pools
    }
    for state, candidate in _ours(problem):
        forced = eventual and candidate.claim.spec.termination_grace_period is not None
        obstacle = _node_obstacle(state, problem) or (
            None if forced else _pod_obstacle(candidate.pods, budgets, problem)
        )
        if obstacle is not None:
            blocked[candidate.name] = obstacle
        else:
            admitted.append(candidate)
    return Candidates(tuple(admitted), blocked)


def standing(problem: DisruptionProblem) -> Mapping[str, Candidate]:
    """Return by name the nodes that are ours and not on their way out, whatever forbids that."""
    return {candidate.name: candidate for _, candidate in _ours(problem)}


def unprotected(problem: DisruptionProblem) -> tuple[Candidate, ...]:
    """Return the nodes that nothing but their pods could forbid to go."""
    return tuple(
        candidate for state, candidate in _ours(problem) if _node_obstacle(state, problem) is None
    )


def _ours(problem: DisruptionProblem) -> Iterator[tuple[StateNode, Candidate]]:
    pods_by_node: dict[str, list[Pod]] = {}
    for pod in problem.snapshot.pods:
        pods_by_node.setdefault(pod.spec.node_name, []).append(pod)
    types = _types_by_name(problem)
    local = local_claims(problem.snapshot)
    for state in problem.snapshot.nodes:
        pool = problem.node_pools.get(state.node_pool)
        if pool is None or state.node is None or state.claim is None or not _is_running(state):
            continue
        pods = tuple(pods_by_node.get(state.name, ()))
        anchored = next((pod.key for pod in pods if uses_any(pod, local)), "") if local else ""
        yield (
            state,
            Candidate(
                state.node,
                state.claim,
                pool,
                pods,
                price=_price(types, state),
                buffered=state.buffered,
                anchored=anchored,
            ),
        )


def _is_running(state: StateNode) -> bool:
    """Whether it is a node of ours that is ready for pods and not on its way out."""
    is_ours = state.node is not None and state.claim is not None
    return is_ours and state.initialized and not state.deleting


def cost(problem: DisruptionProblem) -> float:
    """Return what all nodes cost whose price is known, in $/h."""
    return sum(map(prices(problem), problem.snapshot.nodes))


def prices(problem: DisruptionProblem) -> Callable[[StateNode], float]:
    """Return what tells the price of a node in $/h, 0 where nobody knows it."""
    types = _types_by_name(problem)
    return lambda state: _price(types, state)


Types = Mapping[str, Mapping[str, InstanceType]]


def _types_by_name(problem: DisruptionProblem) -> Types:
    """Return the types of each pool by their names. Under no name stand those of all: a node of a
    pool that has gone, or of none, costs what it did.
    """
    seen = {
        pool: {instance_type.name: instance_type for instance_type in types}
        for pool, types in problem.snapshot.instance_types.items()
    }
    every = {name: kind for types in seen.values() for name, kind in types.items()}
    unseen: Types = {pool: {} for pool in problem.node_pools}
    return {**unseen, **seen, "": every}


def _price(types: Types, state: StateNode) -> float:
    return node_price(state, types.get(state.node_pool, types[""])) or 0.0


def _node_obstacle(state: StateNode, problem: DisruptionProblem) -> str | None:
    assert state.node is not None
    if state.name in problem.resting:
        return "Disruption could not be carried out a moment ago"
    if state.name in problem.awaiting:
        return f"{problem.awaiting[state.name]}, made in its place before, is not ready yet"
    if state.name in problem.kept:
        return problem.kept[state.name]
    if state.nominated:
        return "Node is nominated for a pending pod"
    if state.node.metadata.annotations.get(labels.DO_NOT_DISRUPT) == "true":
        return "Disruption is blocked through the karpenter.sh/do-not-disrupt annotation"
    return None


def _pod_obstacle(
    pods: Sequence[Pod],
    disruption_budgets: Sequence[PodDisruptionBudget],
    problem: DisruptionProblem,
) -> str | None:
    now, surge = problem.now, problem.settings.surge
    protected = next((p for p in pods if forbids_disruption(p, now)), None)
    if protected is not None:
        return f'Pod "{protected.key}" has the karpenter.sh/do-not-disrupt annotation'
    if not disruption_budgets:
        return None
    return next(
        (
            reason
            for pod in pods
            if is_drainable(pod, now) and not pod.metadata.is_deleting
            if (reason := budget_obstacle(pod, disruption_budgets, surges=surge and surges(pod)))
            is not None
        ),
        None,
    )
