"""Removes nodes, and replaces any set of nodes by any cheaper set.

The cluster is read into arrays once, and what its nodes cost to empty is weighed (`weighing`). A
plan is made over the arrays, in which a pod moves once, however often the plan changes; new nodes
for those that find no room are bought by the engine, which thereby proves what they come to
(`planning`).

Nodes that depend on one another form a group; each group is a command. What goes now is as much of
a plan as budgets let (`rationing`) and as can be carried out one after the other (`sequencing`).
Before it does, it is looked at again (`standing`); what stays is told why (`staying`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from controller.apis import conditions
from controller.apis.nodeclaim import CONSOLIDATABLE
from controller.apis.nodepool import WHEN_EMPTY
from controller.disruption.budgets import Budgets, held_back
from controller.disruption.commands import Candidate, Command, Verdict
from controller.disruption.concessions import concession
from controller.disruption.emptiness import is_consolidated
from controller.disruption.planning import Plans
from controller.disruption.pods import is_soon_gone
from controller.disruption.problem import DisruptionProblem
from controller.disruption.rationing import first_within
from controller.disruption.simulation import NOBODY, Simulation, names_of
from controller.disruption.standing import culprits, standing
from controller.disruption.staying import Staying
from controller.disruption.weighing import Weighing
from controller.scheduling.scheduler import never

AWAITED = "pods that wait for a node will come here"

PRICELESS = (
    "what it costs is not known: its EC2NodeClass is not there or not ready, or the instance type "
    "is not sold in its zone and capacity type any more"
)

ENDING = "pods are ending there, and their room is free in a moment"

LATER = "others go first, and it is looked at again when they have gone"

ONE_BY_ONE = (
    "kube-scheduler brings pods one by one, and would leave some over that fit with the others in "
    "one way only: nodes for those cost more than is saved"
)

UNSEEN = "there was no time left to look at it alone"


@dataclass(slots=True)
class Proposal:
    """Commands, best first, per node that stays the reason, and which the budgets held back."""

    commands: list[Command] = field(default_factory=list)
    blocked: dict[str, str] = field(default_factory=dict)
    held_back: frozenset[str] = NOBODY
    verdicts: list[Verdict] = field(default_factory=list)


def obstacle(candidate: Candidate, now: datetime) -> str | None:
    """Return why a node is not consolidated at all, or not yet; or None."""
    disruption = candidate.node_pool.spec.disruption
    if candidate.node_pool.spec.replicas is not None:
        return f"NodePool {candidate.pool} has a fixed number of nodes"
    if not candidate.price:
        return PRICELESS
    if not is_consolidated(candidate.node_pool):
        return f"NodePool {candidate.pool} has consolidation switched off"
    if disruption.consolidation_policy == WHEN_EMPTY:
        return f"NodePool {candidate.pool} consolidates empty nodes only"
    if candidate.anchored:
        return f'Pod "{candidate.anchored}" has a volume on the disk of this node'
    if not conditions.is_true(candidate.claim.status.conditions, CONSOLIDATABLE):
        return f"pods came or went less than {disruption.consolidate_after} ago"
    if any(is_soon_gone(pod, now) for pod in candidate.pods):
        # What they leave behind is room that would be bought elsewhere now.
        return ENDING
    return None


def propose(
    problem: DisruptionProblem,
    candidates: Sequence[Candidate],
    *,
    simulation: Simulation,
    budgets: Budgets,
    expired: Callable[[], bool] = never,
) -> Proposal:
    """Return the commands that the budgets let go now.

    The plan is made for all candidates, whatever the budgets say; what they hold back takes no
    pods of those that go, so that nobody moves twice.
    """
    proposal = Proposal()
    open_: list[Candidate] = []
    for candidate in candidates:
        reason = (
            AWAITED if candidate.name in simulation.promised else obstacle(candidate, problem.now)
        )
        if reason is None:
            open_.append(candidate)
        else:
            proposal.blocked[candidate.name] = reason
    if not open_:
        return proposal
    weighings = [Weighing(problem, open_, simulation, expired)]
    conceded = concession(problem, open_)
    if conceded is not None:
        weighings.append(Weighing.conceding(conceded, expired))
    plans, planned, approved = first_within(budgets, [Plans.of(each) for each in weighings])
    weighing, staying = plans.weighing, Staying(plans.weighing, plans.outlook)
    names = names_of(approved)
    group_of = {name: group for group in planned.groups for name in group.names}
    proposal.commands = [weighing.command(group) for group in approved]
    proposal.held_back = planned.names - names
    for candidate in open_:
        if candidate.name in names:
            continue
        if candidate.name in group_of:
            group = group_of[candidate.name]
            both = {one.name: one for some in (*approved, group) for one in some.leaving}
            proposal.blocked[candidate.name] = (
                ONE_BY_ONE
                if group.names <= budgets.admissible(both.values())
                else held_back(candidate.pool)
            )
        else:
            proposal.blocked[candidate.name] = (
                LATER if approved else UNSEEN if expired() else staying.why(candidate)
            )
    proposal.verdicts = [
        verdict
        for group in (*approved, *staying.unbalanced)
        for verdict in weighing.balance.verdicts(group)
    ]
    return proposal


def confirmed(
    problem: DisruptionProblem,
    candidates: Sequence[Candidate],
    commands: Sequence[Command],
    *,
    simulation: Simulation,
    budgets: Budgets,
    expired: Callable[[], bool] = never,
) -> tuple[list[Command], dict[str, str]]:
    """Return the commands that stand, as they would be given now, and why the nodes of the
    others stay.

    They are carried out together, so they are looked at together: as planned, pod by pod.
    """
    open_ = {
        candidate.name: candidate
        for candidate in candidates
        if candidate.name not in simulation.promised and obstacle(candidate, problem.now) is None
    }
    rejected: dict[str, str] = {}
    left: list[Command] = []
    for command in commands:
        now = [open_[name] for name in sorted(command.names) if name in open_]
        if not command.whole.names <= open_.keys():
            rejected |= dict.fromkeys(command.names, "what runs on it, or is to, has changed")
        elif budgets.admissible(now) != command.names:
            rejected |= dict.fromkeys(command.names, "the budgets let fewer nodes go by now")
        else:
            budgets.admit(now)
            left.append(command)
    going = [open_[name] for command in left for name in sorted(command.whole.names)]
    conceded = concession(problem, going)
    if conceded is not None and any(command.conceding for command in left):
        weighing = Weighing.conceding(conceded, expired)
    else:
        weighing = Weighing(problem, going, simulation, expired)
    while left:
        fresh = standing(weighing, left)
        failed = [command for command in left if command.names not in fresh]
        if not failed:
            return [fresh[command.names] for command in left], rejected
        failed = culprits(weighing, left) or failed
        for changed in failed:
            rejected |= dict.fromkeys(changed.names, "its pods would go elsewhere by now")
        left = [command for command in left if command not in failed]
    return [], rejected
