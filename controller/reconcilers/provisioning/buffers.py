"""Writes how many pods of each CapacityBuffer have capacity, and why the others have none."""

from __future__ import annotations

from collections.abc import Mapping

from controller.apis.karpenter.capacitybuffer import (
    NOT_READY,
    PROVISIONING,
    READY_FOR_PROVISIONING,
    CapacityBuffer,
    CapacityBufferSpec,
)
from controller.apis.kinds import CAPACITY_BUFFER, EC2_NODE_CLASS, NODE_POOL
from controller.apis.kubernetes import conditions
from controller.apis.kubernetes.conditions import ConditionStatus
from controller.apis.kubernetes.meta import to_wire
from controller.apis.kubernetes.pods import PodSpec
from controller.apiserver.errors import ConflictError, NotFoundError
from controller.reconcilers.ports import Ports
from controller.reconcilers.provisioning.unplaced import Unplaced
from controller.reconcilers.writing import apply_patch
from controller.scheduling.buffers import Fill
from controller.state.buffers import buffer_of
from controller.state.cluster import key_of


async def report_fills(ports: Ports, fills: Mapping[str, Fill]) -> None:
    """Write `readyReplicas` and the `Provisioning` condition of each buffer, if they changed.

    Buffers with another provisioning strategy belong to other controllers.
    """
    cluster = ports.cluster
    words = Unplaced(cluster.list(NODE_POOL), cluster.list(EC2_NODE_CLASS))
    templates = {buffer_of(pod): pod.spec for pod in cluster.buffer_pods()}
    for buffer in cluster.list(CAPACITY_BUFFER):
        if not buffer.spec.is_active:
            continue
        key = key_of(buffer)
        fill = fills.get(key)
        fact = _fact(buffer, fill, templates.get(key), words)
        if fact is None:
            continue
        status, reason, message = fact
        ready = fill.existing if fill is not None else 0
        after = conditions.with_condition(
            buffer.status.conditions,
            PROVISIONING,
            status,
            reason=reason,
            message=message,
            generation=buffer.metadata.generation,
            now=ports.clock(),
        )
        known = buffer.status.ready_replicas
        if conditions.are_equal(buffer.status.conditions, after) and known == ready:
            continue
        patch = {"status": {"conditions": to_wire(after), "readyReplicas": ready}}
        try:
            await apply_patch(ports, buffer, patch, subresource="status")
        except (ConflictError, NotFoundError):
            continue  # the buffer changed or was deleted; the next round writes it


def _fact(
    buffer: CapacityBuffer, fill: Fill | None, template: PodSpec | None, words: Unplaced
) -> tuple[ConditionStatus, str, str] | None:
    if not conditions.is_true(buffer.status.conditions, READY_FOR_PROVISIONING):
        return "False", "NotReadyForProvisioning", NOT_READY
    count = buffer.status.replicas or 0
    if not count:
        return "False", "BufferEmpty", f"the buffer has 0 pods: {_why_empty(buffer.spec)}"
    if fill is None:
        return None  # resolved since the round began
    if fill.existing == count:
        return "True", "FitsExistingCapacity", f"existing nodes have capacity for all pods: {count}"
    message = f"pods: {count}; on new nodes: {fill.new}; unschedulable: {fill.nowhere}"
    if not fill.nowhere or template is None:
        return "False", "RequiresNewCapacity", message
    message = f"{message}: {words.message(template, fill.causes)}"
    is_infeasible = words.is_infeasible(template, fill.causes)
    return "False", "Infeasible" if is_infeasible else "RequiresNewCapacity", message


def _why_empty(spec: CapacityBufferSpec) -> str:
    """Return why a resolved buffer has no pods, and what to set."""
    if spec.replicas is None and spec.percentage is None:
        if not spec.limits:
            return "set spec.replicas, spec.percentage or spec.limits"
        names = ", ".join(sorted(spec.limits))
        return (
            f"spec.limits is less than one pod requests, or its pods do not request {names}; raise "
            "it, or set spec.replicas"
        )
    if not spec.replicas and not spec.percentage:
        field = "spec.percentage" if spec.replicas is None else "spec.replicas"
        return f"{field} is 0"
    if spec.limits:
        return "spec.limits is less than one pod requests, or the workload has 0 replicas"
    return "the workload has 0 replicas"
