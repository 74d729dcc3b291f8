"""Selects the part of a plan that budgets allow now.

If the budgets allow only some nodes of a group, these are disrupted if that saves more than their
evictions cost. If the budgets allow no part of any plan, an instalment of the best group is
disrupted, or one node alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

from controller.disruption.applying import launched_node
from controller.disruption.budgets import Budgets
from controller.disruption.commands import Candidate
from controller.disruption.costs import HOUR
from controller.disruption.methods.consolidation.evaluation import ENGINE_TRIES, Evaluator
from controller.disruption.methods.consolidation.planning import ConfirmedPlan, Plans, alone
from controller.disruption.methods.consolidation.sequencing import best_as_bound, executable
from controller.disruption.simulation import Group, names_of
from controller.scheduling.results import NewNode

MOST_STEPS, STEP = 10, timedelta(minutes=2)
"""The most steps of a command that is executed in instalments, and the duration of each step."""


def first_within(
    budgets: Budgets, some: Sequence[Plans]
) -> tuple[Plans, ConfirmedPlan, list[Group]]:
    """Return the best plan of which the budgets allow any part now.

    `some` are the sets of plans to choose from. Returns the set that contains the best plan, this
    plan, and the groups to disrupt now. There are no groups if the budgets allow nothing.
    """
    ranked = [(plans, planned) for plans in some for planned in plans.best]
    ranked.sort(key=lambda each: -each[1].gain)
    for plans, planned in ranked:
        approved = best_as_bound(plans.evaluator, _within(plans.evaluator, planned, budgets))
        if approved:
            return plans, planned, approved
    plans, planned = next((each for each in ranked if each[1].groups), ranked[0])
    for stopgap in (_instalment, _next_best):
        approved = stopgap(plans.evaluator, planned, budgets)
        if approved:
            break
    return plans, planned, approved


def _within(evaluator: Evaluator, planned: ConfirmedPlan, budgets: Budgets) -> list[Group]:
    """Return the groups of a plan that the budgets allow now, the best first."""
    going = budgets.admissible(
        candidate
        for group in planned.groups
        for candidate in sorted(group.leaving, key=evaluator.eviction_cost_rank)
    )
    approved = []
    for group in planned.groups:
        if group.names <= going:
            approved.append(group)
        elif group.names & going:
            approved.extend(_part(evaluator, planned, group.names & going))
    approved.sort(key=evaluator.rank)
    return approved if planned.is_proven else executable(evaluator, approved)


def _part(evaluator: Evaluator, planned: ConfirmedPlan, going: frozenset[str]) -> list[Group]:
    """Return the groups that save more than they cost if only these nodes are disrupted."""
    while going:
        result = evaluator.simulation.carried_out(going, planned.destinations)
        good = evaluator.approved_groups(result) if result is not None else []
        left = names_of(good)
        if left == going:
            return good
        going = left
    return []


def _instalment(evaluator: Evaluator, planned: ConfirmedPlan, budgets: Budgets) -> list[Group]:
    """Return the first instalment of the best group that the budgets allow only in part.

    The whole group must save more than it costs although the first new node stays partly empty
    until the other nodes of the group are disrupted.
    """
    settings = evaluator.problem.settings
    if not settings.instalments or planned.is_proven or evaluator.conceded is not None:
        return []
    for whole in [group for group in planned.groups if group.replacements][:ENGINE_TRIES]:
        saved = evaluator.net(whole) * (settings.horizon / HOUR)
        if evaluator.expired() or not best_as_bound(evaluator, [whole]):
            continue
        for new in sorted(whole.replacements, key=lambda new: -new.price):
            first = _first(evaluator, whole, new, planned.destinations, budgets)
            if first is None:
                continue
            steps = math.ceil(len(whole.leaving) / len(first.leaving))
            if steps <= MOST_STEPS and new.price * steps * (STEP / HOUR) < saved:
                return [first]
    return []


def _first(
    evaluator: Evaluator,
    whole: Group,
    new: NewNode,
    destinations: Mapping[str, str],
    budgets: Budgets,
) -> Group | None:
    """Return the instalment with one new node and as many of a group's nodes as the budgets allow.

    None if there is no such instalment.
    """
    pods = frozenset(new.pods)

    # Nodes whose pods all move to this new node, or to existing nodes, are disrupted first.
    def pods_elsewhere(candidate: Candidate) -> int:
        return sum(pod.key not in destinations and pod.key not in pods for pod in candidate.moving)

    sharing = [one for one in whole.leaving if any(pod.key in pods for pod in one.moving)]
    sharing.sort(key=lambda one: (pods_elsewhere(one), *evaluator.eviction_cost_rank(one)))
    going = budgets.copy().admit(sharing)
    if len(going) == len(sharing):
        return None  # this is the whole group, not an instalment
    problem = evaluator.problem
    pool, types = problem.node_pools[new.node_pool], problem.snapshot.instance_types
    replacement = launched_node("replacement", new, pool, types[new.node_pool], problem.now)
    while going:
        result = evaluator.simulation.moved_to_one(
            replacement, {one.name for one in going}, destinations
        )
        if result is not None:
            moves = dict(result.results.existing_nodes)
            mine = replace(new, pods=moves.pop(replacement.name, ()))
            return Group(leaving=result.leaving, replacements=(mine,), moves=moves, whole=whole)
        going.pop()
    return None


def _next_best(evaluator: Evaluator, planned: ConfirmedPlan, budgets: Budgets) -> list[Group]:
    """Return, as a group, a node of the plan whose disruption alone saves more than it costs.

    It is used if the budgets allow no part of the plan.
    """
    candidates = evaluator.candidates
    some = (name for name in planned.names if budgets.admissible([candidates[name]]))
    return list(alone(evaluator, some).groups)
