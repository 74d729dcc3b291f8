"""Groups equal new nodes, so that one CreateFleet call launches all of them."""

from __future__ import annotations

import uuid
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from controller.apis import labels
from controller.apis.karpenter.sharedlaunch import MOST, SharedLaunch, new_token
from controller.cloudprovider.instancetypes import InstanceType
from controller.scheduling.results import NewNode


def with_shared_launches(
    nodes: Sequence[NewNode], types: Mapping[str, Sequence[InstanceType]], now: datetime
) -> list[NewNode]:
    """Return the nodes; equal ones carry an annotation that names their common CreateFleet call.

    `types` are the instance types of each NodePool. Nodes of a NodePool that can use a capacity
    reservation are launched one by one, because EC2 fills a reservation only as far as it lasts.
    """
    alike: dict[Hashable, list[int]] = {}
    for index, node in enumerate(nodes):
        if not _uses_reservations(types.get(node.node_pool, ())):
            alike.setdefault(_content(node), []).append(index)
    shared = list(nodes)
    for members in alike.values():
        for first in range(0, len(members), MOST):
            part = members[first : first + MOST]
            token = new_token(now, uuid.uuid4().hex)
            for position, index in enumerate(part if len(part) > 1 else ()):
                launch = SharedLaunch(token, position, len(part))
                annotations = {**nodes[index].annotations, labels.SHARED_LAUNCH: launch.written}
                shared[index] = replace(nodes[index], annotations=annotations)
    return shared


def _uses_reservations(types: Sequence[InstanceType]) -> bool:
    return any(o.capacity_type == labels.RESERVED for one in types for o in one.offerings)


def _content(node: NewNode) -> Hashable:
    """Return everything on which the launch of a node depends."""
    return (
        node.node_pool,
        node.instance_types,
        tuple((r.key, r.operator, tuple(r.values), r.min_values) for r in node.requirements),
        *(tuple(sorted(each.items())) for each in (node.requests, node.labels, node.annotations)),
    )
