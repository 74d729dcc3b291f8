"""Consolidation of gangs: a gang moves to cheaper nodes as a whole, or not at all.

The scheduling engine decides where the pods of a gang move, because the arrays have no gangs. All
nodes of a unit are removed together, and the saving must exceed the cost of evicting all their
pods: that is the cost of restarting the whole gang.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from controller.apis.wording import with_count
from controller.disruption.budgets import FEWER_ALLOWED
from controller.disruption.commands import Candidate, Command, Confirmation, Reason, Verdict
from controller.disruption.gangs import GangUnit, kept_by_budgets
from controller.disruption.methods.consolidation.balance import LEAST_SCORE
from controller.disruption.methods.consolidation.evaluation import (
    ENGINE_TRIES,
    NEGLIGIBLE,
    Evaluator,
)
from controller.disruption.methods.consolidation.method import (
    LATER,
    NOMINATED_FOR_PENDING,
    NOT_EVALUATED,
    ONE_BY_ONE,
    obstacle,
)
from controller.disruption.methods.consolidation.replacements import is_like
from controller.disruption.methods.consolidation.sequencing import best_as_bound
from controller.disruption.methods.consolidation.staying import NOT_CHEAPER_FOR_SURE, NOWHERE
from controller.disruption.methods.consolidation.validation import is_unchanged
from controller.disruption.methods.method import Context, Proposal
from controller.disruption.simulation import Group, destinations_of, groups, join_groups

UNBALANCED = (
    "Rejected by the Balanced policy: the share of the NodePool's cost that it saves is too small "
    f"for the share of the NodePool's disruption cost (ratio below {LEAST_SCORE})"
)

CHANGED = "The gang's pods or nodes changed since the command was computed"


@dataclass(frozen=True, slots=True)
class _Members:
    """A unit with its nodes as candidates."""

    unit: GangUnit
    nodes: tuple[Candidate, ...]

    @property
    def price(self) -> float:
        return sum(node.price for node in self.nodes)


class GangConsolidation:
    """Replaces or removes all nodes of a gang if that saves more than restarting the gang costs.

    Joiner tries it after `Consolidation`. It disrupts one unit at a time.
    """

    reason = Reason.UNDERUTILIZED

    def eligible(self, context: Context) -> list[Candidate]:
        """Return the nodes of the units that may be disrupted, whatever budgets allow."""
        now = context.problem.now
        return [
            node
            for one in _units(context)
            if all(obstacle(member, now) is None for member in one.nodes)
            for node in one.nodes
        ]

    def propose(self, context: Context) -> Proposal:
        """Return the command for the best unit that pays and that the budgets allow."""
        every = _units(context)
        if not every:
            return Proposal()
        evaluator = _evaluator(context, every)
        budgets = context.budgets(self.reason)
        blocked: dict[str, str] = {}
        kept: set[str] = set()
        verdicts: list[Verdict] = []
        commands: list[Command] = []
        tried = 0
        for one in sorted(every, key=lambda each: _rank(evaluator, each)):
            why_not = _obstacles(context, one) or _too_costly(evaluator, one)
            if why_not:
                blocked |= why_not
                continue
            if commands or tried == ENGINE_TRIES or (tried and context.expired()):
                blocked |= dict.fromkeys(one.unit.nodes, LATER if commands else NOT_EVALUATED)
                continue
            tried += 1
            group = _evaluate_unit(evaluator, one, verdicts)
            if isinstance(group, str):
                blocked |= dict.fromkeys(one.unit.nodes, group)
            elif (short := kept_by_budgets(one.nodes, one.unit, budgets)) is not None:
                blocked |= dict.fromkeys(one.unit.nodes, short)
                kept.update(one.unit.nodes)
            else:
                commands.append(_command(evaluator, one.unit, group))
        return Proposal(commands, blocked, frozenset(kept), verdicts)

    def owns(self, command: Command) -> bool:
        """Whether this method validates the command."""
        return command.reason is self.reason and bool(command.gangs)

    def validate(self, context: Context, commands: Sequence[Command]) -> Confirmation:
        """Return the first command whose pods still go where they were planned to."""
        every = {frozenset(one.unit.nodes): one for one in _units(context)}
        evaluator = _evaluator(context, every.values()) if every else None
        budgets = context.budgets(self.reason)
        valid: list[Command] = []
        rejected: dict[str, str] = {}
        for command in commands:
            one = every.get(command.names)
            if valid:
                rejected |= dict.fromkeys(command.names, LATER)
            elif one is None or evaluator is None or not is_unchanged(evaluator, command):
                rejected |= dict.fromkeys(command.names, CHANGED)
            elif kept_by_budgets(one.nodes, one.unit, budgets) is not None:
                rejected |= dict.fromkeys(command.names, FEWER_ALLOWED)
            else:
                again = _decided_again(context, evaluator, one, command)
                if isinstance(again, str):
                    rejected |= dict.fromkeys(command.names, again)
                else:
                    valid.append(again)
        return Confirmation(tuple(valid), rejected)


def _decided_again(
    context: Context, evaluator: Evaluator, one: _Members, command: Command
) -> Command | str:
    """Return the command as it is decided now, or why it is no longer valid."""
    if why_not := _obstacles(context, one):
        return min(why_not.values())
    group = _evaluate_unit(evaluator, one, [])
    if isinstance(group, str):
        return group
    return _command(evaluator, one.unit, group) if _is_as_planned(command, group) else CHANGED


def _units(context: Context) -> list[_Members]:
    """Return the units of which all nodes are candidates."""
    admitted = {node.name: node for node in context.survey.admitted}
    every = {unit.nodes: unit for unit in context.units.values()}
    return [
        _Members(unit, tuple(admitted[name] for name in unit.nodes))
        for unit in every.values()
        if admitted.keys() >= set(unit.nodes)
    ]


def _evaluator(context: Context, every: Iterable[_Members]) -> Evaluator:
    nodes = [node for one in every for node in one.nodes]
    return Evaluator.by_engine(context.problem, nodes, context.simulation)


def _rank(evaluator: Evaluator, one: _Members) -> tuple[float, tuple[str, ...]]:
    """Return the sort key of units: the largest price per eviction first, then names."""
    moved = sum(evaluator.disturbance[name] for name in one.unit.nodes)
    return -one.price / (1.0 + moved), one.unit.nodes


def _obstacles(context: Context, one: _Members) -> dict[str, str]:
    """Return why a unit cannot be consolidated now, by node name; empty if it can."""
    simulation, now = context.simulation, context.problem.now
    found = {
        node.name: why
        for node in one.nodes
        if (
            why := NOMINATED_FOR_PENDING
            if node.name in simulation.promised
            else obstacle(node, now)
        )
    }
    if not found:
        return {}
    first = min(found)
    others = dict.fromkeys(one.unit.nodes, one.unit.elsewhere(first, found[first]))
    return {**others, **found}


def _too_costly(evaluator: Evaluator, one: _Members) -> dict[str, str]:
    """Return, by node name, that the evictions cost more than the whole unit; empty otherwise."""
    if one.price > _cost(evaluator, one):
        return {}
    return dict.fromkeys(one.unit.nodes, _does_not_pay(evaluator, one, one.price))


def _cost(evaluator: Evaluator, one: _Members) -> float:
    """Return the cost of evicting all pods of a unit's nodes, in $/h while a saving lasts."""
    return sum(evaluator.costs[name] for name in one.unit.nodes)


def _does_not_pay(evaluator: Evaluator, one: _Members, saving: float) -> str:
    pods = with_count(sum(len(node.moving) for node in one.nodes), "pod")
    return (
        f"The saving of {saving:.4f} $/h is less than the cost of evicting {pods}, all of "
        f"{one.unit.named} among them, {_cost(evaluator, one):.4f} $/h while the saving lasts"
    )


def _evaluate_unit(evaluator: Evaluator, one: _Members, verdicts: list[Verdict]) -> Group | str:
    """Return the unit as a group with its replacements, or why it does not pay.

    Adds the verdicts of the consolidation policies to `verdicts`.
    """
    result = evaluator.simulation.without(one.unit.nodes)
    if result is None:
        return NOWHERE
    whole = join_groups(groups(result))
    if whole.saving <= NEGLIGIBLE:
        return (
            f"Can't replace with cheaper nodes: {with_count(len(one.nodes), 'node')} of "
            f"{one.unit.named} {'costs' if one.unit.is_alone else 'cost'} {whole.price:.4f} $/h, "
            f"capacity elsewhere costs {whole.cost:.4f} $/h"
        )
    verdicts += evaluator.balance.verdicts(whole)
    allowed = evaluator.allowed_group(whole)
    if allowed is None:
        rejected = not evaluator.balance.approves(whole)
        return UNBALANCED if rejected else NOT_CHEAPER_FOR_SURE
    if evaluator.net(allowed) <= NEGLIGIBLE:
        return _does_not_pay(evaluator, one, allowed.saving)
    return allowed if best_as_bound(evaluator, [allowed]) else ONE_BY_ONE


def _command(evaluator: Evaluator, unit: GangUnit, group: Group) -> Command:
    command = evaluator.command(group)
    return replace(command, why=f"{command.why}; {unit.named} as a whole", gangs=unit.gangs)


def _is_as_planned(command: Command, group: Group) -> bool:
    """Return whether the pods still go to the same existing nodes and to like replacements."""
    return destinations_of(command.moves) == destinations_of(group.moves) and is_like(
        command.replacements, group.replacements
    )
