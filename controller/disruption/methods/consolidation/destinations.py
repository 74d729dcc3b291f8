"""Keeps long-running pods off nodes that will soon be empty by themselves."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from controller.disruption.budgets import allowed_disruptions, consumption
from controller.disruption.candidates import unblocked_nodes
from controller.disruption.commands import Reason
from controller.disruption.methods.emptiness import is_removed_once_empty
from controller.disruption.model import ClusterModel
from controller.disruption.pods import is_of_job
from controller.disruption.problem import DisruptionProblem
from controller.disruption.simulation import Simulation
from controller.state.nodes import StateNode
from controller.state.pods import is_reschedulable


def with_lasting_destinations(
    problem: DisruptionProblem,
    simulation: Simulation,
    names: Collection[str],
    *,
    new: Sequence[StateNode] = (),
) -> ClusterModel | None:
    """Return the arrays of a cluster in which long-running pods move only to lasting nodes.

    `names` are the candidates whose pods may move. `new` nodes are added to the cluster. None if
    these candidates have no pods to move.

    A node does not last if it is empty, or will be when its Jobs end. A long-running pod on it
    would keep the node, or would have to move again. If evictions are free, only the savings at
    this time count, and all nodes are allowed.
    """
    model = simulation.model(names, new=new)
    if model is None or not problem.settings.eviction_price:
        return model
    lasting_on = {
        pod.spec.node_name
        for pod in simulation.placed.snapshot.pods
        if is_reschedulable(pod) and not is_of_job(pod)
    }
    total, _ = consumption(problem.snapshot.nodes)
    open_pools = {
        name
        for name, pool in problem.node_pools.items()
        if allowed_disruptions(pool, Reason.EMPTY, nodes=total[name], consuming=0, now=problem.now)
    }
    fleeting = {
        candidate.name
        for candidate in unblocked_nodes(problem)
        if candidate.name not in lasting_on
        and is_removed_once_empty(candidate)
        and candidate.pool in open_pools
    }
    lasting = np.zeros(len(model.sizes), dtype=np.bool_)
    for (_, number), pods in model.pods.items():
        lasting[number] |= not all(map(is_of_job, pods))
    barred = np.array([name in fleeting for name in model.names], dtype=np.bool_)
    return replace(model, allowed=model.allowed & ~(barred[:, None] & lasting))
