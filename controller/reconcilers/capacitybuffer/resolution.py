"""Resolves the pod template and the number of pods of a CapacityBuffer."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import msgspec

from controller.apis.karpenter.capacitybuffer import (
    READY_FOR_PROVISIONING,
    CapacityBuffer,
    CapacityBufferStatus,
)
from controller.apis.kinds import CAPACITY_BUFFER
from controller.apis.kubernetes import conditions
from controller.reconcilers.ports import Ports, PortUser
from controller.reconcilers.writing import apply_patch, status_patch
from controller.state.buffers import (
    PodBlueprint,
    UnresolvedError,
    blueprint_of,
    released_status,
    replicas,
    virtual_pods,
)

PERIOD = timedelta(seconds=30)
"""How often a buffer is resolved again, in addition to watch events."""


@dataclass(frozen=True, slots=True)
class Resolution(PortUser):
    """Writes a buffer's status, and adds its pods to the mirror.

    These pods are virtual: they do not exist in the cluster, and reserve capacity in a solve.
    """

    ports: Ports

    async def reconcile(self, key: str) -> timedelta | None:
        """Resolve the buffer with the key `namespace/name`; returns when to resolve it again.

        Returns None if the buffer is deleted or being deleted, or if another controller provisions
        it.
        """
        namespace, _, name = key.partition("/")
        buffer = self.cluster.get(CAPACITY_BUFFER, name, namespace)
        if buffer is None or buffer.metadata.is_deleting:
            self.cluster.expect_in_buffer(key, ())
            return None
        if not buffer.spec.is_active:
            self.cluster.expect_in_buffer(key, ())
            await self._write(buffer, released_status(buffer))
            return None
        status = msgspec.structs.replace(
            buffer.status, provisioning_strategy=buffer.spec.provisioning_strategy
        )
        try:
            blueprint, status = self._resolve(buffer, status)
            count = _count(buffer, blueprint)
        except UnresolvedError as problem:
            await self._write(buffer, self._ready(buffer, status, problem))
            self.cluster.expect_in_buffer(key, ())
            return PERIOD
        status = msgspec.structs.replace(status, replicas=count)
        await self._write(buffer, self._ready(buffer, status, None))
        self.cluster.expect_in_buffer(key, virtual_pods(buffer, blueprint, count))
        return PERIOD

    def _resolve(
        self, buffer: CapacityBuffer, status: CapacityBufferStatus
    ) -> tuple[PodBlueprint, CapacityBufferStatus]:
        blueprint = blueprint_of(buffer, self.cluster.get)
        return blueprint, msgspec.structs.replace(
            status,
            pod_template_ref=buffer.spec.pod_template_ref,
            pod_template_generation=blueprint.generation,
        )

    def _ready(
        self,
        buffer: CapacityBuffer,
        status: CapacityBufferStatus,
        problem: UnresolvedError | None,
    ) -> CapacityBufferStatus:
        after = conditions.with_condition(
            status.conditions,
            READY_FOR_PROVISIONING,
            "True" if problem is None else "False",
            reason="Resolved" if problem is None else problem.reason,
            message="" if problem is None else str(problem),
            generation=buffer.metadata.generation,
            now=self.clock(),
        )
        return msgspec.structs.replace(status, conditions=after)

    async def _write(self, buffer: CapacityBuffer, after: CapacityBufferStatus) -> None:
        if after == buffer.status:
            return
        patch = status_patch(buffer.status, after)
        await apply_patch(self.ports, buffer, patch, subresource="status")


def _count(buffer: CapacityBuffer, blueprint: PodBlueprint) -> int:
    try:
        return replicas(buffer, blueprint)
    except ValueError as exc:
        raise UnresolvedError("ResolutionFailed", str(exc)) from exc
