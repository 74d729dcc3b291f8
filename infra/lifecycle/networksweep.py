"""Deletes what a cluster's controllers created in its VPC before the cluster is deleted.

Load balancers of Services and Ingresses, their security groups, and network interfaces that the
VPC CNI leaked do not have the stack's tag. AWS does not delete a VPC that contains one of them, and
nothing deletes them once the cluster is deleted. If the VPC contains resources of others, such as a
database, the destroy stops with a list while the cluster still exists.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pulumi
from botocore.exceptions import ClientError

from controller.apis import labels
from infra.clusterapi import (
    ClusterApi,
    ClusterGoneError,
    ClusterLocation,
    Objects,
    Wire,
    describe_cluster,
    unless_abandoned,
)
from infra.lifecycle.awsanswers import tags_in
from infra.lifecycle.registeredresource import RegisteredResource
from infra.lifecycle.statefulprovider import StatefulProvider
from infra.lifecycle.waiting import Clock, say

POLL_SECONDS = 5.0
CONTROLLER_SECONDS = 180.0
"""How long the cluster's controllers may take to delete their load balancers."""

SWEEP_SECONDS = 600.0
"""How long AWS may take to release network interfaces and security groups."""

TAGS_PER_CALL = 20
SERVICES = "/api/v1/services"
INGRESSES = "/apis/networking.k8s.io/v1/ingresses"
OF_OTHERS = {
    "RDSNetworkInterface": "RDS",
    "AWS Lambda VPC ENI": "Lambda",
    "EFS mount target": "EFS",
    "ElastiCache": "ElastiCache",
}
"""AWS service of a network interface, by the beginning of the interface's description."""

GUARD_DUTY_SERVICE = ".guardduty-data"
GUARD_DUTY_GROUP = "GuardDutyManagedSecurityGroup-"
"""End of the service's name of the endpoint, and beginning of the name of the security group, that
GuardDuty Runtime Monitoring adds to each VPC. It leaves them there when the VPC is deleted."""

Pairs = Mapping[str, str]


class NetworkInUseError(Exception):
    """The VPC contains resources that neither the stack nor its cluster created."""

    def __init__(self, vpc: str, found: Sequence[str]) -> None:
        super().__init__(
            f"VPC {vpc} of the cluster cannot be deleted while other resources use it: "
            f"{', '.join(found)}. The cluster and its VPC have not been changed. Delete these "
            "resources and run `pulumi destroy` again. Or keep the cluster and the VPC: set "
            "joiner:retainOnDelete to cluster and run `pulumi up` before the destroy"
        )


class NotReleasedError(Exception):
    """AWS did not delete in time what prevents the deletion of the VPC."""


@dataclass(frozen=True, slots=True)
class Found:
    """A resource in the VPC that a controller of the cluster created."""

    title: str
    delete: Callable[[], Any]


class NetworkSweep(RegisteredResource, module="joiner", name="NetworkSweep"):
    """Deletes what the cluster's controllers created in the VPC, right before the cluster."""

    def __init__(
        self,
        name: str,
        location: ClusterLocation,
        vpc: pulumi.Input[str] | None,
        *,
        installation: str,
        retained: bool,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        """Record the VPC.

        Args:
            name: the name of the resource.
            location: the location of the cluster.
            vpc: ID of the VPC that the stack creates. None if the cluster is in another one: then
                only the cluster's own controllers delete load balancers there.
            installation: value of the tag on what the program created.
            retained: whether cluster and VPC stay in AWS; then nothing is deleted.
            opts: the options of the resource.

        """
        props = {
            **location.location,
            "installation": installation,
            "vpc": vpc,
            "retained": retained,
        }
        super().__init__(_NetworkSweepProvider(), name, props, opts)


class _NetworkSweepProvider(StatefulProvider):
    """Sweeps when it is deleted."""

    kind = "network-sweep"

    def end(self, props: dict[str, Any]) -> None:
        if props["retained"]:
            return
        location, vpc = ClusterLocation.of(props), props.get("vpc")
        contents = (
            VpcContents(location, vpc, props["installation"], _groups_of_eks(location))
            if vpc
            else None
        )
        if contents and (foreign := [*contents.of_others()]):
            raise NetworkInUseError(contents.vpc, foreign)
        with unless_abandoned(location):
            release(ClusterApi.find(location))
        if contents:
            sweep(contents)


def _groups_of_eks(location: ClusterLocation) -> frozenset[str]:
    try:
        network = describe_cluster(location)["resourcesVpcConfig"]
    except ClusterGoneError:
        return frozenset()
    return frozenset(filter(None, [network.get("clusterSecurityGroupId")]))


def release(cluster: Objects, *, clock: Clock = time, say: Callable[[str], None] = say) -> None:
    """Delete the Services and Ingresses that have load balancers, and wait for their controllers.

    `sweep` deletes what the controllers do not delete within `CONTROLLER_SECONDS`.
    """
    paths = [*_load_balancer_paths(cluster)]
    for path in paths:
        say(f"deleting {path}, which has a load balancer")
        cluster.delete(path)
    deadline = clock.monotonic() + CONTROLLER_SECONDS
    while any(cluster.get(path) is not None for path in paths) and clock.monotonic() < deadline:
        clock.sleep(POLL_SECONDS)


def _load_balancer_paths(cluster: Objects) -> Iterator[str]:
    for service in cluster.list(SERVICES):
        if service["spec"].get("type") == "LoadBalancer":
            yield _path("/api/v1", "services", service)
    for ingress in cluster.list(INGRESSES):
        if ingress.get("status", {}).get("loadBalancer", {}).get("ingress"):
            yield _path("/apis/networking.k8s.io/v1", "ingresses", ingress)


def _path(root: str, plural: str, wire: Wire) -> str:
    metadata = wire["metadata"]
    return f"{root}/namespaces/{metadata['namespace']}/{plural}/{metadata['name']}"


def sweep(contents: VpcContents, *, clock: Clock = time, say: Callable[[str], None] = say) -> None:
    """Delete what the cluster's controllers left in the VPC, until nothing is found.

    Raises:
        NotReleasedError: resources still exist after `SWEEP_SECONDS`; lists them.

    """
    deadline = clock.monotonic() + SWEEP_SECONDS
    said: set[str] = set()
    while found := [*contents.of_cluster()]:
        refusals: list[str] = []
        for one in found:
            if one.title not in said:
                say(f"deleting {one.title}, which keeps the VPC from being deleted")
                said.add(one.title)
            try:
                one.delete()
            except ClientError as exc:
                # Another resource that is being deleted still uses it; the next round retries.
                refusals.append(str(exc))
        if clock.monotonic() >= deadline:
            titles = ", ".join(one.title for one in found)
            raise NotReleasedError(
                f"AWS did not delete these from the VPC within {SWEEP_SECONDS:.0f} s: {titles}. "
                f"Run `pulumi destroy` again. {'; '.join(refusals)}".strip()
            )
        clock.sleep(POLL_SECONDS)


@dataclass
class VpcContents:
    """The contents of a VPC, by creator: the stack, a controller of the cluster, or others."""

    location: ClusterLocation
    vpc: str
    installation: str
    of_eks: frozenset[str] = frozenset()
    """Security groups that EKS deletes with the cluster."""

    _ec2: Any = field(init=False)
    _elb: Any = field(init=False)
    _elbv2: Any = field(init=False)

    def __post_init__(self) -> None:
        self._ec2 = self.location.client("ec2")
        self._elb = self.location.client("elb")
        self._elbv2 = self.location.client("elbv2")

    def of_others(self) -> Iterator[str]:
        """Yield the titles of resources that neither the stack nor its cluster created."""
        yield from (title for title, tags in self._blockers() if not self._is_known(tags))
        for interface in self._interfaces():
            if service := _service(interface.get("Description", "")):
                yield f"network interface {interface['NetworkInterfaceId']} of {service}"

    def _blockers(self) -> Iterator[tuple[str, Pairs]]:
        """Yield what prevents the deletion of the VPC, with its tags."""
        yield from ((f"load balancer {name}", tags) for name, tags in self._balancers())
        for one in self._instances():
            yield f"instance {one['InstanceId']}", tags_in(one)
        for one in self._endpoints():
            if not _is_guard_dutys(one):
                yield f"VPC endpoint {one['VpcEndpointId']}", tags_in(one)
        for one in self._groups():
            if not _is_guard_dutys(one):
                yield f"security group {one['GroupId']} ({one['GroupName']})", tags_in(one)

    def of_cluster(self) -> Iterator[Found]:
        """Yield what is to be deleted, in an order in which AWS can delete it.

        This is what the cluster's controllers created, and last what GuardDuty added to the VPC.
        """
        for name, tags in self._balancers():
            if self._is_clusters(tags):
                yield Found(f"load balancer {name}", partial(self._delete_balancer, name))
        for arn in self._target_groups():
            delete = partial(self._elbv2.delete_target_group, TargetGroupArn=arn)
            yield Found(f"target group {arn}", delete)
        for interface in filter(self._is_leaked, self._interfaces()):
            identity = interface["NetworkInterfaceId"]
            delete = partial(self._ec2.delete_network_interface, NetworkInterfaceId=identity)
            yield Found(f"network interface {identity}", delete)
        for endpoint in filter(_is_guard_dutys, self._endpoints()):
            identity = endpoint["VpcEndpointId"]
            delete = partial(self._ec2.delete_vpc_endpoints, VpcEndpointIds=[identity])
            yield Found(f"VPC endpoint {identity} of GuardDuty", delete)
        for group in sorted(self._groups(), key=_is_guard_dutys):
            if self._is_clusters(tags_in(group)) or _is_guard_dutys(group):
                delete = partial(self._delete_group, group["GroupId"])
                yield Found(f"security group {group['GroupId']}", delete)

    def _is_known(self, tags: Pairs) -> bool:
        return self._is_clusters(tags) or tags.get(labels.TAG_INSTALLATION) == self.installation

    def _is_clusters(self, tags: Pairs) -> bool:
        name = self.location.cluster_name
        naming = (
            "elbv2.k8s.aws/cluster",
            "cluster.k8s.amazonaws.com/name",
            "eks:cluster-name",
            "eks:eks-cluster-name",
        )
        return labels.tag_cluster_owned(name) in tags or any(tags.get(k) == name for k in naming)

    def _is_leaked(self, interface: Mapping[str, Any]) -> bool:
        tags = tags_in(interface, "TagSet")
        of_cni = interface.get("Description", "").startswith("aws-K8S-")
        return interface["Status"] == "available" and (of_cni or self._is_clusters(tags))

    def _balancers(self) -> Iterator[tuple[str, Pairs]]:
        """Yield the load balancers in the VPC: the name of a classic one, the ARN of others."""
        described = self._in_vpc(self._elbv2, "describe_load_balancers", "LoadBalancers")
        yield from self._tags_of([one["LoadBalancerArn"] for one in described])
        described = self._in_vpc(
            self._elb, "describe_load_balancers", "LoadBalancerDescriptions", "VPCId"
        )
        for some in _batches([one["LoadBalancerName"] for one in described]):
            answer = self._elb.describe_tags(LoadBalancerNames=some)
            for one in answer["TagDescriptions"]:
                yield one["LoadBalancerName"], tags_in(one)

    def _target_groups(self) -> Iterator[str]:
        described = self._in_vpc(self._elbv2, "describe_target_groups", "TargetGroups")
        arns = [one["TargetGroupArn"] for one in described]
        yield from (arn for arn, tags in self._tags_of(arns) if self._is_clusters(tags))

    def _in_vpc(
        self, api: Any, operation: str, key: str, vpc_key: str = "VpcId"
    ) -> Iterator[Mapping[str, Any]]:
        for page in api.get_paginator(operation).paginate():
            yield from (one for one in page[key] if one.get(vpc_key) == self.vpc)

    def _tags_of(self, arns: Sequence[str]) -> Iterator[tuple[str, Pairs]]:
        for some in _batches(arns):
            for one in self._elbv2.describe_tags(ResourceArns=some)["TagDescriptions"]:
                yield one["ResourceArn"], tags_in(one)

    def _instances(self) -> Iterator[Mapping[str, Any]]:
        for reservation in self._list("describe_instances", "Reservations"):
            for instance in reservation["Instances"]:
                if instance["State"]["Name"] not in ("shutting-down", "terminated"):
                    yield instance

    def _endpoints(self) -> Iterator[Mapping[str, Any]]:
        for endpoint in self._list("describe_vpc_endpoints", "VpcEndpoints"):
            if endpoint["State"].lower() != "deleted":
                yield endpoint

    def _interfaces(self) -> Iterator[Mapping[str, Any]]:
        return self._list("describe_network_interfaces", "NetworkInterfaces")

    def _groups(self) -> Iterator[Mapping[str, Any]]:
        """Yield the security groups that are deleted neither with the VPC nor with the cluster."""
        for group in self._list("describe_security_groups", "SecurityGroups"):
            tags = tags_in(group)
            if not (
                group["GroupName"] == "default"
                or tags.get(labels.TAG_INSTALLATION) == self.installation
                or group["GroupId"] in self.of_eks
            ):
                yield group

    def _list(self, operation: str, key: str) -> Iterator[Mapping[str, Any]]:
        wanted = [{"Name": "vpc-id", "Values": [self.vpc]}]
        for page in self._ec2.get_paginator(operation).paginate(Filters=wanted):
            yield from page[key]

    def _delete_balancer(self, name: str) -> None:
        if name.startswith("arn:"):
            self._elbv2.delete_load_balancer(LoadBalancerArn=name)
        else:
            self._elb.delete_load_balancer(LoadBalancerName=name)

    def _delete_group(self, identity: str) -> None:
        """Delete a security group, after the rules of others that name it."""
        for group in self._list("describe_security_groups", "SecurityGroups"):
            for key, revoke in (
                ("IpPermissions", self._ec2.revoke_security_group_ingress),
                ("IpPermissionsEgress", self._ec2.revoke_security_group_egress),
            ):
                naming = [*_rules_naming(identity, group[key])]
                if naming and group["GroupId"] != identity:
                    revoke(GroupId=group["GroupId"], IpPermissions=naming)
        self._ec2.delete_security_group(GroupId=identity)


def _is_guard_dutys(one: Mapping[str, Any]) -> bool:
    """Return whether GuardDuty added a VPC endpoint or security group to the VPC."""
    return str(one.get("ServiceName", "")).endswith(GUARD_DUTY_SERVICE) or str(
        one.get("GroupName", "")
    ).startswith(GUARD_DUTY_GROUP)


def _rules_naming(group: str, rules: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the parts of the rules that refer to a security group."""
    for rule in rules:
        if any(pair.get("GroupId") == group for pair in rule.get("UserIdGroupPairs", [])):
            ports = {k: rule[k] for k in ("IpProtocol", "FromPort", "ToPort") if k in rule}
            yield {**ports, "UserIdGroupPairs": [{"GroupId": group}]}


def _service(description: str) -> str:
    """Return the AWS service of a network interface by its description; empty for all others."""
    found = (service for start, service in OF_OTHERS.items() if description.startswith(start))
    return next(found, "")


def _batches(names: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(names), TAGS_PER_CALL):
        yield names[start : start + TAGS_PER_CALL]
