"""Instance types with their offerings, per node class, cached and shared.

What a machine is changes twice a day at most; what can be had and at which price
changes with every refusal. So types are built once per class content, and only
the offerings of types about which something is new are made again.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import msgspec
from cachetools import TTLCache

from controller.apis import labels
from controller.apis.ec2nodeclass import AMIStatus, CapacityReservationStatus, EC2NodeClass
from controller.apis.taints import Requirement
from controller.aws.families import family_of
from controller.aws.instancetypes import (
    Limits,
    Machine,
    capacity,
    machine,
    on_machine,
    overhead,
    requirements,
    suits,
)
from controller.aws.learnedmemory import LearnedMemory
from controller.aws.placementgroups import PlacementGroup, PlacementGroups
from controller.aws.pricing import Pricing
from controller.aws.reservations import Reservations
from controller.aws.rows import readable
from controller.aws.session import Aws
from controller.aws.subnets import Subnets
from controller.aws.unavailable import Unavailable
from controller.aws.zonalshift import ZonalShift
from controller.cloudprovider.compatibility import has
from controller.cloudprovider.errors import CloudProviderError
from controller.cloudprovider.instancetypes import InstanceType, Offering
from controller.constraints.cel import CelError
from controller.constraints.requirements import read
from controller.constraints.resources import MEMORY

PERIOD = 12 * 3600.0
"""Seconds between two readings of the instance types."""

RETRY = 300.0
"""Seconds until a failed reading is tried again."""

RESERVED_DISCOUNT = 10_000_000
"""What is paid for already is chosen before anything else, yet in the order of its worth."""

_FAMILY = f"{labels.AWS_GROUP}/instance-family"
RESERVATION_ID = labels.RESERVATION_ID
RESERVATION_TYPE = labels.RESERVATION_TYPE
RESERVATION_INTERRUPTIBLE = labels.RESERVATION_INTERRUPTIBLE


class Machines:
    """The machines of the region and the zones that have them."""

    def __init__(self, aws: Aws) -> None:
        self._aws = aws
        self.by_name: Mapping[str, Machine] = {}
        self.zones: Mapping[str, frozenset[str]] = {}
        self.with_shares: Sequence[str] = ()
        """Machines that have a share of a GPU."""

        self.revision = 0

    async def refresh(self) -> None:
        """Read all machines and where they are offered.

        Raises:
            CloudProviderError: EC2 does not tell; what was known stays known.

        """
        described = await self._aws.pages(
            "ec2",
            "describe_instance_types",
            "InstanceTypes",
            Filters=[
                {"Name": "supported-virtualization-type", "Values": ["hvm"]},
                {"Name": "processor-info.supported-architecture", "Values": ["x86_64", "arm64"]},
            ],
            PaginationConfig={"PageSize": 100},
        )
        offered = await self._aws.pages(
            "ec2",
            "describe_instance_type_offerings",
            "InstanceTypeOfferings",
            LocationType="availability-zone",
            PaginationConfig={"PageSize": 1000},
        )
        zones: dict[str, set[str]] = {}
        for name, zone in readable(
            offered, lambda row: (row["InstanceType"], row["Location"]), what="offerings"
        ):
            zones.setdefault(name, set()).add(zone)
        read = {m.name: m for m in readable(described, machine, what="instance types")}
        if not read or not zones:
            raise CloudProviderError("EC2 lists no instance type that can be read")
        # What cannot be read now and could before is taken to be as it was.
        listed = {d.get("InstanceType") for d in described}
        by_name = {n: m for n, m in self.by_name.items() if n in listed} | read
        sold_in = {name: frozenset(places) for name, places in zones.items()}
        if by_name != self.by_name or sold_in != self.zones:
            self.by_name, self.zones = by_name, sold_in
            self.with_shares = [n for n, m in by_name.items() if any(g.shares for g in m.gpus)]
            self.revision += 1


@dataclass(slots=True)
class _Built:
    """The types of one class content, and what was known when their offerings were made."""

    estimated: Mapping[str, InstanceType]
    """The types as they are without offerings, their memory a guess."""

    images: Mapping[str, int]
    """Per type which of the class's images it would run, counted from the first."""

    types: dict[str, InstanceType] = field(default_factory=dict)
    stamps: dict[str, object] = field(default_factory=dict)
    stamp: object = None
    listed: tuple[InstanceType, ...] = ()
    together: _Together | None = None


@dataclass(frozen=True, slots=True)
class _Together:
    """All types, those with counted shares among them, and the two lists it was made of."""

    others: tuple[InstanceType, ...]
    counted: tuple[InstanceType, ...]
    all: tuple[InstanceType, ...]


class InstanceTypes:
    """Types with offerings for a class; the second call of a batch costs a comparison."""

    idle = 900.0
    """Seconds after which a class content that nobody asks for is forgotten; every one that
    is in use is kept, for to make it anew takes a moment in which nothing else is done."""

    def __init__(
        self,
        region: str,
        limits: Limits,
        *,
        machines: Machines,
        pricing: Pricing,
        unavailable: Unavailable,
        reservations: Reservations,
        subnets: Subnets,
        shift: ZonalShift,
        learned: LearnedMemory,
        groups: PlacementGroups,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._region = region
        self._learned = learned
        self._groups = groups
        self._limits = limits
        self._machines = machines
        self._pricing = pricing
        self._unavailable = unavailable
        self._reservations = reservations
        self._subnets = subnets
        self._shift = shift
        self._built: TTLCache[bytes, _Built] = TTLCache(math.inf, self.idle, clock)

    def of(
        self, node_class: EC2NodeClass, asked: Sequence[Requirement] = ()
    ) -> tuple[InstanceType, ...]:
        """Return the types the class could launch, as known now.

        A machine with a share of a GPU has no GPU, unless `asked`, what a pool or a claim
        requires, names it or its family.
        """
        others, shared = self._listed(node_class, frozenset()), self._shared(asked)
        if not shared:
            return others
        counted, built = self._listed(node_class, shared), self._types(node_class, shared)
        known = built.together
        if known is None or known.others is not others or known.counted is not counted:
            whole = (each for each in others if each.name not in shared)
            merged = sorted([*whole, *counted], key=lambda instance_type: instance_type.name)
            known = built.together = _Together(others, counted, tuple(merged))
        return known.all

    def kubelet(self, node_class: EC2NodeClass, instance_type: str) -> Mapping[str, Any]:
        """Return the kubelet's settings on a machine, each expression in place of its answer."""
        m = self._machines.by_name[instance_type]
        return on_machine(node_class, m, self._limits).spec.kubelet

    def inexpressible(self, node_class: EC2NodeClass) -> str:
        """Say which expression comes to nothing on which machine; empty when all have answers."""
        for name in sorted(self._machines.by_name):
            m = self._machines.by_name[name]
            try:
                if suits(m, node_class):
                    on_machine(node_class, m, self._limits)
            except CelError as exc:
                return str(exc)
        return ""

    def _listed(self, node_class: EC2NodeClass, shared: frozenset[str]) -> tuple[InstanceType, ...]:
        """Return the types of all machines, or those of some of which each share is counted."""
        built = self._types(node_class, shared)
        closed = frozenset(
            s.id
            for s in node_class.status.subnets
            if self._subnets.is_full(s.id) or s.zone_id in self._shift.away
        )
        # First forget what has expired: that, too, is news.
        stamp = (
            self._unavailable.sweep(),
            self._pricing.revision,
            self._reservations.revision,
            # Memory is learned per image, and classes with other images share what is built.
            (self._learned.revision, [a.id for a in node_class.status.amis])
            if self._learned.revision
            else None,
            closed,
            group := self._groups.known(node_class.spec.placement_group_selector),
        )
        if stamp != built.stamp:
            self._refresh(built, node_class, closed, group)
            built.stamp = stamp
        return built.listed

    def _refresh(
        self,
        built: _Built,
        node_class: EC2NodeClass,
        closed: frozenset[str],
        group: PlacementGroup | None,
    ) -> None:
        zone_ids = {s.zone: s.zone_id for s in node_class.status.subnets if s.id not in closed}
        every_zone = {s.zone: s.zone_id for s in node_class.status.subnets}
        reserved = _by_type(node_class)
        shared = (self._pricing.revision, closed, group)
        images = node_class.status.amis
        for name, estimated in built.estimated.items():
            left = tuple(self._reservations.left(r.id) for r in reserved.get(name, ()))
            memory = self._learned.of(name, images[built.images[name]].id)
            stamp = (self._unavailable.sequence(name), shared, left, memory)
            if built.stamps.get(name) != stamp:
                m = self._machines.by_name[name]
                offerings = self._offerings(m, every_zone, zone_ids, reserved.get(name, ()), group)
                known = replace(
                    estimated,
                    requirements=(*estimated.requirements, *_group_requirements(group)),
                    offerings=tuple(self._in_partitions(offerings, name, group)),
                )
                if memory is not None:
                    whole = {**known.capacity, MEMORY: memory}
                    own = on_machine(node_class, m, self._limits)
                    kept = overhead(m, own, self._limits, whole)
                    known = replace(known, capacity=whole, overhead=kept)
                built.types[name] = known
                built.stamps[name] = stamp
        built.listed = tuple(built.types.values())

    def _shared(self, asked: Sequence[Requirement]) -> frozenset[str]:
        """Return the machines with shares of GPUs that are asked for by name or family."""
        named = {
            value
            for r in asked
            if r.operator == "In" and r.key in (labels.INSTANCE_TYPE, _FAMILY)
            for value in r.values
        }
        return frozenset(
            name
            for name in self._machines.with_shares
            if name in named or name.partition(".")[0] in named
        )

    def _types(self, node_class: EC2NodeClass, shared: frozenset[str]) -> _Built:
        key = _content(node_class, self._machines.revision, shared)
        built = self._built.get(key)
        if built is None:
            made = list(self._make(node_class, shared))
            built = _Built(
                estimated={instance_type.name: instance_type for instance_type, _ in made},
                images={instance_type.name: image for instance_type, image in made},
            )
        self._built[key] = built  # its time begins anew with each use
        return built

    def _make(
        self, node_class: EC2NodeClass, shared: frozenset[str]
    ) -> Iterator[tuple[InstanceType, int]]:
        """Yield the types that the class could launch, and which image each would run: all of them,
        or only those of machines of which each share of a GPU is counted.
        """
        family = family_of(node_class)
        wanted = {s.zone for s in node_class.status.subnets}
        reserved = _by_type(node_class)
        for name in sorted(shared or self._machines.by_name):
            m = self._machines.by_name[name]
            if shared:
                m = m.counting_shares
            zones = tuple(sorted(wanted & self._machines.zones.get(name, frozenset())))
            if not zones or not m.architectures or not suits(m, node_class):
                continue
            try:
                own = on_machine(node_class, m, self._limits)
            except CelError:
                continue  # the class says so
            whole = capacity(m, own, self._limits)
            instance_type = InstanceType(
                name=name,
                requirements=requirements(
                    m,
                    family,
                    region=self._region,
                    zones=zones,
                    reserved=tuple(r.id for r in reserved.get(name, ())),
                ),
                offerings=(),
                capacity=whole,
                overhead=overhead(m, own, self._limits, whole),
            )
            # A machine that no image of the class runs on can never be launched.
            image = image_for(instance_type, node_class.status.amis)
            if image is not None:
                yield instance_type, node_class.status.amis.index(image)

    def _offerings(
        self,
        m: Machine,
        every_zone: Mapping[str, str],
        open_zones: Mapping[str, str],
        reserved: tuple[CapacityReservationStatus, ...],
        group: PlacementGroup | None,
    ) -> Iterator[Offering]:
        zones = sorted(set(every_zone) & self._machines.zones.get(m.name, frozenset()))
        for capacity_type in sorted(m.usage_classes & {labels.ON_DEMAND, labels.SPOT}):
            for zone in zones:
                price = self._price(m.name, zone, capacity_type)
                marked = self._is_avoided(m, zone, capacity_type, group)
                yield Offering(
                    requirements=_place(zone, every_zone[zone], capacity_type),
                    price=price or 0.0,
                    available=price is not None and zone in open_zones and not marked,
                )
        for reservation in reserved:
            zone = reservation.availability_zone
            if zone in zones:
                left = self._reservations.left(reservation.id)
                yield Offering(
                    requirements={
                        **_place(zone, every_zone[zone], labels.RESERVED),
                        RESERVATION_ID: reservation.id,
                        RESERVATION_TYPE: reservation.reservation_type,
                        RESERVATION_INTERRUPTIBLE: str(reservation.interruptible).lower(),
                    },
                    price=(self._pricing.on_demand(m.name) or 0.0) / RESERVED_DISCOUNT,
                    available=left > 0
                    and zone in open_zones
                    and reservation.state == "active"
                    and not self._is_avoided(m, zone, labels.RESERVED, group),
                    reservation_capacity=left,
                )

    def _in_partitions(
        self, offerings: Iterator[Offering], instance_type: str, group: PlacementGroup | None
    ) -> Iterator[Offering]:
        """Yield each offering, or where the group has partitions one for each of these."""
        if group is None or not group.partition_names:
            yield from offerings
            return
        for offering in offerings:
            for partition in group.partition_names:
                marked = self._unavailable.is_marked(
                    instance_type,
                    offering.zone,
                    offering.capacity_type,
                    group=group.part(partition),
                )
                yield replace(
                    offering,
                    requirements=_part(offering.requirements, partition),
                    available=offering.available and not marked,
                )

    def _is_avoided(
        self, m: Machine, zone: str, capacity_type: str, group: PlacementGroup | None
    ) -> bool:
        if group is not None and group.strategy not in m.placement_strategies:
            return True
        name = group.id if group is not None else ""
        return self._unavailable.is_marked(
            m.name, zone, capacity_type, group=name
        ) or self._unavailable.exceeds_quota(m.name, m.cpus, capacity_type)

    def _price(self, instance_type: str, zone: str, capacity_type: str) -> float | None:
        if capacity_type == labels.SPOT:
            return self._pricing.spot(instance_type, zone)
        return self._pricing.on_demand(instance_type)


def image_for(instance_type: InstanceType, amis: list[AMIStatus]) -> AMIStatus | None:
    """Return the first image that runs on the machine."""
    return next((a for a in amis if has(instance_type, read(a.requirements))), None)


def _by_type(node_class: EC2NodeClass) -> dict[str, tuple[CapacityReservationStatus, ...]]:
    by_type: dict[str, tuple[CapacityReservationStatus, ...]] = {}
    for reservation in node_class.status.capacity_reservations:
        name = reservation.instance_type
        by_type[name] = (*by_type.get(name, ()), reservation)
    return by_type


@lru_cache(maxsize=256)
def _place(zone: str, zone_id: str, capacity_type: str) -> Mapping[str, str]:
    """Return the labels of a way to buy; all types share the few there are."""
    place = {labels.ZONE: zone, labels.CAPACITY_TYPE: capacity_type}
    return {**place, labels.ZONE_ID: zone_id} if zone_id else place


def _part(place: Mapping[str, str], partition: str) -> Mapping[str, str]:
    return _parts(tuple(place.items()), partition)


@lru_cache(maxsize=4096)
def _parts(place: tuple[tuple[str, str], ...], partition: str) -> Mapping[str, str]:
    """Return the labels of a way to buy in a partition; all types share these too."""
    return {**dict(place), labels.PLACEMENT_GROUP_PARTITION: partition}


@lru_cache(maxsize=64)
def _group_requirements(group: PlacementGroup | None) -> tuple[Requirement, ...]:
    """Return what nodes in a placement group are beside what their machine is."""
    if group is None:
        return ()
    named = {
        labels.PLACEMENT_GROUP_ID: (group.id,),
        labels.PLACEMENT_GROUP_PARTITION: group.partition_names,
    }
    return tuple(
        Requirement(key=name, operator="In", values=list(values))
        for name, values in named.items()
        if values
    )


def _content(node_class: EC2NodeClass, revision: int, shared: Collection[str]) -> bytes:
    """Return all that a type of the class depends on, as a key."""
    spec, status = node_class.spec, node_class.status
    parts: list[Any] = [
        revision,
        family_of(node_class).name,
        sorted((s.id, s.zone, s.zone_id) for s in status.subnets),
        sorted(shared),
        # Which image it is decides nothing that is kept: classes that differ in that share types.
        [a.requirements for a in status.amis],
        json.dumps(spec.kubelet, sort_keys=True),
        spec.block_device_mappings,
        spec.instance_store_policy,
        spec.network_interfaces,
        spec.connection_tracking,
        spec.cpu_options,
        spec.wants_enclaves,
        spec.placement_group_selector,
        status.capacity_reservations,
    ]
    return msgspec.json.encode(parts)
