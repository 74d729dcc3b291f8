"""Registers a Node: copies labels, taints and ownership from its NodeClaim."""

from __future__ import annotations

from typing import Any

from controller.apis import labels
from controller.apis.karpenter.nodeclaim import NodeClaim
from controller.apis.kinds import NODE
from controller.apis.kubernetes.meta import to_wire
from controller.apis.kubernetes.nodes import Node
from controller.apis.kubernetes.taints import Taint
from controller.apiserver.port import ApiServer
from controller.cloudprovider.provider import Instance
from controller.constraints.taints import HELD
from controller.reconcilers.writing import owner_reference


async def register(api: ApiServer, claim: NodeClaim, node: Node, *, held: bool = False) -> Node:
    """Copy the NodeClaim's labels, taints and ownership to the node; return the updated node.

    If `held`, the node gets the taint `taints.HELD`, which keeps other pods off it.

    Raises:
        ConflictError: the node has changed since it was read.

    """
    spec = {"taints": _taints(claim, node, held=held) or None}
    return await api.patch(
        NODE,
        node.metadata.name,
        {"metadata": _metadata(claim, node), "spec": spec},
        resource_version=node.metadata.resource_version,
    )


def lacks_late_labels(claim: NodeClaim) -> bool:
    """Whether the NodeClaim lacks a label that EC2 reports only once the instance runs."""
    return claim.metadata.labels.get(labels.PLACEMENT_GROUP_PARTITION) == ""


def late_labels(instance: Instance) -> dict[str, str]:
    """Return the labels that EC2 reports only once the instance runs; none until then."""
    partition = instance.labels.get(labels.PLACEMENT_GROUP_PARTITION, "")
    return {labels.PLACEMENT_GROUP_PARTITION: partition} if partition else {}


def _metadata(claim: NodeClaim, node: Node) -> dict[str, Any]:
    owners = [to_wire(o) for o in node.metadata.owner_references if o.uid != claim.metadata.uid]
    # The API server refuses new finalizers on a node that is being deleted.
    added = () if node.metadata.is_deleting else (labels.TERMINATION_FINALIZER,)
    return {
        "labels": {
            **claim.metadata.labels,
            labels.EC2NODECLASS: claim.spec.node_class_ref.name,
            labels.REGISTERED: "true",
        },
        "annotations": dict(claim.metadata.annotations),
        "finalizers": list(dict.fromkeys((*node.metadata.finalizers, *added))),
        "ownerReferences": [*owners, owner_reference(claim)],
    }


def _taints(claim: NodeClaim, node: Node, *, held: bool) -> list[dict[str, Any]]:
    """Merge the NodeClaim's taints by key and effect, and remove the unregistered taint."""
    taints = {(t.key, t.effect): t for t in node.spec.taints}
    # The node registered with these taints. A startup taint that was removed since must stay
    # removed.
    if not {labels.DO_NOT_SYNC_TAINTS, labels.REGISTERED} & _true_labels(node):
        taints |= {(t.key, t.effect): t for t in (*claim.spec.taints, *claim.spec.startup_taints)}
    if held:
        taints[(HELD.key, HELD.effect)] = HELD
    return [_wire(t) for t in taints.values() if t.key != labels.UNREGISTERED_TAINT]


def _true_labels(node: Node) -> set[str]:
    return {label for label, value in node.metadata.labels.items() if value == "true"}


def _wire(taint: Taint) -> dict[str, Any]:
    wire: dict[str, Any] = to_wire(taint)
    return wire
