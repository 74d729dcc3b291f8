"""Which commands still stand, as the cluster is now.

What was planned is not planned anew: the same pods must find the room that they were to go to, and
what is bought must be as it was; then the groups are weighed again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from controller.disruption.commands import Command
from controller.disruption.plan import Plan
from controller.disruption.replacements import is_like
from controller.disruption.simulation import Group, homes_of, joined, names_of
from controller.disruption.weighing import Weighing


def standing(weighing: Weighing, commands: Sequence[Command]) -> dict[frozenset[str], Command]:
    """Return those of some commands, by their nodes, that can be carried out as they were
    planned, one after the other, and are still worth it.
    """
    if weighing.expired():
        return {}
    homes = {
        key: node for command in commands for key, node in homes_of(command.whole.moves).items()
    }
    same = [command for command in commands if _is_unchanged(weighing, command.whole)]
    plan = weighing.emptied({name for command in commands for name in command.whole.names})
    there = [command for command in same if _finds_room(command.whole, plan)]
    names = frozenset(name for command in there for name in command.whole.names)
    departure = weighing.simulation.carried_out(names, homes) if names else None
    if not there and len(commands) == len(same) == 1:
        # What the arrays cannot judge the engine has found, and finds again.
        there, departure = same, weighing.simulation.without(same[0].whole.names)
        if departure is not None and homes_of(departure.results.existing_nodes) != homes:
            return {}
    if departure is None:
        return {}
    group_of = {name: group for group in weighing.approved(departure) for name in group.names}
    fresh = {}
    for command in there:
        group = _made_of(weighing, group_of, command.whole.names)
        if group is not None and is_like(command.whole.replacements, group.replacements):
            fresh[command.names] = _afresh(weighing, command, group)
    return fresh


def culprits(weighing: Weighing, commands: Sequence[Command]) -> list[Command]:
    """Return the commands that would not be given even if the others were not: theirs is the
    change that the others may have failed for.
    """
    return [command for command in commands if command.names not in standing(weighing, [command])]


def _is_unchanged(weighing: Weighing, command: Command) -> bool:
    """Whether the pods on its nodes are those that were planned for."""
    planned = {key for keys in command.moves.values() for key in keys}
    planned.update(key for new in command.replacements for key in new.pods)
    nodes = (weighing.candidates[candidate.name] for candidate in command.candidates)
    return planned == {pod.key for node in nodes for pod in node.moving}


def _finds_room(command: Command, plan: Plan | None) -> bool:
    """Whether those that go to nodes that stay still find room there, which they take."""
    return not command.evictions if plan is None else plan.bring(command.moves)


def _made_of(
    weighing: Weighing, group_of: Mapping[str, Group], names: frozenset[str]
) -> Group | None:
    """Return the group of exactly these nodes, or those that make it up as one; None where
    there are none. `group_of` tells of which group a node is, by its name.
    """
    parts = {min(group.names): group for name in names if (group := group_of.get(name)) is not None}
    if names_of(parts.values()) != names:
        return None
    if len(parts) == 1:
        return next(iter(parts.values()))
    whole = joined(list(parts.values()))
    return whole if weighing.is_allowed(whole) else None


def _afresh(weighing: Weighing, command: Command, group: Group) -> Command:
    """Return a command as it would be given now that this is its group, or that of the whole
    it is part of.
    """
    if command.part_of is None:
        return weighing.command(group)
    now = tuple(weighing.candidates[candidate.name] for candidate in command.candidates)
    return replace(command, candidates=now, part_of=weighing.command(group))
