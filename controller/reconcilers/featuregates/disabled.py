"""Writes a condition on NodeOverlays and CapacityBuffers whose feature gate is off.

Without the condition, users could not see why the object has no effect. The controller does not
watch a kind whose gate is off, and lists its objects once a minute. Static NodePools are always
watched: `nodepool.readiness` reports on them.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from controller.apis.karpenter.capacitybuffer import (
    NOT_READY,
    PROVISIONING,
    READY_FOR_PROVISIONING,
    CapacityBuffer,
)
from controller.apis.kinds import CAPACITY_BUFFER, NODE_OVERLAY, Kind, T
from controller.apis.kubernetes import conditions
from controller.apis.kubernetes.meta import to_wire
from controller.apiserver.errors import ApiError
from controller.options import GATE_DISABLED, FeatureGates, gate_disabled
from controller.reconcilers.ports import Ports, PortUser
from controller.reconcilers.writing import status_patch
from controller.state.buffers import OWN_REASONS, released_status

PERIOD = timedelta(minutes=1)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DisabledFeatures(PortUser):
    """Reports, once a minute, each object that has no effect because its gate is off."""

    ports: Ports
    gates: FeatureGates

    async def run_once(self) -> timedelta:
        """Write the missing conditions; returns when to check again."""
        if not self.gates.node_overlay:
            await self._report(NODE_OVERLAY, "Ready", "NodeOverlay")
        if not self.gates.capacity_buffer:
            await self._report(
                CAPACITY_BUFFER, READY_FOR_PROVISIONING, "CapacityBuffer", OWN_REASONS
            )
        return PERIOD

    async def _report(
        self, kind: Kind[Any], condition: str, gate: str, own_reasons: Collection[str] = ()
    ) -> None:
        try:
            for value in await self.api.list(kind):
                if kind == CAPACITY_BUFFER and not value.spec.is_active:
                    await self._release(value)
                    continue
                known = conditions.find(value.status.conditions, condition)
                if known is None or not own_reasons or known.reason in own_reasons:
                    await self._write(kind, value, condition, gate)
        except ApiError as error:
            # A cluster need not have the CRD of a disabled kind.
            fields = {"gate": gate, "kind": kind.name}
            log.debug("cannot report that a feature gate is off: %s", error, extra=fields)

    async def _release(self, buffer: CapacityBuffer) -> None:
        """Remove Joiner's status from a buffer that another controller provisions."""
        after = released_status(buffer)
        if after != buffer.status:
            await self._patch(CAPACITY_BUFFER, buffer, status_patch(buffer.status, after))

    async def _write(self, kind: Kind[Any], value: Any, condition: str, gate: str) -> None:
        known = value.status.conditions
        facts = {condition: (GATE_DISABLED, gate_disabled(kind.name, gate))}
        status: dict[str, Any] = {}
        if kind == CAPACITY_BUFFER and conditions.find(known, PROVISIONING) is not None:
            facts[PROVISIONING] = "NotReadyForProvisioning", NOT_READY
            status["readyReplicas"] = 0
        after = known
        for type_, (reason, message) in facts.items():
            after = conditions.with_condition(
                after,
                type_,
                "False",
                reason=reason,
                message=message,
                generation=value.metadata.generation,
                now=self.clock(),
            )
        if conditions.are_equal(known, after):
            return
        await self._patch(kind, value, {"status": {"conditions": to_wire(after), **status}})

    async def _patch(self, kind: Kind[T], value: T, patch: Mapping[str, Any]) -> None:
        own = value.metadata
        await self.api.patch(
            kind,
            own.name,
            patch,
            namespace=own.namespace,
            subresource="status",
            resource_version=own.resource_version,
        )
