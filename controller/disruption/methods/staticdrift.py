"""Static drift: replaces drifted nodes of NodePools with a fixed number of nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from controller.apis.karpenter.nodepool import NodePool
from controller.apis.kubernetes import conditions
from controller.apis.wording import with_count
from controller.cloudprovider.compatibility import Choice, choices
from controller.constraints.resources import NODES, parse_resources
from controller.disruption.budgets import Budgets
from controller.disruption.commands import (
    Candidate,
    Command,
    TerminateFirst,
)
from controller.disruption.gangs import GangUnit, kept_by_budgets
from controller.disruption.methods.drift import (
    MIXED,
    Drift,
    command_of,
    is_static,
)
from controller.disruption.methods.method import Context, Proposal
from controller.disruption.methods.rollout import Rollout
from controller.disruption.offerings import awaited_reservations
from controller.disruption.problem import DisruptionProblem
from controller.scheduling.nodeclaims import node_from_template
from controller.scheduling.results import NewNode

RESERVATIONS_FULL = (
    "static NodePool's capacity reservations are full and cannot stage a replacement"
)
AT_LIMIT = "static NodePool is at its node limit and cannot stage a replacement"


class StaticDrift(Drift):
    """Replaces drifted nodes of static NodePools, as many as budgets and limits allow.

    A replacement follows the NodePool's template, regardless of the pods on the drifted node.
    """

    static = True

    def propose(self, context: Context) -> Proposal:
        """Return a command for each node that may be replaced now."""
        budgets = context.budgets(self.reason)
        return _replace(context, self.eligible(context), budgets, context.rollout)

    def propose_again(
        self, context: Context, drifted: Sequence[Candidate], budgets: Budgets, rollout: Rollout
    ) -> Proposal:
        """Return the proposal for these nodes alone; it consumes `budgets`."""
        return _replace(context, drifted, budgets, rollout)


def _replace(
    context: Context, drifted: Sequence[Candidate], budgets: Budgets, rollout: Rollout
) -> Proposal:
    """Return the commands for these nodes; consumes the budgets."""
    problem = context.problem
    means: dict[str, Means] = {}
    commands: list[Command] = []
    blocked: dict[str, str] = {}
    kept: set[str] = set()
    going: set[str] = set()
    for candidate in drifted:
        if candidate.name in blocked or candidate.name in going:
            continue  # evaluated already, with another node of its unit
        unit = context.units.get(candidate.name)
        members = context.together(candidate)
        names = frozenset(member.name for member in members)
        mine = [node.name for node in drifted if node.name in names]
        for pool in {member.pool: member.node_pool for member in members}.values():
            if pool.metadata.name not in means:
                means[pool.metadata.name] = means_of(problem, pool)
        obstacle = _obstacle(means, members, unit, problem)
        if obstacle is not None:
            blocked |= dict.fromkeys(mine, f"Drifted, but {obstacle}")
            continue
        untrusted = next(filter(None, map(rollout.obstacle, members)), None)
        if untrusted is not None:
            blocked |= dict.fromkeys(mine, f"Drifted, but {untrusted}")
            kept.update(mine)
            continue
        short = kept_by_budgets(members, unit, budgets)
        if short is not None:
            blocked |= dict.fromkeys(mine, short)
            kept.update(mine)
            continue
        budgets.admit(members)
        command = command_of(candidate, members, unit)
        for member in members:
            rollout.begin(member)
            command = means[member.pool].with_replacement(command, member)
            means[member.pool] = means[member.pool].after_one()
        commands.append(command)
        going |= names
    return Proposal(commands, blocked, frozenset(kept))


def _obstacle(
    means: Mapping[str, Means],
    members: Sequence[Candidate],
    unit: GangUnit | None,
    problem: DisruptionProblem,
) -> str | None:
    """Return why drifted nodes cannot be replaced together, or None if they can."""
    if not all(map(is_static, members)):
        return MIXED
    counts = Counter(member.pool for member in members)
    for pool, count in counts.items():
        now = means[pool]
        if now.surge >= count:
            continue
        if unit is not None and (now.surge > 0 or len(counts) > 1):
            staged = with_count(now.surge, "replacement")
            return f"{unit.together}: NodePool {pool} can stage only {staged}"
        if not problem.settings.terminate_first_drift or not all(map(now.frees, members)):
            return now.why_none
        if not now.is_complete:
            return f"NodePool {pool} has fewer initialized nodes than spec.replicas"
    return None


@dataclass(frozen=True, slots=True)
class Means:
    """How a static NodePool can replace its nodes now.

    `surge` is the number of replacements that may be launched before their nodes are terminated;
    `why_none` is the reason if `surge` is 0. In that case `terminate_first` is why a node must be
    terminated before its replacement is launched. It is None if a termination would not make a
    replacement possible. If `reservations` has IDs of capacity reservations, only the termination
    of a node in one of them makes a replacement possible. `is_complete`: at least as many nodes are
    initialized as the NodePool has replicas.
    """

    replacement: NewNode
    surge: int = 0
    why_none: str = ""
    terminate_first: TerminateFirst | None = None
    reservations: frozenset[str] = frozenset()
    is_complete: bool = False

    def frees(self, candidate: Candidate) -> bool:
        """Whether the candidate's termination makes its replacement possible."""
        if self.terminate_first is TerminateFirst.NO_RESERVED_CAPACITY:
            return candidate.reservation in self.reservations
        return self.terminate_first is not None

    def with_replacement(self, command: Command, candidate: Candidate) -> Command:
        """Return the command with the replacement of one of its nodes.

        It has none if the node is terminated first. Then the NodePool launches the replacement,
        once the node is gone.
        """
        if self.surge <= 0:
            return replace(command, terminate_first=self.terminate_first)
        new = self.replacement
        return replace(
            command,
            replacements=(*command.replacements, new),
            saving=command.saving + candidate.price - new.price,
        )

    def after_one(self) -> Means:
        """Return the means left after one replacement."""
        if self.surge <= 0:
            return self
        return replace(self, surge=self.surge - 1, terminate_first=None)


def means_of(problem: DisruptionProblem, pool: NodePool) -> Means:
    """Return how a static NodePool can replace its nodes now."""
    name = pool.metadata.name
    means = Means(replacement(problem, pool))
    ready = conditions.find(pool.status.conditions, "Ready")
    if pool.metadata.is_deleting or (ready is not None and not ready.is_true):
        return replace(
            means, why_none=f"NodePool {name} is not ready, so it launches no replacement"
        )
    members = [node for node in problem.snapshot.nodes if node.managed and node.node_pool == name]
    staying = [node for node in members if not node.deleting]
    replicas = pool.spec.replicas or 0
    if len(staying) > replicas:
        return replace(means, why_none=f"NodePool {name} has more nodes than spec.replicas")
    means = replace(means, is_complete=sum(node.initialized for node in staying) >= replicas)
    if not _launchable(problem, means.replacement):
        types = problem.snapshot.instance_types.get(name, ())
        full = awaited_reservations(types, means.replacement.requirements)
        if not full:
            none = f"no instance type that NodePool {name} allows is available now"
            return replace(means, why_none=none)
        return replace(
            means,
            why_none=RESERVATIONS_FULL,
            terminate_first=TerminateFirst.NO_RESERVED_CAPACITY,
            reservations=full,
        )
    limit = parse_resources(pool.spec.limits).get(NODES)
    surge = (
        len(members)
        if limit is None
        else limit // parse_resources({NODES: 1})[NODES] - len(members)
    )
    return replace(
        means,
        surge=max(surge, 0),
        why_none=AT_LIMIT,
        terminate_first=TerminateFirst.STATIC_AT_LIMIT,
    )


def replacement(problem: DisruptionProblem, pool: NodePool) -> NewNode:
    """Return the replacement of a node of a static NodePool, at the cheapest price it has now."""
    new = node_from_template(pool)
    price = min((choice.price for choice in _launchable(problem, new)), default=0.0)
    return replace(new, price=price)


def _launchable(problem: DisruptionProblem, new: NewNode) -> list[Choice]:
    """Return the instance types, with their offerings, that a new node can have now."""
    types = problem.snapshot.instance_types.get(new.node_pool, ())
    return choices(types, new.requirements, {})
