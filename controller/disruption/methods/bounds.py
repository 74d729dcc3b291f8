"""The lower bound on the cost of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from controller.apis import labels
from controller.cloudprovider.instancetypes import InstanceType
from controller.disruption import candidates
from controller.disruption.commands import Candidate
from controller.disruption.methods import drift, staticdrift
from controller.disruption.offerings import is_of
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
    simulation = Simulation(_with_own_offerings(problem, open_), open_, expired=expired)
    cheaper = sum(
        max(node.price - staticdrift.replacement(problem, node.node_pool).price, 0.0)
        for node in replacements
    )
    staying = candidates.cost(problem) - sum(node.price for node in open_) - cheaper
    return simulation.least_cost([node.name for node in open_]) + staying


def _with_own_offerings(
    problem: DisruptionProblem, nodes: Iterable[Candidate]
) -> DisruptionProblem:
    """Return the problem in which the offerings of these nodes are available.

    A node keeps its price when EC2 has no more capacity at that price, and may stay.
    """
    own: dict[tuple[str, str], list[Mapping[str, str]]] = {}
    for node in nodes:
        carried = node.node.metadata.labels
        own.setdefault((node.pool, carried.get(labels.INSTANCE_TYPE, "")), []).append(carried)

    def make_available(pool: str, instance_type: InstanceType) -> InstanceType:
        running = own.get((pool, instance_type.name), [])
        if not running:
            return instance_type
        offerings = tuple(
            replace(one, available=True) if any(is_of(one, each) for each in running) else one
            for one in instance_type.offerings
        )
        return replace(instance_type, offerings=offerings)

    types = {
        pool: tuple(make_available(pool, instance_type) for instance_type in seen)
        for pool, seen in problem.snapshot.instance_types.items()
    }
    return replace(problem, snapshot=replace(problem.snapshot, instance_types=types))
