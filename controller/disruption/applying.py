"""Computes the cluster after commands: without the removed nodes, with new ones and moved pods."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

import msgspec

from controller.apis import labels
from controller.apis.karpenter.nodeclaim import (
    CONSOLIDATABLE,
    INITIALIZED,
    LAUNCHED,
    REGISTERED,
    NodeClaim,
    NodeClaimSpec,
    NodeClaimStatus,
)
from controller.apis.karpenter.nodepool import NodePool
from controller.apis.kubernetes import quantities
from controller.apis.kubernetes.conditions import Condition
from controller.apis.kubernetes.meta import ObjectMeta, with_fields
from controller.apis.kubernetes.nodes import Node, NodeSpec, NodeStatus
from controller.apis.kubernetes.pods import Pod, PodStatus, Quantities
from controller.cloudprovider.compatibility import Choice, choices, node_labels
from controller.cloudprovider.instancetypes import InstanceType, Offering
from controller.constraints.resources import Resources
from controller.disruption.commands import Command
from controller.disruption.offerings import with_left
from controller.disruption.problem import DisruptionProblem
from controller.disruption.simulation import bound_copy
from controller.scheduling.catalog.daemons import daemons
from controller.scheduling.results import NewNode
from controller.scheduling.scheduler import schedule
from controller.state.nodes import StateNode
from controller.state.pods import is_reschedulable
from controller.state.snapshot import Snapshot


def apply_commands(
    problem: DisruptionProblem, commands: Iterable[tuple[Command, Sequence[str]]]
) -> DisruptionProblem:
    """Return the cluster after commands that were decided together.

    Each command comes with the names of its new nodes, in the order of its replacements. A
    new node has the cheapest offering that its NodeClaim allows and is initialized and
    consolidatable. A duration in `karpenter.sh/do-not-disrupt` (such as 1h) starts again for a pod
    that moved.
    """
    gone: set[str] = set()
    new: list[tuple[str, NewNode]] = []
    node_of: dict[str, str] = {}
    for command, names in commands:
        gone |= command.names
        new += zip(names, command.replacements, strict=True)
        node_of |= {key: name for name, keys in command.moves.items() for key in keys}
    return replace_nodes(problem, gone, new, node_of)


def replace_nodes(
    problem: DisruptionProblem,
    gone: Collection[str],
    new: Iterable[tuple[str, NewNode]],
    moves: Mapping[str, str],
) -> DisruptionProblem:
    """Return the cluster without the nodes in `gone`, and with `new` nodes by name.

    `moves` maps the keys of pods that move to existing nodes to the names of these nodes. The new
    nodes run daemon pods.
    """
    snapshot, types = problem.snapshot, problem.snapshot.instance_types
    node_of = dict(moves)
    made: list[StateNode] = []
    for name, planned in new:
        pool = problem.node_pools[planned.node_pool]
        made.append(launched_node(name, planned, pool, types[planned.node_pool], problem.now))
        types = with_left(types, made[-1].labels.get(labels.RESERVATION_ID, ""), -1)
        node_of |= dict.fromkeys(planned.pods, name)
    for node in snapshot.nodes:
        if node.name in gone:
            types = with_left(types, node.labels.get(labels.RESERVATION_ID, ""), 1)
    there = snapshot.fork(gone=gone, bound=node_of)
    pods = tuple(
        _with_start_time(pod, problem.now) if pod.key in node_of else pod for pod in there.pods
    )
    daemon_pods = _daemon_pods(snapshot, made) if made else ()
    there = replace(
        there, nodes=(*there.nodes, *made), pods=(*pods, *daemon_pods), instance_types=types
    )
    after = replace(problem, snapshot=there)
    unbound = [
        bound_copy(pod, "")
        for pod in snapshot.pods
        if pod.spec.node_name in gone and pod.key not in node_of and is_reschedulable(pod)
    ]
    return _with_pods_bound(after, unbound) if unbound else after


def _daemon_pods(snapshot: Snapshot, made: Sequence[StateNode]) -> Iterator[Pod]:
    """Yield the pods that DaemonSets run on new nodes: copies of each DaemonSet's newest pod.

    Once every other node is gone, only they have the requests that admission gave to these pods.
    """
    pods = {pod.key: pod for pod in snapshot.pods}
    for daemon in daemons(snapshot):
        if not daemon.newest:
            continue
        for state in made:
            if state.node is not None and daemon.runs_on(state.node):
                name = f"{daemon.key.rpartition('/')[2]}-{state.name}"
                bound = bound_copy(pods[daemon.newest], state.name)
                running = msgspec.structs.replace(bound, status=PodStatus(phase="Running"))
                yield with_fields(running, "metadata", name=name, uid=f"uid-{name}")


def _with_pods_bound(problem: DisruptionProblem, unbound: Sequence[Pod]) -> DisruptionProblem:
    """Return the cluster with the pods of static NodePools on nodes that can hold them now.

    The replacements of static NodePools are created for no pod in particular. Pods that no node
    can hold are pending.
    """
    snapshot = problem.snapshot
    there = replace(snapshot.without(()), node_pools=(), instance_types={})
    results = schedule(unbound, snapshot=there, settings=problem.scheduling)
    node_of = {key: name for name, keys in results.existing_nodes.items() for key in keys}
    placed = (
        _with_start_time(bound_copy(pod, node_of[pod.key]), problem.now)
        for pod in unbound
        if pod.key in node_of
    )
    waiting = (pod for pod in unbound if pod.key not in node_of)
    return replace(
        problem,
        snapshot=replace(snapshot, pods=(*snapshot.pods, *placed)),
        pending=(*problem.pending, *waiting),
    )


def _with_start_time(pod: Pod, now: datetime) -> Pod:
    if labels.DO_NOT_DISRUPT not in pod.metadata.annotations:
        return pod
    return with_fields(pod, "status", start_time=now)


def launched_node(
    name: str, new: NewNode, pool: NodePool, types: Iterable[InstanceType], now: datetime
) -> StateNode:
    """Return the node that a NodeClaim for `new` would become: the cheapest offering it allows.

    Raises:
        ValueError: no offering that it allows is available.

    """
    choice = _cheapest(new, types)
    offering = min(choice.offerings, key=lambda offering: offering.price)
    carried = _labels(name, new, pool, choice.instance_type, offering)
    metadata = ObjectMeta(name=name, uid=f"uid-{name}", labels=carried, creation_timestamp=now)
    template = pool.spec.template.spec
    capacity = _format_quantities(choice.instance_type.capacity)
    allocatable = _format_quantities(choice.instance_type.allocatable)
    provider_id = f"new:///{name}"
    return StateNode(
        node=Node(
            metadata=metadata,
            spec=NodeSpec(provider_id=provider_id, taints=list(template.taints or ())),
            status=NodeStatus(
                capacity=capacity,
                allocatable=allocatable,
                conditions=[Condition(type="Ready", status="True", last_transition_time=now)],
            ),
        ),
        claim=NodeClaim(
            metadata=metadata,
            spec=NodeClaimSpec(
                node_class_ref=template.node_class_ref,
                requirements=list(new.requirements),
                taints=list(template.taints or ()),
                termination_grace_period=template.termination_grace_period,
                expire_after=template.expire_after,
            ),
            status=NodeClaimStatus(
                node_name=name,
                provider_id=provider_id,
                capacity=capacity,
                allocatable=allocatable,
                conditions=[
                    Condition(type=condition, status="True", last_transition_time=now)
                    for condition in (LAUNCHED, REGISTERED, INITIALIZED, CONSOLIDATABLE, "Ready")
                ],
            ),
        ),
    )


def _cheapest(new: NewNode, types: Iterable[InstanceType]) -> Choice:
    """Return the cheapest choice of a NodeClaim; one without instance types allows every type."""
    seen = list(types)
    named = new.instance_types or tuple(instance_type.name for instance_type in seen)
    order = {name: rank for rank, name in enumerate(named)}
    launchable = choices(
        (instance_type for instance_type in seen if instance_type.name in order),
        new.requirements,
        {},
    )
    return min(launchable, key=lambda choice: (choice.price, order[choice.instance_type.name]))


def _labels(
    name: str, new: NewNode, pool: NodePool, instance_type: InstanceType, offering: Offering
) -> dict[str, str]:
    return {
        **(pool.spec.template.metadata.labels or {}),
        **new.labels,
        **node_labels(instance_type, offering),
        labels.NODEPOOL: pool.metadata.name,
        labels.HOSTNAME: name,
        labels.REGISTERED: "true",
        labels.INITIALIZED: "true",
    }


def _format_quantities(amounts: Resources) -> Quantities:
    return {name: quantities.format_quantity(amount, name) for name, amount in amounts.items()}
