"""The plan that a search returns."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest

from controller.disruption import candidates
from controller.disruption.methods.consolidation import search
from controller.disruption.methods.consolidation.plan import Plan
from controller.disruption.methods.consolidation.relaxation import solve_relaxation
from controller.disruption.methods.consolidation.search import GAIN, search_plan
from controller.disruption.model import ClusterModel
from controller.disruption.simulation import Simulation
from controller.offline.disrupt import problem_of
from controller.offline.world import load
from controller.scheduling.scheduler import never
from tests.disruption.clusters import constrained

NOW = datetime(2026, 11, 1, 12, tzinfo=UTC)
EVICTION = 0.001


def model_of(seed: int) -> ClusterModel:
    problem = problem_of(load(constrained(20, seed)), now=NOW, with_eviction_cost=False)
    admitted = candidates.survey(problem).admitted
    busy = [candidate.name for candidate in admitted if candidate.moving]
    model = Simulation(problem, admitted).model(busy)
    assert model is not None
    return model


def test_no_exchange_of_two_nodes_lowers_the_cost() -> None:
    model = model_of(8)
    evictions = model.present.sum(axis=1) * EVICTION

    plan = search_plan(model, evictions, solve_relaxation(model, evictions), expired=never)

    before = plan.mark()
    for staying in np.flatnonzero(~plan.leaving & model.candidate).tolist():
        for leaving in np.flatnonzero(plan.leaving & model.candidate).tolist():
            plan.flip(staying)
            plan.flip(leaving)
            assert plan.cost > before[1] - GAIN
            plan.undo(before)


def test_the_search_ends_earlier_if_placements_are_expensive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = model_of(8)
    evictions = model.present.sum(axis=1) * EVICTION
    relaxation = solve_relaxation(model, evictions)
    flipped: list[int] = []
    flip = Plan.flip

    def counted(plan: Plan, node: int) -> None:
        flipped.append(node)
        flip(plan, node)

    monkeypatch.setattr(Plan, "flip", counted)
    search_plan(model, evictions, relaxation, expired=never)
    usual = len(flipped)
    flipped.clear()
    monkeypatch.setattr(search, "PLACEMENTS", 100)
    plan = search_plan(model, evictions, relaxation, expired=never)

    assert len(flipped) < usual / 4
    assert plan.cost < float(model.price[model.candidate].sum())


def test_pods_that_fill_new_nodes_count_as_bought_even_if_that_is_free() -> None:
    model = model_of(8)
    free = replace(model, worth_new=np.zeros_like(model.worth_new))
    plan = Plan(free, np.zeros(len(model.names)), np.zeros_like(model.capacity))

    for node in np.flatnonzero(model.candidate).tolist():
        plan.flip(node)
    destinations = plan.destinations(last=np.zeros_like(model.candidate))

    moving = int(model.present[model.candidate].sum())
    assert plan.bought.sum() > 0
    assert len(destinations) == moving - plan.bought.sum()
