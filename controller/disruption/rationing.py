"""What goes now of a plan, as far as budgets let it.

Groups go whole; of one of which budgets let only some nodes go, what is worth it still. Where
nothing is left of any plan so, an instalment of its best group goes, or one node alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

from controller.disruption.applying import launched
from controller.disruption.budgets import Budgets
from controller.disruption.commands import Candidate
from controller.disruption.costs import HOUR
from controller.disruption.planning import ConfirmedPlan, Plans, alone
from controller.disruption.replacements import affordable
from controller.disruption.sequencing import as_bound, taken_in
from controller.disruption.simulation import Group, names_of
from controller.disruption.weighing import ENGINE_TRIES, Weighing
from controller.scheduling.results import NewNode

MOST_STEPS, STEP = 10, timedelta(minutes=2)
"""Of how many steps nodes may go that have to go one after the other, and how long each takes."""


def first_within(
    budgets: Budgets, some: Sequence[Plans]
) -> tuple[Plans, ConfirmedPlan, list[Group]]:
    """Return among which the best plan is of which budgets let any part go now, that plan, and
    what goes.
    """
    ranked = [(plans, planned) for plans in some for planned in plans.best]
    ranked.sort(key=lambda each: -each[1].gain)
    for plans, planned in ranked:
        approved = as_bound(plans.weighing, _within(plans.weighing, planned, budgets))
        if approved:
            return plans, planned, approved
    plans, planned = next((each for each in ranked if each[1].groups), ranked[0])
    for stopgap in (_instalment, _next_best):
        approved = stopgap(plans.weighing, planned, budgets)
        if approved:
            break
    return plans, planned, approved


def _within(weighing: Weighing, planned: ConfirmedPlan, budgets: Budgets) -> list[Group]:
    """Return the groups of a plan that go now, the best first, as far as budgets let them."""
    going = budgets.admissible(
        candidate
        for group in planned.groups
        for candidate in sorted(group.leaving, key=weighing.dearness)
    )
    approved = []
    for group in planned.groups:
        if group.names <= going:
            approved.append(group)
        elif group.names & going:
            approved.extend(_part(weighing, planned, group.names & going))
    approved.sort(key=weighing.rank)
    return approved if planned.is_proven else taken_in(weighing, approved)


def _part(weighing: Weighing, planned: ConfirmedPlan, going: frozenset[str]) -> list[Group]:
    """Return what is worth it still when of a group only these nodes go."""
    while going:
        departure = weighing.simulation.carried_out(going, planned.homes)
        good = weighing.approved(departure) if departure is not None else []
        left = names_of(good)
        if left == going:
            return good
        going = left
    return []


def _instalment(weighing: Weighing, planned: ConfirmedPlan, budgets: Budgets) -> list[Group]:
    """Return the first step towards the best group of a plan that budgets let go in part only,
    if the whole pays though one of its new nodes stands half empty until the others have
    followed.
    """
    settings = weighing.problem.settings
    if not settings.instalments or planned.is_proven or weighing.conceded is not None:
        return []
    for whole in [group for group in planned.groups if group.replacements][:ENGINE_TRIES]:
        saved = weighing.net(whole) * (settings.horizon / HOUR)
        if weighing.expired() or not as_bound(weighing, [whole]):
            continue
        heirs = affordable(whole, weighing.problem) or ()
        for new in sorted(heirs, key=lambda new: -new.price):
            first = _first(weighing, whole, new, planned.homes, budgets)
            if first is None:
                continue
            steps = math.ceil(len(whole.leaving) / len(first.leaving))
            if steps <= MOST_STEPS and new.price * steps * (STEP / HOUR) < saved:
                return [first]
    return []


def _first(
    weighing: Weighing, whole: Group, new: NewNode, homes: Mapping[str, str], budgets: Budgets
) -> Group | None:
    """Return how as many of a group's nodes go as budgets let, for one of its new nodes."""
    pods = frozenset(new.pods)

    def strangers(candidate: Candidate) -> int:
        return sum(pod.key not in homes and pod.key not in pods for pod in candidate.moving)

    sharing = [one for one in whole.leaving if any(pod.key in pods for pod in one.moving)]
    sharing.sort(key=lambda one: (strangers(one), *weighing.dearness(one)))
    going = budgets.copy().admit(sharing)
    if len(going) == len(sharing):
        return None  # nobody would follow
    problem = weighing.problem
    pool, types = problem.node_pools[new.node_pool], problem.snapshot.instance_types
    heir = launched("heir", new, pool, types[new.node_pool], problem.now)
    while going:
        departure = weighing.simulation.taken_in(heir, {one.name for one in going}, homes)
        if departure is not None:
            moves = dict(departure.results.existing_nodes)
            mine = replace(new, pods=moves.pop(heir.name, ()))
            return Group(leaving=departure.leaving, replacements=(mine,), moves=moves, whole=whole)
        going.pop()
    return None


def _next_best(weighing: Weighing, planned: ConfirmedPlan, budgets: Budgets) -> list[Group]:
    """Return what goes of a plan of which budgets let no part go as planned: the first of its
    nodes that is worth it alone.
    """
    candidates = weighing.candidates
    some = (name for name in planned.names if budgets.admissible([candidates[name]]))
    return list(alone(weighing, some).groups)
