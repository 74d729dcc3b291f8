"""New things that are not seen yet: EC2 and IAM are consistent only in the end.

Off unless a test asks for it: `Settings.settling` says how many seconds a new instance, launch
template, part of a network, role, instance profile or policy takes to be seen. Who makes it has
its name from the answer; who names it meanwhile is told that it does not exist; listings leave it
out. What writes to IAM goes to one place and is not concerned. `Settings.tagging` says the same of
tags in EC2, which come later than what bears them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from testbed.cloud.errors import AwsError
from testbed.cloud.wire import Call, Response, read_result
from testbed.cloud.world import World
from testbed.trees import leaves

IN_IAM: Final[Mapping[str, str]] = {
    "CreateInstanceProfile": "InstanceProfileName",
    "CreatePolicy": "PolicyName",
    "CreateRole": "RoleName",
}
"""Operation of IAM → the argument that names what it makes."""

IN_EC2: Final[Mapping[str, tuple[str, ...]]] = {
    "CreateInternetGateway": ("InternetGateway", "InternetGatewayId"),
    "CreateNatGateway": ("NatGateway", "NatGatewayId"),
    "CreateRouteTable": ("RouteTable", "RouteTableId"),
    "CreateSecurityGroup": ("GroupId",),
    "CreateSubnet": ("Subnet", "SubnetId"),
    "CreateVpc": ("Vpc", "VpcId"),
    "CreateVpcEndpoint": ("VpcEndpoint", "VpcEndpointId"),
}
"""Operation of EC2 that moto answers → where its answer names what it has made."""

NAMES: Final = ("InstanceProfileName", "RoleName", "PolicyArn")

NOT_FOUND: Final[Mapping[str, str]] = {
    "igw-": "InvalidInternetGatewayID.NotFound",
    "nat-": "NatGatewayNotFound",
    "rtb-": "InvalidRouteTableID.NotFound",
    "sg-": "InvalidGroup.NotFound",
    "subnet-": "InvalidSubnetID.NotFound",
    "vpc-": "InvalidVpcID.NotFound",
    "vpce-": "InvalidVpcEndpointId.NotFound",
}
"""How an ID begins → what EC2 says where there is none."""


def made_by(world: World, call: Call, response: Response) -> None:
    """Take note of what a call to moto has made."""
    if not (world.settings.settling or world.settings.tagging):
        return
    if call.service == "iam" and call.operation in IN_IAM:
        world.settle(call.require(IN_IAM[call.operation]))
    elif call.service == "ec2" and call.operation in IN_EC2:
        made: Any = read_result(call, response)
        for key in IN_EC2[call.operation]:
            made = made[key]
        world.settle(made)
        tags = dict(world.tags(made))
        world.untag(made)
        world.tag(made, tags)


def check(world: World, call: Call) -> None:
    """Raise the service's error for a call that names what is not seen yet."""
    if not world.unseen:
        return
    if call.service == "iam" and call.operation.startswith(("Get", "List")):
        for argument in NAMES:
            name = str(call.get(argument, "")).rpartition("/")[2]
            if not world.is_seen(name):
                raise AwsError(
                    "NoSuchEntity", f"The entity with name {name} cannot be found", status=404
                )
    elif call.service == "ec2":
        named = {k: v for k, v in call.parameters.items() if k not in ("Filters", "Resources")}
        for identity in filter(world.unseen.__contains__, leaves(named)):
            code = NOT_FOUND.get(identity[: identity.find("-") + 1])
            if code:
                raise AwsError(code, f"The ID '{identity}' does not exist")
