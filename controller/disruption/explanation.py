"""Why a node is still there: what holds each of its pods, what the cheapest alternative would
cost, and what would change the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from controller.apis import conditions, labels
from controller.apis.nodeclaim import CONSOLIDATABLE, DRIFTED
from controller.apis.nodepool import WHEN_EMPTY, NodePool
from controller.apis.pods import Pod
from controller.disruption.budgets import budgets_of
from controller.disruption.commands import Command, Decision, Reason
from controller.disruption.concessions import without_preferences
from controller.disruption.costs import Lives, moving_price
from controller.disruption.methods import decide
from controller.disruption.pods import local_claims, surges, uses_any
from controller.disruption.prices import node_price
from controller.disruption.problem import DisruptionProblem
from controller.scheduling.results import NewNode, Results
from controller.scheduling.scheduler import never, schedule
from controller.scheduling.settings import IGNORE
from controller.state.evictions import budget_obstacle
from controller.state.nodes import StateNode
from controller.state.pods import (
    forbids_disruption,
    is_daemon,
    is_reschedulable,
    is_static,
    protected_for,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodExplanation:
    """What holds a pod, where it would go, what moving it costs in $, and what would change that.

    `holds` is empty of a pod that may move.
    """

    pod: str
    holds: str = ""
    elsewhere: str = ""
    price: float = 0.0
    change: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeExplanation:
    """Why a node stays, or goes; prices and savings are in $/h.

    `alternative` is what its pods would cost elsewhere, None when some would find no place.
    `moves` is what moving them costs, in $/h until it pays.
    """

    node: str
    node_pool: str
    instance_type: str
    price: float | None
    goes: bool
    why: str
    pods: tuple[PodExplanation, ...]
    alternative: float | None = None
    new_nodes: tuple[NewNode, ...] = ()
    moves: float = 0.0
    changes: tuple[str, ...] = ()


def explained(
    problem: DisruptionProblem, name: str, *, expired: Callable[[], bool] = never
) -> NodeExplanation | None:
    """Return why a node stays, or goes; None when there is no such node."""
    state = next((node for node in problem.snapshot.nodes if node.name == name), None)
    if state is None:
        return None
    own = [pod for pod in problem.snapshot.pods if pod.spec.node_name == name]
    moving = [pod for pod in own if is_reschedulable(pod)]
    results = _elsewhere(problem, name, moving, expired)
    pods = tuple(_pod(pod, problem, results) for pod in sorted(own, key=lambda pod: pod.key))
    lives = Lives(problem.snapshot.pods, problem.settings, problem.now, problem.begun)
    types = {
        instance_type.name: instance_type
        for instance_type in problem.snapshot.instance_types.get(state.node_pool, ())
    }
    goes, why = _verdict(problem, name, expired)
    explanation = NodeExplanation(
        node=name,
        node_pool=state.node_pool,
        instance_type=state.labels.get(labels.INSTANCE_TYPE, ""),
        price=node_price(state, types),
        goes=goes,
        why=why or why_untouched(state, problem),
        pods=pods,
        alternative=None if results.unschedulable else results.cost,
        new_nodes=results.new_nodes,
        moves=sum(map(lives.hourly_price, moving)),
    )
    if goes:
        return explanation
    changes = (
        *_changes(explanation, state, problem, is_empty=not moving),
        *_concessions(explanation, problem, moving, expired),
    )
    return replace(explanation, changes=changes)


def _elsewhere(
    problem: DisruptionProblem, name: str, moving: Sequence[Pod], expired: Callable[[], bool]
) -> Results:
    """Return where the pods would go if the node were not there."""
    snapshot = problem.snapshot
    world = replace(
        snapshot,
        nodes=tuple(
            node if node.initialized else replace(node, deleting=True)
            for node in snapshot.nodes
            if node.name != name
        ),
        pods=tuple(pod for pod in snapshot.pods if pod.spec.node_name != name),
    )
    return schedule(moving, snapshot=world, settings=problem.scheduling, expired=expired)


def _verdict(
    problem: DisruptionProblem, name: str, expired: Callable[[], bool]
) -> tuple[bool, str]:
    """Return whether the node would go now, and the reason for either."""
    decision = decide(problem, expired=expired)
    command = _command(decision, name)
    if command is None and name not in decision.blocked:
        # Something else comes first: asked about this node alone there is an answer.
        others = {node.name: "another node is asked about" for node in problem.snapshot.nodes}
        del others[name]
        decision = decide(replace(problem, kept={**problem.kept, **others}), expired=expired)
        command = _command(decision, name)
    if command is not None:
        return True, f"it goes ({command.reason.value}): {command.why}"
    return False, decision.blocked.get(name, "")


def _command(decision: Decision, name: str) -> Command | None:
    return next((command for command in decision.commands if name in command.names), None)


def why_untouched(state: StateNode, problem: DisruptionProblem) -> str:
    """Return why nobody asks whether a node may go."""
    if not state.managed:
        return "it is not Joiner's: no NodeClaim of an EC2NodeClass belongs to it"
    if state.deleting:
        return "it is on its way out already"
    if not state.initialized:
        return "it is not ready for pods yet"
    return "nothing asks for its end"


def _pod(pod: Pod, problem: DisruptionProblem, results: Results) -> PodExplanation:
    if is_daemon(pod) or is_static(pod) or not is_reschedulable(pod):
        kind = "a daemon" if is_daemon(pod) else "static" if is_static(pod) else "ending"
        return PodExplanation(
            pod=pod.key, elsewhere=f"nowhere: it is {kind}, and goes with its node"
        )
    holds, change = _hold(pod, problem)
    elsewhere = _place(pod, results)
    causes = results.unschedulable.get(pod.key)
    if not holds and causes:
        holds = f"it would find no other place: {'; '.join(causes)}"
        change = "room on other nodes, or a NodePool that can make one for it"
    price = moving_price(pod, problem.settings, problem.now)
    return PodExplanation(pod=pod.key, holds=holds, elsewhere=elsewhere, price=price, change=change)


def _hold(pod: Pod, problem: DisruptionProblem) -> tuple[str, str]:
    """Return what forbids that a pod is moved, and what would lift it."""
    if forbids_disruption(pod, problem.now):
        said = pod.metadata.annotations[labels.DO_NOT_DISRUPT]
        protected, started = protected_for(pod), pod.status.start_time
        until = started + protected if protected is not None and started is not None else None
        change = f"it ends by itself at {until:%Y-%m-%dT%H:%M:%SZ}" if until else "take it off"
        return f"{labels.DO_NOT_DISRUPT}: {said}", change
    budgets = problem.snapshot.pod_disruption_budgets
    obstacle = budget_obstacle(pod, budgets, surges=problem.settings.surge and surges(pod))
    if obstacle is not None:
        return obstacle, "more ready pods, or a budget that allows one to go"
    if uses_any(pod, local_claims(problem.snapshot)):
        return "one of its volumes lies on the disk of this node", "another kind of volume"
    return "", ""


def _place(pod: Pod, results: Results) -> str:
    for name, keys in results.existing_nodes.items():
        if pod.key in keys:
            return f"node {name}, which has room"
    for node in results.new_nodes:
        if pod.key in node.pods:
            shared = f", with {len(node.pods) - 1} others" if len(node.pods) > 1 else ""
            return f"a new {node.instance_types[0]} for {node.price:.4f} $/h{shared}"
    return "nowhere"


def _changes(
    explanation: NodeExplanation, state: StateNode, problem: DisruptionProblem, *, is_empty: bool
) -> Iterator[str]:
    """Yield what would let the node go."""
    pool = problem.node_pools.get(explanation.node_pool)
    if pool is None or state.claim is None or state.node is None:
        return
    if state.node.metadata.annotations.get(labels.DO_NOT_DISRUPT) == "true":
        yield f"take the annotation {labels.DO_NOT_DISRUPT} off the node"
    held = [pod.pod for pod in explanation.pods if pod.holds]
    if held:
        yield f"let {_some(held)} go (see there)"
    drifted = conditions.is_true(state.claim.status.conditions, DRIFTED)
    reason = Reason.EMPTY if is_empty else Reason.UNDERUTILIZED
    reason = Reason.DRIFTED if drifted else reason
    if not budgets_of(problem, reason).allows(explanation.node_pool, state.node):
        yield (
            f"a budget of NodePool {explanation.node_pool} that lets a node go for "
            f"{reason.value} now"
        )
    if not drifted:
        yield from _pays(explanation, state, pool, problem)


def _pays(
    explanation: NodeExplanation, state: StateNode, pool: NodePool, problem: DisruptionProblem
) -> Iterator[str]:
    disruption = pool.spec.disruption
    if pool.spec.replicas is not None:
        yield f"fewer spec.replicas of NodePool {explanation.node_pool}"
        return
    if disruption.consolidation_policy == WHEN_EMPTY:
        yield "consolidationPolicy WhenEmptyOrUnderutilized, or no pods on it"
    if disruption.consolidate_after == "Never":
        yield "another consolidateAfter than Never"
    assert state.claim is not None
    if not conditions.is_true(state.claim.status.conditions, CONSOLIDATABLE):
        yield f"{disruption.consolidate_after} in which no pod comes or goes"
    if explanation.price is None or explanation.alternative is None:
        return
    saving = explanation.price - explanation.alternative
    if saving <= 0:
        yield f"{-saving:.4f} $/h less for what its pods need elsewhere, or fewer pods on it"
    elif saving <= explanation.moves:
        lower = problem.settings.eviction_price * saving / explanation.moves
        yield (
            f"a saving of more than {explanation.moves:.4f} $/h, or DISRUPTION_EVICTION_PRICE "
            f"below {lower:.4f}, or a longer DISRUPTION_HORIZON"
        )


def _concessions(
    explanation: NodeExplanation,
    problem: DisruptionProblem,
    moving: Sequence[Pod],
    expired: Callable[[], bool],
) -> Iterator[str]:
    """Yield the price of what its pods prefer for which the node could go."""
    demanding = [pod for pod in moving if without_preferences(pod) is not pod]
    if problem.scheduling.preference_policy == IGNORE or explanation.price is None or not demanding:
        return
    ignoring = replace(problem.scheduling, preference_policy=IGNORE)
    results = _elsewhere(replace(problem, scheduling=ignoring), explanation.node, moving, expired)
    if results.unschedulable or explanation.alternative in (0.0, results.cost):
        return
    worth = (explanation.price - results.cost - explanation.moves) / len(demanding)
    if worth > 0:
        yield (
            f"{labels.PREFERENCE_PRICE} below {worth:.4f} on its pods or its NodePool: what they "
            "prefer is in the way"
        )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def as_wire(explanation: NodeExplanation) -> Mapping[str, object]:
    """Return an explanation as JSON-ready values; the form is in `docs/formats.md`."""
    return {
        "node": explanation.node,
        "nodePool": explanation.node_pool,
        "instanceType": explanation.instance_type,
        "price": explanation.price,
        "goes": explanation.goes,
        "why": explanation.why,
        "alternative": {
            "cost": explanation.alternative,
            "saving": None
            if explanation.price is None or explanation.alternative is None
            else explanation.price - explanation.alternative,
            "moves": explanation.moves,
            "newNodes": [
                {
                    "nodePool": new.node_pool,
                    "instanceType": new.instance_types[0],
                    "price": new.price,
                }
                for new in explanation.new_nodes
            ],
        },
        "pods": [
            {
                "pod": pod.pod,
                "holds": pod.holds,
                "elsewhere": pod.elsewhere,
                "price": pod.price,
                "change": pod.change,
            }
            for pod in explanation.pods
        ],
        "changes": list(explanation.changes),
    }
