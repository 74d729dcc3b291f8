"""The region's state that moto does not hold, and its settings."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from testbed.cloud.protocol import backends
from testbed.cloud.state.calllog import CallLog
from testbed.cloud.state.faults import Faults
from testbed.cloud.state.inventory import (
    Clusters,
    Image,
    Instance,
    Interface,
    LaunchTemplate,
    Pool,
    Session,
    Volume,
)
from testbed.cloud.state.timers import Timers
from testbed.cloud.state.tokens import TokenReviewer


@dataclass(slots=True)
class Settings:
    """Delays of the region, in seconds. Most delays of AWS are longer."""

    pending: float = 0.5
    """Seconds from an instance's launch to the state `running`."""

    shutting_down: float = 1.0
    """Seconds from TerminateInstances to `terminated`, and from StopInstances to `stopped`."""

    terminated_visible: float = 60.0
    """Seconds for which EC2 still describes a terminated instance; 1 h in AWS."""

    visible_after: float = 0.0
    """Seconds from the creation of an EC2 or IAM resource until calls see it (see `consistency`).

    0 unless a test sets it; a few seconds in AWS.
    """

    tagging: float = 0.0
    """Seconds from the tagging of an EC2 resource until descriptions and filters show the tag.

    Applies to new and existing resources; a few seconds in AWS. IAM conditions see the tag at once.
    """

    associating: float = 0.0
    """Seconds from the creation of a Pod Identity association until new pods get its role.

    Also from its deletion until new pods no longer get the role. A few seconds in AWS.
    """

    creating: float = 0.2
    """Seconds to create a cluster, and to create or delete a node group or Fargate profile.

    Minutes in AWS. A cluster is deleted at once.
    """

    interruption: float = 120.0
    """Seconds from a spot or capacity reservation interruption notice to the termination.

    The default is that of AWS.
    """

    def change(self, values: Mapping[str, Any]) -> None:
        """Change delays.

        Raises ValueError for an unknown setting or an invalid number of seconds.
        """
        for name, value in values.items():
            if name not in self.__dataclass_fields__:
                raise ValueError(f"there is no setting {name}")
            if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
                raise ValueError(f"{name} must be a number of seconds, not {value!r}")
        for name, value in values.items():
            setattr(self, name, float(value))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """The properties of the EKS cluster in the region."""

    name: str
    endpoint: str
    certificate_authority: str
    """The API server's CA certificate: PEM, base64-encoded."""

    version: str
    oidc_issuer: str


class Changes:
    """A revision that increases with every change of an instance, and a way to wait for changes."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._revision = 0

    @property
    def revision(self) -> int:
        """The revision of the last change."""
        return self._revision

    def next(self) -> int:
        """Increase the revision and wake every waiting thread."""
        with self._condition:
            self._revision += 1
            self._condition.notify_all()
            return self._revision

    def wait(self, since: int, *, timeout: float) -> int:
        """Wait up to `timeout` seconds for a change after `since`; return the current revision."""
        with self._condition:
            self._condition.wait_for(lambda: self._revision > since, timeout)
            return self._revision


@dataclass
class World:
    """The state of the region, and the lock that guards it."""

    region: str
    cluster: ClusterFacts
    clusters: Clusters
    token_reviewer: TokenReviewer
    settings: Settings = field(default_factory=Settings)
    lock: threading.RLock = field(default_factory=threading.RLock)
    timers: Timers = field(default_factory=Timers)
    changes: Changes = field(default_factory=Changes)
    faults: Faults = field(default_factory=Faults)
    call_log: CallLog = field(default_factory=CallLog)

    instances: dict[str, Instance] = field(default_factory=dict)
    launch_templates: dict[str, LaunchTemplate] = field(default_factory=dict)
    images: dict[str, Image] = field(default_factory=dict)
    pools: dict[str, Pool] = field(default_factory=dict)
    sessions: dict[str, Session] = field(default_factory=dict)
    capacity: dict[tuple[str, str, str], int] = field(default_factory=dict)
    """(capacity type, instance type, zone) → instances still available; unlimited if absent."""

    capacity_errors: dict[tuple[str, str, str], tuple[str, str]] = field(default_factory=dict)
    """Code and message of the refusals of a pool without capacity; absent: those of EC2 then."""

    capacity_reservations: dict[str, dict[str, Any]] = field(default_factory=dict)
    detached_volumes: dict[str, tuple[str, Volume]] = field(default_factory=dict)
    """Volumes that remained after their instance's termination: ID → (zone, volume)."""

    detached_interfaces: dict[str, Interface] = field(default_factory=dict)
    """Interfaces that remained after their instance's termination, by ID."""

    placement_groups: dict[str, dict[str, Any]] = field(default_factory=dict)
    zonal_shifts: dict[str, dict[str, Any]] = field(default_factory=dict)
    answers: dict[tuple[str, str], tuple[Any, Any]] = field(default_factory=dict)
    """(operation, client token) → the request's parameters and its answer."""

    unseen: set[str] = field(default_factory=set)
    """IDs and names of resources that exist and are not visible yet."""

    unseen_tags: dict[str, dict[str, str]] = field(default_factory=dict)
    """Tags that are set and not visible yet, by resource ID."""

    lingering: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Deleted Pod Identity associations whose role new pods still get, by ID."""

    largest_page: int | None = None
    """Largest page size of every listing; None leaves it to the caller."""

    seeded: frozenset[str] = frozenset()
    """The names of every resource that existed at the start."""

    def delay_visibility(self, identity: str, seconds: float | None = None) -> None:
        """Make a new resource visible after `seconds`; None is `Settings.visible_after`."""
        after = self.settings.visible_after if seconds is None else seconds
        if after:
            self.unseen.add(identity)
            self.timers.after(after, lambda: self.unseen.discard(identity))

    def is_seen(self, identity: str) -> bool:
        """Return whether an existing resource is visible."""
        return identity not in self.unseen

    @property
    def zones(self) -> tuple[str, ...]:
        """The names of the region's zones."""
        return tuple(f"{self.region}{letter}" for letter in "abc")

    def tags(self, identity: str) -> dict[str, str]:
        """Return the visible tags of an EC2 resource."""
        tags: dict[str, str] = backends.ec2(self.region).tags.get(identity) or {}
        return tags

    def tag_list(self, identity: str) -> list[dict[str, str]]:
        """Return the visible tags of a resource as EC2 describes them."""
        return [{"Key": key, "Value": value} for key, value in self.tags(identity).items()]

    def all_tags(self, identity: str) -> dict[str, str]:
        """Return all tags of an EC2 resource, including those not visible yet."""
        return {**self.tags(identity), **self.unseen_tags.get(identity, {})}

    def tag(self, identity: str, tags: Mapping[str, str]) -> None:
        """Tag an EC2 resource; the tags become visible after `Settings.tagging` seconds."""
        if tags and self.settings.tagging:
            self.unseen_tags.setdefault(identity, {}).update(tags)
            self.timers.after(self.settings.tagging, lambda: self._show(identity, tags))
        elif tags:
            backends.ec2(self.region).tags[identity].update(tags)

    def _show(self, identity: str, tags: Mapping[str, str]) -> None:
        """Make tags visible, except those that were removed or changed meanwhile."""
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
        """Delete the tags of a deleted EC2 resource."""
        self.unseen_tags.pop(identity, None)
        backends.ec2(self.region).tags.pop(identity, None)

    def arn(self, service: str, resource: str) -> str:
        """Return an ARN of this account and region."""
        return f"arn:aws:{service}:{self.region}:{backends.ACCOUNT}:{resource}"


def now() -> datetime:
    """Return the current time in UTC."""
    return datetime.now(UTC)
