"""EC2: tags on resources of other owners, and lookups of network resources."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from testbed.plugins.awsprovider.networks import NetworkResource
from testbed.plugins.awsprovider.resourcetype import (
    Function,
    Resource,
    from_tag_list,
    to_tag_list,
)
from testbed.plugins.awsprovider.session import Session
from testbed.plugins.codec import Bag
from testbed.plugins.provider import ProviderError


class Tag(Resource):
    """`aws.ec2.Tag`: one tag of a resource that this stack does not manage."""

    token = "aws:ec2/tag:Tag"
    source = "ec2/tag_gen.go"
    service = "ec2"
    fixed = ("resourceId", "key")
    settling_seconds = 0.0

    def create(self, inputs: Bag) -> str:
        self._put(inputs)
        return f"{inputs['resourceId']},{inputs['key']}"

    def _put(self, inputs: Bag) -> None:
        tag = {"Key": inputs["key"], "Value": inputs["value"]}
        self.api.create_tags(Resources=[inputs["resourceId"]], Tags=[tag])

    def read(self, identity: str, state: Bag) -> Bag | None:
        resource, key = identity.split(",", 1)
        wanted = {"resource-id": resource, "key": key}
        filters = [{"Name": name, "Values": [value]} for name, value in wanted.items()]
        tags = self.api.describe_tags(Filters=filters)["Tags"]
        return {"resourceId": resource, "key": key, "value": tags[0]["Value"]} if tags else None

    def update(self, identity: str, old: Bag, new: Bag) -> None:
        self._put(new)

    def delete(self, identity: str, state: Bag) -> None:
        # With its value: a tag whose value others have changed stays.
        resource, key = identity.split(",", 1)
        tag = {"Key": key, "Value": state["value"]}
        self.api.delete_tags(Resources=[resource], Tags=[tag])


class LaunchTemplate(NetworkResource):
    """`aws.ec2.LaunchTemplate`, of the inputs in `DATA`. Each update adds a version."""

    token = "aws:ec2/launchTemplate:LaunchTemplate"
    source = "ec2/ec2_launch_template.go"
    kind, noun, id_name = "launch-template", "LaunchTemplate", "LaunchTemplateId"
    automatic_name = "name"
    name_limit = 128
    fixed = ("name", "namePrefix")
    computed = ("arn", "defaultVersion", "latestVersion")
    advancing = ("latestVersion",)
    DATA: Final = ("blockDeviceMappings", "metadataOptions", "tagSpecifications")

    def arguments(self, inputs: Bag) -> dict[str, Any]:
        return {"LaunchTemplateName": inputs["name"], "LaunchTemplateData": self._data(inputs)}

    def _data(self, inputs: Bag) -> Any:
        return _to_api({key: inputs[key] for key in self.DATA if inputs.get(key)})

    def read(self, identity: str, state: Bag) -> Bag | None:
        live = self.describe(identity)
        if live is None:
            return None
        latest = self.api.describe_launch_template_versions(
            LaunchTemplateId=identity, Versions=["$Latest"]
        )["LaunchTemplateVersions"][0]
        return {
            **_from_api(latest["LaunchTemplateData"]),
            "arn": self.arn(identity),
            "defaultVersion": live["DefaultVersionNumber"],
            "latestVersion": live["LatestVersionNumber"],
            "name": live["LaunchTemplateName"],
            "tags": from_tag_list(live.get("Tags")),
        }

    def switch(self, identity: str, old: Bag, new: Bag) -> None:
        if old and self._data(old) != self._data(new):
            self.api.create_launch_template_version(
                LaunchTemplateId=identity, LaunchTemplateData=self._data(new)
            )


def _to_api(value: Any) -> Any:
    """Return inputs as EC2 takes them: other capitals, truth values, and tags as a list."""
    if isinstance(value, list):
        return [_to_api(each) for each in value]
    if not isinstance(value, dict):
        return {"true": True, "false": False}.get(value, value)
    return {
        f"{key[0].upper()}{key[1:]}": to_tag_list(each) if key == "tags" else _to_api(each)
        for key, each in value.items()
    }


def _from_api(value: Any) -> Any:
    """Return what EC2 describes as inputs, the inverse of `_to_api`."""
    if isinstance(value, list):
        return [_from_api(each) for each in value]
    if not isinstance(value, dict):
        return str(value).lower() if isinstance(value, bool) else value
    return {
        f"{key[0].lower()}{key[1:]}": from_tag_list(each) if key == "Tags" else _from_api(each)
        for key, each in value.items()
    }


def get_subnet(session: Session, arguments: Mapping[str, Any]) -> Bag:
    """`aws.ec2.get_subnet`, by ID."""
    region = _region(session, arguments)
    answer = session.client("ec2", region).describe_subnets(SubnetIds=[arguments["id"]])
    [subnet] = answer["Subnets"]
    return {
        "region": region,
        "filters": [],
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


def get_security_group(session: Session, arguments: Mapping[str, Any]) -> Bag:
    """`aws.ec2.get_security_group`, by ID."""
    region = _region(session, arguments)
    answer = session.client("ec2", region).describe_security_groups(GroupIds=[arguments["id"]])
    [group] = answer["SecurityGroups"]
    place = f"arn:{session.partition}:ec2:{region}:{group['OwnerId']}"
    return {
        "region": region,
        "filters": [],
        "id": group["GroupId"],
        "arn": f"{place}:security-group/{group['GroupId']}",
        "description": group.get("Description") or "",
        "name": group["GroupName"],
        "tags": from_tag_list(group.get("Tags")),
        "vpcId": group.get("VpcId") or "",
    }


def _region(session: Session, arguments: Mapping[str, Any]) -> str:
    """Return the region of a lookup. Raises `ProviderError` if it is not one by ID alone."""
    asked = {name for name, value in arguments.items() if value}
    if not {"id"} <= asked <= {"id", "region"}:
        raise ProviderError(f"the aws stand-in looks up by ID alone, not by {sorted(asked)}")
    return str(arguments.get("region") or session.region)


RESOURCES: Final = (LaunchTemplate, Tag)
FUNCTIONS: Final[Mapping[str, Function]] = {
    "aws:ec2/getSecurityGroup:getSecurityGroup": get_security_group,
    "aws:ec2/getSubnet:getSubnet": get_subnet,
}
