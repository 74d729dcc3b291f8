"""Explains why a node stays: blocked pods, the cost of alternatives, and recommendations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from controller.apis import labels
from controller.apis.karpenter.nodeclaim import INITIALIZED
from controller.apis.kubernetes import conditions
from controller.apis.kubernetes.pods import Pod
from controller.apis.wording import with_count
from controller.disruption.advice.recommendations import Question, recommendations, verdict
from controller.disruption.costs import SavingDurations, eviction_price
from controller.disruption.draining import drain_obstacle, drained_pods, hold, termination_time
from controller.disruption.offerings import node_offering
from controller.disruption.problem import DisruptionProblem
from controller.scheduling.results import NewNode, Results
from controller.scheduling.scheduler import never, schedule
from controller.scheduling.settings import IGNORE
from controller.state.nodes import StateNode
from controller.state.pods import (
    is_daemon,
    is_reschedulable,
    is_static,
    is_terminal,
)
from controller.state.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class PodExplanation:
    """A pod of the node, and why it can or cannot move.

    `holds` is why the pod cannot be evicted or scheduled elsewhere, and `change` is the remedy.
    Both are empty if the pod can move. `elsewhere` is where the pod would run instead, as text.
    `price` is its eviction price in $.
    """

    pod: str
    holds: str = ""
    elsewhere: str = ""
    price: float = 0.0
    change: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeExplanation:
    """Why a node stays or is disrupted; prices and savings are in $/h.

    `goes`: it is disrupted now. `changes` are recommendations that would let it be disrupted.
    `alternative` is the cost of capacity for its pods elsewhere, None if a pod is unschedulable.
    `moves` is the cost of evicting its pods, in $/h while the saving lasts. `price_parts` are the
    parts of the price, empty if it is unknown.
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
    price_parts: Mapping[str, float] = field(default_factory=dict)


def explain_node(
    problem: DisruptionProblem, name: str, *, expired: Callable[[], bool] = never
) -> NodeExplanation | None:
    """Return why a node stays or is disrupted; None if there is no node of this name."""
    state = next((node for node in problem.snapshot.nodes if node.name == name), None)
    if state is None:
        return None
    own = [pod for pod in problem.snapshot.pods if pod.spec.node_name == name]
    moving = [pod for pod in own if is_reschedulable(pod)]
    results = _elsewhere(problem, name, moving, expired)
    pods = tuple(_pod(pod, problem, results) for pod in sorted(own, key=lambda pod: pod.key))
    lives = SavingDurations(problem)
    types = {
        instance_type.name: instance_type
        for instance_type in problem.snapshot.instance_types.get(state.node_pool, ())
    }
    offering = node_offering(state, types)
    command, why = verdict(problem, name, expired)
    explanation = NodeExplanation(
        node=name,
        node_pool=state.node_pool,
        instance_type=state.labels.get(labels.INSTANCE_TYPE, ""),
        price=None if offering is None else offering.price,
        price_parts={} if offering is None else offering.price_parts,
        goes=command is not None,
        why=f"Disrupted now ({command.reason.value}): {command.why}"
        if command is not None
        else why or why_not_evaluated(state, own, problem),
        pods=pods,
        alternative=None if results.unschedulable else results.cost,
        new_nodes=results.new_nodes,
        moves=sum(map(lives.hourly_price, moving)),
    )
    if command is not None:
        return explanation
    question = Question(
        problem=problem,
        state=state,
        pods=own,
        held=[pod.pod for pod in pods if pod.holds],
        price=explanation.price,
        alternative=explanation.alternative,
        without_preferences=_without_preferences(problem, name, moving, expired),
        expired=expired,
    )
    return replace(explanation, changes=recommendations(question))


def _elsewhere(
    problem: DisruptionProblem, name: str, moving: Sequence[Pod], expired: Callable[[], bool]
) -> Results:
    """Return where the pods would schedule if the node were removed."""
    world = problem.snapshot.without({name})
    return schedule(moving, snapshot=world, settings=problem.scheduling, expired=expired)


def _without_preferences(
    problem: DisruptionProblem, name: str, moving: Sequence[Pod], expired: Callable[[], bool]
) -> float | None:
    """Return the cost of capacity for the pods elsewhere, ignoring their preferences, in $/h."""
    ignoring = replace(problem.scheduling, preference_policy=IGNORE)
    results = _elsewhere(replace(problem, scheduling=ignoring), name, moving, expired)
    return None if results.unschedulable else results.cost


def why_not_evaluated(state: StateNode, pods: Sequence[Pod], problem: DisruptionProblem) -> str:
    """Return why a node with these pods is not evaluated for disruption."""
    if state.claim is None:
        return "Node is not managed by Joiner: it has no NodeClaim with an EC2NodeClass"
    if state.deleting:
        return f"Node is already being deleted: {deletion(state, pods, problem)}"
    if not state.initialized:
        found = conditions.find(state.claim.status.conditions, INITIALIZED)
        missing = f": {found.message}" if found is not None and found.message else ""
        return f"Node is not initialized yet{missing}"
    return "No reason to disrupt this node"


def deletion(state: StateNode, pods: Sequence[Pod], problem: DisruptionProblem) -> str:
    """Return since when a node is in deletion, for what it waits, and until when at most."""
    since = f"since {state.deleted_at:%Y-%m-%d %H:%M:%S} UTC" if state.deleted_at else "just begun"
    if wait := drain_obstacle(state, pods, problem):
        return f"{since}; {wait}; until then, the node uses the budgets of its NodePool"
    until = termination_time(state)
    end = f"; all its pods will be deleted by {until}" if until else ""
    return f"{since}; {with_count(len(drained_pods(pods)), 'pod')} to evict{end}"


def _pod(pod: Pod, problem: DisruptionProblem, results: Results) -> PodExplanation:
    kinds = {
        "DaemonSet": is_daemon(pod),
        "static": is_static(pod),
        "completed": is_terminal(pod),
        "terminating": not is_reschedulable(pod),
    }
    if (kind := next((kind for kind, applies in kinds.items() if applies), None)) is not None:
        return PodExplanation(pod=pod.key, elsewhere=f"nowhere: {kind} pod, deleted with its node")
    holds, change = hold(pod, problem)
    elsewhere = _destination(pod, results)
    causes = results.unschedulable.get(pod.key)
    if not holds and causes:
        holds = f"not schedulable elsewhere: {'; '.join(causes)}"
        change = "free capacity on other nodes, or allow a NodePool to launch a node for it"
    price = eviction_price(pod, problem.settings, problem.now)
    return PodExplanation(pod=pod.key, holds=holds, elsewhere=elsewhere, price=price, change=change)


def _destination(pod: Pod, results: Results) -> str:
    for name, keys in results.existing_nodes.items():
        if pod.key in keys:
            return f"existing node {name}"
    for node in results.new_nodes:
        if pod.key in node.pods:
            others = with_count(len(node.pods) - 1, "other pod")
            shared = f", with {others}" if len(node.pods) > 1 else ""
            return f"a new {node.instance_types[0]} ({node.price:.4f} $/h){shared}"
    return "nowhere"


def as_wire(explanation: NodeExplanation) -> Mapping[str, object]:
    """Return an explanation as JSON-ready values, in the format of `docs/reference/formats.md`."""
    return {
        "node": explanation.node,
        "nodePool": explanation.node_pool,
        "instanceType": explanation.instance_type,
        "price": explanation.price,
        "priceParts": explanation.price_parts,
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
        "pods": [asdict(pod) for pod in explanation.pods],
        "changes": list(explanation.changes),
    }


def node_named(snapshot: Snapshot, text: str) -> str:
    """Return the name of the node that a text names; empty if there is none, or more than one.

    The text is the name of a node or of its NodeClaim, also as in `node/NAME` of `kubectl get -o
    name`, or a name as `top` shortens it: without its domain, or cut with an ellipsis.
    """
    wanted = text.rpartition("/")[2]
    cut = wanted.endswith("…")
    found = set[str]()
    for state in snapshot.nodes:
        claim = state.claim.metadata.name if state.claim is not None else ""
        if wanted in (state.name, claim):
            return state.name
        is_cut = cut and state.name.startswith(wanted.removesuffix("…"))
        if is_cut or state.name.partition(".")[0] == wanted:
            found.add(state.name)
    return found.pop() if len(found) == 1 else ""
