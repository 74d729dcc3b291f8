"""Static drift: replaces drifted nodes of NodePools with a fixed number of nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from controller.apis.karpenter.nodepool import NodePool
from controller.apis.kubernetes import conditions
from controller.cloudprovider.compatibility import Choice, choices
from controller.constraints.resources import NODES, parsed
from controller.disruption.budgets import Budgets, held_back
from controller.disruption.commands import Candidate, Command, Confirmation, Reason
from controller.disruption.drift import confirm_each, in_order, is_static, why
from controller.disruption.method import Context, Proposal
from controller.disruption.problem import DisruptionProblem
from controller.disruption.rollout import Rollout
from controller.scheduling.results import NewNode
from controller.scheduling.templating import templated


class StaticDrift:
    """Replaces drifted nodes of static NodePools, as many as budgets and limits allow.

    A replacement follows the NodePool's template, whatever runs on the drifted node.
    """

    reason = Reason.DRIFTED

    def eligible(self, context: Context) -> list[Candidate]:
        """Return the drifted nodes of static NodePools."""
        return in_order(context.forced, static=True)

    def propose(self, context: Context) -> Proposal:
        """Return a command for each node that may be replaced now."""
        budgets = context.budgets(self.reason)
        return _replace(context.problem, self.eligible(context), budgets, context.rollout)

    def owns(self, command: Command) -> bool:
        """Whether this method validates the command."""
        return command.reason is self.reason and any(map(is_static, command.candidates))

    def validate(self, context: Context, commands: Sequence[Command]) -> Confirmation:
        """Return the commands that are proposed again, each by itself."""
        budgets = context.budgets(self.reason)

        def propose(mine: Sequence[Candidate]) -> Proposal:
            # Its own rollout, because other commands may be rejected.
            return _replace(context.problem, mine, budgets, Rollout.of(context.problem))

        return confirm_each(self.eligible(context), commands, propose)


def _replace(
    problem: DisruptionProblem, drifted: Sequence[Candidate], budgets: Budgets, rollout: Rollout
) -> Proposal:
    """Return the commands for these nodes; consumes the budgets."""
    room: dict[str, tuple[int, str]] = {}
    replacements: dict[str, NewNode] = {}
    commands: list[Command] = []
    blocked: dict[str, str] = {}
    kept: set[str] = set()
    for candidate in drifted:
        if candidate.pool not in room:
            replacements[candidate.pool] = replacement(problem, candidate.node_pool)
            room[candidate.pool] = room_in(problem, candidate.node_pool)
        room_left, why_none = room[candidate.pool]
        if room_left <= 0:
            blocked[candidate.name] = f"Drifted, but {why_none}"
            continue
        untrusted = rollout.obstacle(candidate)
        if untrusted is not None:
            blocked[candidate.name] = f"Drifted, but {untrusted}"
            kept.add(candidate.name)
            continue
        if not budgets.admit([candidate]):
            blocked[candidate.name] = held_back(candidate.pool)
            kept.add(candidate.name)
            continue
        rollout.begin(candidate)
        room[candidate.pool] = room_left - 1, why_none
        new = replacements[candidate.pool]
        commands.append(
            Command(
                Reason.DRIFTED,
                (candidate,),
                replacements=(new,),
                saving=candidate.price - new.price,
                evictions=len(candidate.moving),
                why=why(candidate),
            )
        )
    return Proposal(commands, blocked, frozenset(kept))


def replacement(problem: DisruptionProblem, pool: NodePool) -> NewNode:
    """Return the replacement of a node of a static NodePool, at the cheapest price it has now."""
    new = templated(pool)
    price = min((choice.price for choice in _launchable(problem, new)), default=0.0)
    return replace(new, price=price)


def _launchable(problem: DisruptionProblem, new: NewNode) -> list[Choice]:
    """Return the instance types, with their offerings, that a new node can have now."""
    types = problem.snapshot.instance_types.get(new.node_pool, ())
    return choices(types, new.requirements, {})


def room_in(problem: DisruptionProblem, pool: NodePool) -> tuple[int, str]:
    """Return how many replacements a static NodePool may launch now, and why not more."""
    name = pool.metadata.name
    ready = conditions.find(pool.status.conditions, "Ready")
    if ready is not None and not ready.is_true:
        return 0, f"NodePool {name} is not ready, so it launches no replacement"
    if not _launchable(problem, templated(pool)):
        return 0, f"no instance type that NodePool {name} allows is available now"
    members = [node for node in problem.snapshot.nodes if node.managed and node.node_pool == name]
    staying = sum(not node.deleting for node in members)
    if staying > (pool.spec.replicas or 0):
        return 0, f"NodePool {name} has more nodes than spec.replicas"
    limit = parsed(pool.spec.limits).get(NODES)
    room = len(members) if limit is None else limit // parsed({NODES: 1})[NODES] - len(members)
    return room, f"the nodes limit of NodePool {name} allows no replacement"
