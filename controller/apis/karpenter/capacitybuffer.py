"""CapacityBuffer, `autoscaling.x-k8s.io/v1beta1`: spare capacity for pods that do not exist yet."""

from __future__ import annotations

from controller.apis.kubernetes.conditions import Condition
from controller.apis.kubernetes.meta import KubernetesObject, Wire
from controller.apis.kubernetes.pods import Quantities

ACTIVE_CAPACITY = "buffer.x-k8s.io/active-capacity"
"""The provisioning strategy that keeps real nodes ready."""


READY_FOR_PROVISIONING = "ReadyForProvisioning"
PROVISIONING = "Provisioning"

NOT_READY = "Joiner keeps no capacity for the buffer: see condition ReadyForProvisioning"
"""The message of the condition `Provisioning` of a buffer that is not ready for it."""


class LocalReference(Wire):
    """A reference to an object of the same namespace."""

    name: str


class ScalableReference(Wire):
    """A reference to an object with a scale subresource; the buffer uses its pod template."""

    kind: str
    name: str
    api_group: str = ""


class CapacityBufferSpec(Wire):
    """The number and the template of the pods for which the buffer keeps capacity.

    `percentage` is a share of the replicas of the scalable object, rounded up. If `replicas` is set
    too, the larger number counts. `limits` cap the sum of the pods' requests. With only `limits`,
    the number is the greatest within them.
    """

    provisioning_strategy: str = ACTIVE_CAPACITY
    pod_template_ref: LocalReference | None = None
    scalable_ref: ScalableReference | None = None
    replicas: int | None = None
    percentage: int | None = None
    limits: Quantities = {}

    @property
    def is_active(self) -> bool:
        """Whether the buffer has Joiner's provisioning strategy.

        Joiner leaves other buffers to their controllers, as Cluster Autoscaler does.
        """
        return self.provisioning_strategy in (ACTIVE_CAPACITY, "")


class CapacityBufferStatus(Wire):
    """The observed state of a CapacityBuffer.

    `replicas` is its number of pods, and `ready_replicas` how many of them fit on existing nodes.
    """

    pod_template_ref: LocalReference | None = None
    replicas: int | None = None
    ready_replicas: int | None = None
    pod_template_generation: int | None = None
    provisioning_strategy: str = ""
    conditions: list[Condition] = []


class CapacityBuffer(KubernetesObject):
    """A CapacityBuffer object."""

    spec: CapacityBufferSpec
    status: CapacityBufferStatus = CapacityBufferStatus()
