"""New nodes of static NodePools: nodes that the NodePool's template alone specifies."""

from __future__ import annotations

from controller.apis.karpenter.nodepool import NodePool
from controller.scheduling.catalog.offerings import template
from controller.scheduling.nodeclaims import labels_of
from controller.scheduling.results import NewNode


def node_from_template(pool: NodePool) -> NewNode:
    """Return a new node without pods, as the NodePool's template specifies it.

    Raises:
        ValueError: a requirement is malformed.

    """
    described = template(pool)
    return NewNode(
        node_pool=pool.metadata.name,
        instance_types=(),
        requirements=described.terms,
        price=0.0,
        pods=(),
        requests={},
        labels=labels_of(described.labels, described.requirements),
    )
