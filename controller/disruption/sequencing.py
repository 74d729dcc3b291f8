"""Which groups of a plan can be carried out one after the other.

A plan is made step by step, and keeps spreads and affinities at each: what leaves later, or is held
back, may have been what a pod before it was level with, or near. And kube-scheduler, which brings
the pods, knows of no plan: what it leaves over costs new nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from controller.disruption.kubescheduler import cost_of_left_over
from controller.disruption.plan import Plan
from controller.disruption.simulation import NOBODY, Group, homes_of, joined, names_of
from controller.disruption.weighing import ENGINE_TRIES, MANY_NODES, NEGLIGIBLE, Weighing


def taken_in(weighing: Weighing, approved: Sequence[Group]) -> list[Group]:
    """Return the groups whose pods the nodes that stay take in, one after the other: while the
    others still run where they are, and when all are on their way at once.

    Groups that keep spreads and affinities only together become one. Room is there for every
    part of a plan.
    """
    left = list(approved)
    if weighing.model is None or not any(weighing.model.rules):
        return left
    while True:
        there = list(_bought_together(weighing, left))
        for empty in (names_of(there), NOBODY):
            plan = weighing.emptied(empty)
            if plan is None:
                return left
            there = list(_in_turn(weighing, plan, there))
        if names_of(there) == names_of(left):
            return there
        left = there


def _bought_together(weighing: Weighing, approved: Sequence[Group]) -> Sequence[Group]:
    """Return groups as they are when no others go: where pods on new nodes mind who is where, those
    are bought anew.
    """
    simulation = weighing.simulation
    bought = {key for group in approved for new in group.replacements for key in new.pods}
    if not simulation.mind_others(names_of(approved), bought):
        return approved
    homes = {key: node for group in approved for key, node in homes_of(group.moves).items()}
    departure = simulation.carried_out(names_of(approved), homes)
    return weighing.approved(departure) if departure is not None else []


def _in_turn(weighing: Weighing, plan: Plan, approved: Sequence[Group]) -> Iterator[Group]:
    """Yield groups as a plan takes them in whose nodes become empty, where they are not yet."""
    waiting = list(approved)
    while waiting:
        late = []
        for group in waiting:
            if _goes(plan, group):
                yield group
            else:
                late.append(group)
        if len(late) == len(waiting):
            company = _company(weighing, plan, waiting)
            if company is None:
                return
            if weighing.is_allowed(company) and _goes(plan, company):
                yield company
            late = [group for group in waiting if not group.names <= company.names]
        waiting = late


def _goes(plan: Plan, group: Group) -> bool:
    """Empty a group's nodes, if all its pods find room where they are to go; whether they do."""
    before = plan.mark()
    plan.empty(group.names)
    if plan.bring(group.moves):
        return True
    plan.undo(before)
    return False


def _homeless(plan: Plan, group: Group) -> frozenset[str]:
    """Return the pods of a group, by their keys, that would find no room where they are to go."""
    before = plan.mark()
    plan.empty(group.names)
    homeless = plan.homeless(group.moves)
    plan.undo(before)
    return homeless


def _company(weighing: Weighing, plan: Plan, waiting: Sequence[Group]) -> Group | None:
    """Return some groups that a plan takes in together, though none of them alone, as one: as
    few as can be, and of the best; None where there are none.
    """
    some = list(waiting[:ENGINE_TRIES])
    while homeless := _homeless(plan, joined(some)):
        some = [
            group
            for group in some
            if homeless.isdisjoint(key for keys in group.moves.values() for key in keys)
        ]
    if weighing.expired() or not some:
        return None
    for group in some[::-1]:
        fewer = [other for other in some if other is not group]
        if fewer and not _homeless(plan, joined(fewer)):
            some = fewer
    return joined(some)


def as_bound(weighing: Weighing, approved: Sequence[Group]) -> list[Group]:
    """Return so many of the best groups as save most once kube-scheduler has brought their
    pods where it likes. Where savings alone count, pods go where they are planned.

    That is asked however late it is: halves upon halves are no more than twice the first, and
    a plan that nobody has judged would be made again and again in vain.
    """
    if not weighing.problem.settings.eviction_price or len(weighing.candidates) > MANY_NODES:
        return list(approved)
    best, most = list[Group](), NEGLIGIBLE
    left = list(approved)
    while left:
        saved = sum(map(weighing.net, left))
        if saved <= most:
            break
        over = cost_of_left_over(
            weighing.simulation.placed,
            [weighing.command(group) for group in left],
            catalog=weighing.simulation.catalog,
        )
        if saved - over > most:
            best, most = left, saved - over
        left = taken_in(weighing, left[: len(left) // 2])
    return best
