"""EC2 instances: their state, their state transitions, and how EC2 describes them."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from testbed.cloud.ec2 import addresses
from testbed.cloud.ec2.instancetypes import TYPES
from testbed.cloud.ec2.kinds import no_such
from testbed.cloud.operations import operation
from testbed.cloud.protocol import backends
from testbed.cloud.protocol.errors import AwsError
from testbed.cloud.protocol.filters import select_page
from testbed.cloud.protocol.wire import Call, Xml, ec2_items, ec2_list
from testbed.cloud.state import events
from testbed.cloud.state.inventory import (
    STATES,
    Instance,
    Interface,
    private_dns_name,
    public_dns_name,
)
from testbed.cloud.state.world import World, now


def touch(world: World, instance: Instance) -> None:
    """Record a change of an instance: new revision, and its cached description is dropped."""
    instance.kept = None
    instance.revision = world.changes.next()


def fragment(world: World, instance: Instance) -> str:
    """Return the instance as an XML fragment of DescribeInstances, cached until it changes."""
    if instance.kept is None:
        reservation = {"Instances": [as_api(world, instance)]}
        text = ec2_items("DescribeInstances", "Reservations", [reservation])[0]
        instance.kept = text.removeprefix("<item><instancesSet>").removesuffix(
            "</instancesSet></item>"
        )
    return instance.kept


def get(world: World, identity: str) -> Instance:
    """Return an instance by ID. Raises AwsError if the ID is malformed or unknown."""
    instance = world.instances.get(identity)
    if instance is not None:
        return instance
    if not identity.startswith("i-"):
        raise AwsError("InvalidInstanceID.Malformed", f'Invalid id: "{identity}"')
    raise no_such("i", identity)


def get_all(world: World, identities: list[str]) -> list[Instance]:
    """Return instances by ID. Raises AwsError if any of them does not exist, as EC2 does."""
    missing = [
        i
        for i in identities
        if i.startswith("i-") and not (i in world.instances and world.is_seen(i))
    ]
    if missing:
        plural = "s" if len(missing) > 1 else ""
        verb = "do" if plural else "does"
        raise AwsError(
            "InvalidInstanceID.NotFound",
            f"The instance ID{plural} '{', '.join(missing)}' {verb} not exist",
        )
    return [get(world, identity) for identity in identities]


def _seen_instances(world: World) -> list[Instance]:
    return [each for each in world.instances.values() if world.is_seen(each.identity)]


# ---------------------------------------------------------------- state transitions


def begin(world: World, instance: Instance) -> None:
    """Add an instance to the region as pending; it runs after `Settings.pending` seconds."""
    world.instances[instance.identity] = instance
    world.delay_visibility(instance.identity)
    touch(world, instance)
    events.state_changed(world, instance.identity, "pending")
    world.timers.after(world.settings.pending, lambda: _move(world, instance, "pending", "running"))


def _move(world: World, instance: Instance, before: str, after: str) -> None:
    with world.lock:
        if instance.state == before:
            _enter(world, instance, after)


def _enter(world: World, instance: Instance, state: str) -> None:
    instance.state = state
    touch(world, instance)
    events.state_changed(world, instance.identity, state)


def terminate(
    world: World,
    instance: Instance,
    *,
    code: str = "Client.UserInitiatedShutdown",
    message: str = "User initiated shutdown",
) -> None:
    """Start the termination of an instance; does nothing if it is already terminating.

    `code` and `message` become its state reason.
    """
    if instance.is_gone:
        return
    who = "User" if code.startswith("Client") else "Service"
    instance.reason = f"{who} initiated ({now().strftime('%Y-%m-%d %H:%M:%S GMT')})"
    instance.state_reason = {"Code": code, "Message": f"{code}: {message}"}
    _enter(world, instance, "shutting-down")
    world.timers.after(world.settings.shutting_down, lambda: _finish(world, instance))


def _finish(world: World, instance: Instance) -> None:
    with world.lock:
        if instance.state != "shutting-down":
            return
        _release(world, instance)
        _enter(world, instance, "terminated")
    world.timers.after(world.settings.terminated_visible, lambda: _forget(world, instance))


def _release(world: World, instance: Instance) -> None:
    for interface in instance.interfaces:
        if interface.delete_on_termination:
            addresses.pool(world, interface.subnet).give_back(interface.address)
            world.untag(interface.identity)
        else:
            world.detached_interfaces[interface.identity] = interface
    for volume in instance.volumes:
        if volume.settings["DeleteOnTermination"]:
            world.untag(volume.identity)
        else:
            world.detached_volumes[volume.identity] = (instance.zone, volume)
    pool = (instance.capacity_type, instance.instance_type, instance.zone)
    if pool in world.capacity:
        world.capacity[pool] += 1
    reservation = world.capacity_reservations.get(instance.capacity_reservation or "")
    if reservation is not None:
        reservation["AvailableInstanceCount"] += 1


def _forget(world: World, instance: Instance) -> None:
    with world.lock:
        world.instances.pop(instance.identity, None)
        world.untag(instance.identity)
        if instance.spot_request:
            world.untag(instance.spot_request)
        world.changes.next()


# ---------------------------------------------------------------- description


def as_api(world: World, instance: Instance) -> dict[str, Any]:
    """Return an instance as DescribeInstances describes it."""
    template = instance.template
    metadata = template.get("MetadataOptions") or {}
    gone = instance.state == "terminated"
    described = {
        "InstanceId": instance.identity,
        "ImageId": instance.image,
        "InstanceType": instance.instance_type,
        "Architecture": instance.architecture,
        "State": {"Code": STATES[instance.state], "Name": instance.state},
        "StateTransitionReason": instance.reason,
        "StateReason": instance.state_reason,
        "LaunchTime": instance.launched,
        "AmiLaunchIndex": 0,
        "ClientToken": instance.token or "",
        "KeyName": instance.key_name,
        "EbsOptimized": bool(template.get("EbsOptimized", False)),
        "EnaSupport": True,
        "Hypervisor": TYPES[instance.instance_type].get("Hypervisor") or "nitro",
        "VirtualizationType": "hvm",
        "Platform": "windows" if instance.windows else None,
        "PlatformDetails": "Windows" if instance.windows else "Linux/UNIX",
        "RootDeviceName": instance.root_device,
        "RootDeviceType": "ebs",
        "InstanceLifecycle": "spot" if instance.capacity_type == "spot" else None,
        "SpotInstanceRequestId": instance.spot_request,
        "CapacityReservationId": instance.capacity_reservation,
        "CapacityReservationSpecification": template.get("CapacityReservationSpecification")
        or {"CapacityReservationPreference": "open"},
        "Placement": {
            "AvailabilityZone": instance.zone,
            "GroupName": "",
            "Tenancy": "default",
            **(template.get("Placement") or {}),
        },
        "Monitoring": {
            "State": "enabled" if (template.get("Monitoring") or {}).get("Enabled") else "disabled"
        },
        "MetadataOptions": {
            "State": "applied",
            "HttpTokens": "optional",
            "HttpPutResponseHopLimit": 1,
            "HttpEndpoint": "enabled",
            "HttpProtocolIpv6": "disabled",
            "InstanceMetadataTags": "disabled",
            **metadata,
        },
        "EnclaveOptions": template.get("EnclaveOptions") or {"Enabled": False},
        "CpuOptions": template.get("CpuOptions"),
        "Tags": world.tag_list(instance.identity),
    }
    if not gone:
        described |= _attachments(world, instance)
    return described


def _attachments(world: World, instance: Instance) -> dict[str, Any]:
    public = _association(world, instance.interfaces[0]) or {}
    profile = None
    if instance.profile_arn:
        profile = {"Arn": instance.profile_arn, "Id": instance.profile_id}
    return {
        "SubnetId": instance.subnet,
        "VpcId": instance.vpc,
        "PrivateIpAddress": instance.address,
        "PrivateDnsName": instance.private_dns_name,
        "PublicIpAddress": public.get("PublicIp"),
        "PublicDnsName": public.get("PublicDnsName", ""),
        "SourceDestCheck": True,
        "IamInstanceProfile": profile,
        "SecurityGroups": _groups(world, instance.interfaces[0]),
        "NetworkInterfaces": [
            interface_as_api(world, each, attached=instance) for each in instance.interfaces
        ],
        "BlockDeviceMappings": [
            {
                "DeviceName": volume.device,
                "Ebs": {
                    "VolumeId": volume.identity,
                    "Status": "attached",
                    "AttachTime": volume.created,
                    "DeleteOnTermination": volume.settings["DeleteOnTermination"],
                },
            }
            for volume in instance.volumes
        ],
    }


def _groups(world: World, interface: Interface) -> list[dict[str, str]]:
    known = addresses.security_groups(world)
    return [{"GroupId": each, "GroupName": known[each].name} for each in interface.groups]


def _association(world: World, interface: Interface) -> dict[str, str] | None:
    address = interface.public_address
    if address is None:
        return None
    name = public_dns_name(address, world.region)
    return {"PublicIp": address, "PublicDnsName": name, "IpOwnerId": "amazon"}


def interface_as_api(
    world: World, interface: Interface, *, attached: Instance | None
) -> dict[str, Any]:
    """Return a network interface as DescribeInstances describes it."""
    name = private_dns_name(interface.address, world.region)
    association = _association(world, interface) if attached else None
    described: dict[str, Any] = {
        "NetworkInterfaceId": interface.identity,
        "SubnetId": interface.subnet,
        "VpcId": interface.vpc,
        "PrivateIpAddress": interface.address,
        "PrivateDnsName": name,
        "PrivateIpAddresses": [
            {
                "Primary": True,
                "PrivateIpAddress": interface.address,
                "PrivateDnsName": name,
                "Association": association,
            }
        ],
        "Association": association,
        "MacAddress": interface.mac,
        "OwnerId": backends.ACCOUNT,
        "SourceDestCheck": True,
        "Status": "in-use" if attached else "available",
        "InterfaceType": interface.kind,
        "Groups": _groups(world, interface),
        "Ipv6Addresses": [],
        "ConnectionTrackingConfiguration": interface.connection_tracking,
    }
    if attached is not None:
        described["Attachment"] = {
            "AttachmentId": "eni-attach-" + interface.identity.removeprefix("eni-"),
            "AttachTime": attached.launched,
            "DeleteOnTermination": interface.delete_on_termination,
            "DeviceIndex": interface.device_index,
            "NetworkCardIndex": interface.card_index,
            "Status": "attached",
        }
    return described


ATTRIBUTES: Mapping[str, Callable[[Instance], str | list[str] | None]] = {
    "instance-id": lambda i: i.identity,
    "instance-state-name": lambda i: i.state,
    "instance-state-code": lambda i: str(STATES[i.state]),
    "instance-type": lambda i: i.instance_type,
    "instance-lifecycle": lambda i: "spot" if i.capacity_type == "spot" else None,
    "architecture": lambda i: i.architecture,
    "availability-zone": lambda i: i.zone,
    "client-token": lambda i: i.token,
    "image-id": lambda i: i.image,
    "subnet-id": lambda i: i.subnet,
    "vpc-id": lambda i: i.vpc,
    "private-ip-address": lambda i: i.address,
    "private-dns-name": lambda i: i.private_dns_name,
    "iam-instance-profile.arn": lambda i: i.profile_arn,
    "key-name": lambda i: i.key_name,
    "reservation-id": lambda i: i.reservation,
    "spot-instance-request-id": lambda i: i.spot_request,
    "capacity-reservation-id": lambda i: i.capacity_reservation,
    "instance.group-id": lambda i: list(i.interfaces[0].groups),
    "network-interface.network-interface-id": lambda i: [e.identity for e in i.interfaces],
    "block-device-mapping.volume-id": lambda i: [v.identity for v in i.volumes],
    "owner-id": lambda _: backends.ACCOUNT,
    "root-device-type": lambda _: "ebs",
    "tenancy": lambda i: (i.template.get("Placement") or {}).get("Tenancy", "default"),
    "placement-group-name": lambda i: (i.template.get("Placement") or {}).get("GroupName"),
}


@operation("ec2", "DescribeInstances")
def describe_instances(world: World, call: Call) -> Xml:
    """Describe instances by ID, state, tag and other filters; 1000 per page by default."""
    identities = call.get("InstanceIds", [])
    if identities and call.get("MaxResults"):
        raise AwsError(
            "InvalidParameterCombination",
            "The parameter instancesSet cannot be used with the parameter maxResults",
        )
    call.stop_if_dry_run()
    instances = get_all(world, identities) if identities else _seen_instances(world)
    listed, token = select_page(
        instances, call, attributes=ATTRIBUTES, tags=lambda i: world.tags(i.identity)
    )
    reservations: dict[str, list[str]] = {}
    for instance in listed:
        reservations.setdefault(instance.reservation, []).append(fragment(world, instance))
    items = [
        f"<item><reservationId>{reservation}</reservationId>"
        f"<ownerId>{backends.ACCOUNT}</ownerId><groupSet/>"
        f"<instancesSet>{''.join(fragments)}</instancesSet></item>"
        for reservation, fragments in reservations.items()
    ]
    return ec2_list("DescribeInstances", "Reservations", items, next_token=token)


def _status(instance: Instance) -> dict[str, Any]:
    orders = instance.impaired or {}

    def check(kind: str) -> dict[str, Any]:
        since = orders.get(kind)
        if instance.state != "running":
            return {"Status": "not-applicable"}
        if since is None:
            return {"Status": "ok", "Details": [{"Name": "reachability", "Status": "passed"}]}
        detail = {"Name": "reachability", "Status": "failed", "ImpairedSince": since}
        return {"Status": "impaired", "Details": [detail]}

    return {
        "InstanceId": instance.identity,
        "AvailabilityZone": instance.zone,
        "InstanceState": {"Code": STATES[instance.state], "Name": instance.state},
        "InstanceStatus": check("instance"),
        "SystemStatus": check("system"),
        "Events": list(orders.get("events", [])),
    }


@operation("ec2", "DescribeInstanceStatus")
def describe_instance_status(world: World, call: Call) -> Mapping[str, Any]:
    """Describe status checks and scheduled events of instances."""
    call.stop_if_dry_run()
    identities = call.get("InstanceIds", [])
    instances = get_all(world, identities) if identities else _seen_instances(world)
    if not call.get("IncludeAllInstances"):
        instances = [instance for instance in instances if instance.state == "running"]
    listed, token = select_page(
        [_status(instance) for instance in instances],
        call,
        attributes={
            "availability-zone": lambda s: str(s["AvailabilityZone"]),
            "instance-state-name": lambda s: str(s["InstanceState"]["Name"]),
            "instance-state-code": lambda s: str(s["InstanceState"]["Code"]),
            "instance-status.status": lambda s: str(s["InstanceStatus"]["Status"]),
            "system-status.status": lambda s: str(s["SystemStatus"]["Status"]),
            "event.code": lambda s: [str(event["Code"]) for event in s["Events"]],
        },
    )
    return {"InstanceStatuses": list(listed), "NextToken": token}


# ---------------------------------------------------------------- operations


def _changes(
    instances: Iterable[Instance], change: Callable[[Instance], None]
) -> list[dict[str, Any]]:
    """Change each instance; return its state before and after."""
    changes = []
    for instance in instances:
        before = instance.state
        change(instance)
        changes.append(
            {
                "InstanceId": instance.identity,
                "PreviousState": {"Code": STATES[before], "Name": before},
                "CurrentState": {"Code": STATES[instance.state], "Name": instance.state},
            }
        )
    return changes


@operation("ec2", "TerminateInstances")
def terminate_instances(world: World, call: Call) -> Mapping[str, Any]:
    """Terminate instances. Raises AwsError if one of them has termination protection."""
    instances = get_all(world, call.require("InstanceIds"))
    for instance in instances:
        if instance.protected:
            raise AwsError(
                "OperationNotPermitted",
                f"The instance '{instance.identity}' may not be terminated. Modify its "
                "'disableApiTermination' instance attribute and try again.",
            )
    call.stop_if_dry_run()
    return {"TerminatingInstances": _changes(instances, partial(terminate, world))}


@operation("ec2", "StopInstances")
def stop_instances(world: World, call: Call) -> Mapping[str, Any]:
    """Stop instances; they keep their volumes and addresses."""
    instances = get_all(world, call.require("InstanceIds"))
    for instance in instances:
        if instance.is_gone:
            raise _wrong_state(instance, "stopped")
    call.stop_if_dry_run()

    def stop(instance: Instance) -> None:
        if instance.state in ("pending", "running"):
            _enter(world, instance, "stopping")
            seconds = world.settings.shutting_down
            world.timers.after(seconds, lambda: _move(world, instance, "stopping", "stopped"))

    return {"StoppingInstances": _changes(instances, stop)}


@operation("ec2", "RebootInstances")
def reboot_instances(world: World, call: Call) -> Mapping[str, Any]:
    """Reboot running instances: their state does not change, and their nodes get a new boot ID."""
    instances = get_all(world, call.require("InstanceIds"))
    for instance in instances:
        if instance.state != "running":
            raise _wrong_state(instance, "rebooted")
    call.stop_if_dry_run()
    for instance in instances:
        instance.reboots += 1
        touch(world, instance)
    return {}


def _wrong_state(instance: Instance, verb: str) -> AwsError:
    return AwsError(
        "IncorrectInstanceState",
        f"The instance '{instance.identity}' is not in a state from which it can be {verb}.",
    )


def alive(world: World) -> list[Instance]:
    """Return the instances that are not terminated."""
    return [i for i in world.instances.values() if i.state != "terminated"]


def decoded_user_data(instance: Instance) -> str:
    """Return the user data as text."""
    return base64.b64decode(instance.user_data or "").decode(errors="replace")


def new_id(prefix: str) -> str:
    """Return a new random ID in EC2's format, such as `i-0…`."""
    return f"{prefix}-0{secrets.token_hex(8)}"
