"""The objects that Joiner manages; other controllers create NodePools and NodeClaims too.

EKS Auto Mode has NodePools and NodeClaims of its own in the same cluster. Only their NodeClass
reference distinguishes them.
"""

from __future__ import annotations

from controller.apis import labels
from controller.apis.karpenter.nodeclaim import NodeClaim
from controller.apis.karpenter.nodepool import NodePool
from controller.apis.kinds import EC2_NODE_CLASS
from controller.apis.kubernetes.meta import KubernetesObject
from controller.apis.kubernetes.nodes import Node


def is_ours(value: KubernetesObject) -> bool:
    """Whether a NodePool or NodeClaim refers to an EC2NodeClass; True for objects of other kinds.

    The API server does not allow changes to the group or the kind of the reference.
    """
    if isinstance(value, NodePool):
        reference = value.spec.template.spec.node_class_ref
    elif isinstance(value, NodeClaim):
        reference = value.spec.node_class_ref
    else:
        return True
    return (reference.group, reference.kind) == (EC2_NODE_CLASS.group, EC2_NODE_CLASS.name)


def has_unsupported_class(value: KubernetesObject) -> bool:
    """Whether only one of group and kind in a NodePool's NodeClass reference is Joiner's.

    The other one is a mistake, and no controller manages such a NodePool: only this group has the
    kind EC2NodeClass, and it has no other kind of NodeClass. Joiner only says so in its conditions.
    """
    if not isinstance(value, NodePool):
        return False
    reference = value.spec.template.spec.node_class_ref
    return (reference.group == EC2_NODE_CLASS.group) != (reference.kind == EC2_NODE_CLASS.name)


def has_our_class(node: Node) -> bool:
    """Whether a node's label names an EC2NodeClass, even if its NodeClaim no longer exists."""
    return labels.EC2NODECLASS in node.metadata.labels


def node_pool_of(value: Node | NodeClaim) -> str:
    """Return the name of the NodePool that a Node or NodeClaim belongs to; empty without one."""
    return value.metadata.labels.get(labels.NODEPOOL, "")
