"""The CustomResourceDefinition of NodeClaim."""

from __future__ import annotations

from typing import Any

from controller.apis import labels
from controller.apis.crds import fragments
from controller.apis.crds.definitions import AGE, Column, condition, definition, label
from controller.apis.crds.schemas import Schema, fields, rule, string
from controller.apis.kinds import NODE_CLAIM


def node_claim() -> dict[str, Any]:
    """Return the CustomResourceDefinition of NodeClaim."""
    return definition(
        NODE_CLAIM,
        "A request for one node, from its launch to its termination.",
        spec=_spec(),
        status=_status(),
        category="karpenter",
        columns=[
            Column("Type", label(labels.INSTANCE_TYPE)),
            Column("Capacity", label(labels.CAPACITY_TYPE)),
            Column("Zone", label(labels.ZONE)),
            Column("Node", ".status.nodeName"),
            Column("Ready", condition("Ready")),
            AGE,
            Column("ImageID", ".status.imageID", wide=True),
            Column("ID", ".status.providerID", wide=True),
            Column("NodePool", label(labels.NODEPOOL), wide=True),
            Column("NodeClass", ".spec.nodeClassRef.name", wide=True),
            Column("Drifted", condition("Drifted"), wide=True),
        ],
    )


def _spec() -> Schema:
    return fields(
        "The desired state of the node.",
        required=["nodeClassRef", "requirements"],
        expireAfter=fragments.expire_after(),
        nodeClassRef=fragments.node_class_reference(),
        requirements=fragments.requirements(
            "Requirements on the labels of the node, such as its instance type. They are ANDed.",
            key_rules=fragments.key_rules("self", domains=fragments.RESERVED_DOMAINS),
        ),
        resources=fields(
            "Resources that the node must provide.",
            requests=fragments.quantities("Sum of the requests of the pods for the node."),
        ),
        startupTaints=fragments.taints(
            "Taints of the node at startup, which another component, such as a DaemonSet, removes."
        ),
        taints=fragments.taints("Taints of the node."),
        terminationGracePeriod=fragments.termination_grace_period(),
        rules=[rule("self == oldSelf", "spec is immutable")],
    )


def _status() -> Schema:
    return fields(
        "The observed state of the node.",
        allocatable=fragments.quantities("Estimated allocatable capacity of the node."),
        capacity=fragments.quantities("Estimated full capacity of the node."),
        conditions=fragments.conditions(loose=True),
        imageID=string("ID of the AMI of the instance."),
        lastPodEventTime=string(
            "Time of the last pod event on the node: a pod was bound, terminated or removed.",
            form="date-time",
        ),
        nodeName=string("Name of the Node."),
        providerID=string(
            "Provider ID of the Node, such as aws:///us-west-2a/i-0123456789abcdef0."
        ),
    )
