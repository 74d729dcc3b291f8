"""Validates commands against the cluster as it is now.

The same pods must still fit on the same nodes, and the replacements must be as planned. Then the
groups are evaluated again. No new plan is made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from controller.disruption.commands import Command
from controller.disruption.methods.consolidation.evaluation import Evaluator
from controller.disruption.methods.consolidation.plan import Plan
from controller.disruption.methods.consolidation.replacements import is_like
from controller.disruption.simulation import Group, destinations_of, join_groups, names_of


def still_valid(evaluator: Evaluator, commands: Sequence[Command]) -> dict[frozenset[str], Command]:
    """Return the valid commands, updated, by the names of their nodes.

    A command is valid if it can be executed as planned after the commands before it, and still
    saves more than its evictions cost.
    """
    if evaluator.expired():
        return {}
    destinations = {
        key: node
        for command in commands
        for key, node in destinations_of(command.whole.moves).items()
    }
    same = [command for command in commands if is_unchanged(evaluator, command.whole)]
    plan = evaluator.plan_without({name for command in commands for name in command.whole.names})
    there = [command for command in same if _still_fits(command.whole, plan)]
    names = frozenset(name for command in there for name in command.whole.names)
    result = evaluator.simulation.carried_out(names, destinations) if names else None
    if not there and len(commands) == len(same) == 1:
        # The engine planned a command that the arrays cannot represent: simulate it again.
        there, result = same, evaluator.simulation.without(same[0].whole.names)
        if result is not None and destinations_of(result.results.existing_nodes) != destinations:
            return {}
    if result is None:
        return {}
    group_of = {name: group for group in evaluator.approved_groups(result) for name in group.names}
    fresh = {}
    for command in there:
        group = _group_of_nodes(evaluator, group_of, command.whole.names)
        if group is not None and is_like(command.whole.replacements, group.replacements):
            fresh[command.names] = _update_command(evaluator, command, group)
    return fresh


def invalid_alone(evaluator: Evaluator, commands: Sequence[Command]) -> list[Command]:
    """Return the commands that are invalid even without the others.

    They can be the reason why commands that are valid by themselves are invalid together.
    """
    return [
        command for command in commands if command.names not in still_valid(evaluator, [command])
    ]


def is_unchanged(evaluator: Evaluator, command: Command) -> bool:
    """Return whether the pods on the command's nodes are those of the plan."""
    planned = {key for keys in command.moves.values() for key in keys}
    planned.update(key for new in command.replacements for key in new.pods)
    nodes = (evaluator.candidates[candidate.name] for candidate in command.candidates)
    return planned == {pod.key for node in nodes for pod in node.moving}


def _still_fits(command: Command, plan: Plan | None) -> bool:
    """Return whether the pods that move to existing nodes still fit, and add them to `plan`."""
    return not command.evictions if plan is None else plan.bring(command.moves)


def _group_of_nodes(
    evaluator: Evaluator, group_of: Mapping[str, Group], names: frozenset[str]
) -> Group | None:
    """Return the group of exactly these nodes, joined from several if needed, or None.

    `group_of` maps node names to groups.
    """
    parts = {min(group.names): group for name in names if (group := group_of.get(name)) is not None}
    if names_of(parts.values()) != names:
        return None
    if len(parts) == 1:
        return next(iter(parts.values()))
    return evaluator.allowed_group(join_groups(list(parts.values())))


def _update_command(evaluator: Evaluator, command: Command, group: Group) -> Command:
    """Return the command updated to its group as it is now.

    The group of an instalment is that of the whole command.
    """
    if command.part_of is None:
        return evaluator.command(group)
    now = tuple(evaluator.candidates[candidate.name] for candidate in command.candidates)
    return replace(command, candidates=now, part_of=evaluator.command(group))
