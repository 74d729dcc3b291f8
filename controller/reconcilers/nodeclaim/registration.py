"""Matches a Node to its NodeClaim and hands over labels, taints and ownership."""

from __future__ import annotations

from typing import Any

from controller.apis import labels
from controller.apis.kinds import NODE
from controller.apis.meta import to_wire
from controller.apis.nodeclaim import NodeClaim
from controller.apis.nodes import Node
from controller.apis.taints import Taint
from controller.apiserver.port import ApiServer
from controller.cloudprovider.provider import Instance
from controller.constraints.taints import HELD


async def register(api: ApiServer, claim: NodeClaim, node: Node, *, held: bool = False) -> Node:
    """Write onto the node what the claim promises; pods may come in unless it is `held`."""
    spec = {"taints": _taints(claim, node, held=held) or None}
    return await api.patch(
        NODE,
        node.metadata.name,
        {"metadata": _metadata(claim, node), "spec": spec},
        resource_version=node.metadata.resource_version,
    )


def is_awaiting(node: Node) -> bool:
    """Whether the node says that it is not registered: it has just joined, its kubelet has made it
    anew, or somebody has written back taints that were read before.
    """
    return any(taint.key == labels.UNREGISTERED_TAINT for taint in node.spec.taints)


def is_done(node: Node) -> bool:
    """Whether the node carries what its claim promises; the claim may not say so yet."""
    return node.metadata.labels.get(labels.REGISTERED) == "true"


def is_untold(claim: NodeClaim) -> bool:
    """Whether the claim lacks a label that the cloud tells only once the instance runs."""
    return claim.metadata.labels.get(labels.PLACEMENT_GROUP_PARTITION) == ""


def told(instance: Instance) -> dict[str, str]:
    """Return the labels that a claim could not be given at once, as far as they are known now."""
    partition = instance.labels.get(labels.PLACEMENT_GROUP_PARTITION, "")
    return {labels.PLACEMENT_GROUP_PARTITION: partition} if partition else {}


def owner_reference(claim: NodeClaim) -> dict[str, Any]:
    """Return the reference by which a Node goes with its claim."""
    return {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodeClaim",
        "name": claim.metadata.name,
        "uid": claim.metadata.uid,
        "blockOwnerDeletion": True,
    }


def _metadata(claim: NodeClaim, node: Node) -> dict[str, Any]:
    owners = [to_wire(o) for o in node.metadata.owner_references if o.uid != claim.metadata.uid]
    # To a node that is on its way out no finalizer may be added.
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
    """Merge the claim's taints in, by key and effect; the unregistered taint goes."""
    taints = {(t.key, t.effect): t for t in node.spec.taints}
    # The bootstrap script, or we, already registered with them; a startup taint that its
    # owner has removed since must not come back.
    if not {labels.DO_NOT_SYNC_TAINTS, labels.REGISTERED} & _true(node):
        taints |= {(t.key, t.effect): t for t in (*claim.spec.taints, *claim.spec.startup_taints)}
    if held:
        taints[(HELD.key, HELD.effect)] = HELD
    return [_wire(t) for t in taints.values() if t.key != labels.UNREGISTERED_TAINT]


def _true(node: Node) -> set[str]:
    return {label for label, value in node.metadata.labels.items() if value == "true"}


def _wire(taint: Taint) -> dict[str, Any]:
    wire: dict[str, Any] = to_wire(taint)
    return wire
