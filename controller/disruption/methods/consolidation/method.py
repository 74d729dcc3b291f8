"""The disruption method of consolidation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from controller.apis.karpenter.nodeclaim import CONSOLIDATABLE
from controller.apis.karpenter.nodepool import WHEN_EMPTY
from controller.apis.kubernetes import conditions
from controller.apis.wording import first_three
from controller.disruption.budgets import FEWER_ALLOWED, Budgets
from controller.disruption.commands import Candidate, Command, Confirmation, Reason
from controller.disruption.methods.consolidation.budgeting import first_within
from controller.disruption.methods.consolidation.evaluation import Evaluator
from controller.disruption.methods.consolidation.planning import Plans
from controller.disruption.methods.consolidation.preferenceprices import preference_prices
from controller.disruption.methods.consolidation.staying import Staying
from controller.disruption.methods.consolidation.validation import invalid_alone, still_valid
from controller.disruption.methods.emptiness import is_consolidated, should_disrupt
from controller.disruption.methods.method import Context, Proposal
from controller.disruption.pods import is_soon_gone
from controller.disruption.problem import DisruptionProblem
from controller.disruption.simulation import Simulation, names_of
from controller.scheduling.scheduler import never

NOMINATED_FOR_PENDING = "Pending pods will be scheduled to this node"

PRICE_UNKNOWN = (
    "The price of this node is unknown: its EC2NodeClass is missing or not ready, or EC2 no longer "
    "offers the instance type in this zone and capacity type"
)

TERMINATING_PODS = "Pods on this node are terminating; waiting for their capacity to be released"

LATER = "Other nodes are disrupted first; this node is evaluated again afterwards"

ONE_BY_ONE = (
    "kube-scheduler binds pods one by one and might not place all of them as planned: nodes for "
    "the remaining pods would cost more than the command saves"
)

NOT_EVALUATED = "The time limit was reached before this node was evaluated"


class Consolidation:
    """Removes nodes that are not needed, and replaces any set of nodes with any cheaper set."""

    reason = Reason.UNDERUTILIZED

    def eligible(self, context: Context) -> list[Candidate]:
        """Return the candidates that consolidation may disrupt, whatever budgets allow."""
        return [node for node in _not_empty(context) if obstacle(node, context.problem.now) is None]

    def propose(self, context: Context) -> Proposal:
        """Return the commands that the budgets allow now."""
        return _propose(
            context.problem,
            _not_empty(context),
            simulation=context.simulation,
            budgets=context.budgets(self.reason),
            expired=context.expired,
        )

    def owns(self, command: Command) -> bool:
        """Whether this method validates the command."""
        return command.reason is self.reason and not command.gangs

    def validate(self, context: Context, commands: Sequence[Command]) -> Confirmation:
        """Return the commands that are still valid, updated to the cluster as it is now.

        The number of replacements must be unchanged, and their instance types must still be
        allowed. The commands are executed together, so they are validated together: every pod must
        still fit on its planned node.
        """
        busy = _not_empty(context)
        valid, rejected = _validate(
            context.problem,
            busy,
            commands,
            simulation=context.simulate(busy),
            budgets=context.budgets(self.reason),
            expired=context.expired,
        )
        return Confirmation(tuple(valid), rejected)


def _not_empty(context: Context) -> list[Candidate]:
    """Return the candidates that are not empty and run no pods of gangs."""
    return [
        node
        for node in context.survey.admitted
        if not should_disrupt(node) and node.name not in context.units
    ]


def obstacle(candidate: Candidate, now: datetime) -> str | None:
    """Return why a node cannot be consolidated now, or None if it can."""
    disruption = candidate.node_pool.spec.disruption
    if candidate.node_pool.spec.replicas is not None:
        return f"NodePool {candidate.pool} is static: its nodes are not consolidated"
    if not candidate.price:
        return PRICE_UNKNOWN
    if not is_consolidated(candidate.node_pool):
        return f'NodePool "{candidate.pool}" has consolidation disabled'
    if disruption.consolidation_policy == WHEN_EMPTY:
        return f'NodePool "{candidate.pool}" has non-empty consolidation disabled'
    if candidate.anchored:
        return f'Pod "{candidate.anchored}" uses a volume on the local disk of this node'
    if not conditions.is_true(candidate.claim.status.conditions, CONSOLIDATABLE):
        return f"Becomes consolidatable after {disruption.consolidate_after} without pod changes"
    if any(is_soon_gone(pod, now) for pod in candidate.pods):
        # Before these pods end, a replacement would need capacity for them, too.
        return TERMINATING_PODS
    return None


def _propose(
    problem: DisruptionProblem,
    candidates: Sequence[Candidate],
    *,
    simulation: Simulation,
    budgets: Budgets,
    expired: Callable[[], bool] = never,
) -> Proposal:
    """Return the commands that the budgets allow now.

    The plan covers all candidates, whatever the budgets allow. A node that only budgets keep
    receives no pods of the nodes that are disrupted now, so that no pod moves twice.
    """
    blocked: dict[str, str] = {}
    open_: list[Candidate] = []
    for candidate in candidates:
        reason = (
            NOMINATED_FOR_PENDING
            if candidate.name in simulation.promised
            else obstacle(candidate, problem.now)
        )
        if reason is None:
            open_.append(candidate)
        else:
            blocked[candidate.name] = reason
    if not open_:
        return Proposal(blocked=blocked)
    evaluators = [Evaluator(problem, open_, simulation, expired)]
    conceded = preference_prices(problem, open_)
    if conceded is not None:
        evaluators.append(Evaluator.without_preferences(conceded, expired))
    plans, planned, approved = first_within(budgets, [Plans.of(each) for each in evaluators])
    evaluator, staying = plans.evaluator, Staying(plans.evaluator, plans.estimate)
    names = names_of(approved)
    group_of = {name: group for group in planned.groups for name in group.names}
    for candidate in open_:
        if candidate.name in names:
            continue
        if candidate.name in group_of:
            group = group_of[candidate.name]
            both = {one.name: one for some in (*approved, group) for one in some.leaving}
            blocked[candidate.name] = (
                ONE_BY_ONE
                if group.names <= budgets.admissible(both.values())
                else budgets.held_back(candidate.pool)
            )
        else:
            blocked[candidate.name] = (
                LATER if approved else NOT_EVALUATED if expired() else staying.why(candidate)
            )
    return Proposal(
        [evaluator.command(group) for group in approved],
        blocked,
        held_back=planned.names - names,
        verdicts=[
            verdict
            for group in (*approved, *staying.unbalanced)
            for verdict in evaluator.balance.verdicts(group)
        ],
    )


def _validate(
    problem: DisruptionProblem,
    candidates: Sequence[Candidate],
    commands: Sequence[Command],
    *,
    simulation: Simulation,
    budgets: Budgets,
    expired: Callable[[], bool] = never,
) -> tuple[list[Command], dict[str, str]]:
    """Return the commands that are still valid, and why the nodes of the others stay, by name."""
    open_ = {
        candidate.name: candidate
        for candidate in candidates
        if candidate.name not in simulation.promised and obstacle(candidate, problem.now) is None
    }
    rejected: dict[str, str] = {}
    left: list[Command] = []
    for command in commands:
        now = [open_[name] for name in sorted(command.names) if name in open_]
        if closed := sorted(command.whole.names - open_.keys()):
            why = f"The decision was dropped: {first_three(closed)} can no longer be disrupted"
            rejected |= dict.fromkeys(command.names, why)
        elif budgets.admissible(now) != command.names:
            rejected |= dict.fromkeys(command.names, FEWER_ALLOWED)
        else:
            budgets.admit(now)
            left.append(command)
    going = [open_[name] for command in left for name in sorted(command.whole.names)]
    conceded = preference_prices(problem, going)
    if conceded is not None and any(command.conceding for command in left):
        evaluator = Evaluator.without_preferences(conceded, expired)
    else:
        evaluator = Evaluator(problem, going, simulation, expired)
    while left:
        fresh = still_valid(evaluator, left)
        failed = [command for command in left if command.names not in fresh]
        if not failed:
            return [fresh[command.names] for command in left], rejected
        failed = invalid_alone(evaluator, left) or failed
        for changed in failed:
            rejected |= dict.fromkeys(changed.names, "The pods no longer fit as planned")
        left = [command for command in left if command not in failed]
    return [], rejected
