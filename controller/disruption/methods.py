"""The disruption methods, in the order in which they are tried: emptiness, drift, consolidation.

The first method that returns a command ends the evaluation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from controller.disruption import candidates, consolidation, drift, emptiness
from controller.disruption.bounds import lower_bound
from controller.disruption.budgets import FEWER_ALLOWED, budgets_of, consumption, held_back
from controller.disruption.commands import Candidate, Command, Confirmation, Decision, Reason
from controller.disruption.problem import DisruptionProblem
from controller.disruption.rollout import Rollout
from controller.disruption.simulation import Simulation
from controller.scheduling.pods.kinds import PodKinds
from controller.scheduling.scheduler import never


def decide(
    problem: DisruptionProblem,
    *,
    expired: Callable[[], bool] = never,
    kinds: PodKinds | None = None,
) -> Decision:
    """Return the commands of the first method that has any: emptiness, drift (of static NodePools,
    then of others), consolidation. `kinds` caches what earlier evaluations read of the pods.
    """
    survey = candidates.survey(problem)
    consumed = consumption(problem.snapshot.nodes)
    blocked = dict(survey.blocked)
    # Empty nodes have no pods to place: their commands do not need the engine.
    idle = [candidate for candidate in survey.admitted if emptiness.should_disrupt(candidate)]
    empty = emptiness.commands(idle, budgets=budgets_of(problem, Reason.EMPTY, consumed))
    blocked |= {candidate.name: held_back(candidate.pool) for candidate in idle}
    busy = [candidate for candidate in survey.admitted if not emptiness.should_disrupt(candidate)]
    forced = _forced(problem, survey)
    decision = Decision(
        blocked=blocked,
        eligible={
            Reason.EMPTY: len(idle),
            Reason.DRIFTED: sum(map(drift.has_drifted, forced)),
            Reason.UNDERUTILIZED: sum(
                consolidation.obstacle(candidate, problem.now) is None for candidate in busy
            ),
        },
    )
    if empty:
        return _with(decision, empty)
    rollout = Rollout.of(problem)
    drift_budgets = budgets_of(problem, Reason.DRIFTED, consumed)
    drifting = drift.replicated(problem, forced, budgets=drift_budgets.copy(), rollout=rollout)
    blocked |= drifting.blocked
    if drifting.commands:
        return _with(decision, drifting.commands)
    simulation = Simulation(problem, forced, expired=expired, kinds=kinds)
    moving = drift.propose(
        forced,
        simulation=simulation,
        budgets=drift_budgets,
        rollout=rollout,
        resting={
            state.node_pool for state in problem.snapshot.nodes if state.name in problem.resting
        },
        expired=expired,
    )
    blocked |= moving.blocked
    if moving.commands:
        return _with(decision, moving.commands)
    proposal = consolidation.propose(
        problem,
        busy,
        simulation=simulation,
        budgets=budgets_of(problem, Reason.UNDERUTILIZED, consumed),
        expired=expired,
    )
    return replace(
        decision,
        commands=tuple(proposal.commands),
        blocked={**proposal.blocked, **blocked},
        held_back=drifting.held_back | moving.held_back | proposal.held_back,
        verdicts=tuple(proposal.verdicts),
        timed_out=expired(),
        lower_bound=_bound(problem, proposal, expired),
    )


def _with(decision: Decision, commands: Sequence[Command]) -> Decision:
    """Return the decision with these commands, and without reasons for the nodes in them."""
    going = {name for command in commands for name in command.names}
    blocked = {name: why for name, why in decision.blocked.items() if name not in going}
    return replace(decision, commands=tuple(commands), blocked=blocked)


def _bound(
    problem: DisruptionProblem, proposal: consolidation.Proposal, expired: Callable[[], bool]
) -> float | None:
    if not problem.with_bound or proposal.commands or expired():
        return None
    return lower_bound(problem, expired=expired)


def _forced(problem: DisruptionProblem, survey: candidates.Candidates) -> tuple[Candidate, ...]:
    """Return the candidates, including nodes that are blocked only by their pods.

    Those need a termination grace period on the NodeClaim.
    """
    claims = (node.claim for node in problem.snapshot.nodes if node.claim is not None)
    if all(claim.spec.termination_grace_period is None for claim in claims):
        return survey.admitted
    return candidates.survey(problem, eventual=True).admitted


def confirm(
    problem: DisruptionProblem,
    decision: Decision,
    *,
    expired: Callable[[], bool] = never,
    kinds: PodKinds | None = None,
) -> Confirmation:
    """Return the commands of a decision that are still valid in the cluster as it is now.

    All nodes must still be candidates for the same reason, within the budgets. For consolidation,
    the number of replacements must be unchanged, and their instance types must still be allowed.
    `kinds` is the cache that `decide` takes.
    """
    survey = candidates.survey(problem)
    empty = _still_empty(problem, decision, survey.admitted)
    drifted = _still_drifted(problem, decision, expired)
    moved = _still_worthwhile(problem, decision, survey.admitted, expired, kinds)
    rejected = {**empty.rejected, **drifted.rejected, **moved.rejected}
    return Confirmation(
        (*empty.commands, *drifted.commands, *moved.commands),
        {name: survey.blocked.get(name, why) for name, why in rejected.items()},
    )


def _still_empty(
    problem: DisruptionProblem, decision: Decision, admitted: Sequence[Candidate]
) -> Confirmation:
    """Return the commands for empty nodes, reduced to those that are still empty and within
    budgets.
    """
    asked = [command for command in decision.commands if command.reason is Reason.EMPTY]
    if not asked:
        return Confirmation()
    budgets = budgets_of(problem, Reason.EMPTY)
    idle = {
        candidate.name: candidate for candidate in admitted if emptiness.should_disrupt(candidate)
    }
    commands: list[Command] = []
    rejected: dict[str, str] = {}
    for command in asked:
        left = [idle[name] for name in sorted(command.names) if name in idle]
        going = emptiness.going(left, budgets=budgets)
        rejected |= dict.fromkeys(command.names - idle.keys(), "Node is no longer empty")
        late = {candidate.name for candidate in left} - {candidate.name for candidate in going}
        rejected |= dict.fromkeys(late, FEWER_ALLOWED)
        if going:
            commands.append(emptiness.command(going))
    return Confirmation(tuple(commands), rejected)


def _still_drifted(
    problem: DisruptionProblem, decision: Decision, expired: Callable[[], bool]
) -> Confirmation:
    """Return the commands for drifted nodes that are proposed again, one by one."""
    asked = [command for command in decision.commands if command.reason is Reason.DRIFTED]
    if not asked:
        return Confirmation()
    forced = candidates.survey(problem, eventual=True).admitted
    budgets = budgets_of(problem, Reason.DRIFTED)
    simulation = Simulation(problem, forced, expired=expired)
    commands: list[Command] = []
    rejected: dict[str, str] = {}
    for standing in asked:
        mine = [candidate for candidate in forced if candidate.name in standing.names]
        rollout = Rollout.of(problem)  # one for each command: others may be rejected
        drifting = drift.replicated(problem, mine, budgets=budgets, rollout=rollout)
        if not drifting.commands and not drifting.blocked:
            drifting = drift.propose(
                mine, simulation=simulation, budgets=budgets, rollout=rollout, expired=expired
            )
            for command in drifting.commands:
                budgets.admit(command.candidates)
        commands += drifting.commands
        if not drifting.commands:
            rejected |= dict.fromkeys(standing.names, "Node is no longer drifted")
            rejected |= drifting.blocked
    return Confirmation(tuple(commands), rejected)


def _still_worthwhile(
    problem: DisruptionProblem,
    decision: Decision,
    admitted: Sequence[Candidate],
    expired: Callable[[], bool],
    kinds: PodKinds | None,
) -> Confirmation:
    """Return the consolidation commands that are still valid."""
    asked = [command for command in decision.commands if command.reason is Reason.UNDERUTILIZED]
    if not asked:
        return Confirmation()
    busy = [candidate for candidate in admitted if not emptiness.should_disrupt(candidate)]
    confirmed, rejected = consolidation.confirmed(
        problem,
        busy,
        asked,
        simulation=Simulation(problem, busy, expired=expired, kinds=kinds),
        budgets=budgets_of(problem, Reason.UNDERUTILIZED),
        expired=expired,
    )
    return Confirmation(tuple(confirmed), rejected)
