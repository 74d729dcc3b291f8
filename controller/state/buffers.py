"""CapacityBuffers as pods that do not exist: room kept free for pods yet to come.

The engine places such pods like others, after all those that are real, and everything that
reads its answer tells the two apart. Room that a real pod takes is made again elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import msgspec

from controller.apis import labels
from controller.apis.capacitybuffer import CapacityBuffer
from controller.apis.conditions import Condition
from controller.apis.meta import ObjectMeta
from controller.apis.pods import Pod, PodSpec, PodStatus, PodTemplateSpec
from controller.constraints.resources import asked, pod_requests

PRIORITY = -(2**31)
"""The priority of a buffer's pods: whatever else there is comes first."""

MOST_PODS = 10_000
"""Room for so many pods is the most that one buffer keeps: each of them is placed like a pod
that exists, and who writes a number of another order has made a slip."""

UNSCHEDULABLE = Condition(type="PodScheduled", status="False", reason="Unschedulable")


@dataclass(frozen=True, slots=True)
class PodBlueprint:
    """What a buffer's pods are like; `scale` is how many pods the workload it follows has."""

    template: PodTemplateSpec
    scale: int | None = None


def replicas(buffer: CapacityBuffer, blueprint: PodBlueprint) -> int:
    """Return for how many pods there must be room.

    The larger of the number and the share of the workload; limits cap it, and where there
    is neither they are what counts. A resource that the pods do not ask for limits nothing.

    Raises:
        ValueError: a quantity cannot be read, or there would be more than `MOST_PODS`.

    """
    spec = buffer.spec
    wanted = [] if spec.replicas is None else [spec.replicas]
    if spec.percentage is not None and blueprint.scale:
        wanted.append(ceil(blueprint.scale * spec.percentage / 100))
    requests = pod_requests(Pod(metadata=blueprint.template.metadata, spec=blueprint.template.spec))
    capped = [
        amount // requests[name]
        for name, amount in asked(spec.limits).items()
        if requests.get(name)
    ]
    count = min([max(wanted), *capped]) if wanted else min(capped, default=0)
    if count > MOST_PODS:
        raise ValueError(
            f"asks for room for {count:,} pods; allowed are {MOST_PODS:,}: lower spec.replicas, "
            "spec.percentage or spec.limits"
        )
    return count


def virtual_pods(buffer: CapacityBuffer, blueprint: PodBlueprint, count: int) -> tuple[Pod, ...]:
    """Return the pods that stand for the buffer's room, each with a name of its own.

    They bring no volumes: those are made for pods that exist.
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
    marks = {
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
                annotations=marks,
            ),
            spec=spec,
            status=PodStatus(conditions=[UNSCHEDULABLE]),
        )
        for number in range(1, count + 1)
    )


def buffer_of(pod: Pod) -> str:
    """Return the buffer whose room a pod stands for, as `namespace/name`; empty for real ones."""
    annotations = pod.metadata.annotations
    if annotations.get(labels.BUFFER_POD) != "true":
        return ""
    return (
        f"{annotations.get(labels.BUFFER_NAMESPACE, '')}/{annotations.get(labels.BUFFER_NAME, '')}"
    )
