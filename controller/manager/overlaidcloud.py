"""A cloud whose machines cost and hold what NodeOverlays say.

Pools that overlays cannot tell apart share what they see: most of what there is in memory is types.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from controller.apis import conditions, kinds, labels
from controller.apis.ec2nodeclass import EC2NodeClass
from controller.apis.nodeclaim import NodeClaim
from controller.apis.nodeoverlay import NodeOverlay
from controller.apis.nodepool import NodePool
from controller.cloudprovider.instancetypes import InstanceType
from controller.cloudprovider.provider import Instance
from controller.manager.assembly import RunningCloud
from controller.manager.clouddecorator import CloudDecorator
from controller.state.cluster import Cluster
from controller.state.overlays import identity, overlaid


@dataclass(frozen=True, slots=True)
class _PoolView:
    """What pools of one identity saw last, and under what."""

    before: Sequence[InstanceType]
    identity: frozenset[tuple[str, str]]
    overlays: Sequence[NodeOverlay]
    after: Sequence[InstanceType]

    def holds(
        self,
        types: Sequence[InstanceType],
        identity: frozenset[tuple[str, str]],
        overlays: Sequence[NodeOverlay],
    ) -> bool:
        """Whether it is what such a pool sees still."""
        # Types come as the same object while nothing about them changed, and there are many.
        return self.before is types and (self.identity, self.overlays) == (identity, overlays)


class OverlaidCloud(CloudDecorator):
    """Applies the overlays that are ready, wherever types are looked at for a pool."""

    def __init__(self, cloud: RunningCloud, cluster: Cluster) -> None:
        super().__init__(cloud)
        self._cluster = cluster
        self._views: dict[str, _PoolView] = {}

    async def instance_types(
        self, node_class: EC2NodeClass, node_pool: NodePool | None = None
    ) -> Sequence[InstanceType]:
        """Return every type the class could launch, as the pool sees it."""
        types = await super().instance_types(node_class, node_pool)
        return types if node_pool is None else self._corrected(types, node_pool)

    async def launch(
        self,
        claim: NodeClaim,
        node_class: EC2NodeClass,
        types: Sequence[InstanceType] | None = None,
    ) -> Instance:
        """Launch the claim's instance by the prices and capacities of its pool."""
        pool = self._cluster.get(kinds.NODE_POOL, claim.metadata.labels.get(labels.NODEPOOL, ""))
        if types is None and pool is not None:
            types = await self.instance_types(node_class, pool)
        return await super().launch(claim, node_class, types)

    def _corrected(self, types: Sequence[InstanceType], pool: NodePool) -> Sequence[InstanceType]:
        overlays = [o for o in self._cluster.list(kinds.NODE_OVERLAY) if is_in_force(o)]
        if not overlays:
            return types
        told_by = identity(overlays, pool)
        view = next(
            (view for view in self._views.values() if view.holds(types, told_by, overlays)), None
        )
        if view is None:
            after = overlaid(types, overlays, pool=pool)
            view = _PoolView(types, told_by, overlays, after)
        self._views[pool.metadata.name] = view
        return view.after


def is_in_force(overlay: NodeOverlay) -> bool:
    """Whether the overlay was found valid, and free of contradictions, as it is now."""
    ready = conditions.find(overlay.status.conditions, "Ready")
    return (
        ready is not None
        and ready.is_true
        and ready.observed_generation == overlay.metadata.generation
        and not overlay.metadata.is_deleting
    )
