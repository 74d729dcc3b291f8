"""What it is worth that nodes go: what groups of them save, and what emptying them costs.

A group is allowed when nodes in its place can be bought for less than is saved, and balanced pools
agree; it is worth it when it saves more than its evictions cost. The best bargain goes first: the
group that saves most per eviction.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np

from controller.disruption import balance
from controller.disruption.commands import Candidate, Command, Reason
from controller.disruption.concessions import Concession
from controller.disruption.costs import Lives, eviction_cost
from controller.disruption.homes import with_lasting_homes
from controller.disruption.plan import Plan
from controller.disruption.problem import DisruptionProblem
from controller.disruption.replacements import affordable
from controller.disruption.simulation import Departure, Group, Simulation, groups

REASON = Reason.UNDERUTILIZED

LEAST_EVICTION = 0.1
"""How dear an eviction is at least to a plan, in shares of what the average pod costs: what moves
ten pods to save what one costs is no saving. Without it a cluster would be made anew, pod by
pod, for its last percents."""

MANY_NODES = 1000
"""From how many nodes on the first plan that brings anything is taken, so that the first commands
come soon: that in which new nodes may be bought. What kube-scheduler would make of it is not
asked there."""

ENGINE_TRIES = 20
"""How many nodes are tried with the engine in a look, of those that the arrays cannot judge."""

NEGLIGIBLE = 1e-6
"""$/h below which nothing is saved."""


class Weighing:
    """One cluster, of which some candidates may go, and what it is worth that they do.

    `candidates` are these, by name; `simulation` is the engine and `model` the arrays that answer
    for them, None where nobody moves or the time was up. By the names of the nodes, `disturbance`
    is what evicting their pods costs as Kubernetes counts it, `costs` what emptying them costs in
    $/h while what is saved lasts. Where pods do without what they prefer, `conceded` says which.
    """

    def __init__(
        self,
        problem: DisruptionProblem,
        candidates: Sequence[Candidate],
        simulation: Simulation,
        expired: Callable[[], bool],
        conceded: Concession | None = None,
    ) -> None:
        self.problem, self.simulation, self.expired = problem, simulation, expired
        self.conceded = conceded
        self.candidates = {candidate.name: candidate for candidate in candidates}
        lives = Lives(problem.snapshot.pods, problem.settings, problem.now, problem.begun)
        self.disturbance = {
            candidate.name: sum(max(eviction_cost(pod), 0.0) for pod in candidate.moving)
            for candidate in candidates
        }
        least = LEAST_EVICTION * sum(candidate.price for candidate in candidates)
        least /= max(sum(self.disturbance.values()), 1.0)
        self.costs = {
            candidate.name: max(
                self.disturbance[candidate.name] * least,
                sum(map(lives.hourly_price, candidate.moving)),
            )
            + (conceded.price_of(candidate) if conceded is not None else 0.0)
            for candidate in candidates
        }
        self.balance = balance.Totals.of(problem)
        self.model = None if expired() else with_lasting_homes(problem, simulation, self.candidates)

    @classmethod
    def conceding(cls, conceded: Concession, expired: Callable[[], bool]) -> Weighing:
        """Weigh the cluster in which pods do without what they prefer."""
        problem, candidates = conceded.problem, conceded.candidates
        simulation = Simulation(problem, candidates, expired=expired)
        return cls(problem, candidates, simulation, expired, conceded)

    def net(self, group: Group) -> float:
        """Return what a group saves, evictions paid, in $/h."""
        return group.saving - sum(self.costs[name] for name in group.names)

    def is_allowed(self, group: Group) -> bool:
        """Whether its nodes can be bought for less than is saved, and balanced pools agree."""
        return affordable(group, self.problem) is not None and self.balance.approves(group)

    def approved(self, departure: Departure) -> list[Group]:
        """Return the groups of a final departure that save more than they cost, best first."""
        good = [
            group
            for group in groups(departure)
            if self.is_allowed(group) and self.net(group) > NEGLIGIBLE
        ]
        return sorted(good, key=self.rank)

    def dearness(self, candidate: Candidate) -> tuple[float, str]:
        """Order nodes: first those that cost least to empty for what they cost."""
        return self.costs[candidate.name] / candidate.price, candidate.name

    def rank(self, group: Group) -> tuple[float, list[str]]:
        """Order groups: the best bargain first."""
        return -self._per_eviction(group), sorted(group.names)

    def _per_eviction(self, group: Group) -> float:
        moved = sum(self.disturbance[name] for name in group.names)
        return group.saving / max(moved, NEGLIGIBLE)

    def emptied(self, leaving: Collection[str]) -> Plan | None:
        """Return the cluster once these nodes are empty; None where there are no arrays."""
        if self.model is None:
            return None
        nodes, resources = self.model.room.shape
        plan = Plan(self.model, np.zeros(nodes), np.zeros((nodes, resources)))
        plan.empty(leaving)
        return plan

    def command(self, group: Group) -> Command:
        """Return the command that carries a group out."""
        replacements = group.replacements if group.whole else affordable(group, self.problem)
        assert replacements is not None
        evictions = sum(len(candidate.moving) for candidate in group.leaving)
        conceding, leaving = 0, group.leaving
        if self.conceded is not None:
            conceding = sum(map(self.conceded.number, leaving))
            leaving = self.conceded.restored(leaving)
        return Command(
            REASON,
            leaving,
            replacements=replacements,
            moves=group.moves,
            saving=group.saving,
            evictions=evictions,
            conceding=conceding,
            why=_why(group, evictions, conceding),
            part_of=self.command(group.whole) if group.whole is not None else None,
        )


def _why(group: Group, evictions: int, conceding: int) -> str:
    nodes = ", ".join(sorted(group.names)[:3]) + (", …" if len(group.names) > 3 else "")
    homes = []
    if group.moves:
        homes.append(f"{len(group.moves)} nodes that stay")
    if group.replacements:
        homes.append(f"{len(group.replacements)} new ones for {group.cost:.4f} $/h")
    where = " and ".join(homes) or "nowhere: there are none"
    return (
        f"{len(group.names)} nodes ({nodes}) for {group.price:.4f} $/h are not needed: their "
        f"{evictions} pods go to {where}"
        + (f"; {conceding} of them do without what they prefer" if conceding else "")
        + (f"; {_follow(group, group.whole)}" if group.whole is not None else "")
    )


def _follow(first: Group, whole: Group) -> str:
    later = len(whole.leaving) - len(first.leaving)
    return f"as budgets let {later} more follow, which saves {whole.saving:.4f} $/h in all"
