"""The virtual pods of CapacityBuffers, which reserve capacity for future pods.

The engine schedules virtual pods after all real pods; `scheduling.buffers` separates them in its
results. When a real pod takes a buffer's capacity, Joiner provisions that capacity again elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any, Protocol

import msgspec

from controller.apis import labels
from controller.apis.karpenter.capacitybuffer import (
    ACTIVE_CAPACITY,
    PROVISIONING,
    READY_FOR_PROVISIONING,
    CapacityBuffer,
    CapacityBufferStatus,
)
from controller.apis.kinds import DEPLOYMENT, POD_TEMPLATE, REPLICA_SET, STATEFUL_SET, Kind, T
from controller.apis.kubernetes import conditions
from controller.apis.kubernetes.conditions import Condition
from controller.apis.kubernetes.meta import ObjectMeta
from controller.apis.kubernetes.pods import Pod, PodSpec, PodStatus, PodTemplateSpec
from controller.apis.kubernetes.workloads import Scalable
from controller.constraints.resources import parsed_requests, pod_requests, with_default_requests
from controller.options import GATE_DISABLED

PRIORITY = -(2**31)
"""The priority of a buffer's pods: lower than every real pod."""

MAX_PODS = 10_000
"""The maximum number of pods of one buffer. Each is scheduled like a real pod, so a larger number
is probably a mistake."""

SCALABLES: Mapping[str, Kind[Any]] = {
    kind.name: kind for kind in (DEPLOYMENT, REPLICA_SET, STATEFUL_SET)
}
"""The kinds of workloads that `scalableRef` may name."""

OWN_REASONS = frozenset(
    {
        "",
        GATE_DISABLED,
        "Resolved",
        "PodTemplateNotFound",
        "ScalableRefNotFound",
        "ResolutionFailed",
    }
)
"""The reasons that this controller writes in the condition `ReadyForProvisioning` of a buffer. Any
other reason belongs to another provisioner, such as Cluster Autoscaler."""

UNSCHEDULABLE = Condition(type="PodScheduled", status="False", reason="Unschedulable")


class UnresolvedError(ValueError):
    """A buffer's pods cannot be resolved.

    The condition `ReadyForProvisioning` gets `reason`, and the error's text as its message.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class PodBlueprint:
    """The template of a buffer's pods, and the replicas of the workload in its `scalableRef`.

    `generation` is the generation of the PodTemplate; None if the buffer has a `scalableRef`.
    """

    template: PodTemplateSpec
    scale: int | None = None
    generation: int | None = None


class Find(Protocol):
    """A function that returns an object of the cluster; None if it does not exist."""

    def __call__(self, kind: Kind[T], name: str, namespace: str, /) -> T | None:
        """Return the object with this name."""


def blueprint_of(buffer: CapacityBuffer, find: Find) -> PodBlueprint:
    """Return the template of a buffer's pods, and the replicas of its workload.

    Raises:
        UnresolvedError: the template or workload does not exist, or Joiner does not support the
            buffer.

    """
    spec, namespace = buffer.spec, buffer.metadata.namespace
    if spec.pod_template_ref is not None:
        template = find(POD_TEMPLATE, spec.pod_template_ref.name, namespace)
        if template is None:
            raise UnresolvedError(
                "PodTemplateNotFound",
                f'PodTemplate "{namespace}/{spec.pod_template_ref.name}" does not exist',
            )
        return PodBlueprint(
            _with_default_requests(template.template), generation=template.metadata.generation
        )
    reference = spec.scalable_ref
    if reference is None:
        raise UnresolvedError(
            "ResolutionFailed", "neither spec.podTemplateRef nor spec.scalableRef is set"
        )
    kind = SCALABLES.get(reference.kind)
    if kind is None or reference.api_group not in ("", kind.group):
        raise UnresolvedError(
            "ResolutionFailed",
            f"spec.scalableRef: {reference.api_group}/{reference.kind} is not one of apps/"
            + ", apps/".join(SCALABLES),
        )
    scalable: Scalable | None = find(kind, reference.name, namespace)
    if scalable is None:
        raise UnresolvedError(
            "ScalableRefNotFound",
            f'{reference.kind} "{namespace}/{reference.name}" does not exist',
        )
    scale = 1 if scalable.spec.replicas is None else scalable.spec.replicas
    return PodBlueprint(_with_default_requests(scalable.spec.template), scale)


def _with_default_requests(template: PodTemplateSpec) -> PodTemplateSpec:
    """Return the template with the requests that its pods get; LimitRanges are not considered."""
    return msgspec.structs.replace(template, spec=with_default_requests(template.spec, {}))


def replicas(buffer: CapacityBuffer, blueprint: PodBlueprint) -> int:
    """Return the number of pods of the buffer.

    It is the larger of `replicas` and `percentage` of the workload's replicas, capped by `limits`.
    With only `limits`, it is the greatest number within them. A limit of a resource that the pods
    do not request has no effect.

    A percentage of 0 replicas is 0 pods, as in Cluster Autoscaler. Karpenter ignores `percentage`
    then, so `limits` determine the number.

    Raises:
        ValueError: a quantity is malformed, or the number exceeds `MAX_PODS`.

    """
    spec = buffer.spec
    counts = [] if spec.replicas is None else [spec.replicas]
    if spec.percentage is not None and blueprint.scale is not None:
        counts.append(ceil(blueprint.scale * spec.percentage / 100))
    requests = pod_requests(Pod(metadata=blueprint.template.metadata, spec=blueprint.template.spec))
    limited_counts = [
        amount // requests[name]
        for name, amount in parsed_requests(spec.limits).items()
        if requests.get(name)
    ]
    count = min([max(counts), *limited_counts]) if counts else min(limited_counts, default=0)
    if count > MAX_PODS:
        raise ValueError(
            f"the buffer has {count:,} pods; at most {MAX_PODS:,} are allowed: lower "
            "spec.replicas, spec.percentage or spec.limits"
        )
    return count


def virtual_pods(buffer: CapacityBuffer, blueprint: PodBlueprint, count: int) -> tuple[Pod, ...]:
    """Return the buffer's virtual pods, each with a unique name.

    They have no volumes: volumes are provisioned for existing pods only.
    """
    own = buffer.metadata
    volumes = [v for v in blueprint.template.spec.volumes if not v.persistent_volume_claim]
    spec: PodSpec = msgspec.structs.replace(
        blueprint.template.spec,
        node_name="",
        priority=PRIORITY,
        priority_class_name="",
        volumes=[v for v in volumes if not v.ephemeral],
    )
    annotations = {
        labels.BUFFER_POD: "true",
        labels.BUFFER_NAME: own.name,
        labels.BUFFER_NAMESPACE: own.namespace,
    }
    return tuple(
        Pod(
            metadata=ObjectMeta(
                name=f"capacity-buffer-{own.name}-{number}",
                namespace=own.namespace,
                uid=f"{own.uid}-{number}",
                labels=blueprint.template.metadata.labels,
                annotations=annotations,
            ),
            spec=spec,
            status=PodStatus(conditions=[UNSCHEDULABLE]),
        )
        for number in range(1, count + 1)
    )


def released_status(buffer: CapacityBuffer) -> CapacityBufferStatus:
    """Return the status of a buffer with another provisioning strategy, without Joiner's part.

    The status is Joiner's if Joiner has provisioned the buffer, or has reported that its feature
    gate is off, and the buffer's controller has not written its own strategy since.
    """
    known = buffer.status
    ready = conditions.find(known.conditions, READY_FOR_PROVISIONING)
    if ready is None or ready.reason not in OWN_REASONS:
        return known
    if known.provisioning_strategy != ACTIVE_CAPACITY and ready.reason != GATE_DISABLED:
        return known
    foreign = conditions.without_condition(known.conditions, READY_FOR_PROVISIONING)
    return CapacityBufferStatus(conditions=conditions.without_condition(foreign, PROVISIONING))


def buffer_of(pod: Pod) -> str:
    """Return the buffer of a virtual pod as `namespace/name`; empty for real pods."""
    annotations = pod.metadata.annotations
    if annotations.get(labels.BUFFER_POD) != "true":
        return ""
    return (
        f"{annotations.get(labels.BUFFER_NAMESPACE, '')}/{annotations.get(labels.BUFFER_NAME, '')}"
    )
