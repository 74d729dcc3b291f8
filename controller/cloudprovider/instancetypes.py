"""Instance types and their offerings, as the other packages see them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from controller.apis import labels
from controller.apis.kubernetes.devices import DynamicResources
from controller.apis.kubernetes.taints import Requirement
from controller.constraints.resources import Resources, less

NO_DEVICES = DynamicResources()


@dataclass(frozen=True, slots=True)
class Surcharges:
    """What a node costs in addition to its instance, in $/h.

    `volumes` are its root and data volumes, `address` is its public IPv4 address, and `fee` is the
    configured fee per node.
    """

    volumes: float = 0.0
    address: float = 0.0
    fee: float = 0.0

    @property
    def total(self) -> float:
        """The sum of all surcharges."""
        return self.volumes + self.address + self.fee


NO_SURCHARGES = Surcharges()


@dataclass(frozen=True, slots=True)
class Offering:
    """An offering of an instance type: zone × capacity type (× capacity reservation).

    `requirements` are the labels of its nodes (zone, capacity type, zone ID, …). `instance_price`
    is what the instance alone costs, in $/h; `price_overlaid` means that a NodeOverlay set it.
    `reservation_capacity` is the number of instances that the capacity reservation still has.
    `is_full` means that it has none, and that nothing else prevents a launch. `price` is what a
    node of the offering costs: the instance and the surcharges.
    """

    requirements: Mapping[str, str]
    instance_price: float
    available: bool = True
    reservation_capacity: int = 0
    price_overlaid: bool = False
    is_full: bool = False
    surcharges: Surcharges = NO_SURCHARGES
    price: float = field(init=False)

    def __post_init__(self) -> None:
        """Compute the price once, because every decision reads it for every offering."""
        object.__setattr__(self, "price", self.instance_price + self.surcharges.total)

    @property
    def price_parts(self) -> dict[str, float]:
        """What the price consists of, in $/h: `instance`, `volumes`, `address` and `fee`."""
        extra = self.surcharges
        return {
            "instance": self.instance_price,
            "volumes": extra.volumes,
            "address": extra.address,
            "fee": extra.fee,
        }

    @property
    def zone(self) -> str:
        """The zone of the offering's nodes."""
        return self.requirements.get(labels.ZONE, "")

    @property
    def capacity_type(self) -> str:
        """`on-demand`, `spot` or `reserved`."""
        return self.requirements.get(labels.CAPACITY_TYPE, "")

    @property
    def reservation(self) -> str:
        """The ID of the capacity reservation, or an empty string."""
        return self.requirements.get(labels.RESERVATION_ID, "")

    def with_left(self, left: int) -> Offering:
        """Return the offering with as many instances left in its capacity reservation."""
        can_launch = self.available or self.is_full
        return replace(
            self,
            reservation_capacity=left,
            available=can_launch and left > 0,
            is_full=can_launch and left <= 0,
        )


@dataclass(frozen=True, slots=True)
class InstanceType:
    """An instance type with its offerings.

    `requirements` describe its nodes: `In` with one or more values, or `DoesNotExist` for an
    attribute that it lacks. `capacity` is its total capacity. `overhead` is what is not allocatable
    (kube-reserved, system-reserved, eviction threshold). Both are in thousandths of their unit.
    `capacity_overlaid` means that a NodeOverlay added resources. `dynamic_resources` are the
    devices that DRA drivers will publish on its nodes.
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
        """The resources allocatable to pods and daemons: capacity less overhead, 0 at least."""
        return {name: max(amount, 0) for name, amount in less(self.capacity, self.overhead).items()}
