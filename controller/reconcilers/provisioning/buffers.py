"""Writes whether the capacity of each CapacityBuffer is provisioned."""

from __future__ import annotations

from collections.abc import Mapping

from controller.apis.karpenter.capacitybuffer import (
    PROVISIONING,
    READY_FOR_PROVISIONING,
    CapacityBuffer,
)
from controller.apis.kinds import CAPACITY_BUFFER
from controller.apis.kubernetes import conditions
from controller.apis.kubernetes.conditions import ConditionStatus
from controller.apis.kubernetes.meta import to_wire
from controller.apiserver.errors import ConflictError, NotFoundError
from controller.apiserver.port import ApiServer
from controller.reconcilers.clock import Clock
from controller.reconcilers.writing import patched
from controller.scheduling.buffers import Fill
from controller.state.cluster import Cluster, key_of


async def report_fills(
    api: ApiServer, cluster: Cluster, clock: Clock, fills: Mapping[str, Fill]
) -> None:
    """Write the `Provisioning` condition of each buffer, when it changed."""
    for buffer in cluster.list(CAPACITY_BUFFER):
        fact = _fact(buffer, fills.get(key_of(buffer)))
        if fact is None:
            continue
        status, reason, message = fact
        after = conditions.with_condition(
            buffer.status.conditions,
            PROVISIONING,
            status,
            reason=reason,
            message=message,
            generation=buffer.metadata.generation,
            now=clock(),
        )
        if conditions.unchanged(buffer.status.conditions, after):
            continue
        patch = {"status": {"conditions": to_wire(after)}}
        try:
            await patched(api, cluster, CAPACITY_BUFFER, buffer, patch, subresource="status")
        except (ConflictError, NotFoundError):
            continue  # conflict: the buffer changed or was deleted; the next round writes it


def _fact(buffer: CapacityBuffer, fill: Fill | None) -> tuple[ConditionStatus, str, str] | None:
    if not conditions.is_true(buffer.status.conditions, READY_FOR_PROVISIONING):
        return (
            "False",
            "NotReadyForProvisioning",
            "the buffer's pods are not resolved: see condition ReadyForProvisioning",
        )
    count = buffer.status.replicas or 0
    if not count:
        return "False", "BufferEmpty", "the buffer has 0 pods"
    if fill is None:
        return None  # resolved since the round began
    if fill.existing == count:
        return "True", "FitsExistingCapacity", f"existing nodes have capacity for all pods: {count}"
    message = f"pods: {count}; on new nodes: {fill.new}; unschedulable: {fill.nowhere}"
    return "False", "RequiresNewCapacity", message
