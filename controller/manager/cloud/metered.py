"""A cloud provider whose calls are timed and counted, in metrics with Karpenter's names."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from controller.apis.karpenter.ec2nodeclass import EC2NodeClass
from controller.apis.karpenter.nodeclaim import NodeClaim
from controller.apis.karpenter.nodepool import NodePool
from controller.apis.ownership import node_pool_of
from controller.cloudprovider.instancetypes import InstanceType
from controller.manager.assembly import RunningCloud
from controller.manager.cloud.decorator import CloudDecorator
from controller.telemetry import logs
from controller.telemetry.market import Market
from controller.telemetry.metrics import Metrics

KARPENTERS_NAMES = {"nodeclaim.drift": "nodeclaim.disruption"}
"""Reconcilers whose calls Karpenter makes in a controller with another name."""

METHODS = {
    "launch": "Create",
    "terminate": "Delete",
    "get": "Get",
    "launched_for": "List",
    "has_launched": "List",
    "instances": "List",
    "drift_reason": "IsDrifted",
}
"""The calls that Karpenter measures, besides that for instance types, and its names for them."""


class MeteredCloud(CloudDecorator):
    """Times and counts the calls that Karpenter measures.

    It also stores the instance types of each NodePool in `Market`, for metrics and prices.
    """

    def __init__(self, cloud: RunningCloud, metrics: Metrics, market: Market) -> None:
        super().__init__(cloud)
        self._metrics = metrics
        self._market = market

    def __getattr__(self, name: str) -> Any:
        """Return the attribute of the wrapped cloud provider; a call that is measured is timed."""
        forwarded = super().__getattr__(name)
        if name not in METHODS:
            return forwarded

        async def measure(*arguments: Any, **named: Any) -> Any:
            claims = (node_pool_of(each) for each in arguments if isinstance(each, NodeClaim))
            with self._timed(METHODS[name], next(claims, "")):
                return await forwarded(*arguments, **named)

        return measure

    def _timed(self, method: str, node_pool: str = "") -> AbstractContextManager[None]:
        controller = logs.current_controller()
        controller = KARPENTERS_NAMES.get(controller, controller)
        return self._metrics.cloud_call(controller, method, self.name, node_pool)

    async def instance_types(
        self, node_class: EC2NodeClass, node_pool: NodePool | None = None
    ) -> Sequence[InstanceType]:
        """Return every instance type that the EC2NodeClass could launch."""
        with self._timed("GetInstanceTypes", node_pool.metadata.name if node_pool else ""):
            types = await self._cloud.instance_types(node_class, node_pool)
        if node_pool is not None:
            self._market.set_types(node_pool.metadata.name, types)
        return types
