"""Finds, terminates and tags the EC2 instances of this cluster, and no others.

Joiner lists instances by the cluster's tags. It describes the instance of a NodeClaim by its ID
alone, so that an instance that lost its tags does not count as terminated. EC2 may not list a new
instance yet, so an instance counts as running for 1 minute after its launch. In a zone with a zonal
shift, instances keep their last known state, and Joiner terminates and tags none.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from cachetools import TTLCache

from controller.apis import labels
from controller.aws.batching import Batcher
from controller.aws.errors import AwsError
from controller.aws.network.zonalshift import ZonalShift
from controller.aws.selectors import tag_list, tags_of
from controller.aws.session import Aws
from controller.cloudprovider.errors import (
    CloudProviderError,
    NodeClaimNotFoundError,
    RebootRefusedError,
)
from controller.cloudprovider.provider import Instance

LISTED_AFTER = 60.0
"""Seconds until EC2 must list a launched instance."""

LIVING = ("pending", "running", "stopping", "stopped", "shutting-down")
_ENDING = frozenset({"shutting-down", "terminated"})
_STOPPED = frozenset({"stopping", "stopped"})
_FILTER_VALUES = 200
"""EC2's maximum number of values in one filter."""


class NotListedYetError(CloudProviderError):
    """EC2 does not list an instance that it has just launched."""

    reason = "InstanceNotListedYet"


class UnmarkedError(CloudProviderError):
    """A running instance has lost its tags: Joiner must not change it."""

    reason = "InstanceUnmarked"


class OtherClusterError(CloudProviderError):
    """A running instance has another cluster's tag: Joiner must not change it."""

    reason = "InstanceOfOtherCluster"


class ZoneShiftedError(CloudProviderError):
    """The instance is in a zone with a zonal shift: Joiner does not change it."""

    reason = "ZoneShifted"


def provider_id(zone: str, instance_id: str) -> str:
    """Return the provider ID of an instance."""
    return f"aws:///{zone}/{instance_id}"


def instance_id(provider_id: str) -> str:
    """Return the instance ID of a provider ID.

    Raises:
        NodeClaimNotFoundError: the provider ID is not one of EC2.

    """
    identity = provider_id.rpartition("/")[2]
    if not provider_id.startswith("aws:///") or not identity.startswith("i-"):
        raise NodeClaimNotFoundError(f"{provider_id!r} is not the provider ID of an EC2 instance")
    return identity


def zone_of(provider_id: str) -> str:
    """Return the zone in a provider ID."""
    return provider_id.removeprefix("aws:///").partition("/")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """An instance as EC2 describes it, with the fields that drift compares."""

    instance: Instance
    state: str
    security_groups: frozenset[str]
    subnet_id: str
    reservation_id: str
    profile: str = ""

    @property
    def reserved_by(self) -> str:
        """The ID of the capacity reservation that the instance was launched into and still uses.

        Empty if there is none.

        An instance that only matches an open capacity reservation counts as on-demand.
        """
        return self.reservation_id if self.instance.capacity_type == labels.RESERVED else ""

    @property
    def is_gone(self) -> bool:
        """Whether the instance is terminated."""
        return self.state == "terminated"


def parse_instance(d: Mapping[str, Any], installation: str) -> Described:
    """Parse an instance of DescribeInstances; `installation` is the tag of this installation."""
    tags = tags_of(d)
    zone = d["Placement"]["AvailabilityZone"]
    capacity_type = _capacity_type(d)
    known = {
        labels.INSTANCE_TYPE: d["InstanceType"],
        labels.ZONE: zone,
        labels.CAPACITY_TYPE: capacity_type,
        labels.NODEPOOL: tags.get(labels.NODEPOOL, ""),
        labels.EC2NODECLASS: tags.get(labels.EC2NODECLASS, ""),
        labels.PLACEMENT_GROUP_PARTITION: str(d["Placement"].get("PartitionNumber") or ""),
    }
    return Described(
        instance=Instance(
            provider_id=provider_id(zone, d["InstanceId"]),
            instance_type=d["InstanceType"],
            zone=zone,
            capacity_type=capacity_type,
            image_id=d.get("ImageId", ""),
            launched_at=d.get("LaunchTime"),
            deleting=d["State"]["Name"] in _ENDING,
            stopped=d["State"]["Name"] in _STOPPED,
            hostname=d.get("PrivateDnsName", ""),
            is_ours=tags.get(labels.TAG_INSTALLATION) == installation,
            labels={name: value for name, value in known.items() if value},
            tags=tags,
        ),
        state=d["State"]["Name"],
        security_groups=frozenset(g["GroupId"] for g in d.get("SecurityGroups") or []),
        subnet_id=d.get("SubnetId", ""),
        reservation_id=d.get("CapacityReservationId", ""),
        profile=(d.get("IamInstanceProfile") or {}).get("Arn", "").rpartition("/")[2],
    )


def _capacity_type(d: Mapping[str, Any]) -> str:
    if d.get("SpotInstanceRequestId") or d.get("InstanceLifecycle") == "spot":
        return labels.SPOT
    preference = (d.get("CapacityReservationSpecification") or {}).get(
        "CapacityReservationPreference"
    )
    if d.get("CapacityReservationId") and preference == "capacity-reservations-only":
        return labels.RESERVED
    return labels.ON_DEMAND


@dataclass
class Instances:
    """The EC2 instances of this cluster's NodeClaims."""

    aws: Aws
    cluster_name: str
    installation: str
    shift: ZonalShift | None = None
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._seen: dict[str, Described] = {}
        self._unlisted: TTLCache[str, Instance] = TTLCache(math.inf, LISTED_AFTER, self.clock)
        self._descriptions: Batcher[str, Described] = Batcher(self._describe, size=_FILTER_VALUES)
        self._by_claim: Batcher[str, Sequence[Described]] = Batcher(
            self._describe_claims, size=_FILTER_VALUES
        )
        self._endings: Batcher[str, CloudProviderError] = Batcher(self._terminate)

    def record_launch(self, instance: Instance) -> None:
        """Record an instance that EC2 just launched, until EC2 lists it or 1 minute has passed."""
        self._unlisted[instance_id(instance.provider_id)] = instance

    async def get(self, provider_id: str) -> Described:
        """Return one instance; concurrent calls share a request.

        Raises:
            NodeClaimNotFoundError: it does not exist or is terminated.
            OtherClusterError: it has another cluster's tag.
            NotListedYetError: it was just launched, and EC2 does not list it yet.
            UnmarkedError: it is running, and its tags no longer say that it is a NodeClaim's
                instance in this cluster.
            ZoneShiftedError: its zone has a zonal shift, and its state was not known before.

        """
        wanted = instance_id(provider_id)
        if wanted in self._seen and self._is_shifted(zone_of(provider_id)):
            return self._seen[wanted]
        self._refuse_shifted(provider_id)
        description = await self._descriptions.get(wanted)
        if description is not None and not description.is_gone:
            tags = description.instance.tags
            cluster = tags.get(labels.TAG_CLUSTER_NAME, self.cluster_name)
            if cluster != self.cluster_name:
                raise OtherClusterError(
                    f"{provider_id} is not changed: its tag {labels.TAG_CLUSTER_NAME} is that of "
                    f"the cluster {cluster!r}"
                )
            if self._is_marked(tags):
                return description
        if wanted in self._unlisted:
            raise NotListedYetError(f"{wanted} was just launched, and EC2 does not list it yet")
        if description is not None and not description.is_gone:
            raise UnmarkedError(
                f"{provider_id} is not changed: its tags do not name this cluster and this "
                "installation. If this installation launched it, restore its tags "
                f"{labels.TAG_CLUSTER_NAME}={self.cluster_name} and "
                f"{labels.TAG_INSTALLATION}={self.installation}, or terminate it"
            )
        raise NodeClaimNotFoundError(f"{provider_id} does not exist or is terminated")

    async def launched_for(self, name: str) -> Instance | None:
        """Return this installation's instance whose NodeClaim tag is `name`, or None.

        It may be just launched and not listed by EC2 yet.
        """
        listed = await self._by_claim.get(name) or ()
        every = (*(d.instance for d in listed), *self._unlisted.values())
        return next((i for i in every if i.is_ours and _claim_of(i) == name), None)

    async def of_claim(self, name: str, *, since: datetime | None) -> Described | None:
        """Return the instance that this installation launched for a NodeClaim, or None.

        `name` is the value of the NodeClaim tag. Instances that were launched before `since` are
        ignored; None means any launch time.
        """
        return next(
            (
                d
                for d in await self._by_claim.get(name) or ()
                if d.instance.is_ours
                and (
                    since is None
                    or d.instance.launched_at is None
                    or d.instance.launched_at >= since
                )
            ),
            None,
        )

    async def all(self) -> list[Instance]:
        """Return every instance that is not terminated, including those just launched."""
        listed = {instance_id(d.instance.provider_id): d for d in await self._query([])}
        living = listed | {i: d for i, d in self._seen.items() if self._is_shifted(d.instance.zone)}
        self._seen = living if self.shift is not None else {}
        for each_id in living:
            self._unlisted.pop(each_id, None)
        return [*(d.instance for d in living.values()), *self._unlisted.values()]

    async def profiles(self) -> frozenset[str]:
        """Return the names of the instance profiles of the instances that are not terminated."""
        return frozenset(d.profile for d in await self._query([]))

    async def terminate(self, provider_id: str) -> Described | None:
        """Terminate an instance; return its last description, or None if EC2 does not list it yet.

        Raises:
            NodeClaimNotFoundError: it does not exist or is terminated.
            ZoneShiftedError: its zone has a zonal shift.
            CloudProviderError: its tags are those of another installation or cluster, or are lost.

        """
        wanted = instance_id(provider_id)
        self._refuse_shifted(provider_id)
        try:
            description = await self.get(provider_id)
        except NotListedYetError:
            description = None
        if description is not None:
            self._refuse_foreign(description.instance)
        if description is None or not description.instance.deleting:
            error = await self._endings.get(wanted)
            if error is not None:
                raise error
            self._unlisted.pop(wanted, None)
        return description

    async def reboot(self, provider_id: str) -> None:
        """Reboot an instance.

        Raises:
            NodeClaimNotFoundError: it does not exist or is terminated.
            RebootRefusedError: the controller lacks the right ec2:RebootInstances.
            ZoneShiftedError: its zone has a zonal shift.
            CloudProviderError: its tags are those of another installation or cluster, or are lost.

        """
        self._refuse_shifted(provider_id)
        self._refuse_foreign((await self.get(provider_id)).instance)
        try:
            await self.aws.call("ec2", "reboot_instances", InstanceIds=[instance_id(provider_id)])
        except AwsError as exc:
            if exc.is_unauthorized:
                raise RebootRefusedError(f"{provider_id}: {exc}") from exc
            raise

    async def tag(self, provider_id: str, tags: Mapping[str, str]) -> None:
        """Add tags to an instance of this installation.

        Raises:
            NodeClaimNotFoundError: it does not exist or is terminated.
            OtherClusterError: it has another cluster's tag.
            ZoneShiftedError: its zone has a zonal shift.
            CloudProviderError: its tags name another installation, or are lost.

        """
        self._refuse_shifted(provider_id)
        description = await self.get(provider_id)
        self._refuse_foreign(description.instance)
        await self.aws.call(
            "ec2",
            "create_tags",
            Resources=[instance_id(description.instance.provider_id)],
            Tags=tag_list(tags),
        )

    def _is_marked(self, tags: Mapping[str, str]) -> bool:
        """Whether the remaining tags identify an instance of a NodeClaim of this cluster.

        The cluster's tag alone does not, because EKS sets it on instances of EKS Auto Mode.
        """
        of_cluster = {labels.TAG_CLUSTER_NAME, labels.tag_cluster_owned(self.cluster_name)}
        is_launched = (
            labels.EC2NODECLASS in tags or tags.get(labels.TAG_INSTALLATION) == self.installation
        )
        return is_launched and bool(tags.keys() & of_cluster)

    def _is_shifted(self, zone: str) -> bool:
        return self.shift is not None and self.shift.covers(zone)

    def _refuse_shifted(self, provider_id: str) -> None:
        if self._is_shifted(zone_of(provider_id)):
            raise ZoneShiftedError(
                f"{provider_id} is not changed until the zonal shift away from its zone "
                f"{zone_of(provider_id)} ends"
            )

    def _refuse_foreign(self, instance: Instance) -> None:
        """Raise an error if the tag names another installation; a missing tag is allowed."""
        whose = instance.tags.get(labels.TAG_INSTALLATION, self.installation)
        if whose != self.installation:
            raise CloudProviderError(
                f"{instance.provider_id} is not changed: its tag {labels.TAG_INSTALLATION} is that "
                f"of the installation {whose!r}. To hand it over to this one, remove the tag"
            )

    async def _describe(self, ids: Sequence[str]) -> dict[str, Described]:
        # A filter, unlike the parameter InstanceIds, does not fail if one instance no longer
        # exists.
        descriptions = await self._describe_living([{"Name": "instance-id", "Values": list(ids)}])
        return {instance_id(d.instance.provider_id): d for d in descriptions}

    async def _describe_claims(self, names: Sequence[str]) -> dict[str, Sequence[Described]]:
        key, grouped = labels.TAG_NODECLAIM, dict[str, list[Described]]()
        for found in await self._query([{"Name": f"tag:{key}", "Values": list(names)}]):
            grouped.setdefault(found.instance.tags.get(key, ""), []).append(found)
        return {**grouped}

    async def _query(self, filters: list[dict[str, Any]]) -> list[Described]:
        return await self._describe_living([*self._of_cluster, *filters])

    @property
    def _of_cluster(self) -> list[dict[str, Any]]:
        return [
            {"Name": "tag-key", "Values": [labels.NODEPOOL]},
            {"Name": "tag-key", "Values": [labels.EC2NODECLASS]},
            {"Name": f"tag:{labels.TAG_CLUSTER_NAME}", "Values": [self.cluster_name]},
        ]

    async def _describe_living(self, filters: list[dict[str, Any]]) -> list[Described]:
        reservations = await self.aws.pages(
            "ec2",
            "describe_instances",
            "Reservations",
            Filters=[*filters, {"Name": "instance-state-name", "Values": list(LIVING)}],
            PaginationConfig={"PageSize": 1000},
        )
        return [parse_instance(d, self.installation) for r in reservations for d in r["Instances"]]

    async def _terminate(self, ids: Sequence[str]) -> dict[str, CloudProviderError]:
        """Terminate instances by one call; return the errors by instance.

        If EC2 refuses one instance, such as one with termination protection, it refuses the whole
        call. Calls for each half isolate that instance, so that the others are terminated.
        """
        try:
            await self.aws.call("ec2", "terminate_instances", InstanceIds=list(ids))
        except AwsError as exc:
            if len(ids) == 1:
                return {ids[0]: _ending_error(ids[0], exc)}
            if exc.is_server_fault:
                raise
            half = len(ids) // 2
            return await self._terminate(ids[:half]) | await self._terminate(ids[half:])
        return {}


def _claim_of(instance: Instance) -> str:
    return instance.tags.get(labels.TAG_NODECLAIM, "")


def _ending_error(wanted: str, exc: AwsError) -> CloudProviderError:
    if exc.is_not_found:
        gone = NodeClaimNotFoundError(f"{wanted} does not exist")
        gone.__cause__ = exc
        return gone
    return exc


def as_launched(launched: Described, known: Instance) -> Instance:
    """Return an instance as EC2 describes it (`launched`), with the labels of `known`.

    `known` is the instance as the launch recorded it.
    """
    return replace(
        known,
        provider_id=launched.instance.provider_id,
        instance_type=launched.instance.instance_type,
        zone=launched.instance.zone,
        capacity_type=launched.instance.capacity_type,
        image_id=launched.instance.image_id,
        launched_at=launched.instance.launched_at,
        tags=launched.instance.tags,
    )
