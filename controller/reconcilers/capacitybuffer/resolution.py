"""Resolves the pod template and the number of pods of a CapacityBuffer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import msgspec

from controller.apis.karpenter.capacitybuffer import (
    ACTIVE_CAPACITY,
    READY_FOR_PROVISIONING,
    CapacityBuffer,
    CapacityBufferStatus,
)
from controller.apis.kinds import (
    CAPACITY_BUFFER,
    DEPLOYMENT,
    POD_TEMPLATE,
    REPLICA_SET,
    STATEFUL_SET,
    Kind,
)
from controller.apis.kubernetes import conditions
from controller.apis.kubernetes.meta import to_wire
from controller.apis.kubernetes.workloads import Scalable
from controller.reconcilers.ports import Ports, PortUser
from controller.reconcilers.writing import apply_patch
from controller.state.buffers import PodBlueprint, replicas, virtual_pods

PERIOD = timedelta(seconds=30)
"""How often a buffer is resolved again, in addition to watch events."""

SCALABLES: Mapping[str, Kind[Any]] = {
    kind.name: kind for kind in (DEPLOYMENT, REPLICA_SET, STATEFUL_SET)
}


class UnresolvedError(Exception):
    """A buffer's pods cannot be resolved.

    The condition `ReadyForProvisioning` gets `reason`, and the error's text as its message.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Resolution(PortUser):
    """Writes a buffer's status, and adds its pods to the mirror.

    These pods are virtual: they do not exist in the cluster, and reserve capacity in a solve.
    """

    ports: Ports

    async def reconcile(self, key: str) -> timedelta | None:
        """Resolve the buffer with the key `namespace/name`; returns when to resolve it again.

        Returns None if the buffer is deleted or being deleted.
        """
        namespace, _, name = key.partition("/")
        buffer = self.cluster.get(CAPACITY_BUFFER, name, namespace)
        if buffer is None or buffer.metadata.is_deleting:
            self.cluster.expect_in_buffer(key, ())
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
        spec, namespace = buffer.spec, buffer.metadata.namespace
        if spec.provisioning_strategy != ACTIVE_CAPACITY:
            raise UnresolvedError(
                "ResolutionFailed",
                f'spec.provisioningStrategy: "{spec.provisioning_strategy}" is not '
                f'"{ACTIVE_CAPACITY}"',
            )
        if spec.pod_template_ref is not None:
            template = self.cluster.get(POD_TEMPLATE, spec.pod_template_ref.name, namespace)
            if template is None:
                raise UnresolvedError(
                    "PodTemplateNotFound",
                    f'PodTemplate "{namespace}/{spec.pod_template_ref.name}" does not exist',
                )
            return PodBlueprint(template.template), msgspec.structs.replace(
                status,
                pod_template_ref=spec.pod_template_ref,
                pod_template_generation=template.metadata.generation,
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
        scalable: Scalable | None = self.cluster.get(kind, reference.name, namespace)
        if scalable is None:
            raise UnresolvedError(
                "ScalableRefNotFound",
                f'{reference.kind} "{namespace}/{reference.name}" does not exist',
            )
        scale = 1 if scalable.spec.replicas is None else scalable.spec.replicas
        return PodBlueprint(scalable.spec.template, scale), msgspec.structs.replace(
            status, pod_template_ref=None, pod_template_generation=None
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
        cleared = dict.fromkeys(to_wire(buffer.status))
        status = {"status": {**cleared, **to_wire(after)}}
        await apply_patch(self.ports, CAPACITY_BUFFER, buffer, status, subresource="status")


def _count(buffer: CapacityBuffer, blueprint: PodBlueprint) -> int:
    try:
        return replicas(buffer, blueprint)
    except ValueError as exc:
        raise UnresolvedError("ResolutionFailed", str(exc)) from exc
