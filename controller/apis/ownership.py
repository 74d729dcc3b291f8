"""Which objects are ours: NodePool, NodeClaim and Node are kinds that others write too.

EKS Auto Mode runs pools and claims of its own beside ours, and only the class that they
name tells them apart.
"""

from __future__ import annotations

from controller.apis import labels
from controller.apis.kinds import EC2_NODE_CLASS, KubernetesObject
from controller.apis.nodeclaim import NodeClaim
from controller.apis.nodepool import NodePool
from controller.apis.nodes import Node


def is_ours(value: KubernetesObject) -> bool:
    """Whether a pool or claim names an EC2NodeClass as its class; other kinds are shared with all.

    The API server lets nobody change the group or the kind that it names.
    """
    if isinstance(value, NodePool):
        reference = value.spec.template.spec.node_class_ref
    elif isinstance(value, NodeClaim):
        reference = value.spec.node_class_ref
    else:
        return True
    return (reference.group, reference.kind) == (EC2_NODE_CLASS.group, EC2_NODE_CLASS.name)


def bears_our_class(node: Node) -> bool:
    """Whether a node says that it was made from an EC2NodeClass, even if its claim has gone."""
    return labels.EC2NODECLASS in node.metadata.labels
