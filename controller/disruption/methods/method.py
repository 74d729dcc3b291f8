"""The protocol of disruption methods: propose commands, and validate them before execution.

All methods of one evaluation share a `Context`, so that the cluster is read once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from controller.disruption import candidates
from controller.disruption.budgets import Budgets, Consumption, budgets_of, consumption
from controller.disruption.candidates import Candidates
from controller.disruption.commands import Candidate, Command, Confirmation, Reason, Verdict
from controller.disruption.gangs import Units
from controller.disruption.methods.rollout import Rollout
from controller.disruption.problem import DisruptionProblem
from controller.disruption.simulation import NO_NODES, Simulation
from controller.scheduling.catalog.offerings import Catalog
from controller.scheduling.pods.classes import PodSignatures
from controller.scheduling.scheduler import never


@dataclass
class Context:
    """A disruption problem, and data derived from it that methods share, each computed once.

    `expired` returns whether the time limit is reached. `signatures` caches what earlier
    evaluations read of the pods. `catalog` is that of the problem's snapshot, if the caller keeps
    it.
    """

    problem: DisruptionProblem
    expired: Callable[[], bool] = never
    signatures: PodSignatures | None = None
    catalog: Catalog | None = None

    @cached_property
    def survey(self) -> Candidates:
        """The candidates, and why other nodes are blocked."""
        return candidates.survey(self.problem)

    @property
    def units(self) -> Units:
        """The units of nodes that run pods of one gang and are disrupted together."""
        return self.survey.units

    def together(self, candidate: Candidate) -> tuple[Candidate, ...]:
        """Return the nodes that are disrupted with a node: those of its unit, or only the node.

        `candidate` must be one of `forced`.
        """
        unit = self.units.get(candidate.name)
        if unit is None or unit.is_alone:
            return (candidate,)
        return tuple(self._forced_by_name[name] for name in unit.nodes)

    @cached_property
    def _forced_by_name(self) -> Mapping[str, Candidate]:
        return {candidate.name: candidate for candidate in self.forced}

    @cached_property
    def forced(self) -> Sequence[Candidate]:
        """The candidates, including nodes that are blocked only by their pods.

        A node that its pods block is included only if its NodeClaim has a termination grace period.
        """
        claims = (node.claim for node in self.problem.snapshot.nodes if node.claim is not None)
        if all(claim.spec.termination_grace_period is None for claim in claims):
            return self.survey.admitted
        return candidates.survey(self.problem, eventual=True).admitted

    @cached_property
    def consumed(self) -> Mapping[Reason, Consumption]:
        """The result of `budgets.consumption` for each reason."""
        nodes = self.problem.snapshot.nodes
        repairs = {Reason.UNHEALTHY: consumption(nodes, Reason.UNHEALTHY)}
        return dict.fromkeys(Reason, consumption(nodes)) | repairs

    @cached_property
    def rollout(self) -> Rollout:
        """How far the rollouts of AMIs may proceed."""
        return Rollout.of(self.problem)

    @cached_property
    def simulation(self) -> Simulation:
        """Where pods would schedule if candidates were removed."""
        return self.simulate(self.forced)

    def simulate(self, removable: Sequence[Candidate]) -> Simulation:
        """Return a simulation of these candidates alone."""
        return Simulation(
            self.problem,
            removable,
            expired=self.expired,
            signatures=self.signatures,
            catalog=self.catalog,
        )

    def budgets(self, reason: Reason) -> Budgets:
        """Return the budgets for a reason, before any command of this evaluation consumes them."""
        return budgets_of(self.problem, reason, self.consumed[reason])


@dataclass(slots=True)
class Proposal:
    """The commands of a method, best first, and why the other nodes stay.

    `blocked` maps node names to reasons; `held_back` names the nodes that only wait: for budgets,
    for an earlier part of a plan, for the rollout of an AMI, or for the pause after a failure.
    """

    commands: Sequence[Command] = ()
    blocked: Mapping[str, str] = field(default_factory=dict)
    held_back: frozenset[str] = NO_NODES
    verdicts: Sequence[Verdict] = ()


class Method(Protocol):
    """A way to find nodes to disrupt, for one reason."""

    @property
    def reason(self) -> Reason:
        """The reason of its commands."""

    def eligible(self, context: Context) -> Sequence[Candidate]:
        """Return the candidates that this method may disrupt, whatever budgets allow."""

    def propose(self, context: Context) -> Proposal:
        """Return the commands that the budgets allow now."""

    def owns(self, command: Command) -> bool:
        """Whether this method validates the command: it has the same reason, unless overridden."""
        return command.reason is self.reason

    def validate(self, context: Context, commands: Sequence[Command]) -> Confirmation:
        """Return the commands of this method that are valid in the cluster as it is now."""
