"""The cluster once Joiner has nothing more to disrupt, and its cost."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from controller.apis.karpenter.nodeclaim import CONSOLIDATABLE
from controller.apis.karpenter.nodepool import Budget, NodePool
from controller.apis.kubernetes import conditions
from controller.apis.kubernetes.meta import with_fields
from controller.disruption import candidates
from controller.disruption.advice.adoption import simulate_drain
from controller.disruption.advice.course import Course
from controller.disruption.budgets import is_misconfigured
from controller.disruption.methods.drift import has_drifted, is_static
from controller.disruption.problem import DisruptionProblem
from controller.disruption.simulation import NO_NODES
from controller.scheduling.catalog.offerings import CatalogCache
from controller.scheduling.scheduler import never
from controller.state.nodes import StateNode
from controller.state.pods import is_reschedulable

MOST_STEPS = 200
"""The largest number of decisions at each of the two times of a forecast, now and after the
horizon; a cluster becomes stable after a few."""

NEVER = "Never"

Deadline = Callable[[], Callable[[], bool]]
"""Starts the time limit of one solve; returns a function that returns whether it is reached."""


def no_deadline() -> Callable[[], bool]:
    """Return a time limit that is never reached."""
    return never


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """A cluster in which Joiner disrupts nothing more. Costs are in $/h.

    `staying` maps nodes that should be replaced, but cannot be drained, to the reason. `evictions`
    counts the pods moved until then. `blocked` maps each of Joiner's nodes to why it stays.
    """

    problem: DisruptionProblem
    cost: float
    staying: Mapping[str, str] = field(default_factory=dict)
    evictions: int = 0
    blocked: Mapping[str, str] = field(default_factory=dict)

    @property
    def nodes(self) -> Sequence[StateNode]:
        """The nodes of the cluster."""
        return self.problem.snapshot.nodes


def forecast(
    problem: DisruptionProblem,
    *,
    leaving: Collection[str] = NO_NODES,
    deadline: Deadline = no_deadline,
    catalogs: CatalogCache | None = None,
) -> Forecast:
    """Return the cluster once the nodes in `leaving` are replaced and nothing more is disrupted.

    They are replaced at any cost, as are drifted nodes and nodes that are being deleted. Pending
    pods are scheduled if possible; no other pods are created or deleted. All waits have passed, and
    temporary budgets have ended. DISRUPTION_HORIZON after the last command, Joiner decides again,
    because savings then count for longer. `catalogs` keeps the catalog between forecasts.
    """
    catalogs = catalogs or CatalogCache()
    names = {*leaving, *_drifted_nodes(problem), *_deleting_nodes(problem)}
    later = problem.now + problem.settings.horizon
    waited = without_waits(problem)
    adopted = simulate_drain(
        waited, names, expired=deadline(), catalog=catalogs.of(waited.snapshot)
    )
    result = Forecast(
        problem=adopted.problem,
        cost=0.0,
        staying=adopted.staying,
        evictions=adopted.moved,
    )
    now = _converge(result, problem.now, deadline, catalogs)
    return _converge(now, later, deadline, catalogs)


def _drifted_nodes(problem: DisruptionProblem) -> list[str]:
    return [
        name
        for name, candidate in candidates.initialized_nodes(problem).items()
        if has_drifted(candidate) and not is_static(candidate)
    ]


def _deleting_nodes(problem: DisruptionProblem) -> list[str]:
    return [state.name for state in problem.snapshot.nodes if state.managed and state.deleting]


def _converge(
    before: Forecast, now: datetime, deadline: Deadline, catalogs: CatalogCache
) -> Forecast:
    """Return the forecast after all decisions at this time, until one has no commands."""
    problem = replace(before.problem, now=now)
    course = Course(problem=problem, cost_before=0.0, catalogs=catalogs)
    for _ in range(MOST_STEPS):
        decision = course.decide(deadline())
        course.execute(decision)
        if not decision.commands:
            break
    return replace(
        before,
        problem=course.problem,
        cost=candidates.cost(course.problem),
        evictions=before.evictions + sum(command.evictions for command, _ in course.commands),
        blocked=course.blocked,
    )


def without_waits(problem: DisruptionProblem) -> DisruptionProblem:
    """Return the problem as it will be once nothing has to wait.

    Nodes that are being launched are left out, because a forecast launches what the pods need.
    Nodes are consolidatable unless `consolidateAfter` is `Never`. There is no soak time for AMIs,
    no node is nominated, and budgets are unlimited unless they never allow a disruption.
    """
    pools = {name: _pool_without_waits(pool) for name, pool in problem.node_pools.items()}
    quiet = {
        name for name, pool in pools.items() if pool.spec.disruption.consolidate_after != NEVER
    }
    used = {pod.spec.node_name for pod in problem.snapshot.pods if is_reschedulable(pod)}
    snapshot = replace(
        problem.snapshot,
        nodes=tuple(
            _as_consolidatable(state, quiet, problem.now)
            for state in problem.snapshot.nodes
            if state.initialized or state.name in used
        ),
        node_pools=tuple(map(_pool_without_waits, problem.snapshot.node_pools)),
    )
    settings = replace(problem.settings, image_soak=timedelta(0))
    return replace(problem, snapshot=snapshot, node_pools=pools, settings=settings)


def never_allows(budget: Budget) -> bool:
    """Whether a budget allows no disruption at any time."""
    return is_misconfigured(budget) or (budget.schedule is None and budget.nodes in ("0", "0%"))


def _pool_without_waits(pool: NodePool) -> NodePool:
    budgets = [each for each in pool.spec.disruption.budgets if never_allows(each)]
    return with_fields(pool, "spec.disruption", budgets=[*budgets, Budget(nodes="100%")])


def _as_consolidatable(state: StateNode, quiet: Collection[str], now: datetime) -> StateNode:
    if state.claim is None or state.node_pool not in quiet:
        return replace(state, nominated=False)
    there = conditions.with_condition(
        state.claim.status.conditions, CONSOLIDATABLE, "True", generation=0, now=now
    )
    claim = with_fields(state.claim, "status", conditions=there)
    return replace(state, claim=claim, nominated=False)
