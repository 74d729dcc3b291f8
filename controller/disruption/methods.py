"""The methods of disruption in the order in which they are tried: the first that finds
something to do ends the look.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from controller.disruption import candidates, consolidation, drift, emptiness
from controller.disruption.budgets import budgets_of
from controller.disruption.commands import Command, Confirmation, Decision, Reason
from controller.disruption.problem import DisruptionProblem
from controller.disruption.simulation import Simulation
from controller.scheduling.scheduler import never


def decide(problem: DisruptionProblem, *, expired: Callable[[], bool] = never) -> Decision:
    """Return the commands of the first method that has any: emptiness, drift (of pools of fixed
    size, then of others), consolidation.
    """
    found = candidates.found(problem)
    blocked = dict(found.blocked)
    # Empty nodes need no thought: they are gone before anybody asks the engine.
    idle = [one for one in found.admitted if emptiness.should_disrupt(one)]
    empty = emptiness.commands(idle, budgets=budgets_of(problem, Reason.EMPTY))
    busy = [one for one in found.admitted if not emptiness.should_disrupt(one)]
    forced = candidates.found(problem, eventual=True).admitted
    decision = Decision(
        blocked=blocked,
        eligible={
            Reason.EMPTY: len(idle),
            Reason.DRIFTED: sum(map(drift.has_drifted, forced)),
            Reason.UNDERUTILIZED: sum(consolidation.obstacle(one) is None for one in busy),
        },
    )
    if empty:
        return replace(decision, commands=tuple(_told(one) for one in empty))
    drifting = drift.replicated(problem, forced, budgets=budgets_of(problem, Reason.DRIFTED))
    blocked |= drifting.blocked
    if drifting.commands:
        return replace(decision, commands=drifting.commands)
    simulation = Simulation(problem, forced, expired=expired)
    moving = drift.propose(
        forced,
        simulation=simulation,
        budgets=budgets_of(problem, Reason.DRIFTED),
        expired=expired,
    )
    blocked |= moving.blocked
    if moving.commands:
        return replace(decision, commands=moving.commands)
    proposal = consolidation.propose(
        problem,
        busy,
        simulation=simulation,
        budgets=budgets_of(problem, Reason.UNDERUTILIZED),
        expired=expired,
    )
    return replace(
        decision,
        commands=tuple(proposal.commands),
        blocked={**proposal.blocked, **blocked},
        held_back=drifting.held_back | moving.held_back | proposal.held_back,
    )


def confirm(
    problem: DisruptionProblem,
    decision: Decision,
    *,
    expired: Callable[[], bool] = never,
) -> Confirmation:
    """Return which commands of a decision to consolidate stand in the cluster as it is now.

    All nodes must still be candidates, within the budgets, and what would replace them must be
    as many nodes, of the types that were chosen.
    """
    found = candidates.found(problem)
    busy = [one for one in found.admitted if not emptiness.should_disrupt(one)]
    confirmed, rejected = consolidation.confirmed(
        problem,
        busy,
        decision.commands,
        simulation=Simulation(problem, busy, expired=expired),
        budgets=budgets_of(problem, Reason.UNDERUTILIZED),
        held_back=decision.held_back,
        expired=expired,
    )
    return Confirmation(
        tuple(confirmed),
        {name: found.blocked.get(name, why) for name, why in rejected.items()},
    )


def _told(command: Command) -> Command:
    names = ", ".join(one.name for one in command.candidates[:3])
    more = ", …" if len(command.candidates) > 3 else ""
    return replace(
        command,
        saving=sum(one.price for one in command.candidates),
        why=f"{len(command.candidates)} nodes are empty: {names}{more}",
    )
