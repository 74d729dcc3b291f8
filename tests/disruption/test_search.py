"""The plan that a search ends with."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np

from controller.disruption import candidates
from controller.disruption.relaxation import relaxed
from controller.disruption.search import GAIN, searched
from controller.disruption.simulation import Simulation
from controller.offline.disrupt import problem_of
from controller.offline.world import load
from controller.scheduling.scheduler import never
from tests.disruption.clusters import lived_in

NOW = datetime(2026, 11, 1, 12, tzinfo=UTC)
EVICTION = 0.001


def test_no_node_could_go_instead_of_another_for_less() -> None:
    problem = problem_of(load(lived_in(20, 8)), now=NOW, calm=False)
    admitted = candidates.survey(problem).admitted
    busy = [candidate.name for candidate in admitted if candidate.moving]
    model = Simulation(problem, admitted).model(busy)
    assert model is not None
    evictions = model.present.sum(axis=1) * EVICTION

    plan = searched(model, evictions, relaxed(model, evictions), expired=never)

    before = plan.mark()
    for staying in np.flatnonzero(~plan.leaving & model.candidate).tolist():
        for leaving in np.flatnonzero(plan.leaving & model.candidate).tolist():
            plan.turn(staying)
            plan.turn(leaving)
            assert plan.cost > before[1] - GAIN
            plan.undo(before)
