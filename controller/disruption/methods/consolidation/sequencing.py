"""Which groups of a plan can be disrupted one after the other.

A plan is carried out in steps, and topology spread and affinities must hold at each step. They may
depend on a pod that leaves later, or that stays after all. kube-scheduler places the evicted pods
and does not know the plan: pods that it cannot schedule cost new nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from controller.disruption.applying import launched_node
from controller.disruption.methods.consolidation.evaluation import (
    ENGINE_TRIES,
    MANY_NODES,
    NEGLIGIBLE,
    Evaluator,
)
from controller.disruption.methods.consolidation.kubescheduler import cost_of_left_over
from controller.disruption.methods.consolidation.plan import Plan
from controller.disruption.simulation import NO_NODES, Group, destinations_of, join_groups, names_of
from controller.scheduling.results import NewNode
from controller.state.nodes import StateNode


def executable(evaluator: Evaluator, approved: Sequence[Group]) -> list[Group]:
    """Return the groups whose pods fit on the nodes that stay if the groups leave one by one.

    Each group is checked twice: while the later groups still run on their nodes, and while all
    groups move at once. Groups that satisfy spreads and affinities only together are joined into
    one, for example if the pods of two groups swap zones. Capacity is not checked, because every
    part of a plan has it.
    """
    left = list(approved)
    if evaluator.model is None or not any(evaluator.model.rules):
        return left
    while True:
        there = list(_bought_together(evaluator, left))
        new = _new_nodes(evaluator, there)
        for empty in (names_of(there), NO_NODES):
            plan = evaluator.plan_with_new_nodes(new, empty)
            if plan is None:
                return left
            there = list(_one_by_one(evaluator, plan, there))
        if names_of(there) == names_of(left):
            return there
        left = there


def _bought_together(evaluator: Evaluator, approved: Sequence[Group]) -> Sequence[Group]:
    """Return the groups as they are if no other nodes of the plan are removed.

    If pods on new nodes have topology rules, the new nodes are planned again.
    """
    simulation = evaluator.simulation
    if not _have_topology_rules(evaluator, approved):
        return approved
    destinations = {
        key: node for group in approved for key, node in destinations_of(group.moves).items()
    }
    result = simulation.carried_out(names_of(approved), destinations)
    return evaluator.approved_groups(result) if result is not None else []


def _have_topology_rules(evaluator: Evaluator, approved: Sequence[Group]) -> bool:
    """Return whether a pod that moves to a new node has a topology rule."""
    bought = {key for group in approved for new in group.replacements for key in new.pods}
    return evaluator.simulation.have_topology_rules(names_of(approved), bought)


def _new_nodes(evaluator: Evaluator, approved: Sequence[Group]) -> list[StateNode]:
    """Return the groups' new nodes, without pods; none if their pods have no topology rules."""
    if not _have_topology_rules(evaluator, approved):
        return []
    problem = evaluator.problem
    return [
        launched_node(
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


def _pods_by_destination(plan: Plan, group: Group) -> dict[str, tuple[str, ...]]:
    """Return the keys of a group's pods by destination, with new nodes if the plan has them.

    Pods of intricate classes on new nodes are left out: the engine has placed them already.
    """
    model, pods = plan.model, dict(group.moves)
    for new in group.replacements:
        if (name := _name(new)) in model.index_of:
            pods[name] = tuple(key for key in new.pods if not model.intricate[model.class_of[key]])
    return pods


def _one_by_one(evaluator: Evaluator, plan: Plan, approved: Sequence[Group]) -> Iterator[Group]:
    """Yield groups in an order in which the plan can empty the nodes that are not yet empty."""
    waiting = list(approved)
    while waiting:
        late = []
        for group in waiting:
            if _try_to_empty(plan, group):
                yield group
            else:
                late.append(group)
        if len(late) == len(waiting):
            together = _only_together(evaluator, plan, waiting)
            if together is None:
                return
            allowed = evaluator.allowed_group(together)
            if allowed is not None and _try_to_empty(plan, allowed):
                yield allowed
            late = [group for group in waiting if not group.names <= together.names]
        waiting = late


def _try_to_empty(plan: Plan, group: Group) -> bool:
    """Remove a group's nodes if all its pods fit on their destinations; return whether they do."""
    before = plan.mark()
    plan.empty(group.names)
    if plan.bring(_pods_by_destination(plan, group)):
        return True
    plan.undo(before)
    return False


def _without_destination(plan: Plan, group: Group) -> frozenset[str]:
    """Return the keys of the pods of a group that do not fit on their destinations."""
    before = plan.mark()
    plan.empty(group.names)
    without_destination = plan.without_destination(_pods_by_destination(plan, group))
    plan.undo(before)
    return without_destination


def _only_together(evaluator: Evaluator, plan: Plan, waiting: Sequence[Group]) -> Group | None:
    """Return groups that can only be removed together, joined into one group, or None.

    The result has as few groups as possible, and prefers the best ones.
    """
    some = list(waiting[:ENGINE_TRIES])
    while without_destination := _without_destination(plan, join_groups(some)):
        some = [
            group
            for group in some
            if without_destination.isdisjoint(
                key for keys in _pods_by_destination(plan, group).values() for key in keys
            )
        ]
    if evaluator.expired() or not some:
        return None
    for group in some[::-1]:
        fewer = [other for other in some if other is not group]
        if fewer and not _without_destination(plan, join_groups(fewer)):
            some = fewer
    return join_groups(some)


def best_as_bound(evaluator: Evaluator, approved: Sequence[Group]) -> list[Group]:
    """Return the first groups, as many as save most once kube-scheduler has bound their pods.

    All groups are tried, then their first half, and so on, so all trials together take at most
    twice as long as the first. The check ignores the time limit, because without the check each
    evaluation would repeat a plan that saves nothing. If evictions are free, and in clusters
    of more than `MANY_NODES` candidates, pods are assumed to be bound as planned.
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
        left = executable(evaluator, left[: len(left) // 2])
    return best
