"""Drift: replaces nodes that no longer match their NodePool or EC2NodeClass."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from controller.apis.karpenter.nodeclaim import DRIFTED
from controller.apis.karpenter.nodepool import NodePool
from controller.apis.kubernetes import conditions
from controller.cloudprovider.compatibility import Choice, choices
from controller.constraints.resources import NODES, parsed
from controller.disruption.budgets import Budgets, held_back
from controller.disruption.commands import Candidate, Command, Reason
from controller.disruption.problem import DisruptionProblem
from controller.disruption.rollout import Rollout, since
from controller.disruption.simulation import NOBODY, Simulation
from controller.scheduling.results import NewNode
from controller.scheduling.scheduler import never
from controller.scheduling.templating import templated

REASON = Reason.DRIFTED


@dataclass(frozen=True, slots=True)
class Drifting:
    """The commands, per node that stays the reason, and the nodes that will be tried again later.

    `blocked` maps node names to reasons; `held_back` names the nodes that wait only for budgets,
    for the rollout of an AMI, or for the pause after a failure.
    """

    commands: tuple[Command, ...] = ()
    blocked: Mapping[str, str] = field(default_factory=dict)
    held_back: frozenset[str] = NOBODY


def has_drifted(candidate: Candidate) -> bool:
    """Whether the node no longer matches its NodePool or EC2NodeClass."""
    return conditions.is_true(candidate.claim.status.conditions, DRIFTED)


def replicated(
    problem: DisruptionProblem,
    candidates: Sequence[Candidate],
    *,
    budgets: Budgets,
    rollout: Rollout,
) -> Drifting:
    """Return the commands for drifted nodes of static NodePools; consumes the budgets.

    A replacement follows the NodePool's template, whatever runs on the drifted node.
    """
    room: dict[str, tuple[int, str]] = {}
    replacements: dict[str, NewNode] = {}
    commands: list[Command] = []
    blocked: dict[str, str] = {}
    kept: set[str] = set()
    for candidate in _in_turn(candidates, static=True):
        if candidate.pool not in room:
            replacements[candidate.pool] = replacement(problem, candidate.node_pool)
            room[candidate.pool] = _room(problem, candidate.node_pool)
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
                REASON,
                (candidate,),
                replacements=(new,),
                saving=candidate.price - new.price,
                evictions=len(candidate.moving),
                why=_why(candidate),
            )
        )
    return Drifting(tuple(commands), blocked, frozenset(kept))


def propose(
    candidates: Sequence[Candidate],
    *,
    simulation: Simulation,
    budgets: Budgets,
    rollout: Rollout,
    resting: Collection[str] = NOBODY,
    expired: Callable[[], bool] = never,
) -> Drifting:
    """Return the command for the next drifted node that can be disrupted, and why others cannot.

    Nodes without pods to move come first, then those that drifted first. The price of a
    replacement does not matter.
    """
    blocked: dict[str, str] = {}
    kept: set[str] = set()
    has_tried = False
    going = frozenset(one.name for one in candidates if has_drifted(one))
    for candidate in _in_turn(candidates, static=False):
        if not budgets.allows(candidate.pool, candidate.node):
            blocked[candidate.name] = held_back(candidate.pool)
            kept.add(candidate.name)
            continue
        untrusted = rollout.obstacle(candidate)
        if untrusted is not None and candidate.moving:
            blocked[candidate.name] = f"Drifted, but {untrusted}"
            kept.add(candidate.name)
            continue
        if candidate.pool in resting:
            blocked[candidate.name] = (
                f"Drifted, but another disruption in NodePool {candidate.pool} failed recently; "
                "retrying after a pause"
            )
            kept.add(candidate.name)
            continue
        if candidate.name in simulation.awaited:
            blocked[candidate.name] = "Drifted, but pending pods will be scheduled to this node"
            continue
        # Evaluate at least one node even if the time is up: on a busy host, the next evaluation may
        # also start too late.
        if has_tried and expired():
            break
        has_tried = True
        others = going - {candidate.name}
        result = simulation.forced_out(candidate.name, closed=others)
        if result is None and others:
            result = simulation.forced_out(candidate.name)
        if result is None:
            blocked[candidate.name] = "Drifted, but not all pods would schedule on other nodes"
            continue
        command = Command(
            REASON,
            (candidate,),
            replacements=result.results.new_nodes,
            moves=result.results.existing_nodes,
            saving=result.saving,
            evictions=len(candidate.moving),
            why=_why(candidate),
        )
        return Drifting((command,), blocked, frozenset(kept))
    return Drifting((), blocked, frozenset(kept))


def _in_turn(candidates: Sequence[Candidate], *, static: bool) -> list[Candidate]:
    """Return the drifted nodes of static NodePools, or of the others, in order of disruption."""
    return sorted(
        (
            candidate
            for candidate in candidates
            if has_drifted(candidate) and (candidate.node_pool.spec.replicas is not None) is static
        ),
        key=lambda candidate: (
            bool(candidate.moving),
            since(candidate.claim, DRIFTED),
            candidate.name,
        ),
    )


def replacement(problem: DisruptionProblem, pool: NodePool) -> NewNode:
    """Return the replacement of a node of a static NodePool, at the cheapest price it has now."""
    new = templated(pool)
    price = min((choice.price for choice in _launchable(problem, new)), default=0.0)
    return replace(new, price=price)


def _launchable(problem: DisruptionProblem, new: NewNode) -> list[Choice]:
    """Return the instance types, with their offerings, that a new node can have now."""
    types = problem.snapshot.instance_types.get(new.node_pool, ())
    return choices(types, new.requirements, {})


def _room(problem: DisruptionProblem, pool: NodePool) -> tuple[int, str]:
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


def _why(candidate: Candidate) -> str:
    drifted = conditions.find(candidate.claim.status.conditions, DRIFTED)
    reason = drifted.reason if drifted is not None and drifted.reason else DRIFTED
    return f"node {candidate.name} has drifted: {reason}"
