"""Instances of this cluster: found, ended, tagged. Nobody else's is ever touched.

Lists carry the cluster's tags as filters, so a foreign instance is to us as if it did not
exist. One that a claim names is asked for by its id alone: tags get lost, and a machine that
runs without them must not count as gone. What EC2 launched a moment ago it may not list yet; for a
minute we believe the launch rather than the list. In a zone that traffic is shifted away
from, instances are as they were last seen, and none is ended or tagged.
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
from controller.aws.selectors import tag_list, tags_of
from controller.aws.session import Aws
from controller.aws.zonalshift import ZonalShift
from controller.cloudprovider.errors import CloudProviderError, NodeClaimNotFoundError
from controller.cloudprovider.provider import Instance

SETTLING = 60.0
"""Seconds until a launched instance must be in EC2's lists."""

LIVING = ("pending", "running", "stopping", "stopped", "shutting-down")
_ENDING = frozenset({"shutting-down", "terminated"})
_FILTER_VALUES = 200
"""EC2 takes no more values in one filter."""


class NotListedYetError(CloudProviderError):
    """EC2 does not list an instance that it has just launched."""

    reason = "InstanceNotListedYet"


class UnmarkedError(CloudProviderError):
    """A running instance does not say that it is the cluster's: neither gone, nor ours to touch."""

    reason = "InstanceUnmarked"


class ZoneShiftedError(CloudProviderError):
    """The instance is in a zone that traffic is shifted away from: it is left as it is."""

    reason = "ZoneShifted"


def provider_id(zone: str, instance_id: str) -> str:
    """Return the id by which Kubernetes knows an instance."""
    return f"aws:///{zone}/{instance_id}"


def instance_id(provider_id: str) -> str:
    """Return EC2's id of an instance.

    Raises:
        NodeClaimNotFoundError: the id is not one of EC2's.

    """
    identity = provider_id.rpartition("/")[2]
    if not provider_id.startswith("aws:///") or not identity.startswith("i-"):
        raise NodeClaimNotFoundError(f"{provider_id!r} is not an instance of EC2")
    return identity


def zone_of(provider_id: str) -> str:
    """Return the zone that the id of an instance names."""
    return provider_id.removeprefix("aws:///").partition("/")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """An instance as EC2 describes it, with what drift asks for."""

    instance: Instance
    state: str
    security_groups: frozenset[str]
    subnet_id: str
    reservation_id: str
    profile: str = ""

    @property
    def reserved_by(self) -> str:
        """The reservation that it was launched into; empty if none, or if it has left it.

        One that only happens to fill an open reservation is an on-demand one.
        """
        return self.reservation_id if self.instance.capacity_type == labels.RESERVED else ""

    @property
    def is_gone(self) -> bool:
        """Whether it is terminated."""
        return self.state == "terminated"


def described(d: Mapping[str, Any], installation: str) -> Described:
    """Read an instance as DescribeInstances gives it, to the installation that asks."""
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


class Instances:
    """The instances of this cluster's claims."""

    def __init__(
        self,
        aws: Aws,
        cluster_name: str,
        *,
        installation: str,
        shift: ZonalShift | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._aws = aws
        self._cluster = cluster_name
        self._installation = installation
        self._shift = shift
        self._seen: dict[str, Described] = {}
        self._settling: TTLCache[str, Instance] = TTLCache(math.inf, SETTLING, clock)
        self._descriptions: Batcher[str, Described] = Batcher(self._describe, size=_FILTER_VALUES)
        self._by_claim: Batcher[str, Sequence[Described]] = Batcher(
            self._describe_claims, size=_FILTER_VALUES
        )
        self._endings: Batcher[str, CloudProviderError] = Batcher(self._terminate)

    def launched(self, instance: Instance) -> None:
        """Believe in an instance that EC2 has just launched, until its lists have it."""
        self._settling[instance_id(instance.provider_id)] = instance

    async def get(self, provider_id: str) -> Described:
        """Return one instance.

        Raises:
            NodeClaimNotFoundError: there is none, it is terminated, or another cluster's.
            NotListedYetError: it has just been launched.
            UnmarkedError: it runs, and has lost the tags that say whose it is.
            ZoneShiftedError: its zone is to be kept out of, and it was not seen before.

        """
        wanted = instance_id(provider_id)
        if wanted in self._seen and self._is_held(zone_of(provider_id)):
            return self._seen[wanted]
        self._refuse_held(provider_id)
        description = await self._descriptions.get(wanted)
        if description is not None and not description.is_gone:
            tags = description.instance.tags
            if tags.get(labels.TAG_CLUSTER_NAME, self._cluster) != self._cluster:
                raise NodeClaimNotFoundError(f"{provider_id} is another cluster's")
            if self._is_marked(tags):
                return description
        if wanted in self._settling:
            raise NotListedYetError(f"{wanted} has just been launched and EC2 does not list it yet")
        if description is not None and not description.is_gone:
            raise UnmarkedError(
                f"{provider_id} is left alone: its tags do not say that it was launched here. If "
                f"it was, give it {labels.TAG_CLUSTER_NAME}={self._cluster} and "
                f"{labels.TAG_INSTALLATION}={self._installation} back, or terminate it"
            )
        raise NodeClaimNotFoundError(f"{provider_id} does not exist or is terminated")

    async def launched_for(self, name: str) -> Instance | None:
        """Return the instance that bears the tag of a claim, one just launched included."""
        listed = await self._by_claim.get(name) or ()
        every = (*(d.instance for d in listed), *self._settling.values())
        return next((i for i in every if i.is_ours and _claim_of(i) == name), None)

    async def of_claim(self, name: str, *, since: datetime | None) -> Described | None:
        """Return the instance launched for a claim of this name after this moment, if any."""
        return next(
            (
                d
                for d in await self._by_claim.get(name) or ()
                if since is None
                or d.instance.launched_at is None
                or d.instance.launched_at >= since
            ),
            None,
        )

    async def all(self) -> list[Instance]:
        """Return every instance that is not terminated, those just launched included."""
        listed = {instance_id(d.instance.provider_id): d for d in await self._query([])}
        living = listed | {i: d for i, d in self._seen.items() if self._is_held(d.instance.zone)}
        self._seen = living if self._shift is not None else {}
        for settled in living:
            self._settling.pop(settled, None)
        return [*(d.instance for d in living.values()), *self._settling.values()]

    async def profiles(self) -> frozenset[str]:
        """Return the names of the instance profiles that living instances bear."""
        return frozenset(d.profile for d in await self._query([]))

    async def terminate(self, provider_id: str) -> Described | None:
        """Ask for an instance's end; return it as it was found, or None if not listed yet.

        Raises:
            NodeClaimNotFoundError: it is gone.
            ZoneShiftedError: its zone is to be kept out of.
            CloudProviderError: another installation launched it, or nothing says who did.

        """
        wanted = instance_id(provider_id)
        self._refuse_held(provider_id)
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
            self._settling.pop(wanted, None)
        return description

    async def tag(self, provider_id: str, tags: Mapping[str, str]) -> None:
        """Add tags to one of our instances.

        Raises:
            NodeClaimNotFoundError: it is gone, or another cluster's.
            ZoneShiftedError: its zone is to be kept out of.
            CloudProviderError: another installation launched it, or nothing says who did.

        """
        self._refuse_held(provider_id)
        description = await self.get(provider_id)
        self._refuse_foreign(description.instance)
        await self._aws.call(
            "ec2",
            "create_tags",
            Resources=[instance_id(description.instance.provider_id)],
            Tags=tag_list(tags),
        )

    def _is_marked(self, tags: Mapping[str, str]) -> bool:
        """Whether tags, or what is left of them, say that a claim of the cluster was launched.

        That of the cluster alone does not: EKS sets it on machines of its own Auto Mode.
        """
        of_cluster = {labels.TAG_CLUSTER_NAME, labels.tag_cluster_owned(self._cluster)}
        is_launched = (
            labels.EC2NODECLASS in tags or tags.get(labels.TAG_INSTALLATION) == self._installation
        )
        return is_launched and bool(tags.keys() & of_cluster)

    def _is_held(self, zone: str) -> bool:
        return self._shift is not None and self._shift.covers(zone)

    def _refuse_held(self, provider_id: str) -> None:
        if self._is_held(zone_of(provider_id)):
            raise ZoneShiftedError(
                f"{provider_id} is left as it is while traffic is shifted away from its zone"
            )

    def _refuse_foreign(self, instance: Instance) -> None:
        """Refuse to touch what bears another installation's mark; what bears none may be ours."""
        whose = instance.tags.get(labels.TAG_INSTALLATION, self._installation)
        if whose != self._installation:
            raise CloudProviderError(
                f"{instance.provider_id} is left alone: the installation {whose!r} launched it. If "
                f"it shall be this one's, take its tag {labels.TAG_INSTALLATION} off"
            )

    async def _describe(self, ids: Sequence[str]) -> dict[str, Described]:
        # A filter, unlike the ids parameter, does not fail for all when one is gone.
        descriptions = await self._living([{"Name": "instance-id", "Values": list(ids)}])
        return {instance_id(d.instance.provider_id): d for d in descriptions}

    async def _describe_claims(self, names: Sequence[str]) -> dict[str, Sequence[Described]]:
        tagged = {"Name": f"tag:{labels.TAG_NODECLAIM}", "Values": list(names)}
        by_claim: dict[str, list[Described]] = {}
        for each in await self._query([tagged]):
            by_claim.setdefault(_claim_of(each.instance), []).append(each)
        return dict(by_claim)

    async def _query(self, filters: list[dict[str, Any]]) -> list[Described]:
        tagged = [
            {"Name": "tag-key", "Values": [labels.NODEPOOL]},
            {"Name": "tag-key", "Values": [labels.EC2NODECLASS]},
            {"Name": f"tag:{labels.TAG_CLUSTER_NAME}", "Values": [self._cluster]},
        ]
        return await self._living([*tagged, *filters])

    async def _living(self, filters: list[dict[str, Any]]) -> list[Described]:
        reservations = await self._aws.pages(
            "ec2",
            "describe_instances",
            "Reservations",
            Filters=[*filters, {"Name": "instance-state-name", "Values": list(LIVING)}],
            PaginationConfig={"PageSize": 1000},
        )
        return [described(d, self._installation) for r in reservations for d in r["Instances"]]

    async def _terminate(self, ids: Sequence[str]) -> dict[str, CloudProviderError]:
        """Terminate together, and answer who failed and how.

        One that EC2 does not let go, such as an instance under termination protection, has it
        refuse the whole call; it is found by halves, so that the others end a few calls later.
        """
        try:
            await self._aws.call("ec2", "terminate_instances", InstanceIds=list(ids))
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
    """Return what a launch answers for an instance found again: EC2's facts, our labels."""
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
