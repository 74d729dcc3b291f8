"""The objects that Joiner manages; other controllers create NodePools and NodeClaims too.

EKS Auto Mode has NodePools and NodeClaims of its own in the same cluster. Only their NodeClass
reference distinguishes them.
"""

from __future__ import annotations

import difflib

from controller.apis import labels
from controller.apis.karpenter.nodeclaim import NodeClaim
from controller.apis.karpenter.nodepool import NodePool
from controller.apis.kinds import EC2_NODE_CLASS
from controller.apis.kubernetes.meta import KubernetesObject
from controller.apis.kubernetes.nodes import Node

SIMILAR = 0.85
"""The least similarity, from 0 to 1, at which a word is taken for a misspelling of another one.
Group and kind of other providers of Karpenter, such as `karpenter.k8s.gcp` and `GCENodeClass`, are
less similar to Joiner's."""


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
    """Whether the group or the kind of a NodePool's reference to an EC2NodeClass is a mistake.

    No controller manages such a NodePool: only Joiner's group has the kind EC2NodeClass, and it has
    no other kind of NodeClass. If both differ, they are misspelt if both are similar to Joiner's.
    Joiner only says so in the NodePool's conditions.
    """
    if not isinstance(value, NodePool) or is_ours(value):
        return False
    reference = value.spec.template.spec.node_class_ref
    return (
        reference.group == EC2_NODE_CLASS.group
        or reference.kind == EC2_NODE_CLASS.name
        or (
            _is_similar(reference.group, EC2_NODE_CLASS.group)
            and _is_similar(reference.kind, EC2_NODE_CLASS.name)
        )
    )


def _is_similar(word: str, right: str) -> bool:
    pair = difflib.SequenceMatcher(None, word.lower(), right.lower())
    return pair.ratio() >= SIMILAR


def has_our_class(node: Node) -> bool:
    """Whether a node's label names an EC2NodeClass, even if its NodeClaim no longer exists."""
    return labels.EC2NODECLASS in node.metadata.labels


def node_pool_of(value: Node | NodeClaim) -> str:
    """Return the name of the NodePool that a Node or NodeClaim belongs to; empty without one."""
    return value.metadata.labels.get(labels.NODEPOOL, "")
