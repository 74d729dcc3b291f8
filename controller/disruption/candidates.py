"""Which nodes are candidates for disruption, and why others are blocked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from controller.apis import labels
from controller.apis.karpenter.nodeclaim import REBOOTING
from controller.apis.kubernetes.conditions import is_true
from controller.apis.kubernetes.pods import Pod
from controller.cloudprovider.instancetypes import InstanceType, Offering
from controller.disruption.commands import Candidate
from controller.disruption.gangs import GangUnit, Units, restarting_pods, units_of
from controller.disruption.offerings import node_offering, node_price
from controller.disruption.pods import is_drainable, local_claims, surges, uses_any
from controller.disruption.problem import DisruptionProblem
from controller.state.evictions import EvictionGuards
from controller.state.nodes import StateNode, lifecycle_event
from controller.state.pods import forbids_disruption


@dataclass(frozen=True, slots=True)
class Candidates:
    """The candidates, and per blocked node the reason, as the message of an event.

    `units` maps nodes to the unit of their gangs: all nodes of a unit are candidates, or none.
    """

    admitted: tuple[Candidate, ...] = ()
    blocked: Mapping[str, str] = field(default_factory=dict)
    units: Units = field(default_factory=dict)


def survey(problem: DisruptionProblem, *, eventual: bool = False) -> Candidates:
    """Return the candidates among Joiner's nodes, and why its other nodes are blocked.

    `eventual`: pods do not block a node whose NodeClaim has a termination grace period, because
    they are deleted when it elapses.
    """
    guards = EvictionGuards(problem.snapshot.pod_disruption_budgets)
    admitted: list[Candidate] = []
    blocked = {
        state.name: f"NodePool not found (NodePool={state.node_pool})"
        for state in problem.snapshot.nodes
        if _is_running(state) and state.node_pool not in problem.node_pools
    }
    for state, candidate in _managed_nodes(problem):
        forced = eventual and candidate.claim.spec.termination_grace_period is not None
        obstacle = _node_obstacle(state, problem) or (
            None if forced else pod_obstacle(candidate.pods, guards, problem)
        )
        if obstacle is not None:
            blocked[candidate.name] = obstacle
        else:
            admitted.append(candidate)
    units = units_of(problem)
    by_name = {candidate.name: candidate for candidate in admitted}
    apart: dict[str, str] = {}
    for unit in {unit.nodes: unit for unit in units.values()}.values():
        obstacle = _unit_obstacle(unit, by_name, blocked, problem, guards, eventual=eventual)
        if obstacle is not None:
            apart |= dict.fromkeys(by_name.keys() & unit.nodes, obstacle)
    whole = tuple(candidate for candidate in admitted if candidate.name not in apart)
    return Candidates(whole, {**blocked, **apart}, units)


def _unit_obstacle(
    unit: GangUnit,
    admitted: Mapping[str, Candidate],
    blocked: Mapping[str, str],
    problem: DisruptionProblem,
    guards: EvictionGuards,
    *,
    eventual: bool,
) -> str | None:
    """Return why not all nodes of a unit and all pods of its gangs may be disrupted, or None."""
    stays = next((name for name in unit.nodes if name not in admitted), None)
    if stays is not None:
        return unit.elsewhere(stays, blocked.get(stays) or _no_candidate(stays, problem))
    claims = (admitted[name].claim for name in unit.nodes)
    if eventual and all(claim.spec.termination_grace_period is not None for claim in claims):
        return None
    short = guards.obstacle_to_all(unit.pods)
    return unit.evictions(short) if short is not None else None


def _no_candidate(name: str, problem: DisruptionProblem) -> str:
    """Return why a node without an obstacle is not a candidate."""
    state = next((state for state in problem.snapshot.nodes if state.name == name), None)
    if state is None or not state.managed:
        return "Joiner does not manage it"
    return "it is being deleted" if state.deleting else "it is not initialized"


def initialized_nodes(problem: DisruptionProblem) -> Mapping[str, Candidate]:
    """Return Joiner's initialized nodes that are not being deleted, by name, blocked or not."""
    return {candidate.name: candidate for _, candidate in _managed_nodes(problem)}


def unblocked_nodes(problem: DisruptionProblem) -> tuple[Candidate, ...]:
    """Return Joiner's initialized nodes that nothing blocks; pods and gangs are not checked."""
    return tuple(
        candidate
        for state, candidate in _managed_nodes(problem)
        if _node_obstacle(state, problem) is None
    )


def registered_nodes(problem: DisruptionProblem) -> Iterator[tuple[StateNode, Candidate]]:
    """Yield Joiner's registered nodes with a NodePool, initialized or not."""
    return _managed_nodes(problem, lambda state: state.registered and not state.deleting)


def pods_block(candidate: Candidate, problem: DisruptionProblem) -> bool:
    """Return whether a pod prevents the disruption of its node, or the restart of its gang."""
    guards = EvictionGuards(problem.snapshot.pod_disruption_budgets)
    pods = (*candidate.pods, *restarting_pods(candidate, problem))
    return pod_obstacle(pods, guards, problem) is not None


def _managed_nodes(
    problem: DisruptionProblem, is_wanted: Callable[[StateNode], bool] | None = None
) -> Iterator[tuple[StateNode, Candidate]]:
    """Yield Joiner's running nodes with a NodePool, each with its state and as a candidate."""
    is_wanted = is_wanted or _is_running
    pods_by_node: dict[str, list[Pod]] = {}
    for pod in problem.snapshot.pods:
        pods_by_node.setdefault(pod.spec.node_name, []).append(pod)
    types = _types_by_name(problem)
    local = local_claims(problem.snapshot)
    for state in problem.snapshot.nodes:
        pool = problem.node_pools.get(state.node_pool)
        if pool is None or state.node is None or state.claim is None or not is_wanted(state):
            continue
        pods = tuple(pods_by_node.get(state.name, ()))
        anchored = next((pod.key for pod in pods if uses_any(pod, local)), "") if local else ""
        yield (
            state,
            Candidate(
                state.node,
                state.claim,
                pool,
                pods,
                price=_price(types, state),
                buffered=state.buffered,
                anchored=anchored,
            ),
        )


def _is_running(state: StateNode) -> bool:
    """Return whether the node is managed by Joiner, initialized and not being deleted."""
    is_ours = state.node is not None and state.claim is not None
    return is_ours and state.initialized and not state.deleting


def cost(problem: DisruptionProblem) -> float:
    """Return the cost of all nodes whose price is known, in $/h."""
    return sum(map(prices(problem), problem.snapshot.nodes))


def prices(problem: DisruptionProblem) -> Callable[[StateNode], float]:
    """Return a function from a node to its price in $/h, 0 if the price is unknown."""
    types = _types_by_name(problem)
    return lambda state: _price(types, state)


def offerings(problem: DisruptionProblem) -> Callable[[StateNode], Offering | None]:
    """Return a function from a node to its offering, None if it is unknown."""
    types = _types_by_name(problem)
    return lambda state: node_offering(state, types.get(state.node_pool, types[""]))


Types = Mapping[str, Mapping[str, InstanceType]]


def _types_by_name(problem: DisruptionProblem) -> Types:
    """Return the instance types of each NodePool by name.

    Those under "" are of all NodePools, for nodes whose NodePool was deleted or that have none.
    """
    seen = {
        pool: {instance_type.name: instance_type for instance_type in types}
        for pool, types in problem.snapshot.instance_types.items()
    }
    every = {name: each for types in seen.values() for name, each in types.items()}
    unseen: Types = {pool: {} for pool in problem.node_pools}
    return {**unseen, **seen, "": every}


def _price(types: Types, state: StateNode) -> float:
    return node_price(state, types.get(state.node_pool, types[""])) or 0.0


def _node_obstacle(state: StateNode, problem: DisruptionProblem) -> str | None:
    assert state.node is not None
    obstacle = pause(state, problem)
    if obstacle is None and state.node.metadata.annotations.get(labels.DO_NOT_DISRUPT) == "true":
        return "Disruption is blocked through the karpenter.sh/do-not-disrupt annotation"
    return obstacle


def pause(state: StateNode, problem: DisruptionProblem) -> str | None:
    """Return why a node is not disrupted now, or None; its annotations are not considered."""
    if state.name in problem.backed_off:
        return "A disruption of this node failed recently; retrying after a pause"
    if (replacement := problem.pending_replacements.get(state.name)) is not None:
        return f"Waiting for its replacement {replacement} to become ready"
    if state.name in problem.kept:
        return problem.kept[state.name]
    if state.claim is not None and is_true(state.claim.status.conditions, REBOOTING):
        return "Node is being rebooted"
    if state.node is not None and (event := lifecycle_event(state.node)):
        return f"Node condition {event} is True"
    if state.nominated:
        return "Node is nominated for a pending pod"
    return None


def pod_obstacle(
    pods: Sequence[Pod],
    guards: EvictionGuards,
    problem: DisruptionProblem,
) -> str | None:
    """Return why one of a node's pods blocks the disruption of the node, or None."""
    now, surge = problem.now, problem.settings.surge
    protected = next((p for p in pods if forbids_disruption(p, now)), None)
    if protected is not None:
        return f'Pod "{protected.key}" has the karpenter.sh/do-not-disrupt annotation'
    return next(
        (
            reason
            for pod in pods
            if guards.of(pod) and is_drainable(pod, now) and not pod.metadata.is_deleting
            if (reason := guards.obstacle(pod, surges=surge and surges(pod))) is not None
        ),
        None,
    )
