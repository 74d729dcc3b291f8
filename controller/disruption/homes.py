"""Which nodes are homes that last: pods that do not end by themselves move to no others."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from controller.disruption.budgets import allowed, consumption
from controller.disruption.candidates import unprotected
from controller.disruption.commands import Reason
from controller.disruption.emptiness import goes_once_empty
from controller.disruption.model import ClusterModel
from controller.disruption.pods import is_of_job
from controller.disruption.problem import DisruptionProblem
from controller.disruption.simulation import Simulation
from controller.state.pods import is_reschedulable


def with_lasting_homes(
    problem: DisruptionProblem, simulation: Simulation, names: Collection[str]
) -> ClusterModel | None:
    """Return the cluster as arrays, in which pods that last do not move to nodes that go by
    themselves, now that they are empty or once their Jobs have ended: they would keep such a
    node, or have to move again. Where savings alone count, it is those of this moment.
    """
    model = simulation.model(names)
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
        if allowed(pool, Reason.EMPTY, nodes=total[name], consuming=0, now=problem.now)
    }
    fleeting = {
        candidate.name
        for candidate in unprotected(problem)
        if candidate.name not in lasting_on
        and goes_once_empty(candidate)
        and candidate.pool in open_pools
    }
    lasting = np.zeros(len(model.sizes), dtype=np.bool_)
    for (_, number), pods in model.pods.items():
        lasting[number] |= not all(map(is_of_job, pods))
    barred = np.array([name in fleeting for name in model.names], dtype=np.bool_)
    return replace(model, allowed=model.allowed & ~(barred[:, None] & lasting))
