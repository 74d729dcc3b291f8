"""The resources of the region as plain values; behavior is in the modules of each type."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from testbed.cloud.protocol.backends import ACCOUNT
from testbed.cloud.protocol.errors import AwsError

STATES = {
    "pending": 0,
    "running": 16,
    "shutting-down": 32,
    "terminated": 48,
    "stopping": 64,
    "stopped": 80,
}
"""Instance state → EC2's code for it."""


def private_dns_name(address: str, region: str) -> str:
    """Return the private DNS name (IP name) that EC2 gives an address."""
    domain = "ec2.internal" if region == "us-east-1" else f"{region}.compute.internal"
    return f"ip-{address.replace('.', '-')}.{domain}"


def public_dns_name(address: str, region: str) -> str:
    """Return the public DNS name that EC2 gives a public address."""
    domain = "compute-1" if region == "us-east-1" else f"{region}.compute"
    return f"ec2-{address.replace('.', '-')}.{domain}.amazonaws.com"


DEAD = frozenset({"shutting-down", "terminated"})


@dataclass(frozen=True, slots=True)
class Volume:
    """An EBS volume of an instance, also one that remained after the termination."""

    identity: str
    device: str
    settings: Mapping[str, Any]
    """The `Ebs` part of a block device mapping, with its defaults."""

    created: datetime


@dataclass(frozen=True, slots=True)
class Interface:
    """A network interface of an instance, also one that remained after the termination."""

    identity: str
    device_index: int
    card_index: int
    kind: str
    subnet: str
    vpc: str
    address: str
    groups: tuple[str, ...]
    delete_on_termination: bool
    mac: str
    connection_tracking: Mapping[str, int] | None = None
    """Idle timeouts of tracked connections, in seconds; None if the launch set none."""

    public_address: str | None = None


@dataclass(slots=True)
class Instance:
    """An EC2 instance."""

    identity: str
    reservation: str
    image: str
    instance_type: str
    architecture: str
    subnet: str
    vpc: str
    zone: str
    zone_id: str
    launched: datetime
    interfaces: list[Interface]
    volumes: list[Volume]
    root_device: str
    user_data: str = ""
    """Base64, as the caller sent it."""

    capacity_type: str = "on-demand"
    spot_request: str | None = None
    profile_arn: str | None = None
    profile_id: str | None = None
    role: str | None = None
    key_name: str | None = None
    token: str | None = None
    template: Mapping[str, Any] = field(default_factory=dict)
    """The other launch parameters, in the structure of launch template data."""

    capacity_reservation: str | None = None
    windows: bool = False
    state: str = "pending"
    reason: str = ""
    state_reason: Mapping[str, str] | None = None
    protected: bool = False
    impaired: Mapping[str, Any] | None = None
    """Status checks and scheduled events that a test set through the control API."""

    reboots: int = 0
    """How often the instance was rebooted; each reboot gives its node another boot ID."""

    revision: int = 0
    kept: str | None = None
    """The instance as XML, cached until it changes."""

    @property
    def address(self) -> str:
        """The private address of the primary interface."""
        return self.interfaces[0].address

    @property
    def private_dns_name(self) -> str:
        """The private DNS name, under which the instance's kubelet registers its node."""
        return private_dns_name(self.address, self.zone[:-1])

    @property
    def is_gone(self) -> bool:
        """Whether the instance is terminating or terminated."""
        return self.state in DEAD


@dataclass(frozen=True, slots=True)
class LaunchTemplate:
    """A launch template with its versions. The first is the default one."""

    identity: str
    name: str
    created: datetime
    creator: str
    versions: list[Mapping[str, Any]]
    """The data of each version, in the structure of RequestLaunchTemplateData."""

    description: str | None

    def number(self, wanted: str | None) -> int:
        """Return the number of a version: a number, `$Latest`, `$Default` or None.

        Raises AwsError if there is no such version.
        """
        named = {"$default": 1, "$latest": len(self.versions)}
        known = {str(number): number for number in range(1, len(self.versions) + 1)} | named
        if (number := known.get(str(wanted or "$Default").lower())) is None:
            raise AwsError(
                "InvalidLaunchTemplateId.VersionNotFound",
                f"Could not find the specified version {wanted} for the launch template "
                f"with ID {self.identity}.",
            )
        return number

    def data(self, wanted: str | None) -> Mapping[str, Any]:
        """Return the data of a version. Raises AwsError if there is no such version."""
        return self.versions[self.number(wanted) - 1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An AMI."""

    identity: str
    name: str
    architecture: str
    created: datetime
    owner: str
    owner_alias: str | None = "amazon"
    root_device: str = "/dev/xvda"
    root_size_gib: int = 20
    windows: bool = False
    description: str = ""
    deprecated_at: datetime | None = None
    """Time of the deprecation if it is not two years after the creation."""

    @property
    def snapshot(self) -> str:
        """The snapshot of the image's root volume."""
        return "snap-" + self.identity.removeprefix("ami-")


RESERVED_AT_START = 4
"""Addresses that AWS reserves at the start of a subnet: network, router, DNS and future use.

AWS reserves a fifth, the broadcast address, at the end.
"""


@dataclass
class Pool:
    """The IP addresses of one subnet."""

    network: ipaddress.IPv4Network
    taken: set[str] = field(default_factory=set)
    returned: list[str] = field(default_factory=list)
    next_offset: int = RESERVED_AT_START
    held: int = 0
    """Addresses that a test withholds through the control API."""

    @property
    def free(self) -> int:
        """The number of free addresses."""
        total = self.network.num_addresses - RESERVED_AT_START - 1
        return max(0, total - len(self.taken) - self.held)

    def take(self) -> str:
        """Return a free address and mark it used. Raises IndexError if there is none."""
        if self.free < 1:
            raise IndexError("no address is free")
        if self.next_offset < self.network.num_addresses - 1:
            address = str(self.network[self.next_offset])
            self.next_offset += 1
        else:
            address = self.returned.pop(0)
        self.taken.add(address)
        return address

    def give_back(self, address: str) -> None:
        """Release an address; the address that was released first is reused first."""
        if address in self.taken:
            self.taken.remove(address)
            self.returned.append(address)


@dataclass(frozen=True, slots=True)
class Session:
    """Temporary credentials of a role."""

    access_key: str
    secret_key: str
    token: str
    role_arn: str
    role_name: str
    name: str
    expires: datetime
    tags: Mapping[str, str] = field(default_factory=dict)

    @property
    def arn(self) -> str:
        """The ARN of the assumed role, as it appears in messages."""
        return f"arn:aws:sts::{ACCOUNT}:assumed-role/{self.role_name}/{self.name}"


@dataclass
class Clusters:
    """The clusters of the region and their resources, such as access entries and node groups."""

    described: dict[str, dict[str, Any]] = field(default_factory=dict)
    access_entries: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    access_policies: dict[tuple[str, str], dict[str, dict[str, Any]]] = field(default_factory=dict)
    associations: dict[str, dict[str, Any]] = field(default_factory=dict)
    addons: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    node_groups: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    fargate_profiles: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
