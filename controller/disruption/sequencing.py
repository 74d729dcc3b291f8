"""Which groups of a plan can be carried out one after the other.

A plan is made step by step, and keeps spreads and affinities at each: what leaves later, or is held
back, may have been what a pod before it was level with, or near. And kube-scheduler, which brings
the pods, knows of no plan: what it leaves over costs new nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from controller.disruption.kubescheduler import cost_of_left_over
from controller.disruption.plan import Plan
from controller.disruption.simulation import Group, joined, names_of
from controller.disruption.weighing import ENGINE_TRIES, MANY_NODES, NEGLIGIBLE, Weighing


def taken_in(weighing: Weighing, approved: Sequence[Group]) -> list[Group]:
    """Return the groups whose pods the nodes that stay take in, one after the other.

    Groups that keep spreads and affinities only together become one. Room is there for every
    part of a plan.
    """
    left = list(approved)
    if weighing.model is None or not any(weighing.model.rules):
        return left
    while True:
        plan = weighing.emptied(names_of(left))
        if plan is None:
            return left
        there = list(_in_turn(weighing, plan, left))
        if names_of(there) == names_of(left):
            return there
        left = there


def _in_turn(weighing: Weighing, plan: Plan, approved: Sequence[Group]) -> Iterator[Group]:
    """Yield groups as a plan in which their nodes are empty takes them in."""
    waiting = list(approved)
    while waiting:
        late = []
        for group in waiting:
            if plan.bring(group.moves):
                yield group
            else:
                late.append(group)
        if len(late) == len(waiting):
            company = _company(weighing, plan, waiting)
            if company is None:
                return
            if weighing.is_allowed(company) and plan.bring(company.moves):
                yield company
            late = [group for group in waiting if not group.names <= company.names]
        waiting = late


def _company(weighing: Weighing, plan: Plan, waiting: Sequence[Group]) -> Group | None:
    """Return some groups that a plan takes in together, though none of them alone, as one: as
    few as can be, and of the best; None where there are none.
    """
    some = list(waiting[:ENGINE_TRIES])
    while homeless := plan.homeless(joined(some).moves):
        some = [
            group
            for group in some
            if homeless.isdisjoint(key for keys in group.moves.values() for key in keys)
        ]
    if weighing.expired() or not some:
        return None
    for group in some[::-1]:
        fewer = [other for other in some if other is not group]
        if fewer and not plan.homeless(joined(fewer).moves):
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
