"""The lower bound on the cost of a cluster."""

from __future__ import annotations

from collections.abc import Callable

from controller.disruption import candidates, drift, staticdrift
from controller.disruption.problem import DisruptionProblem
from controller.disruption.simulation import Simulation
from controller.scheduling.scheduler import never


def lower_bound(problem: DisruptionProblem, *, expired: Callable[[], bool] = never) -> float:
    """Return a cost in $/h that no placement of the movable pods can go below.

    It includes the nodes that must stay. Pods of drifted nodes with a termination grace period
    count as movable even if they are blocked. Drifted nodes of static NodePools count at the
    cheapest price of their replacement.
    """
    admitted = candidates.survey(problem).admitted
    drifted = [
        node
        for node in candidates.survey(problem, eventual=True).admitted
        if drift.has_drifted(node)
    ]
    every = {node.name: node for node in (*admitted, *drifted)}
    open_ = [node for node in every.values() if node.node_pool.spec.replicas is None]
    replacements = [node for node in drifted if node.node_pool.spec.replicas is not None]
    simulation = Simulation(problem, open_, expired=expired)
    cheaper = sum(
        max(node.price - staticdrift.replacement(problem, node.node_pool).price, 0.0)
        for node in replacements
    )
    staying = candidates.cost(problem) - sum(node.price for node in open_) - cheaper
    return simulation.least_cost([node.name for node in open_]) + staying
