"""The schema of NodeClaims."""

from __future__ import annotations

from typing import Any

from controller.apis import labels
from controller.apis.crds import fragments
from controller.apis.crds.definitions import AGE, Column, condition, definition, label
from controller.apis.crds.schemas import Schema, fields, rule, string
from controller.apis.kinds import NODE_CLAIM


def node_claim() -> dict[str, Any]:
    """Return the CustomResourceDefinition."""
    return definition(
        NODE_CLAIM,
        "One node that was asked for, from intent to end.",
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
        "What the node must be.",
        required=["nodeClassRef", "requirements"],
        expireAfter=fragments.expire_after(),
        nodeClassRef=fragments.node_class_reference(),
        requirements=fragments.requirements(
            "What the node may be, as terms over labels; all must hold.",
            key_rules=fragments.key_rules("self", domains=fragments.RESERVED_DOMAINS),
        ),
        resources=fields(
            "What the node must have room for.",
            requests=fragments.quantities("The sum of the requests of its pods."),
        ),
        startupTaints=fragments.taints("Taints that something else takes off."),
        taints=fragments.taints("Taints of the node."),
        terminationGracePeriod=fragments.termination_grace_period(),
        rules=[rule("self == oldSelf", "a NodeClaim's spec cannot be changed: delete the claim")],
    )


def _status() -> Schema:
    return fields(
        "What became of it.",
        allocatable=fragments.quantities("What pods may use of the node."),
        capacity=fragments.quantities("What the node has."),
        conditions=fragments.conditions(loose=True),
        imageID=string("The image the instance runs."),
        lastPodEventTime=string("When a pod last came to the node or left it.", form="date-time"),
        nodeName=string("The node that joined."),
        providerID=string("The instance, such as aws:///us-west-2a/i-0123456789abcdef0."),
    )
