"""CapacityBuffer, `autoscaling.x-k8s.io/v1beta1`: room kept free for pods yet to come."""

from __future__ import annotations

from controller.apis.conditions import Condition
from controller.apis.meta import ObjectMeta, Wire
from controller.apis.pods import Quantities

ACTIVE_CAPACITY = "buffer.x-k8s.io/active-capacity"
"""The strategy that keeps real nodes ready."""


READY_FOR_PROVISIONING = "ReadyForProvisioning"
PROVISIONING = "Provisioning"


class LocalReference(Wire):
    """Points at an object of the same namespace."""

    name: str


class ScalableReference(Wire):
    """Points at anything with a scale subresource; its pods give the buffer its shape."""

    kind: str
    name: str
    api_group: str = ""


class CapacityBufferSpec(Wire):
    """How many pods of which shape there must always be room for.

    `percentage` is of the scalable's replicas, rounded up; with both it and `replicas` the
    larger counts; `limits` cap the sum of requests, and say how many where nothing else does.
    """

    provisioning_strategy: str = ACTIVE_CAPACITY
    pod_template_ref: LocalReference | None = None
    scalable_ref: ScalableReference | None = None
    replicas: int | None = None
    percentage: int | None = None
    limits: Quantities = {}


class CapacityBufferStatus(Wire):
    """What the controller found."""

    pod_template_ref: LocalReference | None = None
    replicas: int | None = None
    pod_template_generation: int | None = None
    provisioning_strategy: str = ""
    conditions: list[Condition] = []


class CapacityBuffer(Wire):
    """A CapacityBuffer."""

    metadata: ObjectMeta
    spec: CapacityBufferSpec
    status: CapacityBufferStatus = CapacityBufferStatus()
