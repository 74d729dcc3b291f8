"""Replaces nodes that are no longer what their pool or class asks for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from controller.apis import conditions
from controller.apis.nodeclaim import DRIFTED
from controller.apis.nodepool import NodePool
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
    """Commands, per node that stays the reason, and which the budgets alone held back."""

    commands: tuple[Command, ...] = ()
    blocked: Mapping[str, str] = field(default_factory=dict)
    held_back: frozenset[str] = NOBODY


def has_drifted(candidate: Candidate) -> bool:
    """Whether the node is no longer what its pool or class asks for."""
    return conditions.is_true(candidate.claim.status.conditions, DRIFTED)


def replicated(
    problem: DisruptionProblem,
    candidates: Sequence[Candidate],
    *,
    budgets: Budgets,
    rollout: Rollout,
) -> Drifting:
    """Return the commands for drifted nodes of pools of fixed size: each gets an heir like any
    other node of its pool, whatever runs on it. The budgets are spent.
    """
    room: dict[str, tuple[int, str]] = {}
    heirs: dict[str, NewNode] = {}
    commands: list[Command] = []
    blocked: dict[str, str] = {}
    kept: set[str] = set()
    for candidate in _in_turn(candidates, static=True):
        if candidate.pool not in room:
            heirs[candidate.pool] = heir(problem, candidate.node_pool)
            room[candidate.pool] = _room(problem, candidate.node_pool)
        room_left, why_none = room[candidate.pool]
        if room_left <= 0:
            blocked[candidate.name] = f"it has drifted, and {why_none}"
            continue
        untrusted = rollout.obstacle(candidate)
        if untrusted is not None:
            blocked[candidate.name] = f"it has drifted, and {untrusted}"
            kept.add(candidate.name)
            continue
        if not budgets.admit([candidate]):
            blocked[candidate.name] = held_back(candidate.pool)
            kept.add(candidate.name)
            continue
        rollout.begin(candidate)
        room[candidate.pool] = room_left - 1, why_none
        new = heirs[candidate.pool]
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
    """Return the command for the next drifted node that can go, and why others cannot.

    Nodes without pods that move go first, then those that drifted first. Whatever its price,
    a replacement is bought.
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
            blocked[candidate.name] = f"it has drifted, and {untrusted}"
            kept.add(candidate.name)
            continue
        if candidate.pool in resting:
            blocked[candidate.name] = (
                "it has drifted, and what was made in the place of another node of NodePool "
                f"{candidate.pool} came to nothing a moment ago"
            )
            kept.add(candidate.name)
            continue
        if candidate.name in simulation.awaited:
            blocked[candidate.name] = "it has drifted, and pods that wait for a node will come here"
            continue
        # However little time there is: on a busy machine it is never more the next time.
        if has_tried and expired():
            break
        has_tried = True
        others = going - {candidate.name}
        departure = simulation.forced_out(candidate.name, closed=others)
        if departure is None and others:
            departure = simulation.forced_out(candidate.name)
        if departure is None:
            blocked[candidate.name] = (
                "it has drifted, and some of its pods would find no other place"
            )
            continue
        command = Command(
            REASON,
            (candidate,),
            replacements=departure.results.new_nodes,
            moves=departure.results.existing_nodes,
            saving=departure.saving,
            evictions=len(candidate.moving),
            why=_why(candidate),
        )
        return Drifting((command,), blocked, frozenset(kept))
    return Drifting((), blocked, frozenset(kept))


def _in_turn(candidates: Sequence[Candidate], *, static: bool) -> list[Candidate]:
    """Return the drifted nodes of pools of fixed size, or of the others, in order."""
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


def heir(problem: DisruptionProblem, pool: NodePool) -> NewNode:
    """Return what comes in the place of a node of a pool of fixed size, for what the cheapest of it
    costs now.
    """
    new = templated(pool)
    price = min((choice.price for choice in _launchable(problem, new)), default=0.0)
    return replace(new, price=price)


def _launchable(problem: DisruptionProblem, new: NewNode) -> list[Choice]:
    """Return what a new node may be now."""
    types = problem.snapshot.instance_types.get(new.node_pool, ())
    return choices(types, new.requirements, {})


def _room(problem: DisruptionProblem, pool: NodePool) -> tuple[int, str]:
    """Return how many heirs a pool of fixed size may make now, and why no more."""
    name = pool.metadata.name
    ready = conditions.find(pool.status.conditions, "Ready")
    if ready is not None and not ready.is_true:
        return 0, f"NodePool {name} is not ready to make another"
    if not _launchable(problem, templated(pool)):
        return 0, f"nothing that NodePool {name} asks for can be had now"
    members = [node for node in problem.snapshot.nodes if node.managed and node.node_pool == name]
    staying = sum(not node.deleting for node in members)
    if staying > (pool.spec.replicas or 0):
        return 0, f"NodePool {name} has more nodes than its replicas"
    limit = parsed(pool.spec.limits).get(NODES)
    room = len(members) if limit is None else limit // parsed({NODES: 1})[NODES] - len(members)
    return room, f"the limit of NodePool {name} leaves no room for another"


def _why(candidate: Candidate) -> str:
    drifted = conditions.find(candidate.claim.status.conditions, DRIFTED)
    reason = drifted.reason if drifted is not None and drifted.reason else DRIFTED
    return f"node {candidate.name} has drifted: {reason}"
