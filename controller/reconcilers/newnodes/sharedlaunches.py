"""Groups equal new nodes, so that one CreateFleet call launches all of them."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from types import MappingProxyType

from controller.apis import labels
from controller.apis.karpenter.nodepool import NodePool
from controller.apis.karpenter.sharedlaunch import MAX_INSTANCES, SharedLaunch, new_token
from controller.apis.kinds import EC2_NODE_CLASS
from controller.apis.kubernetes.pods import Pod
from controller.cloudprovider.instancetypes import InstanceType
from controller.scheduling.results import NewNode
from controller.state.cluster import Cluster

NO_PODS: Mapping[str, Pod] = MappingProxyType({})


def with_shared_launches(
    nodes: Sequence[NewNode],
    now: datetime,
    *,
    alone: Collection[str] = (),
    pods: Mapping[str, Pod] = NO_PODS,
) -> list[NewNode]:
    """Return the nodes; equal ones get an annotation with the token of a common CreateFleet call.

    The nodes of the NodePools in `alone` are launched one by one. If EC2 launches fewer instances
    than requested, the nodes whose pods have the highest priority get one, then those with the most
    pods. `pods` are the pods by `namespace/name`.
    """
    alike: dict[Hashable, list[int]] = {}
    for index, node in enumerate(nodes):
        if node.node_pool not in alone:
            alike.setdefault(_content(node), []).append(index)
    shared = list(nodes)
    for members in alike.values():
        members.sort(key=lambda index: _importance(nodes[index], pods), reverse=True)
        for first in range(0, len(members), MAX_INSTANCES):
            part = members[first : first + MAX_INSTANCES]
            token = new_token(now, uuid.uuid4().hex)
            for position, index in enumerate(part if len(part) > 1 else ()):
                launch = SharedLaunch(token, position, len(part))
                annotations = {**nodes[index].annotations, labels.SHARED_LAUNCH: launch.annotation}
                shared[index] = replace(nodes[index], annotations=annotations)
    return shared


def with_reservations(
    cluster: Cluster, pools: Iterable[NodePool], types: Mapping[str, Sequence[InstanceType]]
) -> frozenset[str]:
    """Return the names of the NodePools that can use a capacity reservation.

    Their nodes are launched one by one, because a reservation may not have enough instances left
    for all of them. `types` are the instance types by NodePool. For NodePools without an entry,
    such as static ones, the status of the EC2NodeClass decides.
    """
    return frozenset(
        pool.metadata.name
        for pool in pools
        if (
            _offers_reservations(types[pool.metadata.name])
            if pool.metadata.name in types
            else _selects_reservations(cluster, pool)
        )
    )


def _offers_reservations(types: Sequence[InstanceType]) -> bool:
    return any(o.capacity_type == labels.RESERVED for one in types for o in one.offerings)


def _selects_reservations(cluster: Cluster, pool: NodePool) -> bool:
    node_class = cluster.get(EC2_NODE_CLASS, pool.spec.template.spec.node_class_ref.name)
    return node_class is None or bool(node_class.status.capacity_reservations)


def _importance(node: NewNode, pods: Mapping[str, Pod]) -> tuple[int, int]:
    found = [pods[key] for key in node.pods if key in pods]
    return max((pod.spec.priority or 0 for pod in found), default=0), len(node.pods)


def _content(node: NewNode) -> Hashable:
    """Return everything on which the launch of a node depends."""
    return (
        node.node_pool,
        node.instance_types,
        tuple((r.key, r.operator, tuple(r.values), r.min_values) for r in node.requirements),
        *(tuple(sorted(each.items())) for each in (node.requests, node.labels, node.annotations)),
    )
