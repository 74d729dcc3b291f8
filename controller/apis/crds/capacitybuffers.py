"""The CustomResourceDefinition of CapacityBuffer."""

from __future__ import annotations

from typing import Any

from controller.apis.crds import fragments
from controller.apis.crds.definitions import AGE, Column, definition
from controller.apis.crds.schemas import (
    INT32,
    INT64,
    Schema,
    default_of,
    fields,
    integer,
    rule,
    string,
)
from controller.apis.karpenter.capacitybuffer import ACTIVE_CAPACITY, CapacityBufferSpec
from controller.apis.kinds import CAPACITY_BUFFER


def capacity_buffer() -> dict[str, Any]:
    """Return the CustomResourceDefinition of CapacityBuffer."""
    return definition(
        CAPACITY_BUFFER,
        "Keeps spare capacity ready for pods of a given shape.",
        spec=_spec(),
        status=_status(),
        category="autoscaling",
        short_names=["cb"],
        columns=[
            Column("Strategy", ".spec.provisioningStrategy"),
            Column("PodTemplate", ".status.podTemplateRef.name"),
            Column("Replicas", ".status.replicas", "integer"),
            Column("ConditionsType", ".status.conditions[*].type"),
            Column("ConditionsStatus", ".status.conditions[*].status"),
            Column("ConditionsReason", ".status.conditions[*].reason"),
            AGE,
        ],
    )


def _spec() -> Schema:
    return fields(
        "The desired buffer: the shape of its pods, and how many.",
        limits=fragments.quantities(
            "Limits of the resources that all pods of the buffer may request together."
        ),
        percentage=integer(
            "Number of pods in percent of the replicas of scalableRef, rounded up.",
            form=INT32,
            minimum=0,
        ),
        podTemplateRef=_local_reference("The PodTemplate that defines the pods of the buffer."),
        provisioningStrategy=string(
            f"How the buffer is provisioned. Joiner provisions {ACTIVE_CAPACITY}, and leaves other "
            "strategies to other controllers.",
            default=default_of(CapacityBufferSpec, "provisioningStrategy"),
        ),
        replicas=integer("Number of pods in the buffer.", form=INT32, minimum=0),
        scalableRef=fields(
            "The scalable workload whose pod template defines the pods of the buffer.",
            required=["kind", "name"],
            apiGroup=string("API group of the workload: apps. Empty means apps too."),
            kind=string("Kind of the workload: Deployment, ReplicaSet or StatefulSet.", minimum=1),
            name=string("Name of the workload.", minimum=1),
        ),
        rules=[
            rule(
                "!has(self.podTemplateRef) || has(self.replicas) || has(self.limits)",
                "If podTemplateRef is set, replicas or limits must also be set",
            ),
            rule(
                "!has(self.podTemplateRef) || !has(self.scalableRef)",
                "You must define either PodTemplateRef or ScalableRef, but not both",
            ),
        ],
    )


def _local_reference(about: str) -> Schema:
    return fields(about, required=["name"], name=string("Name of the object.", minimum=1))


def _status() -> Schema:
    return fields(
        "The observed state of the buffer.",
        conditions=fragments.conditions(),
        podTemplateGeneration=integer(
            "Generation of the PodTemplate from which the buffer was computed.", form=INT64
        ),
        podTemplateRef=_local_reference("The PodTemplate in use."),
        provisioningStrategy=string("The provisioning strategy in use."),
        readyReplicas=integer("Number of pods for which nodes have capacity now.", form=INT32),
        replicas=integer("Number of pods for which capacity is kept.", form=INT32),
    )
