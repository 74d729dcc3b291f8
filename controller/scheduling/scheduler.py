"""Place every pod: on a node that exists, on one that is coming, or on one to be made.

1. Equal pods become classes, what can be bought becomes variants.
2. Class by class, topology chooses domains, and nodes that exist are filled.
3. What is left is packed onto new nodes by price.
4. Pods that found no place give up a preference and try again; those that have
   nothing left to give up come back with causes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from controller.apis.pods import Pod
from controller.scheduling.catalog.offerings import Catalog
from controller.scheduling.catalog.offerings import catalog as encoded
from controller.scheduling.nodes.existing import ExistingNodes
from controller.scheduling.packing.bound import ExistingCapacity, whole_bound
from controller.scheduling.packing.formulation import ProblemBuilder
from controller.scheduling.pods.groups import PendingGroup, PodGroup
from controller.scheduling.pods.preferences import required
from controller.scheduling.problem import scheduling_problem
from controller.scheduling.reporter import SILENT, Reporter
from controller.scheduling.results import Results
from controller.scheduling.retries import with_equal_weights, without_domains
from controller.scheduling.settings import Settings
from controller.scheduling.solver import Solver
from controller.state.snapshot import Snapshot


def never() -> bool:
    """Say that there is no hurry."""
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
    """Place every pod that waits.

    `catalog` is `catalog.offerings.catalog(snapshot)`, kept by callers that ask often about the
    same pools and types. `expired` turns true when time is up: from then on the
    quickest complete answer is taken. `reporter` is told how the solve goes.
    """
    settings, catalog = settings or Settings(), catalog or encoded(snapshot)

    def asked(world: Snapshot, catalog: Catalog) -> tuple[Solver, Results]:
        problem = scheduling_problem(pods, snapshot=world, settings=settings, catalog=catalog)
        reporter.problem_read(
            pods=problem.pods.number,
            classes=len(problem.pods.classes),
            kinds=len(problem.supply.variants.price),
            nodes=len(problem.nodes),
        )
        solver = Solver(problem, expired, reporter)
        return solver, solver.run()

    solver, results = asked(snapshot, catalog)
    if (blocking_domains := solver.blocking_domains()) and not expired():
        closed = ", ".join(
            sorted(domain for names in blocking_domains.values() for domain in names)
        )
        reporter.asked_again(f"no new nodes in {closed}")
        world = without_domains(snapshot, blocking_domains)
        _, again = asked(world, encoded(world))
        if again.unschedulable.keys() < results.unschedulable.keys():
            # What bounds the cost of fewer pods, wherever their nodes are, bounds that of more.
            results = replace(again, lower_bound=min(results.lower_bound, again.cost))
    if solver.is_short_of_limits() and not expired():
        reporter.asked_again("pools of equal weight")
        world = with_equal_weights(snapshot)
        _, again = asked(world, encoded(world))
        if _behind(pods, again) < _behind(pods, results):
            results = again
    reporter.done(results)
    return results


def _behind(pods: Sequence[Pod], results: Results) -> list[int]:
    """Return the priorities of the pods that are left over, greatest first."""
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
    """Return what no answer that places all these pods costs less than, in $/h.

    Whatever domains it chooses for them, whatever nodes that exist it puts them on, and whatever
    preferences it grants. It takes longer than an answer does; `expired` turns true when
    time is up.
    """
    settings, catalog = settings or Settings(), catalog or encoded(snapshot)
    problem = scheduling_problem(pods, snapshot=snapshot, settings=settings, catalog=catalog)
    pod_groups = []
    for pod_class, constraints in problem.pods.classes:
        pending = problem.reader.pending(pod_class, required(constraints), pod_class.keys)
        pod_groups.append(PodGroup(pending, (), pending.keys, pending.eligibility.eligible))
    if not pod_groups:
        return 0.0
    nodes, variants, limits = problem.nodes, problem.supply.variants, problem.supply.limits
    problem_builder = ProblemBuilder(
        variants, problem.groups.all, room=variants.room_along(problem.axis), limits=limits
    )
    classes = problem_builder.classes(pod_groups)
    packing_problem, _ = problem_builder.problem(
        classes, limits.left, keep=np.arange(len(variants.price))
    )
    packing_problem = replace(packing_problem, prices=variants.price)
    welcome = [
        any(_has_node(nodes, pod_groups[place].pending) for place in packing_class.members)
        for packing_class in classes
    ]
    open_ = (nodes.room >= 0).all(axis=1)
    existing = ExistingCapacity(nodes.room[open_], np.array(welcome, dtype=np.bool_))
    return whole_bound(packing_problem, existing, expired=expired)


def _has_node(nodes: ExistingNodes, pending: PendingGroup) -> bool:
    """Whether some node that exists would let such a pod in and has room for it."""
    return bool((pending.eligibility.nodes & (nodes.holds(pending.size) > 0)).any())
