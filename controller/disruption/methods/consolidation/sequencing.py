"""Which groups of a plan can be disrupted one after the other.

A plan is carried out in steps, and spreads and affinities must hold at each step. A pod that leaves
later, or stays after all, can be the one that an earlier pod was spread against or attracted to.
kube-scheduler places the evicted pods and does not know the plan: pods that it leaves pending cost
new nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from controller.disruption.applying import launched
from controller.disruption.methods.consolidation.evaluation import (
    ENGINE_TRIES,
    MANY_NODES,
    NEGLIGIBLE,
    Evaluator,
)
from controller.disruption.methods.consolidation.kubescheduler import cost_of_left_over
from controller.disruption.methods.consolidation.plan import Plan
from controller.disruption.simulation import NO_NODES, Group, destinations_of, joined, names_of
from controller.scheduling.results import NewNode
from controller.state.nodes import StateNode


def taken_in(evaluator: Evaluator, approved: Sequence[Group]) -> list[Group]:
    """Return the groups whose pods fit on the nodes that stay if the groups leave one by one.

    Each group is checked twice: while the later groups still run on their nodes, and while all
    groups are moving at once. Groups that satisfy spreads and affinities only together are joined
    to one: for example, two groups with new nodes may exchange zones between their pods. Capacity
    is not checked: every part of a plan has it.
    """
    left = list(approved)
    if evaluator.model is None or not any(evaluator.model.rules):
        return left
    while True:
        there = list(_bought_together(evaluator, left))
        new = _new_nodes(evaluator, there)
        for empty in (names_of(there), NO_NODES):
            plan = evaluator.emptied_beside(new, empty)
            if plan is None:
                return left
            there = list(_in_turn(evaluator, plan, there))
        if names_of(there) == names_of(left):
            return there
        left = there


def _bought_together(evaluator: Evaluator, approved: Sequence[Group]) -> Sequence[Group]:
    """Return groups as they are if no other groups leave.

    If pods on new nodes have rules about other pods, the new nodes are bought again.
    """
    simulation = evaluator.simulation
    if not _have_topology_rules(evaluator, approved):
        return approved
    destinations = {
        key: node for group in approved for key, node in destinations_of(group.moves).items()
    }
    result = simulation.carried_out(names_of(approved), destinations)
    return evaluator.approved(result) if result is not None else []


def _have_topology_rules(evaluator: Evaluator, approved: Sequence[Group]) -> bool:
    """Return whether a pod that goes to a new node has a rule about other pods."""
    bought = {key for group in approved for new in group.replacements for key in new.pods}
    return evaluator.simulation.have_topology_rules(names_of(approved), bought)


def _new_nodes(evaluator: Evaluator, approved: Sequence[Group]) -> list[StateNode]:
    """Return the new nodes of groups, empty, if pods on them have rules about other pods."""
    if not _have_topology_rules(evaluator, approved):
        return []
    problem = evaluator.problem
    return [
        launched(
            _name(new),
            new,
            problem.node_pools[new.node_pool],
            problem.snapshot.instance_types[new.node_pool],
            problem.now,
        )
        for group in approved
        for new in group.replacements
    ]


def _name(new: NewNode) -> str:
    """Return a unique name for a new node, from the first pod that it is bought for."""
    return f"for {new.pods[0]}"


def _arrivals(plan: Plan, group: Group) -> dict[str, tuple[str, ...]]:
    """Return the pods of a group by destination, with new nodes if the plan models them.

    Intricate pods on new nodes are left out: the arrays cannot judge them, and the engine has.
    """
    model, arrivals = plan.model, dict(group.moves)
    for new in group.replacements:
        if (name := _name(new)) in model.places:
            arrivals[name] = tuple(
                key for key in new.pods if not model.intricate[model.class_of[key]]
            )
    return arrivals


def _in_turn(evaluator: Evaluator, plan: Plan, approved: Sequence[Group]) -> Iterator[Group]:
    """Yield groups in an order in which the plan can empty the nodes that are not yet empty."""
    waiting = list(approved)
    while waiting:
        late = []
        for group in waiting:
            if _goes(plan, group):
                yield group
            else:
                late.append(group)
        if len(late) == len(waiting):
            company = _company(evaluator, plan, waiting)
            if company is None:
                return
            allowed = evaluator.allowed(company)
            if allowed is not None and _goes(plan, allowed):
                yield allowed
            late = [group for group in waiting if not group.names <= company.names]
        waiting = late


def _goes(plan: Plan, group: Group) -> bool:
    """Empty a group's nodes if all its pods fit on their destinations; return whether they do."""
    before = plan.mark()
    plan.empty(group.names)
    if plan.bring(_arrivals(plan, group)):
        return True
    plan.undo(before)
    return False


def _without_destination(plan: Plan, group: Group) -> frozenset[str]:
    """Return the keys of the pods of a group that cannot go to their destinations."""
    before = plan.mark()
    plan.empty(group.names)
    without_destination = plan.without_destination(_arrivals(plan, group))
    plan.undo(before)
    return without_destination


def _company(evaluator: Evaluator, plan: Plan, waiting: Sequence[Group]) -> Group | None:
    """Return waiting groups that can leave only together, joined to one group, or None.

    The result has as few groups as possible, and prefers the best ones.
    """
    some = list(waiting[:ENGINE_TRIES])
    while without_destination := _without_destination(plan, joined(some)):
        some = [
            group
            for group in some
            if without_destination.isdisjoint(
                key for keys in _arrivals(plan, group).values() for key in keys
            )
        ]
    if evaluator.expired() or not some:
        return None
    for group in some[::-1]:
        fewer = [other for other in some if other is not group]
        if fewer and not _without_destination(plan, joined(fewer)):
            some = fewer
    return joined(some)


def as_bound(evaluator: Evaluator, approved: Sequence[Group]) -> list[Group]:
    """Return the number of best groups that saves most after kube-scheduler has bound their pods.

    If evictions are free (only savings count), and in clusters of more than `MANY_NODES`
    candidates, pods are assumed to go where they are planned. The check ignores the deadline: each
    trial has half the groups of the one before, so all together take at most twice as long as the
    first. A plan without this check would be made again and again in vain.
    """
    if not evaluator.problem.settings.eviction_price or len(evaluator.candidates) > MANY_NODES:
        return list(approved)
    best, most = list[Group](), NEGLIGIBLE
    left = list(approved)
    while left:
        saved = sum(map(evaluator.net, left))
        if saved <= most:
            break
        over = cost_of_left_over(
            evaluator.simulation.placed,
            [evaluator.command(group) for group in left],
            catalog=evaluator.simulation.catalog,
        )
        if saved - over > most:
            best, most = left, saved - over
        left = taken_in(evaluator, left[: len(left) // 2])
    return best
