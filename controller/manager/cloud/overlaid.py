"""A cloud provider whose instance types have NodeOverlays and the fee per node applied.

The fee is the setting NODE_PRICE_PER_HOUR, or the annotation of the NodePool that replaces it.
NodePools with the same overlays and the same fee share their instance types, which take most of the
controller's memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from controller.apis import kinds, labels
from controller.apis.karpenter.ec2nodeclass import EC2NodeClass
from controller.apis.karpenter.nodeclaim import NodeClaim
from controller.apis.karpenter.nodeoverlay import NodeOverlay
from controller.apis.karpenter.nodepool import NodePool
from controller.apis.kubernetes import conditions
from controller.cloudprovider.instancetypes import InstanceType
from controller.cloudprovider.provider import Instance
from controller.manager.assembly import RunningCloud
from controller.manager.cloud.decorator import CloudDecorator
from controller.state.cluster import Cluster
from controller.state.overlays import fee_of, identity, with_fee, with_overlays


@dataclass(frozen=True, slots=True)
class _PoolView:
    """The result of applying overlays and a fee for NodePools of one identity, and its inputs."""

    before: Sequence[InstanceType]
    identity: frozenset[tuple[str, str]]
    overlays: Sequence[NodeOverlay]
    fee: float
    after: Sequence[InstanceType]

    def holds(
        self,
        types: Sequence[InstanceType],
        identity: frozenset[tuple[str, str]],
        overlays: Sequence[NodeOverlay],
        fee: float,
    ) -> bool:
        """Return whether `after` is valid for these inputs, so that it need not be computed."""
        # Compare by identity: unchanged instance types are the same object, and there are many.
        return self.before is types and (self.identity, self.overlays, self.fee) == (
            identity,
            overlays,
            fee,
        )


class OverlaidCloud(CloudDecorator):
    """Applies the NodeOverlays in force and the fee per node to the types of a NodePool.

    `fee` is in $/h, for NodePools without the annotation `joiner.dev/node-price-per-hour`.
    """

    def __init__(self, cloud: RunningCloud, cluster: Cluster, fee: float = 0.0) -> None:
        super().__init__(cloud)
        self._cluster = cluster
        self._fee = fee
        self._views: dict[str, _PoolView] = {}

    async def instance_types(
        self, node_class: EC2NodeClass, node_pool: NodePool | None = None
    ) -> Sequence[InstanceType]:
        """Return every instance type that the EC2NodeClass could launch, at the pool's prices."""
        types = await self._cloud.instance_types(node_class, node_pool)
        return types if node_pool is None else self._apply_overlays(types, node_pool)

    async def launch(
        self,
        claim: NodeClaim,
        node_class: EC2NodeClass,
        types: Sequence[InstanceType] | None = None,
    ) -> Instance:
        """Launch the NodeClaim's instance; prices and capacities have the overlays applied."""
        pool = self._cluster.get(kinds.NODE_POOL, claim.metadata.labels.get(labels.NODEPOOL, ""))
        if types is None and pool is not None:
            types = await self.instance_types(node_class, pool)
        return await self._cloud.launch(claim, node_class, types)

    def _apply_overlays(
        self, types: Sequence[InstanceType], pool: NodePool
    ) -> Sequence[InstanceType]:
        overlays = [o for o in self._cluster.list(kinds.NODE_OVERLAY) if is_in_force(o)]
        fee = fee_of(pool, self._fee)
        if not overlays and not fee:
            return types
        pool_identity = identity(overlays, pool)
        view = next(
            (
                view
                for view in self._views.values()
                if view.holds(types, pool_identity, overlays, fee)
            ),
            None,
        )
        if view is None:
            after = with_fee(with_overlays(types, overlays, pool=pool), fee)
            view = _PoolView(types, pool_identity, overlays, fee, after)
        self._views[pool.metadata.name] = view
        return view.after


def is_in_force(overlay: NodeOverlay) -> bool:
    """Return whether the overlay's current generation is Ready (valid, without conflicts)."""
    ready = conditions.find(overlay.status.conditions, "Ready")
    return (
        ready is not None
        and ready.is_true
        and ready.observed_generation == overlay.metadata.generation
        and not overlay.metadata.is_deleting
    )
