"""The schema of CapacityBuffers."""

from __future__ import annotations

from typing import Any

from controller.apis.capacitybuffer import CapacityBufferSpec
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
from controller.apis.kinds import CAPACITY_BUFFER


def capacity_buffer() -> dict[str, Any]:
    """Return the CustomResourceDefinition."""
    return definition(
        CAPACITY_BUFFER,
        "Keeps room free for pods yet to come.",
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
        "How many pods of which shape there must always be room for.",
        limits=fragments.quantities("The most that the buffer's pods may request in total."),
        percentage=integer(
            "How many pods, in percent of the scalable's replicas, rounded up.",
            form=INT32,
            minimum=0,
        ),
        podTemplateRef=_local_reference("The PodTemplate that gives the pods their shape."),
        provisioningStrategy=string(
            "How the room is kept.", default=default_of(CapacityBufferSpec, "provisioningStrategy")
        ),
        replicas=integer("How many pods.", form=INT32, minimum=0),
        scalableRef=fields(
            "The workload whose pods give the buffer its shape.",
            required=["kind", "name"],
            apiGroup=string("Its API group; empty for the core group."),
            kind=string("Its kind.", minimum=1),
            name=string("Its name.", minimum=1),
        ),
        rules=[
            rule(
                "!has(self.podTemplateRef) || has(self.replicas) || has(self.limits)",
                "with podTemplateRef, replicas or limits must say how many pods",
            ),
            rule(
                "!has(self.podTemplateRef) || !has(self.scalableRef)",
                "podTemplateRef and scalableRef exclude one another",
            ),
        ],
    )


def _local_reference(about: str) -> Schema:
    return fields(about, required=["name"], name=string("Its name.", minimum=1))


def _status() -> Schema:
    return fields(
        "What the controller found.",
        conditions=fragments.conditions(),
        podTemplateGeneration=integer("The generation of the shape that counts.", form=INT64),
        podTemplateRef=_local_reference("The PodTemplate that counts."),
        provisioningStrategy=string("The strategy that counts."),
        replicas=integer("How many pods there is to be room for.", form=INT32),
    )
