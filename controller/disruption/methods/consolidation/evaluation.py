"""Evaluates groups of nodes: the saving from their disruption, and the cost of emptying them.

A group is allowed if its replacements cost less than its nodes, and no NodePool with the policy
Balanced rejects it. It is disrupted if it saves more than its evictions cost. The group that saves
most per eviction comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import numpy as np

from controller.apis.wording import with_count
from controller.disruption.commands import Candidate, Command, Reason
from controller.disruption.costs import SavingDurations, disturbance
from controller.disruption.methods.consolidation import balance
from controller.disruption.methods.consolidation.destinations import with_lasting_destinations
from controller.disruption.methods.consolidation.plan import Plan
from controller.disruption.methods.consolidation.preferenceprices import PreferencePrices
from controller.disruption.methods.consolidation.replacements import affordable
from controller.disruption.model import ClusterModel
from controller.disruption.problem import DisruptionProblem
from controller.disruption.simulation import (
    Group,
    Simulation,
    SimulationResult,
    groups,
    reservation_of,
)
from controller.state.nodes import StateNode

REASON = Reason.UNDERUTILIZED

LEAST_EVICTION = 0.1
"""The least cost of an eviction, as a share of the cost of the average pod: a plan must not evict
ten pods to save the cost of one. Without this minimum, consolidation would move pods all over the
cluster for the last percent of its cost."""

MANY_NODES = 1000
"""The number of nodes above which consolidation computes less, so that commands begin sooner. With
more nodes it makes a plan without new nodes only if the plan with new nodes saves nothing. With
more candidates it does not simulate in which order kube-scheduler binds the pods."""

ENGINE_TRIES = 20
"""The largest number of nodes or groups that one evaluation simulates one by one."""

NEGLIGIBLE = 1e-6
"""Savings below this, in $/h, count as zero."""


class Evaluator:
    """Evaluates the disruption of some candidates in one cluster.

    `candidates` are the candidates by name. `simulation` is the engine; `model` holds the arrays,
    None if no pod moves or the time limit was reached. By node name, `disturbance` is the eviction
    cost of the pods as Karpenter counts it, and `costs` is the cost of emptying the node in $/h
    while the saving lasts. `conceded` has the pods that give up preferences, None if none do.
    """

    def __init__(
        self,
        problem: DisruptionProblem,
        candidates: Sequence[Candidate],
        simulation: Simulation,
        expired: Callable[[], bool],
        conceded: PreferencePrices | None = None,
    ) -> None:
        self.problem, self.simulation, self.expired = problem, simulation, expired
        self.conceded = conceded
        self.candidates = {candidate.name: candidate for candidate in candidates}
        lives = SavingDurations(problem)
        self.disturbance = {
            candidate.name: disturbance(candidate.moving, problem.settings)
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
        self.model = (
            None if expired() else with_lasting_destinations(problem, simulation, self.candidates)
        )

    @classmethod
    def without_preferences(
        cls, conceded: PreferencePrices, expired: Callable[[], bool]
    ) -> Evaluator:
        """Return the evaluator of the cluster in which pods give up their preferences.

        `expired` returns true when the time limit is reached.
        """
        problem, candidates = conceded.problem, conceded.candidates
        simulation = Simulation(problem, candidates, expired=expired)
        return cls(problem, candidates, simulation, expired, conceded)

    @classmethod
    def by_engine(
        cls, problem: DisruptionProblem, candidates: Sequence[Candidate], simulation: Simulation
    ) -> Evaluator:
        """Return an evaluator without arrays, for groups that only the engine can judge."""
        return cls(problem, candidates, simulation, _always)

    def net(self, group: Group) -> float:
        """Return the saving of a group minus the cost of its evictions, in $/h."""
        return group.saving - sum(self.costs[name] for name in group.names)

    def allowed_group(self, group: Group) -> Group | None:
        """Return the group with replacements that cost less than its nodes, whatever EC2 launches.

        None if there are no such replacements, or if Balanced does not approve.
        """
        replacements = affordable(group, self.problem)
        if replacements is None:
            return None
        priced = replace(group, replacements=replacements)
        return priced if self.balance.approves(priced) else None

    def approved_groups(self, result: SimulationResult) -> list[Group]:
        """Return the groups of a simulation result that are worth disrupting, best first.

        A group saves more than it costs, or moves pods to a cheaper capacity reservation for free.
        """
        allowed = filter(None, map(self.allowed_group, groups(result)))
        return sorted(
            (one for one in allowed if self.net(one) > NEGLIGIBLE or self._freed_reservation(one)),
            key=self.rank,
        )

    def _freed_reservation(self, group: Group) -> str:
        """Return the capacity reservation of a node that moves to a cheaper one, or "".

        Both are paid for, so such a move saves no money, and only counts if evictions are free. But
        the instance of the other reservation is then left for pods that need it.
        """
        if self.problem.settings.eviction_price or self.conceded is not None:
            return ""
        if (len(group.leaving), len(group.replacements)) != (1, 1) or group.saving <= 0.0:
            return ""
        left, taken = group.leaving[0].reservation, reservation_of(group.replacements[0])
        return left if taken and taken != left else ""

    def eviction_cost_rank(self, candidate: Candidate) -> tuple[float, str]:
        """Return the sort key of nodes: the cost of emptying relative to the price, then name."""
        return self.costs[candidate.name] / candidate.price, candidate.name

    def rank(self, group: Group) -> tuple[float, list[str]]:
        """Return the sort key of groups: the largest saving per eviction first, then names."""
        return -self._per_eviction(group), sorted(group.names)

    def _per_eviction(self, group: Group) -> float:
        moved = sum(self.disturbance[name] for name in group.names)
        return group.saving / max(moved, NEGLIGIBLE)

    def plan_without(self, leaving: Collection[str]) -> Plan | None:
        """Return the plan in which the nodes `leaving` are empty; None without `model`."""
        return None if self.model is None else _plan_without(self.model, leaving)

    def plan_with_new_nodes(
        self, new: Sequence[StateNode], leaving: Collection[str]
    ) -> Plan | None:
        """Return the plan of `plan_without` for the cluster with the nodes `new` added.

        None without `model`, or if the candidates have no pods to move.
        """
        if not new or self.model is None:
            return self.plan_without(leaving)
        model = with_lasting_destinations(self.problem, self.simulation, self.candidates, new=new)
        return None if model is None else _plan_without(model, leaving)

    def command(self, group: Group) -> Command:
        """Return the command that executes a group that is allowed."""
        evictions = sum(len(candidate.moving) for candidate in group.leaving)
        conceding, leaving = 0, group.leaving
        if self.conceded is not None:
            conceding = sum(map(self.conceded.number, leaving))
            leaving = self.conceded.restore(leaving)
        return Command(
            REASON,
            leaving,
            replacements=group.replacements,
            moves=group.moves,
            saving=group.saving,
            evictions=evictions,
            conceding=conceding,
            why=_why(group, evictions, conceding, freed=self._freed_reservation(group)),
            part_of=self.command(group.whole) if group.whole is not None else None,
        )


def _always() -> bool:
    return True


def _plan_without(model: ClusterModel, leaving: Collection[str]) -> Plan:
    nodes, resources = model.capacity.shape
    plan = Plan(model, np.zeros(nodes), np.zeros((nodes, resources)))
    plan.empty(leaving)
    return plan


def _why(group: Group, evictions: int, conceding: int, *, freed: str) -> str:
    nodes = ", ".join(sorted(group.names)[:3]) + (", …" if len(group.names) > 3 else "")
    is_one = len(group.names) == 1
    return (
        f"{with_count(len(group.names), 'node')} ({nodes}; {group.price:.4f} $/h) "
        f"{'is' if is_one else 'are'} not needed; {_moves(group, evictions)}"
        + (f"; {with_count(conceding, 'pod')} will run without preferences" if conceding else "")
        + (f"; this frees an instance of capacity reservation {freed}" if freed else "")
        + (f"; {_follow(group, group.whole)}" if group.whole is not None else "")
    )


def _moves(group: Group, evictions: int) -> str:
    """Return where the pods move, such as "its pod moves to an existing node"."""
    if not group.moves and not group.replacements:
        return "no pods have to move"
    targets = []
    if group.moves:
        some = len(group.moves)
        targets.append("an existing node" if some == 1 else f"{some} existing nodes")
    if group.replacements:
        some = len(group.replacements)
        new = "a new node" if some == 1 else f"{some} new nodes"
        targets.append(f"{new} ({group.cost:.4f} $/h)")
    owner = "its" if len(group.names) == 1 else "their"
    pods = f"{owner} pod moves" if evictions == 1 else f"{owner} {evictions} pods move"
    return f"{pods} to {' and '.join(targets)}"


def _follow(first: Group, whole: Group) -> str:
    later = with_count(len(whole.leaving) - len(first.leaving), "more node")
    return f"{later} will follow as budgets allow, which saves {whole.saving:.4f} $/h in total"
