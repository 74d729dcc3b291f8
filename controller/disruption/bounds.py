"""What a cluster costs, beside what no arrangement of its pods costs less than."""

from __future__ import annotations

from collections.abc import Callable

from controller.disruption import candidates
from controller.disruption.problem import DisruptionProblem
from controller.disruption.simulation import Simulation
from controller.scheduling.scheduler import never


def lower_bound(problem: DisruptionProblem, *, expired: Callable[[], bool] = never) -> float:
    """Return what no arrangement of the pods that may move costs less than, with the nodes that
    must stay, in $/h.
    """
    admitted = candidates.survey(problem).admitted
    open_ = [node for node in admitted if node.node_pool.spec.replicas is None]
    simulation = Simulation(problem, open_, expired=expired)
    staying = candidates.cost(problem) - sum(node.price for node in open_)
    return simulation.least_cost([node.name for node in open_]) + staying
