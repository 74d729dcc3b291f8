"""What a cluster costs, beside what no arrangement of its pods costs less than."""

from __future__ import annotations

from collections.abc import Callable

from controller.disruption import candidates, drift
from controller.disruption.problem import DisruptionProblem
from controller.disruption.simulation import Simulation
from controller.scheduling.scheduler import never


def lower_bound(problem: DisruptionProblem, *, expired: Callable[[], bool] = never) -> float:
    """Return what no arrangement of the pods that may move costs less than, with the nodes that
    must stay, in $/h. Of those that have drifted the pods move whatever forbids it, where something
    ends them in time; and those of pools of fixed size become the cheapest there is.
    """
    admitted = candidates.survey(problem).admitted
    drifted = [
        node
        for node in candidates.survey(problem, eventual=True).admitted
        if drift.has_drifted(node)
    ]
    every = {node.name: node for node in (*admitted, *drifted)}
    open_ = [node for node in every.values() if node.node_pool.spec.replicas is None]
    heirs = [node for node in drifted if node.node_pool.spec.replicas is not None]
    simulation = Simulation(problem, open_, expired=expired)
    cheaper = sum(
        max(node.price - drift.heir(problem, node.node_pool).price, 0.0) for node in heirs
    )
    staying = candidates.cost(problem) - sum(node.price for node in open_) - cheaper
    return simulation.least_cost([node.name for node in open_]) + staying
