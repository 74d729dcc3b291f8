"""Publishes an event on each NodePool affected by the start or end of a zonal shift."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from controller.apis import labels
from controller.apis.karpenter.nodepool import NodePool
from controller.apis.kinds import EC2_NODE_CLASS, NODE_POOL
from controller.constraints.requirements import meets, of_labels, read
from controller.reconcilers.ports import Ports, PortUser
from controller.telemetry.events import EventType

PERIOD = timedelta(seconds=30)
"""How often to compare: as often as Joiner polls ARC."""

DETECTED: tuple[EventType, str, str] = (
    "Warning",
    "ZonalShiftActive",
    "Zonal shift detected: offerings in zone {} ({}) are unavailable for this NodePool",
)
CLEARED: tuple[EventType, str, str] = (
    "Normal",
    "ZonalShiftCleared",
    "Zonal shift cleared: offerings in zone {} ({}) are restored for this NodePool",
)


@dataclass(slots=True)
class ZonalShiftReporting(PortUser):
    """Compares the zones that a zonal shift affects now with those of the previous run."""

    ports: Ports
    _before: frozenset[str] = field(default=frozenset(), init=False)

    async def run_once(self) -> timedelta:
        """Publish events on the NodePools that a change affects; returns when to run again."""
        before, self._before = self._before, self.cloud.shifted_zones()
        changes = {
            **dict.fromkeys(self._before - before, DETECTED),
            **dict.fromkeys(before - self._before, CLEARED),
        }
        for pool in self.cluster.list(NODE_POOL) if changes else ():
            for zone_id, zone in sorted(self._zones(pool).items()):
                if zone_id in changes:
                    type_, reason, message = changes[zone_id]
                    text = message.format(zone, zone_id)
                    await self.recorder.publish(pool, type_, reason, text)
        return PERIOD

    def _zones(self, pool: NodePool) -> Mapping[str, str]:
        """Return the zones in which the pool may create nodes: zone ID → name."""
        spec = pool.spec.template.spec
        node_class = self.cluster.get(EC2_NODE_CLASS, spec.node_class_ref.name)
        subnets = node_class.status.subnets if node_class is not None else ()
        try:
            allowed = read(spec.requirements)
        except ValueError:  # its condition ValidationSucceeded reports the error
            return {}
        return {
            subnet.zone_id: subnet.zone
            for subnet in subnets
            if all(
                meets(allowed.get(key), needed, key=key)
                for key, needed in of_labels(
                    {labels.ZONE: subnet.zone, labels.ZONE_ID: subnet.zone_id}
                ).items()
            )
        }
