"""Launching instances, with the errors that EC2 returns.

A launch has two checks. `resolve` checks the request itself: an image that does not exist,
an architecture that does not match. `available_capacity` checks what the pool can give now:
capacity, addresses. `launch` creates the instances.
"""

from __future__ import annotations

import ipaddress
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from testbed.cloud.ec2 import addresses, images, prices
from testbed.cloud.ec2.instances import begin, new_id
from testbed.cloud.ec2.instancetypes import TYPES, architectures, usage_classes, zones_of
from testbed.cloud.ec2.kinds import no_such
from testbed.cloud.ec2.launchtemplates import check_user_data, tags_for
from testbed.cloud.profiles import SERVICE_ROLES
from testbed.cloud.protocol import backends
from testbed.cloud.protocol.errors import AwsError, invalid_value, missing_parameter
from testbed.cloud.state.inventory import Image, Instance, Interface, Volume
from testbed.cloud.state.world import World, now

SPOT_ROLE = SERVICE_ROLES["spot.amazonaws.com"]
ENDLESS = 10**9
PUBLIC = ipaddress.ip_network("198.18.0.0/15")
"""The public addresses of instances, from a network that no host on the internet uses."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A valid launch request: instance type, image, subnet and settings."""

    data: Mapping[str, Any]
    """The launch template's contents, with the overrides of the request applied."""

    image: Image
    instance_type: str
    subnet: Any
    groups: tuple[str, ...]
    capacity_type: str
    profile: Any | None
    reservation: Mapping[str, Any] | None
    template: str | None
    """ID of the launch template."""

    @property
    def zone(self) -> str:
        """The zone of the instances."""
        return str(self.subnet.availability_zone)

    @property
    def price(self) -> float:
        """Price of one instance in $/h."""
        return prices.price(self.capacity_type, self.instance_type, self.zone)

    @property
    def addresses_each(self) -> int:
        """Number of subnet addresses that one instance uses; an `efa-only` interface uses none."""
        kinds = [nic.get("InterfaceType", "interface") for nic in _nics(self.data)]
        return sum(1 for kind in kinds if kind != "efa-only")


def resolve(
    world: World,
    data: Mapping[str, Any],
    *,
    capacity_type: str,
    template: str | None = None,
) -> Plan:
    """Return the plan for launch parameters. Raises AwsError with EC2's code if any is invalid.

    `template` is the ID of the launch template that the parameters come from.
    """
    instance_type = _instance_type(data)
    image = images.get(world, _require(data, "ImageId"))
    offered = architectures(instance_type)
    if image.architecture not in offered:
        raise invalid_value(
            f"The architecture '{','.join(offered)}' of the specified instance type does not "
            f"match the architecture '{image.architecture}' of the specified AMI. Specify an "
            "instance type and an AMI that have matching architectures, and try again."
        )
    subnet = _subnet(world, data)
    groups = _groups(world, data, subnet)
    profile = _profile(world, data.get("IamInstanceProfile") or {})
    check_user_data(data.get("UserData"))
    _check_volumes(data, image)
    if capacity_type == "spot" and backends.role_named(SPOT_ROLE) is None:
        raise AwsError(
            "AuthFailure.ServiceLinkedRoleCreationNotPermitted",
            "The provided credentials do not have permission to create the service-linked "
            "role for EC2 Spot Instances.",
            status=403,
        )
    reservation = _reservation(world, data, instance_type, subnet)
    return Plan(
        data=data,
        image=image,
        instance_type=instance_type,
        subnet=subnet,
        groups=groups,
        capacity_type=capacity_type,
        profile=profile,
        reservation=reservation,
        template=template,
    )


def _require(data: Mapping[str, Any], name: str) -> str:
    value = data.get(name)
    if not value:
        raise missing_parameter(name)
    return str(value)


def _instance_type(data: Mapping[str, Any]) -> str:
    instance_type = _require(data, "InstanceType")
    if instance_type not in TYPES:
        raise invalid_value(f"Invalid value '{instance_type}' for InstanceType.")
    return instance_type


def _nics(data: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return list(data.get("NetworkInterfaces") or [{"DeviceIndex": 0}])


def _subnet(world: World, data: Mapping[str, Any]) -> Any:
    named = data.get("SubnetId") or next(
        (nic["SubnetId"] for nic in _nics(data) if nic.get("SubnetId")), None
    )
    zone = data.get("AvailabilityZone") or (data.get("Placement") or {}).get("AvailabilityZone")
    if named:
        return addresses.subnet(world, named)
    return addresses.default_subnet(world, zone)


def _groups(world: World, data: Mapping[str, Any], subnet: Any) -> tuple[str, ...]:
    wanted = [g for nic in _nics(data) for g in nic.get("Groups") or []]
    wanted += data.get("SecurityGroupIds") or []
    known = addresses.security_groups(world)
    for identity in wanted:
        if identity not in known:
            raise no_such("sg", identity)
        if known[identity].vpc_id != subnet.vpc_id:
            raise AwsError(
                "InvalidParameter",
                f"Security group {identity} and subnet {subnet.id} belong to different networks.",
            )
    if wanted:
        return tuple(dict.fromkeys(wanted))
    default = [g for g, each in known.items() if each.vpc_id == subnet.vpc_id]
    return tuple(g for g in default if known[g].name == "default")


def _profile(world: World, wanted: Mapping[str, str]) -> Any | None:
    name, arn = wanted.get("Name"), wanted.get("Arn")
    if not name and not arn:
        return None
    for profile in list(backends.iam().instance_profiles.values()):
        if (name == profile.name or arn == profile.arn) and world.is_seen(profile.name):
            if not profile.roles:
                raise invalid_value(
                    f'IAM Instance Profile "{profile.arn}" has no associated IAM Roles'
                )
            return profile
    parameter = "name" if name else "arn"
    kind = "name" if name else "ARN"
    raise invalid_value(
        f"Value ({name or arn}) for parameter iamInstanceProfile.{parameter} is invalid. "
        f"Invalid IAM Instance Profile {kind}"
    )


def _check_volumes(data: Mapping[str, Any], image: Image) -> None:
    for mapping in data.get("BlockDeviceMappings") or []:
        size = (mapping.get("Ebs") or {}).get("VolumeSize")
        is_root = mapping.get("DeviceName") == image.root_device
        if is_root and size is not None and int(size) < image.root_size_gib:
            raise AwsError(
                "InvalidBlockDeviceMapping",
                f"Volume of size {size}GB is smaller than snapshot '{image.snapshot}', "
                f"expect size >= {image.root_size_gib}GB",
            )


def _reservation(
    world: World, data: Mapping[str, Any], instance_type: str, subnet: Any
) -> Mapping[str, Any] | None:
    specification = data.get("CapacityReservationSpecification") or {}
    target = (specification.get("CapacityReservationTarget") or {}).get("CapacityReservationId")
    if not target:
        return None
    reservation = world.capacity_reservations.get(target)
    if reservation is None or reservation["State"] != "active":
        raise no_such("cr", target)
    fits = reservation["InstanceType"] == instance_type
    if not fits or reservation["AvailabilityZone"] != subnet.availability_zone:
        raise invalid_value(
            f"The instance configuration does not match that of the Capacity Reservation {target}."
        )
    return reservation


def available_capacity(world: World, plan: Plan) -> int:
    """Return how many instances of a plan EC2 can launch now.

    The capacity pool, or the capacity reservation of the plan, and the free addresses of the subnet
    limit the number. Raises AwsError if it is 0, or if the zone does not offer the instance type
    with the capacity type.
    """
    name, zone = plan.instance_type, plan.zone
    offered = zones_of(world.region).get(name, frozenset())
    if zone not in offered or plan.capacity_type not in usage_classes(name):
        others = ", ".join(sorted(offered)) or "another Region"
        raise AwsError(
            "Unsupported",
            f"Your requested instance type ({name}) is not supported in your requested "
            f"Availability Zone ({zone}). Please retry your request by not specifying an "
            f"Availability Zone or choosing {others}.",
        )
    available = addresses.pool(world, plan.subnet.id).free // max(1, plan.addresses_each)
    if available < 1:
        raise AwsError(
            "InsufficientFreeAddressesInSubnet",
            f"There are not enough free addresses in subnet '{plan.subnet.id}' to satisfy the "
            "requested number of instances.",
        )
    return min(available, _capacity(world, plan))


def _capacity(world: World, plan: Plan) -> int:
    name, zone = plan.instance_type, plan.zone
    if plan.reservation is not None:
        left = int(plan.reservation["AvailableInstanceCount"])
        if left < 1:
            raise AwsError(
                "ReservationCapacityExceeded",
                "The requested reservation does not have sufficient compatible and available "
                "capacity for this request.",
            )
        return left
    left = world.capacity.get((plan.capacity_type, name, zone), ENDLESS)
    if left < 1 and (refusal := world.capacity_errors.get((plan.capacity_type, name, zone))):
        raise AwsError(*refusal)
    if left < 1:
        kind = "Spot capacity" if plan.capacity_type == "spot" else f"{name} capacity"
        raise AwsError(
            "InsufficientInstanceCapacity",
            f"We currently do not have sufficient {kind} in the Availability Zone you "
            f"requested ({zone}). Our system will be working on provisioning additional "
            f"capacity for {name}.",
            status=500,
        )
    return left


def launch(
    world: World,
    plan: Plan,
    count: int,
    *,
    tag_specifications: list[Mapping[str, Any]] | None = None,
    service_tags: Mapping[str, str] | None = None,
    token: str | None = None,
) -> list[Instance]:
    """Create and return `count` instances of a plan. The caller has checked the available capacity.

    `tag_specifications` are added to those of the plan. `service_tags` are tags that AWS sets.
    `token` is the caller's client token.
    """
    reservation = f"r-0{secrets.token_hex(8)}"
    specifications = [
        *(plan.data.get("TagSpecifications") or []),
        *(tag_specifications or []),
    ]
    made = []
    for _ in range(count):
        instance = _instance(world, plan, reservation, token)
        world.tag(instance.identity, tags_for(specifications, "instance"))
        world.tag(instance.identity, service_tags or {})
        if plan.template:
            world.tag(
                instance.identity,
                {
                    "aws:ec2launchtemplate:id": plan.template,
                    "aws:ec2launchtemplate:version": "1",
                },
            )
        for volume in instance.volumes:
            world.tag(volume.identity, tags_for(specifications, "volume"))
        for interface in instance.interfaces:
            world.tag(interface.identity, tags_for(specifications, "network-interface"))
        if instance.spot_request:
            world.tag(instance.spot_request, tags_for(specifications, "spot-instances-request"))
        _take(world, plan)
        begin(world, instance)
        made.append(instance)
    return made


def _take(world: World, plan: Plan) -> None:
    key = (plan.capacity_type, plan.instance_type, plan.zone)
    if plan.reservation is not None:
        identity = plan.reservation["CapacityReservationId"]
        world.capacity_reservations[identity]["AvailableInstanceCount"] -= 1
    elif key in world.capacity:
        world.capacity[key] -= 1


def _instance(world: World, plan: Plan, reservation: str, token: str | None) -> Instance:
    spot = plan.capacity_type == "spot"
    profile = plan.profile
    return Instance(
        identity=new_id("i"),
        reservation=reservation,
        image=plan.image.identity,
        instance_type=plan.instance_type,
        architecture=plan.image.architecture,
        subnet=plan.subnet.id,
        vpc=plan.subnet.vpc_id,
        zone=plan.zone,
        zone_id=str(plan.subnet.availability_zone_id),
        launched=now().replace(microsecond=0),
        interfaces=_interfaces(world, plan),
        volumes=_volumes(plan),
        root_device=plan.image.root_device,
        user_data=plan.data.get("UserData") or "",
        capacity_type=plan.capacity_type,
        spot_request=f"sir-{secrets.token_hex(4)}" if spot else None,
        profile_arn=profile.arn if profile else None,
        profile_id=profile.id if profile else None,
        role=profile.roles[0].arn if profile else None,
        key_name=plan.data.get("KeyName"),
        token=token,
        template=_in_placement_group(world, plan.data),
        capacity_reservation=(plan.reservation or {}).get("CapacityReservationId"),
        windows=plan.image.windows,
        protected=bool(plan.data.get("DisableApiTermination", False)),
    )


def _in_placement_group(world: World, data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the launch data with what EC2 adds to the placement of an instance in a group.

    The caller names the placement group by name or by ID, and EC2 adds the other one. If the caller
    names no partition of a partition placement group, EC2 chooses one.
    """
    placement = data.get("Placement") or {}
    named = placement.get("GroupName"), placement.get("GroupId")
    for group in world.placement_groups.values():
        name, identity, count = group["GroupName"], group["GroupId"], group["PartitionCount"]
        if not {name, identity} & {*named}:
            continue
        added = {"GroupName": name, "GroupId": identity}
        if count:
            chosen = placement.get("PartitionNumber") or len(world.instances) % count + 1
            added["PartitionNumber"] = chosen
        return {**data, "Placement": {**placement, **added}}
    return data


def _interfaces(world: World, plan: Plan) -> list[Interface]:
    made = []
    for number, nic in enumerate(_nics(plan.data)):
        kind = nic.get("InterfaceType", "interface")
        without_address = kind == "efa-only" and number > 0
        address = "" if without_address else addresses.pool(world, plan.subnet.id).take()
        made.append(
            Interface(
                identity=new_id("eni"),
                device_index=int(nic.get("DeviceIndex", 0)),
                card_index=int(nic.get("NetworkCardIndex", 0)),
                kind=kind,
                subnet=plan.subnet.id,
                vpc=plan.subnet.vpc_id,
                address=address,
                groups=tuple(nic.get("Groups") or plan.groups),
                delete_on_termination=nic.get("DeleteOnTermination", True) is not False,
                mac="0a:" + ":".join(f"{byte:02x}" for byte in secrets.token_bytes(5)),
                connection_tracking=nic.get("ConnectionTrackingSpecification") or None,
                public_address=_public_address() if _is_public(plan, nic) else None,
            )
        )
    return made


def _is_public(plan: Plan, nic: Mapping[str, Any]) -> bool:
    """Return whether EC2 gives an interface a public address.

    It does so only if the instance has a single interface. `AssociatePublicIpAddress` of the launch
    decides, else `MapPublicIpOnLaunch` of the subnet.
    """
    wanted = nic.get("AssociatePublicIpAddress")
    is_public = plan.subnet.map_public_ip_on_launch if wanted is None else wanted
    return bool(is_public) and len(_nics(plan.data)) == 1


def _public_address() -> str:
    return str(PUBLIC[secrets.randbelow(PUBLIC.num_addresses)])


def _volumes(plan: Plan) -> list[Volume]:
    mappings = [m for m in plan.data.get("BlockDeviceMappings") or [] if m.get("Ebs")]
    devices = {mapping["DeviceName"]: dict(mapping["Ebs"]) for mapping in mappings}
    root = devices.setdefault(plan.image.root_device, {})
    root.setdefault("SnapshotId", plan.image.snapshot)
    root.setdefault("VolumeSize", plan.image.root_size_gib)
    created = now().replace(microsecond=0)
    made = []
    for device, settings in devices.items():
        settings.setdefault("VolumeType", "gp3")
        settings.setdefault("VolumeSize", 8)
        settings.setdefault("DeleteOnTermination", True)
        settings.setdefault("Encrypted", False)
        if settings["VolumeType"] == "gp3":
            settings.setdefault("Iops", 3000)
            settings.setdefault("Throughput", 125)
        made.append(Volume(new_id("vol"), device, settings, created))
    return made
