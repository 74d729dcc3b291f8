"""Instance types with their offerings, per EC2NodeClass, cached and shared.

The description of an instance type changes at most twice a day. The availability of its offerings
changes with every refused launch. Instance types are therefore built once for all EC2NodeClasses of
equal content, and only the offerings of instance types with changed inputs are built again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import msgspec
from cachetools import TTLCache

from controller.apis import labels
from controller.apis.karpenter.ec2nodeclass import (
    AMIStatus,
    CapacityReservationStatus,
    EC2NodeClass,
)
from controller.apis.kubernetes.taints import Requirement
from controller.aws.bootstrap.families import family_of
from controller.aws.bootstrap.nodelabels import labels_of_user_data
from controller.aws.cluster import ClusterFacts
from controller.aws.instancetypes.catalogue import (
    Attachment,
    InstanceTypeInfo,
    Limits,
    attachable_volumes,
    attachments_with_efa,
    capacity,
    efa_interfaces,
    instance_type_info,
    overhead,
    requirements,
    supports,
    with_resolved_kubelet,
)
from controller.aws.instancetypes.discoveredcapacity import DiscoveredCapacity
from controller.aws.instancetypes.expecteddevices import Drivers, Sharing
from controller.aws.instancetypes.pricing import Pricing
from controller.aws.instancetypes.reservations import Reservations
from controller.aws.instancetypes.surcharges import surcharges
from controller.aws.network.placementgroups import PlacementGroup, PlacementGroups
from controller.aws.network.subnets import Subnets
from controller.aws.network.zonalshift import ZonalShift
from controller.aws.rows import readable
from controller.aws.session import Aws
from controller.aws.unavailable import Unavailable, class_key
from controller.cloudprovider.compatibility import has
from controller.cloudprovider.errors import CloudProviderError
from controller.cloudprovider.instancetypes import InstanceType, Offering, Surcharges
from controller.constraints.cel import CelError
from controller.constraints.requirements import read
from controller.constraints.resources import MEMORY

PERIOD = 12 * 3600.0
"""Seconds between two updates of the instance types."""

RETRY = 300.0
"""Seconds until an update is retried that failed or returned invalid items."""

RESERVED_DISCOUNT = 10_000_000
"""Divisor of the on-demand price for reserved offerings.

Reserved capacity is paid for already, so it is cheaper than any other offering. The order by
on-demand price is kept.
"""

_FAMILY = f"{labels.AWS_GROUP}/instance-family"
RESERVATION_ID = labels.RESERVATION_ID
RESERVATION_TYPE = labels.RESERVATION_TYPE
RESERVATION_INTERRUPTIBLE = labels.RESERVATION_INTERRUPTIBLE


class DescribedTypes:
    """The instance types of the region and the zones that offer them."""

    def __init__(self, aws: Aws) -> None:
        self._aws = aws
        self.by_name: Mapping[str, InstanceTypeInfo] = {}
        self.zones: Mapping[str, frozenset[str]] = {}
        self.with_shares: Sequence[str] = ()
        """Names of the instance types that have a share of a GPU."""

        self.revision = 0

    async def refresh(self) -> bool:
        """Read all instance types and the zones that offer them.

        Returns whether every item was valid. What was known of invalid items is kept.

        Raises:
            CloudProviderError: EC2 did not return them; the previous instance types are kept.

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
        sold = readable(
            offered, lambda row: (row["InstanceType"], row["Location"]), what="offerings"
        )
        types = readable(described, instance_type_info, what="instance types")
        if not types.values or not sold.values:
            raise CloudProviderError(
                "EC2 returned no valid instance type (DescribeInstanceTypes) or no valid offering "
                "(DescribeInstanceTypeOfferings)"
            )
        zones: dict[str, set[str]] = {}
        if not sold.complete:
            zones = {name: set(known) for name, known in self.zones.items()}
        for name, zone in sold.values:
            zones.setdefault(name, set()).add(zone)
        sold_in = {name: frozenset(places) for name, places in zones.items()}
        by_name = {} if types.complete else dict(self.by_name)
        by_name |= {info.name: info for info in types.values}
        if by_name != self.by_name or sold_in != self.zones:
            self.by_name, self.zones = by_name, sold_in
            self.with_shares = [
                n for n, info in by_name.items() if any(g.shares for g in info.gpus)
            ]
            self.revision += 1
        return types.complete and sold.complete


_Types = tuple[InstanceType, ...]


@dataclass(slots=True)
class _Built:
    """The instance types of one `_content`, and the inputs of their current offerings."""

    estimated: Mapping[str, InstanceType]
    """The instance types without offerings, with estimated memory."""

    images: Mapping[str, int]
    """Index of the first AMI of the EC2NodeClass that runs on the instance type, by its name."""

    types: dict[str, InstanceType] = field(default_factory=dict)
    stamps: dict[str, object] = field(default_factory=dict)
    stamp: object = None
    listed: tuple[InstanceType, ...] = ()
    together: _Merged | None = None


@dataclass(frozen=True, slots=True)
class _Merged:
    """The merged list of instance types without and with counted GPU shares, and its two parts."""

    others: tuple[InstanceType, ...]
    counted: tuple[InstanceType, ...]
    all: tuple[InstanceType, ...]


@dataclass(kw_only=True)
class InstanceTypes:
    """Returns instance types with offerings, cached until an input changes.

    It returns none until EC2 has described the instance types. `offers_reserved` is the feature
    gate ReservedCapacity. While it is off, the status of an EC2NodeClass may still have the
    reservations that were found while it was on.
    """

    idle = 900.0
    """Seconds without use after which cached instance types are dropped.

    All that are in use are kept, because building them again blocks the event loop briefly.
    """

    region: str
    cluster: ClusterFacts
    limits: Limits
    described: DescribedTypes
    pricing: Pricing
    unavailable: Unavailable
    reservations: Reservations
    subnets: Subnets
    shift: ZonalShift
    discovered_capacity: DiscoveredCapacity
    groups: PlacementGroups
    drivers: Drivers
    offers_reserved: bool
    clock: Callable[[], float]

    def __post_init__(self) -> None:
        self._built: TTLCache[bytes, _Built] = TTLCache(math.inf, self.idle, self.clock)
        self._labelled: TTLCache[object, tuple[_Types, _Types]] = TTLCache(
            16, self.idle, self.clock
        )

    def of(
        self,
        node_class: EC2NodeClass,
        required: Sequence[Requirement] = (),
        own_labels: Collection[str] = (),
    ) -> tuple[InstanceType, ...]:
        """Return the instance types that the EC2NodeClass can launch, with their current offerings.

        An instance type with a share of a GPU counts as having no GPU, unless `required` (the
        requirements of a NodePool or NodeClaim) names it or its family. Its nodes have the labels
        that the user data sets, unless `required` or `own_labels` (the labels of the NodePool or
        NodeClaim) name them: these overwrite the labels of the user data.
        """
        listed = self._with_shares(node_class, required)
        spec = node_class.spec
        named = {*own_labels, *(labels.normalize(term.key) for term in required)}
        added = labels_of_user_data(family_of(node_class), spec.user_data or "")
        added = {key: value for key, value in added.items() if key not in named}
        return self._with_labels(listed, added) if added else listed

    def _with_labels(
        self, listed: tuple[InstanceType, ...], added: Mapping[str, str]
    ) -> tuple[InstanceType, ...]:
        """Return the instance types with the labels; the same tuple while the types are."""
        key = tuple(sorted(added.items())), id(listed)
        known = self._labelled.get(key)
        if known is None or known[0] is not listed:
            terms = tuple(
                Requirement(key=name, operator="In", values=[value]) for name, value in key[0]
            )
            known = (
                listed,
                tuple(replace(t, requirements=(*t.requirements, *terms)) for t in listed),
            )
        self._labelled[key] = known  # each use renews the lifetime
        return known[1]

    def _with_shares(
        self, node_class: EC2NodeClass, required: Sequence[Requirement]
    ) -> tuple[InstanceType, ...]:
        """Return the instance types, some of them with counted shares of GPUs."""
        others, shared = self._list(node_class, frozenset()), self._types_with_shares(required)
        if not shared:
            return others
        counted, built = self._list(node_class, shared), self._types(node_class, shared)
        known = built.together
        if known is None or known.others is not others or known.counted is not counted:
            whole = (each for each in others if each.name not in shared)
            merged = sorted([*whole, *counted], key=lambda instance_type: instance_type.name)
            known = built.together = _Merged(others, counted, tuple(merged))
        return known.all

    def has_no_image(self, node_class: EC2NodeClass, instance_type: str) -> bool:
        """Return whether the EC2NodeClass lacks nothing but an AMI to launch the instance type."""
        amis = node_class.status.amis
        suitable = self._suitable_types(node_class, {instance_type})
        return any(image_for(each, amis) is None for each in suitable)

    def kubelet(self, node_class: EC2NodeClass, instance_type: str) -> Mapping[str, Any]:
        """Return `spec.kubelet` of the EC2NodeClass as it applies to an instance type.

        CEL expressions in it, such as one for `maxPods`, are replaced by their values.
        """
        info = self.described.by_name[instance_type]
        return with_resolved_kubelet(node_class, info, self.limits).spec.kubelet

    def attachments_with_efa(self, instance_type: str) -> tuple[Attachment, ...]:
        """Return the network interfaces of an instance with all its EFA interfaces."""
        return attachments_with_efa(self.described.by_name[instance_type])

    def invalid_expression(self, node_class: EC2NodeClass) -> str:
        """Return the error of the first expression without a valid value; empty if all are valid.

        Cost: evaluates the expressions for every suitable instance type until one fails.
        """
        for name in sorted(self.described.by_name):
            info = self.described.by_name[name]
            try:
                if supports(info, node_class, ipv6=self.cluster.is_ipv6):
                    with_resolved_kubelet(node_class, info, self.limits)
            except CelError as exc:
                return str(exc)
        return ""

    def _list(self, node_class: EC2NodeClass, shared: frozenset[str]) -> tuple[InstanceType, ...]:
        """Return all instance types, or only the `shared`, with each share of a GPU counted."""
        built = self._types(node_class, shared)
        closed = frozenset(
            s.id
            for s in node_class.status.subnets
            if self.subnets.is_full(s.id) or s.zone_id in self.shift.away
        )
        public = frozenset(
            s.zone for s in node_class.status.subnets if self.subnets.is_public(s.id)
        )
        # Expired marks are removed first, because this changes offerings, too.
        stamp = (
            self.unavailable.sweep(),
            self.pricing.revision,
            self.reservations.revision,
            # Memory is discovered per AMI, but EC2NodeClasses with other AMIs share instance types.
            (self.discovered_capacity.revision, [a.id for a in node_class.status.amis])
            if self.discovered_capacity.revision
            else None,
            closed,
            public,
            group := self.groups.last_result(node_class.spec.placement_group_selector),
        )
        if stamp != built.stamp:
            self._refresh(built, node_class, closed, public, group)
            built.stamp = stamp
        return built.listed

    def _refresh(
        self,
        built: _Built,
        node_class: EC2NodeClass,
        closed: frozenset[str],
        public: frozenset[str],
        group: PlacementGroup | None,
    ) -> None:
        zone_ids = {s.zone: s.zone_id for s in node_class.status.subnets if s.id not in closed}
        every_zone = {s.zone: s.zone_id for s in node_class.status.subnets}
        reserved = self._reserved_by_type(node_class)
        charged = surcharges(
            node_class,
            zones=every_zone,
            public_zones=public,
            prices=self.pricing.volumes,
            region=self.region,
        )
        shared = (self.pricing.revision, closed, public, group)
        images, refusing = node_class.status.amis, self._key_if_refused(node_class)
        for name, estimated in built.estimated.items():
            left = tuple(self.reservations.available_count(r.id) for r in reserved.get(name, ()))
            memory = self.discovered_capacity.of(name, images[built.images[name]].id)
            stamp = (self.unavailable.sequence(name), shared, left, memory)
            if built.stamps.get(name) != stamp:
                info = self.described.by_name[name]
                offerings = self._offerings(
                    info, every_zone, zone_ids, reserved.get(name, ()), group, charged, refusing
                )
                known = replace(
                    estimated,
                    requirements=(*estimated.requirements, *_group_requirements(group)),
                    offerings=tuple(self._in_partitions(offerings, name, group)),
                )
                if memory is not None:
                    whole = {**known.capacity, MEMORY: memory}
                    own = with_resolved_kubelet(node_class, info, self.limits)
                    kept = overhead(info, own, self.limits, whole)
                    known = replace(known, capacity=whole, overhead=kept)
                built.types[name] = known
                built.stamps[name] = stamp
        built.listed = tuple(built.types.values())

    def _types_with_shares(self, required: Sequence[Requirement]) -> frozenset[str]:
        """Return the instance types with shares of GPUs that `required` names, or their family."""
        named = {
            value
            for r in required
            if r.operator == "In" and r.key in (labels.INSTANCE_TYPE, _FAMILY)
            for value in r.values
        }
        return frozenset(
            name
            for name in self.described.with_shares
            if name in named or name.partition(".")[0] in named
        )

    def _types(self, node_class: EC2NodeClass, shared: frozenset[str]) -> _Built:
        sharing = self.drivers.sharing_of(node_class)
        refusing = self._key_if_refused(node_class)
        revision = self.described.revision, self.cluster.is_ipv6
        key = _content(node_class, revision, shared, sharing, refusing)
        built = self._built.get(key)
        if built is None:
            made = list(self._make(node_class, shared))
            built = _Built(
                estimated={instance_type.name: instance_type for instance_type, _ in made},
                images={instance_type.name: image for instance_type, image in made},
            )
        self._built[key] = built  # each use renews the lifetime
        return built

    def _key_if_refused(self, node_class: EC2NodeClass) -> str:
        """Return the class's key if EC2 refuses offerings for it alone; otherwise empty.

        Only then the EC2NodeClass shares no instance types with others of equal content.
        """
        key = class_key(node_class)
        return key if self.unavailable.refused_by_reason(key) else ""

    def _make(
        self, node_class: EC2NodeClass, shared: frozenset[str]
    ) -> Iterator[tuple[InstanceType, int]]:
        """Yield the instance types that the EC2NodeClass can launch, each with its AMI's index.

        With `shared`, only these instance types are built, with each share of a GPU counted as one.
        """
        for instance_type in self._suitable_types(
            node_class, shared or self.described.by_name, counts_shares=bool(shared)
        ):
            # An instance type on which no AMI of the EC2NodeClass runs can never be launched.
            image = image_for(instance_type, node_class.status.amis)
            if image is not None:
                yield instance_type, node_class.status.amis.index(image)

    def _reserved_by_type(
        self, node_class: EC2NodeClass
    ) -> dict[str, tuple[CapacityReservationStatus, ...]]:
        """Return the offered capacity reservations of an EC2NodeClass, by instance type."""
        by_type: dict[str, tuple[CapacityReservationStatus, ...]] = {}
        for reservation in node_class.status.capacity_reservations if self.offers_reserved else ():
            name = reservation.instance_type
            by_type[name] = (*by_type.get(name, ()), reservation)
        return by_type

    def _suitable_types(
        self, node_class: EC2NodeClass, names: Collection[str], *, counts_shares: bool = False
    ) -> Iterator[InstanceType]:
        """Yield the instance types among `names` that fit the EC2NodeClass, whatever its AMIs."""
        family = family_of(node_class)
        sharing = self.drivers.sharing_of(node_class)
        wanted = {s.zone for s in node_class.status.subnets}
        reserved = self._reserved_by_type(node_class)
        for name in sorted(self.described.by_name.keys() & names):
            info = self.described.by_name[name]
            if counts_shares:
                info = info.counting_shares
            zones = tuple(sorted(wanted & self.described.zones.get(name, frozenset())))
            if not zones or not info.architectures:
                continue
            if not supports(info, node_class, ipv6=self.cluster.is_ipv6):
                continue
            try:
                own = with_resolved_kubelet(node_class, info, self.limits)
            except CelError:
                continue  # the condition of the EC2NodeClass reports the error
            whole = capacity(info, own, self.limits)
            yield InstanceType(
                name=name,
                requirements=requirements(
                    info,
                    family,
                    region=self.region,
                    zones=zones,
                    reserved=tuple(r.id for r in reserved.get(name, ())),
                ),
                offerings=(),
                capacity=whole,
                overhead=overhead(info, own, self.limits, whole),
                dynamic_resources=self.drivers.devices(
                    name, sharing, efa_interfaces=efa_interfaces(info, node_class)
                ),
                attachable_volumes=attachable_volumes(info, own),
            )

    def _offerings(
        self,
        info: InstanceTypeInfo,
        every_zone: Mapping[str, str],
        open_zones: Mapping[str, str],
        reserved: tuple[CapacityReservationStatus, ...],
        group: PlacementGroup | None,
        charged: Mapping[str, Surcharges],
        refusing: str,
    ) -> Iterator[Offering]:
        zones = sorted(set(every_zone) & self.described.zones.get(info.name, frozenset()))
        for capacity_type in sorted(info.usage_classes & {labels.ON_DEMAND, labels.SPOT}):
            for zone in zones:
                price = self._price(info.name, zone, capacity_type)
                marked = self._is_avoided(info, zone, capacity_type, group, refusing)
                yield Offering(
                    requirements=_zone_labels(zone, every_zone[zone], capacity_type),
                    instance_price=price or 0.0,
                    available=price is not None and zone in open_zones and not marked,
                    surcharges=charged[zone],
                )
        for reservation in reserved:
            zone = reservation.availability_zone
            if zone in zones:
                yield Offering(
                    requirements={
                        **_zone_labels(zone, every_zone[zone], labels.RESERVED),
                        RESERVATION_ID: reservation.id,
                        RESERVATION_TYPE: reservation.reservation_type,
                        RESERVATION_INTERRUPTIBLE: str(reservation.interruptible).lower(),
                    },
                    instance_price=(self.pricing.on_demand(info.name) or 0.0) / RESERVED_DISCOUNT,
                    available=zone in open_zones
                    and reservation.state == "active"
                    and not self._is_avoided(info, zone, labels.RESERVED, group, refusing),
                    surcharges=charged[zone],
                ).with_reservation_capacity(self.reservations.available_count(reservation.id))

    def _in_partitions(
        self, offerings: Iterator[Offering], instance_type: str, group: PlacementGroup | None
    ) -> Iterator[Offering]:
        """Yield each offering; if the placement group has partitions, once for each partition."""
        if group is None or not group.partition_names:
            yield from offerings
            return
        for offering in offerings:
            for partition in group.partition_names:
                marked = self.unavailable.is_marked(
                    instance_type,
                    offering.zone,
                    offering.capacity_type,
                    group=group.part(partition),
                )
                yield replace(
                    offering,
                    requirements=_part(offering.requirements, partition),
                    available=offering.available and not marked,
                    is_full=offering.is_full and not marked,
                )

    def _is_avoided(
        self,
        info: InstanceTypeInfo,
        zone: str,
        capacity_type: str,
        group: PlacementGroup | None,
        refusing: str,
    ) -> bool:
        if group is not None and group.strategy not in info.placement_strategies:
            return True
        name = group.id if group is not None else ""
        return self.unavailable.is_marked(
            info.name, zone, capacity_type, group=name, node_class=refusing
        ) or self.unavailable.exceeds_quota(info.name, info.cpus, capacity_type)

    def _price(self, instance_type: str, zone: str, capacity_type: str) -> float | None:
        if capacity_type == labels.SPOT:
            return self.pricing.spot(instance_type, zone)
        return self.pricing.on_demand(instance_type)


def image_for(instance_type: InstanceType, amis: list[AMIStatus]) -> AMIStatus | None:
    """Return the first AMI that runs on the instance type, or None if none does."""
    return next((a for a in amis if has(instance_type, read(a.requirements))), None)


@lru_cache(maxsize=256)
def _zone_labels(zone: str, zone_id: str, capacity_type: str) -> Mapping[str, str]:
    """Return the labels of a zone and capacity type; all instance types share these few objects."""
    in_zone = {labels.ZONE: zone, labels.CAPACITY_TYPE: capacity_type}
    return {**in_zone, labels.ZONE_ID: zone_id} if zone_id else in_zone


def _part(in_zone: Mapping[str, str], partition: str) -> Mapping[str, str]:
    return _parts(tuple(in_zone.items()), partition)


@lru_cache(maxsize=4096)
def _parts(in_zone: tuple[tuple[str, str], ...], partition: str) -> Mapping[str, str]:
    """Return an offering's labels with its partition; all instance types share these objects."""
    return {**dict(in_zone), labels.PLACEMENT_GROUP_PARTITION: partition}


@lru_cache(maxsize=64)
def _group_requirements(group: PlacementGroup | None) -> tuple[Requirement, ...]:
    """Return the requirements that a placement group adds to the nodes in it."""
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


def _content(
    node_class: EC2NodeClass,
    revision: tuple[int, bool],
    shared: Collection[str],
    sharing: Sharing | None,
    refusing: str,
) -> bytes:
    """Return the cache key of an EC2NodeClass: everything that its instance types depend on."""
    spec, status = node_class.spec, node_class.status
    parts: list[Any] = [
        revision,
        family_of(node_class).name,
        sorted((s.id, s.zone, s.zone_id) for s in status.subnets),
        sorted(shared),
        sharing,
        refusing,
        # The IDs of the AMIs are left out: EC2NodeClasses that differ only in them share instance
        # types.
        [a.requirements for a in status.amis],
        json.dumps(spec.kubelet, sort_keys=True),
        spec.block_device_mappings,
        spec.associate_public_ip_address,
        spec.instance_store_policy,
        spec.network_interfaces,
        spec.ip_prefix_count,
        spec.connection_tracking,
        spec.cpu_options,
        spec.requires_enclaves,
        spec.placement_group_selector,
        status.capacity_reservations,
    ]
    return msgspec.json.encode(parts)
