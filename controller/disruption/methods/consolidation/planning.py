"""Plans for a whole cluster: the arrays propose them, the scheduling engine confirms them.

A linear program and a search over arrays choose the nodes to remove and the destinations of their
pods (see `relaxation`, `plan` and `search`). The engine buys the new nodes, which proves the
saving. If the arrays find nothing, the engine tries nodes that the arrays cannot judge.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from controller.disruption.methods.consolidation.evaluation import (
    ENGINE_TRIES,
    MANY_NODES,
    Evaluator,
)
from controller.disruption.methods.consolidation.relaxation import RelaxedPlan, solve_relaxation
from controller.disruption.methods.consolidation.search import promises, search_plan
from controller.disruption.methods.consolidation.sequencing import best_as_bound
from controller.disruption.model import ClusterModel
from controller.disruption.simulation import Group, destinations_of, names_of
from controller.scheduling.arrays import Mask, Vector
from controller.scheduling.topology.groups import TopologyType


@dataclass(frozen=True, slots=True)
class ConfirmedPlan:
    """A plan that the engine confirms.

    `groups` are its groups. `destinations` is the existing node that each pod moves to, by pod key.
    `gain` is the net saving in $/h.
    `is_proven`: the engine itself found the plan, so it needs no further check.
    """

    groups: tuple[Group, ...]
    destinations: Mapping[str, str]
    gain: float
    is_proven: bool = False

    @property
    def names(self) -> frozenset[str]:
        """The names of the nodes that the plan removes."""
        return names_of(self.groups)


@dataclass(frozen=True, slots=True)
class ClusterEstimate:
    """The estimate of a cluster: its model, its eviction costs and the linear program's solution.

    In `model`, pods of every class may use new nodes. If spot nodes may not replace spot nodes,
    classes with pods on spot nodes only are excepted. Pods that must share a domain with pods of
    other nodes stay in it. `evictions` (nodes) is the cost of emptying each node, in $/h.
    """

    model: ClusterModel
    evictions: Vector
    relaxation: RelaxedPlan

    @classmethod
    def of(cls, evaluator: Evaluator) -> ClusterEstimate | None:
        """Return the estimate of a cluster; None if the evaluator has no arrays."""
        model = evaluator.model
        if model is None:
            return None
        evictions = np.array([evaluator.costs.get(name, 0.0) for name in model.names])
        worth_new = np.where(_buyable(evaluator, model), model.worth_new, np.inf)
        freest = replace(
            model, worth_new=worth_new, allowed=model.allowed & _within_affinity(model)
        )
        return cls(freest, evictions, solve_relaxation(freest, evictions))


@dataclass(frozen=True, slots=True)
class Plans:
    """The worthwhile plans for a whole cluster, the best first, and the estimate they come from.

    If the evaluator has no arrays, the only plan removes the empty nodes.
    """

    evaluator: Evaluator
    estimate: ClusterEstimate | None
    best: tuple[ConfirmedPlan, ...]

    @classmethod
    def of(cls, evaluator: Evaluator) -> Plans:
        """Make the plans for a cluster."""
        estimate = ClusterEstimate.of(evaluator)
        if estimate is not None:
            return cls(evaluator, estimate, tuple(_best_first(evaluator, estimate)))
        empty = [node for node in evaluator.candidates.values() if not node.moving]
        groups = tuple(Group(leaving=(candidate,)) for candidate in empty)
        return cls(evaluator, None, (ConfirmedPlan(groups, {}, 0.0),))


def alone(evaluator: Evaluator, names: Iterable[str]) -> ConfirmedPlan:
    """Return a plan that removes only one node: the first whose removal the engine confirms.

    Nodes with the largest price per eviction are tried first, at most `ENGINE_TRIES` of them. The
    plan has no groups if none is confirmed.
    """
    candidates, disturbance = evaluator.candidates, evaluator.disturbance
    ranked = sorted(
        names, key=lambda name: (-candidates[name].price / (1.0 + disturbance[name]), name)
    )
    for name in ranked[:ENGINE_TRIES]:
        result = None if evaluator.expired() else evaluator.simulation.without({name})
        good = (
            best_as_bound(evaluator, evaluator.approved_groups(result))
            if result is not None
            else []
        )
        if good and result is not None:
            destinations = destinations_of(result.results.existing_nodes)
            gain = sum(map(evaluator.net, good))
            return ConfirmedPlan(tuple(good), destinations, gain, is_proven=True)
    return ConfirmedPlan((), {}, 0.0)


def _best_first(evaluator: Evaluator, estimate: ClusterEstimate) -> list[ConfirmedPlan]:
    """Return the plan with new nodes and the plan without, the larger net saving first.

    In large clusters (more than `MANY_NODES` nodes), the second is made only if the first has no
    groups. If neither has groups, the only plan is that of `_by_engine`.
    """
    freest, relaxation = estimate.model, estimate.relaxation
    # The arrays estimate the cost of new nodes by shares, but the engine launches whole nodes. A
    # plan without new nodes depends on no estimate, and may save more.
    ways = [freest]
    if np.isfinite(freest.worth_new).any():
        ways.insert(0, replace(freest, worth_new=np.full_like(freest.worth_new, np.inf)))
    plans: list[ConfirmedPlan] = []
    is_large = len(freest.names) > MANY_NODES
    for way in reversed(ways) if is_large else ways:
        if not promises(freest, relaxation) or (is_large and any(p.groups for p in plans)):
            break
        own = relaxation if way is freest else solve_relaxation(way, estimate.evictions)
        plans.append(_confirmed_plan(evaluator, way, estimate.evictions, own))
    plans.sort(key=lambda plan: -plan.gain)
    if not any(plan.groups for plan in plans):
        return [_by_engine(evaluator, freest)]
    return plans


def _confirmed_plan(
    evaluator: Evaluator, model: ClusterModel, evictions: Vector, relaxation: RelaxedPlan
) -> ConfirmedPlan:
    """Return the best plan by the arrays, as far as the engine confirms it."""
    plan = search_plan(model, evictions, relaxation, expired=evaluator.expired)
    going = np.flatnonzero(plan.leaving).tolist()
    names = frozenset(model.names[index] for index in going)
    destinations = plan.destinations(last=_spot_nodes(evaluator, model))
    result = evaluator.simulation.carried_out(names, destinations)
    if result is None:
        candidates = evaluator.candidates
        # The engine finds no new node for some pod. Keep the nodes of all pods without a
        # destination.
        stay = frozenset(
            name for name in names for pod in candidates[name].moving if pod.key not in destinations
        )
        result = evaluator.simulation.carried_out(names - stay, destinations)
    good = evaluator.approved_groups(result) if result is not None else []
    return ConfirmedPlan(tuple(good), destinations, sum(map(evaluator.net, good)))


def _by_engine(evaluator: Evaluator, model: ClusterModel) -> ConfirmedPlan:
    """Return a plan with one node that the arrays cannot judge and that the engine confirms.

    The arrays judge neither some pods nor moves between capacity reservations.
    """
    odd = model.present[:, model.intricate].any(axis=1) | _in_dearer_reservations(evaluator, model)
    return alone(
        evaluator, (model.names[index] for index in np.flatnonzero(odd & model.candidate).tolist())
    )


def _within_affinity(model: ClusterModel) -> Mask:
    """Mark the nodes to which pods can move one after the other (nodes × classes).

    If pods on several nodes must share a domain, each can only move within it: the other pods are
    there at that time.
    """
    reachable = np.ones_like(model.allowed)
    for number, rules in enumerate(model.rules):
        for rule in rules.owned:
            if rule.type is not TopologyType.AFFINITY or number not in rule.members:
                continue
            homes = np.count_nonzero(model.present[:, rule.members].sum(axis=1))
            if homes > 1 or rule.counted.any():
                population = rule.population(model.present)
                reachable[:, number] &= (rule.domain >= 0) & (population[rule.domain] > 0)
    return reachable


def _buyable(evaluator: Evaluator, model: ClusterModel) -> Mask:
    """Mark the classes that may use new nodes.

    If spot nodes may not be replaced by spot nodes, these are the classes with at least one pod on
    a node that is not a spot instance.
    """
    if evaluator.problem.settings.spot_to_spot:
        return np.isfinite(model.worth_new)
    others = model.present[~_spot_nodes(evaluator, model)].any(axis=0)
    buyable: Mask = others & np.isfinite(model.worth_new)
    return buyable


def _in_dearer_reservations(evaluator: Evaluator, model: ClusterModel) -> Mask:
    """Mark the nodes of reservations that cost more than another one with instances left.

    If evictions are not free, there are none.
    """
    problem = evaluator.problem
    price_of = {
        name: candidate.price
        for name, candidate in evaluator.candidates.items()
        if candidate.reservation and not problem.settings.eviction_price
    }
    if not price_of:
        return np.zeros(len(model.names), dtype=np.bool_)
    left = (
        offering.price
        for types in problem.snapshot.instance_types.values()
        for instance_type in types
        for offering in instance_type.offerings
        if offering.reservation and offering.available
    )
    cheapest = min(left, default=np.inf)
    return np.array([price_of.get(name, 0.0) > cheapest for name in model.names], dtype=np.bool_)


def _spot_nodes(evaluator: Evaluator, model: ClusterModel) -> Mask:
    candidates = evaluator.candidates
    spot = [name in candidates and candidates[name].is_spot for name in model.names]
    return np.array(spot, dtype=np.bool_)
