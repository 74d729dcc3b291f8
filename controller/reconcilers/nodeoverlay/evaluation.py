"""Validates all NodeOverlays against each other and against the instance types."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from controller.apis.karpenter import validation
from controller.apis.karpenter.nodeoverlay import EFFECTIVE, NodeOverlay
from controller.apis.kinds import NODE_OVERLAY, NODE_POOL
from controller.apis.kubernetes import conditions
from controller.apis.kubernetes.conditions import Condition
from controller.apis.kubernetes.meta import to_wire
from controller.apiserver.errors import ConflictError, NotFoundError
from controller.reconcilers.newnodes.supply import supply
from controller.reconcilers.ports import Ports, PortUser
from controller.reconcilers.writing import apply_patch
from controller.state.overlays import conflicting_overlays, matches_offering

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
        pools = self.cluster.list(NODE_POOL)
        supplied = await supply(self.cloud, self.cluster, pools)
        types = supplied.types
        valid = [o for o in overlays if not problems[o.metadata.name]]
        conflicts = conflicting_overlays(valid, pools=pools, instance_types=types)
        for overlay in overlays:
            name = overlay.metadata.name
            after = self._conditions(overlay, problems[name], conflicts.get(name, ""))
            if problems[name]:
                after = conditions.without_condition(after, EFFECTIVE)
            elif supplied.is_read:
                is_matching = matches_offering(overlay, pools=pools, instance_types=types)
                after = self._effect(overlay, after, is_matching)
            if conditions.are_equal(overlay.status.conditions, after):
                continue
            status = {"status": {"conditions": to_wire(after)}}
            try:
                await apply_patch(self.ports, overlay, status, subresource="status")
            except (ConflictError, NotFoundError):
                # The overlay changed or was deleted, which may end a conflict: evaluate all again.
                return timedelta(0)
        return PERIOD if len(types) == len(pools) else UNRESOLVED

    def _conditions(self, overlay: NodeOverlay, problems: list[str], rival: str) -> list[Condition]:
        now, generation = self.clock(), overlay.metadata.generation
        message = "; ".join(problems)
        if rival:
            message = (
                f'NodeOverlay "{rival}" has the same weight ({overlay.spec.weight}) and changes '
                "the same offerings or resources: give one of them another spec.weight, or narrow "
                "its spec.requirements"
            )
        after = conditions.with_condition(
            overlay.status.conditions,
            VALIDATION_SUCCEEDED,
            "False" if message else "True",
            reason="RuntimeValidation" if problems else "Conflict" if rival else "",
            message=message,
            generation=generation,
            now=now,
        )
        return conditions.roll_up(after, (VALIDATION_SUCCEEDED,), generation=generation, now=now)

    def _effect(
        self, overlay: NodeOverlay, known: list[Condition], is_matching: bool
    ) -> list[Condition]:
        """Set `EFFECTIVE` to False if the overlay changes nothing, and say why."""
        spec, reason, message = overlay.spec, "", ""
        if spec.price is None and spec.price_adjustment is None and not spec.capacity:
            reason = "NothingToChange"
            message = "set spec.price, spec.priceAdjustment or spec.capacity: none of them is set"
        elif not is_matching:
            reason = "NoMatchingOffering"
            message = (
                "no offering of the NodePools meets spec.requirements: correct them, or delete the "
                "NodeOverlay"
            )
        if not reason:
            return conditions.without_condition(known, EFFECTIVE)
        return conditions.with_condition(
            known,
            EFFECTIVE,
            "False",
            reason=reason,
            message=f"The NodeOverlay has no effect: {message}",
            generation=overlay.metadata.generation,
            now=self.clock(),
        )
