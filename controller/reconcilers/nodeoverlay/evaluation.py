"""Validates all NodeOverlays against each other and against the instance types."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from controller.apis.karpenter import validation
from controller.apis.karpenter.nodeoverlay import NodeOverlay
from controller.apis.kinds import EC2_NODE_CLASS, NODE_OVERLAY, NODE_POOL
from controller.apis.kubernetes import conditions
from controller.apis.kubernetes.conditions import Condition
from controller.apis.kubernetes.meta import to_wire
from controller.apiserver.errors import ConflictError, NotFoundError
from controller.cloudprovider.errors import CloudProviderError
from controller.cloudprovider.instancetypes import InstanceType
from controller.reconcilers.ports import Ports, PortUser
from controller.reconcilers.writing import apply_patch
from controller.state.overlays import conflicting_overlays

ALL = "all"
"""The only key of the loop, because each overlay is compared with all others."""

VALIDATION_SUCCEEDED = "ValidationSucceeded"
PERIOD = timedelta(hours=6)
UNRESOLVED = timedelta(minutes=1)
"""How soon to evaluate again if the instance types of a pool could not be read."""


@dataclass(frozen=True, slots=True)
class Evaluation(PortUser):
    """Writes the conditions of all overlays when they change."""

    ports: Ports

    async def reconcile(self, _key: str) -> timedelta:
        """Evaluate every overlay, whatever the key; returns when to evaluate again."""
        overlays = self.cluster.list(NODE_OVERLAY)
        if not overlays:
            return PERIOD
        problems = {o.metadata.name: validation.overlay_problems(o) for o in overlays}
        types, is_complete = await self._instance_types()
        refused = conflicting_overlays(
            (o for o in overlays if not problems[o.metadata.name]),
            pools=[p for p in self.cluster.list(NODE_POOL) if p.metadata.name in types],
            instance_types=types,
        )
        for overlay in overlays:
            after = self._conditions(
                overlay, problems[overlay.metadata.name], overlay.metadata.name in refused
            )
            if conditions.are_equal(overlay.status.conditions, after):
                continue
            status = {"status": {"conditions": to_wire(after)}}
            try:
                await apply_patch(self.ports, NODE_OVERLAY, overlay, status, subresource="status")
            except (ConflictError, NotFoundError):
                # The overlay changed or was deleted, which may end a conflict: evaluate all again.
                return timedelta(0)
        return PERIOD if is_complete else UNRESOLVED

    async def _instance_types(self) -> tuple[dict[str, tuple[InstanceType, ...]], bool]:
        """Return the instance types per pool, and whether those of every pool could be read."""
        types_by_pool: dict[str, tuple[InstanceType, ...]] = {}
        pools = self.cluster.list(NODE_POOL)
        for pool in pools:
            name = pool.spec.template.spec.node_class_ref.name
            node_class = self.cluster.get(EC2_NODE_CLASS, name)
            if node_class is None:
                continue
            try:
                types_by_pool[pool.metadata.name] = tuple(
                    await self.cloud.instance_types(node_class, pool)
                )
            except CloudProviderError:
                # The NodePool's conditions report the error.
                continue
        return types_by_pool, len(types_by_pool) == len(pools)

    def _conditions(
        self, overlay: NodeOverlay, problems: list[str], contradicts: bool
    ) -> list[Condition]:
        now, generation = self.clock(), overlay.metadata.generation
        message = "; ".join(problems)
        if contradicts:
            message = (
                "another NodeOverlay of the same weight changes the same offerings or resources: "
                "give one of them another spec.weight, or narrow its spec.requirements"
            )
        after = conditions.with_condition(
            overlay.status.conditions,
            VALIDATION_SUCCEEDED,
            "False" if message else "True",
            reason="RuntimeValidation" if problems else "Conflict" if contradicts else "",
            message=message,
            generation=generation,
            now=now,
        )
        return conditions.roll_up(after, (VALIDATION_SUCCEEDED,), generation=generation, now=now)
