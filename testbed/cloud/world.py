"""The state of the region beside what moto keeps, and its settings."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from testbed.cloud import backends
from testbed.cloud.faults import Faults
from testbed.cloud.inventory import (
    Clusters,
    Image,
    Instance,
    Interface,
    LaunchTemplate,
    Pool,
    Session,
    Volume,
)
from testbed.cloud.ledger import Ledger
from testbed.cloud.timers import Timers
from testbed.cloud.tokens import TokenReviewer


@dataclass(slots=True)
class Settings:
    """Delays of the region, in seconds. AWS's own are longer."""

    pending: float = 0.5
    """From launch to running."""

    shutting_down: float = 1.0
    """From the order to terminate to terminated."""

    terminated_visible: float = 60.0
    """How long a terminated instance is still described; an hour in AWS."""

    settling: float = 0.0
    """From the making of something in EC2 or IAM until others see it: see `settling`. Seconds in
    AWS; nothing here, unless a test asks for it."""

    tagging: float = 0.0
    """From the tagging of something in EC2 until descriptions and filters know of it, be it new or
    not; seconds in AWS. Rights go by the tag at once."""

    associating: float = 0.0
    """From the making of a Pod Identity association until pods that are created get it, and from
    its end until they no longer do; seconds in AWS."""

    creating: float = 0.2
    """From the order to make or delete a cluster, a node group or a Fargate profile to its end;
    ten minutes in AWS."""

    interruption: float = 120.0
    """From a spot interruption notice to the end of the instance, as in AWS."""

    def change(self, values: Mapping[str, Any]) -> None:
        """Change some of the delays. Raises ValueError for one that does not exist."""
        for name, value in values.items():
            if name not in self.__dataclass_fields__:
                raise ValueError(f"there is no setting {name}")
            if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
                raise ValueError(f"{name} must be a number of seconds, not {value!r}")
        for name, value in values.items():
            setattr(self, name, float(value))

    def as_json(self) -> dict[str, float]:
        """The delays in force."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """What EKS says of the cluster that the region is made for."""

    name: str
    endpoint: str
    certificate_authority: str
    """PEM, base64-encoded."""

    version: str
    oidc_issuer: str


class Changes:
    """A revision that grows with every change of an instance, and a way to wait for it."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._revision = 0

    @property
    def revision(self) -> int:
        """The number of the last change."""
        return self._revision

    def next(self) -> int:
        """Count a change and wake who waits for one."""
        with self._condition:
            self._revision += 1
            self._condition.notify_all()
            return self._revision

    def wait(self, since: int, *, timeout: float) -> int:
        """Wait until there is a change after `since`, at most `timeout` seconds."""
        with self._condition:
            self._condition.wait_for(lambda: self._revision > since, timeout)
            return self._revision


@dataclass
class World:
    """Everything that exists in the region, and the lock that guards it."""

    region: str
    cluster: ClusterFacts
    clusters: Clusters
    token_reviewer: TokenReviewer
    settings: Settings = field(default_factory=Settings)
    lock: threading.RLock = field(default_factory=threading.RLock)
    timers: Timers = field(default_factory=Timers)
    changes: Changes = field(default_factory=Changes)
    faults: Faults = field(default_factory=Faults)
    ledger: Ledger = field(default_factory=Ledger)

    instances: dict[str, Instance] = field(default_factory=dict)
    launch_templates: dict[str, LaunchTemplate] = field(default_factory=dict)
    images: dict[str, Image] = field(default_factory=dict)
    pools: dict[str, Pool] = field(default_factory=dict)
    sessions: dict[str, Session] = field(default_factory=dict)
    capacity: dict[tuple[str, str, str], int] = field(default_factory=dict)
    """(capacity type, instance type, zone) → instances still to be had; absent is endless."""

    capacity_reservations: dict[str, dict[str, Any]] = field(default_factory=dict)
    detached_volumes: dict[str, tuple[str, Volume]] = field(default_factory=dict)
    """Volumes that outlived their instance: ID → (zone, volume)."""

    detached_interfaces: dict[str, Interface] = field(default_factory=dict)
    """Interfaces that outlived their instance, by ID."""

    placement_groups: dict[str, dict[str, Any]] = field(default_factory=dict)
    zonal_shifts: dict[str, dict[str, Any]] = field(default_factory=dict)
    answers: dict[tuple[str, str], tuple[Any, Any]] = field(default_factory=dict)
    """(operation, client token) → the request's parameters and its answer."""

    unseen: set[str] = field(default_factory=set)
    """IDs and names of what has been made and is not seen yet."""

    unseen_tags: dict[str, dict[str, str]] = field(default_factory=dict)
    """Tags that have been set and are not seen yet, by the ID of what bears them."""

    lingering: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Pod Identity associations that are gone, and that pods get all the same, by ID."""

    largest_page: int | None = None
    """The most that any listing of ours gives at once; None leaves it to the caller."""

    seeded: frozenset[str] = frozenset()
    """Identities of everything that was there at the start."""

    def settle(self, identity: str, seconds: float | None = None) -> None:
        """Let something new be seen after so many seconds, `Settings.settling` if not said."""
        after = self.settings.settling if seconds is None else seconds
        if after:
            self.unseen.add(identity)
            self.timers.after(after, lambda: self.unseen.discard(identity))

    def is_seen(self, identity: str) -> bool:
        """Whether something that exists is seen by now."""
        return identity not in self.unseen

    @property
    def zones(self) -> tuple[str, ...]:
        """The names of the zones."""
        return tuple(f"{self.region}{letter}" for letter in "abc")

    def tags(self, identity: str) -> dict[str, str]:
        """The tags of an EC2 resource that are seen by now."""
        tags: dict[str, str] = backends.ec2(self.region).tags.get(identity) or {}
        return tags

    def all_tags(self, identity: str) -> dict[str, str]:
        """The tags of an EC2 resource, those not seen yet among them."""
        return {**self.tags(identity), **self.unseen_tags.get(identity, {})}

    def tag(self, identity: str, tags: Mapping[str, str]) -> None:
        """Put tags on an EC2 resource; they are seen after `Settings.tagging` seconds."""
        if tags and self.settings.tagging:
            self.unseen_tags.setdefault(identity, {}).update(tags)
            self.timers.after(self.settings.tagging, lambda: self._show(identity, tags))
        elif tags:
            backends.ec2(self.region).tags[identity].update(tags)

    def _show(self, identity: str, tags: Mapping[str, str]) -> None:
        """Let tags be seen, but for those that have gone or changed meanwhile."""
        with self.lock:
            unseen = self.unseen_tags.get(identity, {})
            shown = {key: value for key, value in tags.items() if unseen.get(key) == value}
            for key in shown:
                del unseen[key]
            if not unseen:
                self.unseen_tags.pop(identity, None)
            if shown:
                backends.ec2(self.region).tags[identity].update(shown)
            if identity in self.instances:
                self.instances[identity].kept = None
                self.instances[identity].revision = self.changes.next()

    def untag(self, identity: str) -> None:
        """Forget the tags of an EC2 resource that is gone."""
        self.unseen_tags.pop(identity, None)
        backends.ec2(self.region).tags.pop(identity, None)

    def arn(self, service: str, resource: str) -> str:
        """An ARN of this account and region."""
        return f"arn:aws:{service}:{self.region}:{backends.ACCOUNT}:{resource}"


def now() -> datetime:
    """The present, in UTC."""
    return datetime.now(UTC)
