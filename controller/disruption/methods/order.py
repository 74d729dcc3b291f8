"""The disruption methods, in the order in which they are tried.

The first method that has a command ends the evaluation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from controller.disruption.commands import Command, Confirmation, Decision, Reason
from controller.disruption.methods.bounds import lower_bound
from controller.disruption.methods.consolidation.gangs import GangConsolidation
from controller.disruption.methods.consolidation.method import Consolidation
from controller.disruption.methods.drift import Drift
from controller.disruption.methods.emptiness import Emptiness
from controller.disruption.methods.method import Context, Method
from controller.disruption.methods.repair import Repair
from controller.disruption.methods.staticdrift import StaticDrift
from controller.disruption.problem import DisruptionProblem
from controller.scheduling.catalog.offerings import Catalog
from controller.scheduling.pods.classes import PodSignatures
from controller.scheduling.scheduler import never

METHODS: tuple[Method, ...] = (
    Repair(),
    Emptiness(),
    StaticDrift(),
    Drift(),
    Consolidation(),
    GangConsolidation(),
)


def decide(
    problem: DisruptionProblem,
    *,
    expired: Callable[[], bool] = never,
    signatures: PodSignatures | None = None,
    catalog: Catalog | None = None,
) -> Decision:
    """Return the commands of the first method that proposes any, and why other nodes stay.

    If several methods cannot disrupt a node, the reason is that of the first of them. `signatures`
    caches data about pods between evaluations. `catalog` is that of the problem's snapshot, if the
    caller keeps it.
    """
    context = Context(problem, expired, signatures, catalog)
    blocked: dict[str, str] = {}
    decision = Decision(eligible=_eligible(context))
    for method in METHODS:
        proposal = method.propose(context)
        blocked = {**proposal.blocked, **blocked}
        decision = replace(
            decision,
            commands=tuple(proposal.commands),
            held_back=decision.held_back | proposal.held_back,
            verdicts=(*decision.verdicts, *proposal.verdicts),
        )
        if decision.commands:
            break
    leaving = {name for command in decision.commands for name in command.names}
    reasons = {**context.survey.blocked, **blocked}
    return replace(
        decision,
        blocked={name: why for name, why in reasons.items() if name not in leaving},
        timed_out=method.reason is Reason.UNDERUTILIZED and expired(),
        lower_bound=_bound(decision, context),
    )


def _eligible(context: Context) -> dict[Reason, int]:
    """Return how many candidates may be disrupted for each reason."""
    counts = dict.fromkeys(Reason, 0)
    for method in METHODS:
        counts[method.reason] += len(method.eligible(context))
    return counts


def _bound(decision: Decision, context: Context) -> float | None:
    if not context.problem.with_bound or decision.commands or context.expired():
        return None
    return lower_bound(context.problem, expired=context.expired)


def confirm(
    problem: DisruptionProblem,
    decision: Decision,
    *,
    expired: Callable[[], bool] = never,
    signatures: PodSignatures | None = None,
    catalog: Catalog | None = None,
) -> Confirmation:
    """Return the commands of a decision that are still valid in the cluster as it is now.

    All nodes must still be candidates of the same method, within the budgets. `signatures` and
    `catalog` are those of `decide`.
    """
    context = Context(problem, expired, signatures, catalog)
    valid: list[Command] = []
    rejected: dict[str, str] = {}
    for method in METHODS:
        if mine := [command for command in decision.commands if method.owns(command)]:
            confirmation = method.validate(context, mine)
            valid += confirmation.commands
            rejected |= confirmation.rejected
    blocked = context.survey.blocked
    return Confirmation(
        tuple(valid), {name: blocked.get(name, why) for name, why in rejected.items()}
    )
