"""Nodes that Joiner does not manage, such as those of node groups, and their replacement.

To adopt Joiner, users cordon and drain these nodes. A node stays if one of its pods may not be
evicted, or if no NodePool has a node for one of its pods.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import count, islice

from controller.apis import labels
from controller.apis.kubernetes.meta import with_fields
from controller.apis.kubernetes.pods import Pod
from controller.disruption import candidates
from controller.disruption.applying import replace_nodes
from controller.disruption.candidates import pod_obstacle
from controller.disruption.problem import DisruptionProblem
from controller.scheduling.catalog.offerings import Catalog
from controller.scheduling.results import NewNode, Results
from controller.scheduling.scheduler import never, schedule
from controller.state.evictions import EvictionGuards
from controller.state.nodes import StateNode
from controller.state.pods import is_reschedulable

COMPUTE = "eks.amazonaws.com/compute-type"
FARGATE = "fargate"
CRITICAL = "CriticalAddonsOnly"
CONTROL_PLANE = "node-role.kubernetes.io/control-plane"

SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"
"""The annotation of Cluster Autoscaler; `false` protects a pod as `karpenter.sh/do-not-disrupt`."""


@dataclass(frozen=True, slots=True)
class Adopted:
    """The cluster after the nodes outside Joiner were drained.

    `staying` maps nodes that cannot be drained to the reason. `moved` counts the evicted pods.
    """

    problem: DisruptionProblem
    staying: Mapping[str, str] = field(default_factory=dict)
    moved: int = 0


def translate_labels(problem: DisruptionProblem) -> DisruptionProblem:
    """Return the problem with Karpenter's labels and annotations on nodes and pods.

    They are derived from those of EKS and Cluster Autoscaler. A node without a capacity type counts
    as on-demand.
    """
    snapshot = problem.snapshot
    nodes = tuple(_with_capacity_type(state) for state in snapshot.nodes)
    pods = tuple(_with_protection(pod) for pod in snapshot.pods)
    return replace(problem, snapshot=replace(snapshot, nodes=nodes, pods=pods))


def outside(problem: DisruptionProblem, keep: Mapping[str, str] | None = None) -> frozenset[str]:
    """Return the names of the nodes outside Joiner that its NodePools would replace.

    These are all but Fargate, control planes, nodes with the taint `CriticalAddonsOnly`, nodes
    whose price is unknown, and nodes with all labels of `keep`.
    """
    price = candidates.prices(problem)
    return frozenset(
        state.name
        for state in problem.snapshot.nodes
        if not state.managed
        and price(state)
        and not _is_system(state)
        and not (keep and keep.items() <= state.labels.items())
    )


def simulate_drain(
    problem: DisruptionProblem,
    names: Collection[str],
    *,
    expired: Callable[[], bool] = never,
    catalog: Catalog | None = None,
) -> Adopted:
    """Return the cluster after these nodes were drained, and new nodes launched for their pods.

    The pending pods are scheduled together with the evicted pods. Pending pods that no node can run
    stay pending. If `expired` returns true, the scheduling engine returns its best result so far.
    `catalog` is that of the problem's snapshot, if the caller keeps it.
    """
    names = {state.name for state in problem.snapshot.nodes if state.name in names}
    pods: defaultdict[str, list[Pod]] = defaultdict(list)
    for pod in problem.snapshot.pods:
        pods[pod.spec.node_name].append(pod)
    guards = EvictionGuards(problem.snapshot.pod_disruption_budgets)
    obstacles = ((name, pod_obstacle(pods[name], guards, problem)) for name in sorted(names))
    staying = {name: why for name, why in obstacles if why is not None}
    problem = _cordon(problem, names)
    while True:
        leaving = sorted(names - staying.keys())
        moving = [pod for name in leaving for pod in pods[name] if is_reschedulable(pod)]
        results = schedule(
            [*moving, *problem.pending],
            snapshot=problem.snapshot.without(frozenset(leaving)),
            settings=problem.scheduling,
            catalog=catalog,
            expired=expired,
        )
        stuck = {
            pod.spec.node_name: f'Pod "{pod.key}" would be unschedulable: {causes[0]}'
            for pod in moving
            if (causes := results.unschedulable.get(pod.key))
        }
        if not stuck:
            return Adopted(_move_pods(problem, leaving, results), staying, len(moving))
        staying |= stuck


def _move_pods(
    problem: DisruptionProblem, leaving: Collection[str], results: Results
) -> DisruptionProblem:
    """Return the cluster without the `leaving` nodes, with their and pending pods on others."""
    left = results.unschedulable
    placed = tuple(pod for pod in problem.pending if pod.key not in left)
    snapshot = replace(problem.snapshot, pods=(*problem.snapshot.pods, *placed))
    waiting = tuple(pod for pod in problem.pending if pod.key in left)
    node_of = {key: name for name, keys in results.existing_nodes.items() for key in keys}
    return replace_nodes(
        replace(problem, snapshot=snapshot, pending=waiting),
        leaving,
        name_nodes(problem, results.new_nodes),
        node_of,
    )


def name_nodes(problem: DisruptionProblem, new: Iterable[NewNode]) -> list[tuple[str, NewNode]]:
    """Return new nodes, each with a name that no node of the cluster has."""
    taken = {state.name for state in problem.snapshot.nodes}
    new = list(new)
    free = (name for n in count(1) if (name := f"adopted-{n:05d}") not in taken)
    return list(zip(islice(free, len(new)), new, strict=True))


def _cordon(problem: DisruptionProblem, names: Collection[str]) -> DisruptionProblem:
    def cordon(state: StateNode) -> StateNode:
        if state.name not in names or state.node is None:
            return state
        return replace(state, node=with_fields(state.node, "spec", unschedulable=True))

    nodes = tuple(map(cordon, problem.snapshot.nodes))
    return replace(problem, snapshot=replace(problem.snapshot, nodes=nodes))


def _with_capacity_type(state: StateNode) -> StateNode:
    if state.node is None or state.managed or labels.CAPACITY_TYPE in state.labels:
        return state
    known = {**state.labels, labels.CAPACITY_TYPE: state.capacity_type}
    return replace(state, node=with_fields(state.node, "metadata", labels=known))


def _with_protection(pod: Pod) -> Pod:
    annotations = pod.metadata.annotations
    if annotations.get(SAFE_TO_EVICT) != "false" or labels.DO_NOT_DISRUPT in annotations:
        return pod
    annotations = {**annotations, labels.DO_NOT_DISRUPT: "true"}
    return with_fields(pod, "metadata", annotations=annotations)


def _is_system(state: StateNode) -> bool:
    carried = state.labels
    taints = state.node.spec.taints if state.node is not None else ()
    return (
        carried.get(COMPUTE) == FARGATE
        or CONTROL_PLANE in carried
        or any(taint.key == CRITICAL for taint in taints)
    )
