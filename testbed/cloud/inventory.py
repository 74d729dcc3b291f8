"""What exists in the region, as plain values; how it behaves is in the modules of its nouns."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from testbed.cloud.backends import ACCOUNT
from testbed.cloud.errors import AwsError

STATES = {
    "pending": 0,
    "running": 16,
    "shutting-down": 32,
    "terminated": 48,
    "stopping": 64,
    "stopped": 80,
}
"""State → the code that EC2 gives it."""


def private_dns_name(address: str, region: str) -> str:
    """The host name that EC2 gives an address, by IP name."""
    domain = "ec2.internal" if region == "us-east-1" else f"{region}.compute.internal"
    return f"ip-{address.replace('.', '-')}.{domain}"


DEAD = frozenset({"shutting-down", "terminated"})


@dataclass(frozen=True, slots=True)
class Volume:
    """An EBS volume attached to an instance."""

    identity: str
    device: str
    settings: Mapping[str, Any]
    """The `Ebs` part of a block device mapping, with its defaults filled in."""

    created: datetime


@dataclass(frozen=True, slots=True)
class Interface:
    """A network interface attached to an instance."""

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
    """Base64, as given."""

    capacity_type: str = "on-demand"
    spot_request: str | None = None
    profile_arn: str | None = None
    profile_id: str | None = None
    role: str | None = None
    key_name: str | None = None
    token: str | None = None
    template: Mapping[str, Any] = field(default_factory=dict)
    """What else the launch asked for, in the shape of launch template data."""

    capacity_reservation: str | None = None
    windows: bool = False
    state: str = "pending"
    reason: str = ""
    state_reason: Mapping[str, str] | None = None
    protected: bool = False
    impaired: Mapping[str, Any] | None = None
    """An order of the control API: what status checks and scheduled events should say."""

    revision: int = 0
    kept: str | None = None
    """The instance as XML, until it changes."""

    @property
    def address(self) -> str:
        """The private address of the primary interface."""
        return self.interfaces[0].address

    @property
    def private_dns_name(self) -> str:
        """The host name that the instance's kubelet registers with."""
        return private_dns_name(self.address, self.zone[:-1])

    @property
    def is_gone(self) -> bool:
        """Whether the instance is on its way out, or out."""
        return self.state in DEAD


@dataclass(frozen=True, slots=True)
class Version:
    """One version of a template; `data` has the shape of RequestLaunchTemplateData."""

    number: int
    data: Mapping[str, Any]
    description: str | None
    created: datetime


@dataclass(slots=True)
class LaunchTemplate:
    """A launch template."""

    identity: str
    name: str
    created: datetime
    creator: str
    versions: list[Version] = field(default_factory=list)
    default: int = 1

    @property
    def latest(self) -> int:
        """The number of the newest version."""
        return self.versions[-1].number

    def version(self, wanted: str | None) -> Version:
        """A version by number, `$Latest` or `$Default`."""
        number = {"$latest": self.latest, "$default": self.default}.get(
            str(wanted or "$Default").lower()
        )
        if number is None and str(wanted).isdigit():
            number = int(str(wanted))
        for version in self.versions:
            if version.number == number:
                return version
        raise AwsError(
            "InvalidLaunchTemplateId.VersionNotFound",
            f"Could not find the specified version {wanted} for the launch template "
            f"with ID {self.identity}.",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """A machine image."""

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
    tags: Mapping[str, str] = field(default_factory=dict)

    @property
    def snapshot(self) -> str:
        """The snapshot that the image's root volume is made from."""
        return "snap-" + self.identity.removeprefix("ami-")


RESERVED_AT_START = 4
"""The network, the router, DNS and one for the future; the broadcast address is the fifth."""


@dataclass
class Pool:
    """The addresses of one subnet."""

    network: ipaddress.IPv4Network
    taken: set[str] = field(default_factory=set)
    returned: list[str] = field(default_factory=list)
    next_offset: int = RESERVED_AT_START
    held: int = 0
    """Addresses that something else uses up, ordered through the control API."""

    @property
    def free(self) -> int:
        """How many addresses are left."""
        total = self.network.num_addresses - RESERVED_AT_START - 1
        return max(0, total - len(self.taken) - self.held)

    def take(self) -> str:
        """An address that nobody has. Raises IndexError when there is none."""
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
        """Let an address be taken again; the longest unused goes first."""
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
        """The assumed-role ARN, as it shows in messages."""
        return f"arn:aws:sts::{ACCOUNT}:assumed-role/{self.role_name}/{self.name}"


@dataclass
class Clusters:
    """The clusters of the region and what hangs on them."""

    described: dict[str, dict[str, Any]] = field(default_factory=dict)
    access_entries: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    access_policies: dict[tuple[str, str], dict[str, dict[str, Any]]] = field(default_factory=dict)
    associations: dict[str, dict[str, Any]] = field(default_factory=dict)
    addons: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    node_groups: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    fargate_profiles: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
