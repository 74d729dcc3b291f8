"""Replaces nodes that are no longer what their pool or class asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from controller.apis import conditions
from controller.apis.nodeclaim import DRIFTED
from controller.apis.nodepool import NodePool
from controller.constraints.resources import NODES, parsed
from controller.disruption.budgets import Budgets
from controller.disruption.commands import Candidate, Command, Reason
from controller.disruption.problem import DisruptionProblem
from controller.disruption.simulation import NOBODY, Simulation
from controller.scheduling.scheduler import never
from controller.scheduling.templating import templated

REASON = Reason.DRIFTED
LONG_AGO = datetime.min.replace(tzinfo=UTC)


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
    problem: DisruptionProblem, candidates: Sequence[Candidate], *, budgets: Budgets
) -> Drifting:
    """Return the commands for drifted nodes of pools of fixed size: each gets an heir like any
    other node of its pool, whatever runs on it. The budgets are spent.
    """
    room = {name: _room(problem, pool) for name, pool in problem.node_pools.items()}
    commands: list[Command] = []
    blocked: dict[str, str] = {}
    held_back: set[str] = set()
    for one in _in_turn(candidates, static=True):
        room_left, why_none = room[one.pool]
        if room_left <= 0:
            blocked[one.name] = f"it has drifted, and {why_none}"
            continue
        if not budgets.admit([one]):
            blocked[one.name] = _held_back(one)
            held_back.add(one.name)
            continue
        room[one.pool] = room_left - 1, why_none
        heir = templated(one.node_pool)
        moved = len(one.moving)
        commands.append(
            Command(REASON, (one,), replacements=(heir,), evictions=moved, why=_why(one))
        )
    return Drifting(tuple(commands), blocked, frozenset(held_back))


def propose(
    candidates: Sequence[Candidate],
    *,
    simulation: Simulation,
    budgets: Budgets,
    expired: Callable[[], bool] = never,
) -> Drifting:
    """Return the command for the next drifted node that can go, and why others cannot.

    Nodes without pods that move go first, then those that drifted first. Whatever its price,
    a replacement is bought.
    """
    blocked: dict[str, str] = {}
    held_back: set[str] = set()
    for one in _in_turn(candidates, static=False):
        if budgets.remaining.get(one.pool, 0) <= 0:
            blocked[one.name] = _held_back(one)
            held_back.add(one.name)
            continue
        if one.name in simulation.promised:
            blocked[one.name] = "it has drifted, and pods that wait for a node will come here"
            continue
        if expired():
            break
        outcome = simulation.without({one.name})
        if outcome is None:
            blocked[one.name] = "it has drifted, and some of its pods would find no other place"
            continue
        command = Command(
            REASON,
            (one,),
            replacements=outcome.results.new_nodes,
            moves=outcome.results.existing_nodes,
            saving=outcome.saving,
            evictions=len(one.moving),
            why=_why(one),
        )
        return Drifting((command,), blocked, frozenset(held_back))
    return Drifting((), blocked, frozenset(held_back))


def _in_turn(candidates: Sequence[Candidate], *, static: bool) -> list[Candidate]:
    """Return the drifted nodes of pools of fixed size, or of the others, in order."""
    return sorted(
        (
            one
            for one in candidates
            if has_drifted(one) and (one.node_pool.spec.replicas is not None) is static
        ),
        key=lambda one: (bool(one.moving), _since(one), one.name),
    )


def _room(problem: DisruptionProblem, pool: NodePool) -> tuple[int, str]:
    """Return how many heirs a pool of fixed size may make now, and why no more."""
    name = pool.metadata.name
    ready = conditions.find(pool.status.conditions, "Ready")
    if ready is not None and not ready.is_true:
        return 0, f"NodePool {name} is not ready to make another"
    members = [one for one in problem.snapshot.nodes if one.managed and one.node_pool == name]
    staying = sum(not one.deleting for one in members)
    if staying > (pool.spec.replicas or 0):
        return 0, f"NodePool {name} has more nodes than its replicas"
    limit = parsed(pool.spec.limits).get(NODES)
    room = len(members) if limit is None else limit // parsed({NODES: 1})[NODES] - len(members)
    return room, f"the limit of NodePool {name} leaves no room for another"


def _held_back(candidate: Candidate) -> str:
    return f"the budgets of NodePool {candidate.pool} let no more nodes go now"


def _since(candidate: Candidate) -> datetime:
    found = conditions.find(candidate.claim.status.conditions, DRIFTED)
    return (found.last_transition_time if found is not None else None) or LONG_AGO


def _why(candidate: Candidate) -> str:
    found = conditions.find(candidate.claim.status.conditions, DRIFTED)
    reason = found.reason if found is not None and found.reason else DRIFTED
    return f"node {candidate.name} has drifted: {reason}"
