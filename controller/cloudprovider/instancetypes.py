"""Instance types, their offerings and prices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from controller.apis import labels
from controller.apis.kubernetes.devices import DynamicResources
from controller.apis.kubernetes.taints import Requirement
from controller.constraints.resources import Resources, subtract

NO_DEVICES = DynamicResources()

ATTACHABLE_VOLUMES = 25
"""The number of EBS volumes that pods can attach to a node whose limit is unknown.

The EBS CSI driver assumes 27 attachments of types that it does not know, which volumes and further
network interfaces share. One is the node's root volume, one the second network interface, which the
VPC CNI attaches when the node starts.
"""


@dataclass(frozen=True, slots=True)
class Surcharges:
    """The costs of a node besides its instance, in $/h.

    `volumes` are its root and data volumes, `address` is its public IPv4 address, and `fee` is the
    configured fee per node.
    """

    volumes: float = 0.0
    address: float = 0.0
    fee: float = 0.0

    @property
    def total(self) -> float:
        """The sum of all surcharges, in $/h."""
        return self.volumes + self.address + self.fee


NO_SURCHARGES = Surcharges()


@dataclass(frozen=True, slots=True)
class Offering:
    """One way to buy an instance type: a zone, a capacity type and possibly a capacity reservation.

    `requirements` are the labels of its nodes (zone, capacity type, zone ID, …). `price` is the
    price of a node in $/h: `instance_price` plus the surcharges. If `price_overlaid` is set, a
    NodeOverlay set the instance price. `reservation_capacity` is the number of instances left in
    the capacity reservation. If `is_full` is set, none is left, and nothing else prevents a launch.
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
        """The parts of the price, in $/h: `instance`, `volumes`, `address` and `fee`."""
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

    def with_reservation_capacity(self, count: int) -> Offering:
        """Return a copy with `count` instances left in its capacity reservation."""
        can_launch = self.available or self.is_full
        return replace(
            self,
            reservation_capacity=count,
            available=can_launch and count > 0,
            is_full=can_launch and count <= 0,
        )


@dataclass(frozen=True, slots=True)
class InstanceType:
    """An instance type with its offerings.

    `requirements` describe its nodes: `In` with one or more values, or `DoesNotExist` for an
    attribute that it lacks. `capacity` is its total capacity. `overhead` is the part of the
    capacity that is not allocatable (kube-reserved, system-reserved, eviction threshold). Both are
    in thousandths of their unit. If `capacity_overlaid` is set, a NodeOverlay added resources.
    `dynamic_resources` are the devices that DRA drivers will publish on its nodes.
    `attachable_volumes` is the number of EBS volumes that pods can attach to a node.
    """

    name: str
    requirements: tuple[Requirement, ...]
    offerings: tuple[Offering, ...]
    capacity: Resources
    overhead: Resources = field(default_factory=dict)
    capacity_overlaid: bool = False
    dynamic_resources: DynamicResources = NO_DEVICES
    attachable_volumes: int = ATTACHABLE_VOLUMES

    @property
    def allocatable(self) -> dict[str, int]:
        """The resources allocatable to pods: capacity less overhead, at least 0.

        Amounts are in thousandths of their unit.
        """
        return {
            name: max(amount, 0) for name, amount in subtract(self.capacity, self.overhead).items()
        }
