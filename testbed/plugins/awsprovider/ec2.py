"""EC2: tags on resources of other owners, and lookups of network resources."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from testbed.plugins.awsprovider.resourcetype import Function, Resource, from_tag_list
from testbed.plugins.awsprovider.session import Session
from testbed.plugins.codec import Bag
from testbed.plugins.provider import ProviderError


class Tag(Resource):
    """`aws.ec2.Tag`: one tag of a resource that this stack does not manage."""

    token = "aws:ec2/tag:Tag"
    source = "ec2/tag_gen.go"
    service = "ec2"
    fixed = ("resourceId", "key")

    def create(self, inputs: Bag) -> str:
        self._put(inputs)
        return f"{inputs['resourceId']},{inputs['key']}"

    def _put(self, inputs: Bag) -> None:
        tag = {"Key": inputs["key"], "Value": inputs["value"]}
        self.api.create_tags(Resources=[inputs["resourceId"]], Tags=[tag])

    def read(self, identity: str, state: Bag) -> Bag | None:
        resource, key = identity.split(",", 1)
        filters = _filters(resource_id=[resource], key=[key])
        tags = self.api.describe_tags(Filters=filters)["Tags"]
        return {"resourceId": resource, "key": key, "value": tags[0]["Value"]} if tags else None

    def update(self, identity: str, old: Bag, new: Bag) -> None:
        self._put(new)

    def delete(self, identity: str, state: Bag) -> None:
        resource, key = identity.split(",", 1)
        self.api.delete_tags(Resources=[resource], Tags=[{"Key": key}])


def _filters(**values: list[str] | None) -> list[Bag]:
    return [
        {"Name": name.replace("_", "-"), "Values": wanted}
        for name, wanted in values.items()
        if wanted
    ]


def _asked_filters(arguments: Mapping[str, Any]) -> list[Bag]:
    """Return the filters of the program's arguments, with its tags as filters."""
    by_name = [
        {"Name": block["name"], "Values": block["values"]}
        for block in arguments.get("filters") or []
    ]
    tags = (arguments.get("tags") or {}).items()
    return by_name + [{"Name": f"tag:{key}", "Values": [value]} for key, value in tags]


def _echo(arguments: Mapping[str, Any], region: str) -> Bag:
    """Return the arguments that a lookup repeats in its answer."""
    return {
        "filters": arguments.get("filters") or [],
        "tags": arguments.get("tags") or {},
        "region": region,
    }


def _exactly_one(matching: list[Any], what: str) -> Any:
    if len(matching) != 1:
        raise ProviderError(
            f"{len(matching)} EC2 {what}s matched: change the search to match exactly one"
        )
    return matching[0]


def _describe(session: Session, region: str, operation: str, key: str, **wanted: Any) -> list[Any]:
    pages = session.client("ec2", region).get_paginator(operation)
    arguments = {name: value for name, value in wanted.items() if value}
    return [entry for page in pages.paginate(**arguments) for entry in page[key]]


def get_subnet(session: Session, arguments: Mapping[str, Any]) -> Bag:
    """`aws.ec2.get_subnet`."""
    region = arguments.get("region") or session.region
    filters = _asked_filters(arguments) + _filters(
        availability_zone=_listed(arguments.get("availabilityZone")),
        availability_zone_id=_listed(arguments.get("availabilityZoneId")),
        cidr_block=_listed(arguments.get("cidrBlock")),
        state=_listed(arguments.get("state")),
        vpc_id=_listed(arguments.get("vpcId")),
        default_for_az=["true"] if arguments.get("defaultForAz") else None,
    )
    ids = _listed(arguments.get("id"))
    subnets = _describe(
        session, region, "describe_subnets", "Subnets", Filters=filters, SubnetIds=ids
    )
    subnet = _exactly_one(subnets, "subnet")
    return {
        **_echo(arguments, region),
        "id": subnet["SubnetId"],
        "arn": subnet.get("SubnetArn") or "",
        "assignIpv6AddressOnCreation": subnet.get("AssignIpv6AddressOnCreation", False),
        "availabilityZone": subnet["AvailabilityZone"],
        "availabilityZoneId": subnet.get("AvailabilityZoneId") or "",
        "availableIpAddressCount": subnet["AvailableIpAddressCount"],
        "cidrBlock": subnet["CidrBlock"],
        "defaultForAz": subnet.get("DefaultForAz", False),
        "mapPublicIpOnLaunch": subnet.get("MapPublicIpOnLaunch", False),
        "ownerId": subnet.get("OwnerId") or "",
        "state": subnet["State"],
        "tags": from_tag_list(subnet.get("Tags")),
        "vpcId": subnet["VpcId"],
    }


def _listed(value: str | None) -> list[str] | None:
    return [value] if value else None


def _security_group_arn(session: Session, region: str, group: Mapping[str, Any]) -> str:
    place = f"arn:{session.partition}:ec2:{region}:{group['OwnerId']}"
    return f"{place}:security-group/{group['GroupId']}"


def get_security_group(session: Session, arguments: Mapping[str, Any]) -> Bag:
    """`aws.ec2.get_security_group`."""
    region = arguments.get("region") or session.region
    filters = _asked_filters(arguments) + _filters(
        group_name=_listed(arguments.get("name")), vpc_id=_listed(arguments.get("vpcId"))
    )
    groups = _describe(
        session,
        region,
        "describe_security_groups",
        "SecurityGroups",
        Filters=filters,
        GroupIds=_listed(arguments.get("id")),
    )
    group = _exactly_one(groups, "security group")
    return {
        **_echo(arguments, region),
        "id": group["GroupId"],
        "arn": _security_group_arn(session, region, group),
        "description": group.get("Description") or "",
        "name": group["GroupName"],
        "tags": from_tag_list(group.get("Tags")),
        "vpcId": group.get("VpcId") or "",
    }


RESOURCES: Final = (Tag,)
FUNCTIONS: Final[Mapping[str, Function]] = {
    "aws:ec2/getSecurityGroup:getSecurityGroup": get_security_group,
    "aws:ec2/getSubnet:getSubnet": get_subnet,
}
