"""Schedule pending pods onto existing nodes, nodes being launched, and new nodes.

1. Equal pods become classes; offerings become variants.
2. Class by class, topology rules choose domains, and existing nodes are filled.
3. The remaining pods are packed onto new nodes by price.
4. A preference of the pods without a node is relaxed, and they are tried again. Pods without
   preferences are unschedulable, with causes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from controller.apis.kubernetes.pods import Pod
from controller.scheduling.catalog.offerings import Catalog
from controller.scheduling.catalog.offerings import catalog as encoded
from controller.scheduling.gangs import schedule_gangs
from controller.scheduling.nodes.existing import ExistingNodes
from controller.scheduling.packing.bound import ExistingCapacity, whole_bound
from controller.scheduling.packing.formulation import ProblemBuilder
from controller.scheduling.pods.groups import PendingGroup, PodGroup
from controller.scheduling.pods.preferences import without_preferences
from controller.scheduling.problem import scheduling_problem
from controller.scheduling.reporter import SILENT, Reporter
from controller.scheduling.results import Results
from controller.scheduling.retries import Domains, with_equal_weights, without_domains
from controller.scheduling.settings import Settings
from controller.scheduling.solver import Solver
from controller.scheduling.topology.groups import TopologyType
from controller.state.gangs import gangs_among
from controller.state.snapshot import Snapshot


def never() -> bool:
    """Return false: the solve has no time limit."""
    return False


def schedule(
    pods: Sequence[Pod],
    *,
    snapshot: Snapshot,
    settings: Settings | None = None,
    catalog: Catalog | None = None,
    expired: Callable[[], bool] = never,
    reporter: Reporter = SILENT,
) -> Results:
    """Return where every pending pod is scheduled, and the new nodes for them.

    Args:
        pods: the pending pods.
        snapshot: the cluster.
        settings: the settings of the solve; the defaults if None.
        catalog: `catalog.offerings.catalog(snapshot)`, if the caller keeps it between solves with
            the same NodePools, instance types and DaemonSets.
        expired: returns true when the time for the solve is up; the best results so far are then
            returned.
        reporter: receives the progress of the solve.

    Raises:
        ValueError: a requirement of a NodePool is malformed.

    """
    settings, catalog = settings or Settings(), catalog or encoded(snapshot)
    solve = partial(
        _schedule,
        snapshot=snapshot,
        settings=settings,
        catalog=catalog,
        expired=expired,
        reporter=reporter,
    )
    gangs = gangs_among(pods, snapshot.pods, snapshot.pod_groups) if settings.gangs else {}
    if not gangs:
        return solve(pods)
    return schedule_gangs(pods, gangs, snapshot=snapshot, solve=solve)


@dataclass(frozen=True, slots=True)
class _Order:
    """The order of NodePools and pods in a solve; see `Solver`."""

    packed_first: Set[int] = frozenset()
    final_weights: Mapping[str, int] | None = None


IN_ORDER_OF_WEIGHTS = _Order()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Solves:
    """Solves of the same pods, in changed clusters and in different orders."""

    pods: Sequence[Pod]
    settings: Settings
    expired: Callable[[], bool]
    reporter: Reporter

    def solve(
        self, cluster: Snapshot, catalog: Catalog, order: _Order = IN_ORDER_OF_WEIGHTS
    ) -> tuple[Solver, Results]:
        """Return a solve in which no spread breaks because of new nodes for other pods."""
        cautious: Set[int] = frozenset()
        while True:
            solver, results = self._once(cluster, catalog, cautious, order)
            broken = solver.broken_spreads()
            if (domains := solver.blocking_domains()) and not self.expired():
                again = self._without_domains(domains, cluster, cautious, order)
                if again is not None and (
                    again.unschedulable.keys() < results.unschedulable.keys()
                    or (broken and again.unschedulable.keys() == results.unschedulable.keys())
                ):
                    # The lower bound of the first results is for fewer pods, so it also holds for
                    # more.
                    bound = min(results.lower_bound, again.cost)
                    return solver, replace(again, lower_bound=bound)
            if not broken or cautious >= solver.spreads:
                return solver, results
            # The second time, every spread is cautious. A third time could change nothing.
            cautious = solver.spreads if cautious else broken
            self.reporter.solved_again("spreads count the domains of new nodes for other pods")

    def _without_domains(
        self, domains: Domains, cluster: Snapshot, cautious: Set[int], order: _Order
    ) -> Results | None:
        """Return the results without new nodes in these domains, or None if a spread breaks."""
        closed = sorted(name for names in domains.values() for name in names)
        self.reporter.solved_again(f"no new nodes in {', '.join(closed)}")
        changed = without_domains(cluster, domains)
        solver, results = self._once(changed, encoded(changed), cautious, order)
        return results if not solver.broken_spreads() else None

    def _once(
        self, cluster: Snapshot, catalog: Catalog, cautious: Set[int], order: _Order
    ) -> tuple[Solver, Results]:
        """Solve once; `cautious` is as in `Solver`."""
        problem = scheduling_problem(
            self.pods, snapshot=cluster, settings=self.settings, catalog=catalog
        )
        self.reporter.problem_read(
            pods=problem.pods.number,
            classes=len(problem.pods.classes),
            node_types=len(problem.supply.variants.price),
            nodes=len(problem.nodes),
        )
        solver = Solver(
            problem,
            self.expired,
            self.reporter,
            cautious=cautious,
            packed_first=order.packed_first,
            final_weights=order.final_weights,
        )
        return solver, solver.run()


def _schedule(
    pods: Sequence[Pod],
    *,
    snapshot: Snapshot,
    settings: Settings,
    catalog: Catalog,
    expired: Callable[[], bool],
    reporter: Reporter,
) -> Results:
    """Schedule pods without regard to gangs."""
    solves = _Solves(pods=pods, settings=settings, expired=expired, reporter=reporter)
    solver, results = solves.solve(snapshot, catalog)
    # Other pods used up the limits of NodePools that these pods need.
    short_of_limits = solver.short_of_limits()
    if short_of_limits and not expired():
        reporter.solved_again("new nodes first for pods that limits left unschedulable")
        solver, again = solves.solve(snapshot, catalog, _Order(packed_first=short_of_limits))
        if _unschedulable_priorities(pods, again) < _unschedulable_priorities(pods, results):
            results, short_of_limits = again, solver.short_of_limits()
    if short_of_limits and not expired():
        reporter.solved_again("equal weights of all NodePools")
        changed_cluster = with_equal_weights(snapshot)
        order = _Order(final_weights={pool.name: pool.weight for pool in catalog.pools})
        _, again = solves.solve(changed_cluster, encoded(changed_cluster), order)
        if _unschedulable_priorities(pods, again) < _unschedulable_priorities(pods, results):
            results = again
    reporter.done(results)
    return results


def _unschedulable_priorities(pods: Sequence[Pod], results: Results) -> list[int]:
    """Return the priorities of the unschedulable pods, greatest first."""
    return sorted(
        (pod.spec.priority or 0 for pod in pods if pod.key in results.unschedulable), reverse=True
    )


def least_cost(
    pods: Sequence[Pod],
    *,
    snapshot: Snapshot,
    settings: Settings | None = None,
    catalog: Catalog | None = None,
    expired: Callable[[], bool] = never,
) -> float:
    """Return a lower bound on the cost of any new nodes with which all pods are scheduled, in $/h.

    The bound holds for any choice of domains and existing nodes, and for any preferences that are
    satisfied. It takes longer than a solve. When `expired` returns true, the best bound so far is
    returned.
    """
    settings, catalog = settings or Settings(), catalog or encoded(snapshot)
    problem = scheduling_problem(pods, snapshot=snapshot, settings=settings, catalog=catalog)
    pod_groups = []
    for pod_class, constraints in problem.pods.classes:
        pending = problem.reader.pending_group(
            pod_class, without_preferences(constraints), pod_class.keys
        )
        pod_groups.append(PodGroup(pending, (), pending.keys, pending.eligibility.eligible))
    if not pod_groups:
        return 0.0
    nodes, variants, limits = problem.nodes, problem.supply.variants, problem.supply.limits
    # A spread by hostname limits no node: the more pods its other nodes have, the more it may have.
    groups = [group for group in problem.groups.all if group.type is not TopologyType.SPREAD]
    problem_builder = ProblemBuilder(
        variants, groups, capacity=variants.capacity_along(problem.axis), limits=limits
    )
    classes = problem_builder.classes(pod_groups)
    packing_problem, _ = problem_builder.problem(
        classes, limits.left, keep=np.arange(len(variants.price))
    )
    packing_problem = replace(packing_problem, prices=variants.price)
    allowed = [
        any(_has_node(nodes, pod_groups[index].pending) for index in packing_class.members)
        for packing_class in classes
    ]
    existing = ExistingCapacity(np.maximum(nodes.remaining, 0), np.array(allowed, dtype=np.bool_))
    return whole_bound(packing_problem, existing, expired=expired)


def _has_node(nodes: ExistingNodes, pending: PendingGroup) -> bool:
    """Whether some existing node allows such a pod and has enough remaining capacity for it."""
    return bool((pending.eligibility.nodes & (nodes.holds(pending.size) > 0)).any())
