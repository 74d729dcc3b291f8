"""Types of EC2 resources, by the prefix of their IDs, and EC2's error for one that is missing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TypeVar

from testbed.cloud.protocol.errors import AwsError

T = TypeVar("T")

KINDS = {
    "i": ("instance", "InvalidInstanceID.NotFound", "The instance ID '{}' does not exist"),
    "vol": ("volume", "InvalidVolume.NotFound", "The volume '{}' does not exist."),
    "eni": (
        "network-interface",
        "InvalidNetworkInterfaceID.NotFound",
        "The networkInterface ID '{}' does not exist",
    ),
    "subnet": ("subnet", "InvalidSubnetID.NotFound", "The subnet ID '{}' does not exist"),
    "sg": ("security-group", "InvalidGroup.NotFound", "The security group '{}' does not exist"),
    "vpc": ("vpc", "InvalidVpcID.NotFound", "The vpc ID '{}' does not exist"),
    "snap": ("snapshot", "InvalidSnapshot.NotFound", "The snapshot '{}' does not exist."),
    "ami": ("image", "InvalidAMIID.NotFound", "The image id '[{}]' does not exist"),
    "lt": (
        "launch-template",
        "InvalidLaunchTemplateId.NotFound",
        "The specified launch template, with template ID {}, does not exist.",
    ),
    "sir": (
        "spot-instances-request",
        "InvalidSpotInstanceRequestID.NotFound",
        "The spot instance request ID '{}' does not exist",
    ),
    "cr": (
        "capacity-reservation",
        "InvalidCapacityReservationId.NotFound",
        "The capacity reservation ID '{}' does not exist",
    ),
    "fleet": ("fleet", "InvalidFleetId.NotFound", "The fleet ID '{}' does not exist"),
    "pg": (
        "placement-group",
        "InvalidPlacementGroup.Unknown",
        "The placement group '{}' is unknown.",
    ),
}
"""Prefix of a resource ID → (resource type, error code, error message if it does not exist)."""


def kind_of(identity: str) -> str:
    """Return the resource type of an ID as ARNs and tag specifications name it; `*` if unknown."""
    known = KINDS.get(identity.split("-", 1)[0])
    return known[0] if known else "*"


def no_such(prefix: str, identity: str) -> AwsError:
    """Return EC2's error for a resource that does not exist; `prefix` is that of its type."""
    _, code, message = KINDS[prefix]
    return AwsError(code, message.format(identity))


def pick(
    values: Iterable[T], wanted: Collection[str], identity: Callable[[T], str], *, prefix: str
) -> list[T]:
    """Return the values whose IDs are wanted, or all if no ID is.

    Raises AwsError if one does not exist.
    """
    known = {identity(value): value for value in values}
    if missing := set(wanted) - known.keys():
        raise no_such(prefix, min(missing))
    return [value for each, value in known.items() if not wanted or each in wanted]
