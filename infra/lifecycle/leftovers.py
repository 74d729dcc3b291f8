"""Finds what the controller created in AWS by its tags, and deletes it without the controller."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from controller.apis import labels
from infra.clusterapi import ClusterLocation
from infra.lifecycle.awsanswers import ABSENT, tags_in, unless_error

Remains = dict[str, list[str]]
"""IDs or names of the AWS resources that were found, by kind, such as `network interfaces`.

Kinds without any are left out.
"""

FILTER_VALUES = 200
"""Most values that EC2 accepts in one filter."""

GONE_STATES = frozenset({"terminated"})
GONE_CODES = frozenset(
    {
        "InvalidInstanceID.NotFound",
        "InvalidVolume.NotFound",
        "InvalidNetworkInterfaceID.NotFound",
        "InvalidLaunchTemplateId.NotFound",
        "InvalidLaunchTemplateName.NotFoundException",
        "NoSuchEntity",
    }
)
# The resource is still in use by one that is being deleted; the next round tries again.
BUSY_CODES = frozenset({"VolumeInUse", "InvalidNetworkInterface.InUse", "DeleteConflict"})


class Leftovers:
    """All AWS resources of one cluster with the tag of one installation.

    Karpenter's tags do not identify an installation: Karpenter and EKS Auto Mode set them too.
    """

    def __init__(self, location: ClusterLocation, installation: str) -> None:
        self._ec2 = location.client("ec2")
        self._iam = location.client("iam")
        self._profiles_path = f"/karpenter/{location.region}/{location.cluster_name}/"
        self._installation = installation
        self._cluster = location.cluster_name
        self._filters = [
            {"Name": f"tag:{labels.TAG_INSTALLATION}", "Values": [installation]},
            {"Name": f"tag:{labels.TAG_CLUSTER_NAME}", "Values": [location.cluster_name]},
        ]

    def instances(self) -> list[str]:
        """Return the IDs of instances that are not terminated."""
        return list(self.instance_profiles())

    def instance_profiles(self) -> dict[str, str]:
        """Return the ARN of each instance's profile, by instance ID; "" if it has none."""
        return {
            instance["InstanceId"]: instance.get("IamInstanceProfile", {}).get("Arn", "")
            for reservation in self._pages("describe_instances", "Reservations")
            for instance in reservation["Instances"]
            if instance["State"]["Name"] not in GONE_STATES
        }

    def roles_in(self, profile: str) -> frozenset[str]:
        """Return the ARNs of the roles in an instance profile; none if it does not exist."""
        described = self._profile(profile.rpartition("/")[2])
        return frozenset(role["Arn"] for role in described["Roles"]) if described else frozenset()

    def made_profiles(self) -> dict[str, list[str]]:
        """Return the role names in each profile that the controller created, by profile name."""
        return dict(self._profiles())

    def remains(self) -> Remains:
        """Return the IDs or names of all resources, by kind; empty if nothing is left."""
        every = {
            "instances": self.instances(),
            "volumes": self._identities("describe_volumes", "Volumes", "VolumeId"),
            "network interfaces": self._identities(
                "describe_network_interfaces", "NetworkInterfaces", "NetworkInterfaceId"
            ),
            "launch templates": self._identities(
                "describe_launch_templates", "LaunchTemplates", "LaunchTemplateId"
            ),
            "instance profiles": [name for name, _ in self._profiles()],
        }
        return {kind: identities for kind, identities in every.items() if identities}

    def remove(self, remains: Remains) -> None:
        """Request the deletion of what `remains` returned. Resources still in use are skipped."""
        actions: Mapping[str, tuple[Callable[..., Any], str]] = {
            "volumes": (self._ec2.delete_volume, "VolumeId"),
            "network interfaces": (self._ec2.delete_network_interface, "NetworkInterfaceId"),
            "launch templates": (self._ec2.delete_launch_template, "LaunchTemplateId"),
        }
        self.terminate(remains.get("instances", []))
        # EC2 deletes volumes and interfaces with their instance, and refuses an earlier request.
        kinds = ["launch templates"] if "instances" in remains else list(actions)
        for kind in kinds:
            delete, argument = actions[kind]
            for identity in remains.get(kind, []):
                _tolerantly(delete, **{argument: identity})
        if "instance profiles" in remains:
            self.remove_profiles()

    def terminate(self, instances: Sequence[str]) -> list[str]:
        """Terminate instances. An instance that no longer exists is ignored.

        Returns the instances that are not terminated, because they lack the cluster's tags or
        another installation launched them. A NodeClaim may name any instance of the account, for
        example after it was restored from a backup of another cluster.
        """
        left = []
        for instance, tags in self._tags_of(instances):
            if self._may_end(tags):
                _tolerantly(self._ec2.terminate_instances, InstanceIds=[instance])
            else:
                left.append(instance)
        return left

    def _tags_of(self, instances: Sequence[str]) -> Iterator[tuple[str, Mapping[str, str]]]:
        """Yield each existing instance with its tags."""
        for start in range(0, len(instances), FILTER_VALUES):
            named = {"Name": "instance-id", "Values": instances[start : start + FILTER_VALUES]}
            pages = self._ec2.get_paginator("describe_instances").paginate(Filters=[named])
            for reservation in (r for page in pages for r in page["Reservations"]):
                for found in reservation["Instances"]:
                    yield found["InstanceId"], tags_in(found)

    def _may_end(self, tags: Mapping[str, str]) -> bool:
        of_cluster = {labels.TAG_CLUSTER_NAME, labels.tag_cluster_owned(self._cluster)}
        # EKS also sets the cluster's tag on instances of Auto Mode.
        is_launched = labels.EC2NODECLASS in tags or labels.TAG_INSTALLATION in tags
        return (
            is_launched
            and bool(tags.keys() & of_cluster)
            and tags.get(labels.TAG_CLUSTER_NAME, self._cluster) == self._cluster
            and tags.get(labels.TAG_INSTALLATION, self._installation) == self._installation
        )

    def _profiles(self) -> Iterator[tuple[str, list[str]]]:
        """Yield the name of each instance profile, and the roles in it."""
        pages = self._iam.get_paginator("list_instance_profiles")
        for page in pages.paginate(PathPrefix=self._profiles_path):
            for profile in page["InstanceProfiles"]:
                name = profile["InstanceProfileName"]
                if profile["Path"].startswith(self._profiles_path) and self._is_owned(name):
                    yield name, [role["RoleName"] for role in profile["Roles"]]

    def _is_owned(self, profile: str) -> bool:
        """Whether the installation created an instance profile; listings do not return tags."""
        described = self._profile(profile)
        tags = tags_in(described) if described else {}
        return tags.get(labels.TAG_INSTALLATION) == self._installation

    def _profile(self, name: str) -> Mapping[str, Any] | None:
        look = partial(self._iam.get_instance_profile, InstanceProfileName=name)
        answer = unless_error(ABSENT, look)
        return answer["InstanceProfile"] if answer else None

    def remove_profiles(self) -> None:
        """Delete the instance profiles that the controller created.

        IAM does not delete a role that is in one of them.
        """
        for name, roles in list(self._profiles()):
            profile = {"InstanceProfileName": name}
            for role in roles:
                _tolerantly(self._iam.remove_role_from_instance_profile, **profile, RoleName=role)
            _tolerantly(self._iam.delete_instance_profile, **profile)

    def _pages(self, operation: str, key: str) -> Iterator[dict[str, Any]]:
        for page in self._ec2.get_paginator(operation).paginate(
            Filters=self._filters, PaginationConfig={"PageSize": 200}
        ):
            yield from page[key]

    def _identities(self, operation: str, key: str, identity: str) -> list[str]:
        return [item[identity] for item in self._pages(operation, key)]


def _tolerantly(action: Callable[..., Any], **asked: Any) -> None:
    unless_error(GONE_CODES | BUSY_CODES, partial(action, **asked))


def describe(remains: Remains) -> str:
    """Return what was found in one line."""
    return "; ".join(f"{len(ids)} {kind}: {', '.join(ids)}" for kind, ids in remains.items())
