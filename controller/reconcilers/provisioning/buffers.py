"""Tells every CapacityBuffer whether the room it asks for is there."""

from __future__ import annotations

from collections.abc import Mapping

from controller.apis import conditions
from controller.apis.capacitybuffer import PROVISIONING, READY_FOR_PROVISIONING, CapacityBuffer
from controller.apis.conditions import ConditionStatus
from controller.apis.kinds import CAPACITY_BUFFER
from controller.apis.meta import to_wire
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
            continue  # it changed or went: the next round knows


def _fact(buffer: CapacityBuffer, fill: Fill | None) -> tuple[ConditionStatus, str, str] | None:
    if not conditions.is_true(buffer.status.conditions, READY_FOR_PROVISIONING):
        return "False", "NotReadyForProvisioning", "nobody can tell its pods yet"
    count = buffer.status.replicas or 0
    if not count:
        return "False", "BufferEmpty", "it asks for room for no pod"
    if fill is None:
        return None  # resolved since the round began
    if fill.existing == count:
        return "True", "FitsExistingCapacity", f"there is room for all {count} pods"
    message = f"{fill.new} of {count} pods need new nodes, {fill.nowhere} find no place"
    return "False", "RequiresNewCapacity", message
