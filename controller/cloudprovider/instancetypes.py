"""Instance types and their offerings, as every room below the cloud sees them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from controller.apis import labels
from controller.apis.devices import DynamicResources
from controller.apis.taints import Requirement
from controller.constraints.resources import Resources, less

NO_DEVICES = DynamicResources()


@dataclass(frozen=True, slots=True)
class Offering:
    """One way to buy an instance type: zone × capacity type (× reservation).

    `requirements` are the labels a node of this offering carries (zone, capacity
    type, zone id, …), `price` is in $/h; `price_overlaid` when a NodeOverlay said so.
    """

    requirements: Mapping[str, str]
    price: float
    available: bool = True
    reservation_capacity: int = 0
    price_overlaid: bool = False

    @property
    def zone(self) -> str:
        """The zone a node of this offering lies in."""
        return self.requirements.get(labels.ZONE, "")

    @property
    def capacity_type(self) -> str:
        """`on-demand`, `spot` or `reserved`."""
        return self.requirements.get(labels.CAPACITY_TYPE, "")


@dataclass(frozen=True, slots=True)
class InstanceType:
    """A machine one can buy.

    `requirements` say what its nodes are (`In` with one or more values; an
    attribute it does not have is `DoesNotExist`). `capacity` is all of the
    machine, `overhead` what the system keeps (kube-reserved, system-reserved,
    eviction threshold), both in thousandths of their unit; `capacity_overlaid` when a
    NodeOverlay added to what it has. `dynamic_resources` are the devices that drivers
    will publish on its nodes.
    """

    name: str
    requirements: tuple[Requirement, ...]
    offerings: tuple[Offering, ...]
    capacity: Resources
    overhead: Resources = field(default_factory=dict)
    capacity_overlaid: bool = False
    dynamic_resources: DynamicResources = NO_DEVICES

    @property
    def allocatable(self) -> dict[str, int]:
        """What pods and daemons can have: capacity less overhead."""
        return {name: max(amount, 0) for name, amount in less(self.capacity, self.overhead).items()}
