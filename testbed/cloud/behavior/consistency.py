"""Eventual consistency of EC2 and IAM: new resources are not visible at once.

Off by default. `Settings.visible_after` is the delay in seconds until a new instance, launch
template, network resource, role, instance profile or policy becomes visible. Until then:

- the answer of the creating call names the resource;
- a call that names the resource fails with the service's "does not exist" error;
- listings omit it.

Calls that write to IAM are not affected: IAM's writes are strongly consistent. `Settings.tagging`
is the delay from the tagging of an EC2 resource until the tags become visible.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from testbed.cloud.protocol.errors import AwsError
from testbed.cloud.protocol.wire import Call, Response, read_result
from testbed.cloud.state.world import World
from testbed.trees import leaves

IN_IAM: Final[Mapping[str, str]] = {
    "CreateInstanceProfile": "InstanceProfileName",
    "CreatePolicy": "PolicyName",
    "CreateRole": "RoleName",
}
"""IAM operation → the parameter that names the resource it creates."""

IN_EC2: Final[Mapping[str, tuple[str, ...]]] = {
    "CreateInternetGateway": ("InternetGateway", "InternetGatewayId"),
    "CreateNatGateway": ("NatGateway", "NatGatewayId"),
    "CreateRouteTable": ("RouteTable", "RouteTableId"),
    "CreateSecurityGroup": ("GroupId",),
    "CreateSubnet": ("Subnet", "SubnetId"),
    "CreateVpc": ("Vpc", "VpcId"),
    "CreateVpcEndpoint": ("VpcEndpoint", "VpcEndpointId"),
}
"""EC2 operation that moto answers → path in its response to the ID of the created resource."""

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
"""Prefix of a resource ID → EC2's error code for an ID that does not exist."""


def made_by(world: World, call: Call, response: Response) -> None:
    """Record the resource that a call to moto created, so that it becomes visible with a delay.

    Does nothing unless a test sets `Settings.visible_after` or `Settings.tagging`.
    """
    if not (world.settings.visible_after or world.settings.tagging):
        return
    if call.service == "iam" and call.operation in IN_IAM:
        world.delay_visibility(call.require(IN_IAM[call.operation]))
    elif call.service == "ec2" and call.operation in IN_EC2:
        made: Any = read_result(call, response)
        for key in IN_EC2[call.operation]:
            made = made[key]
        world.delay_visibility(made)
        tags = dict(world.tags(made))
        world.untag(made)
        world.tag(made, tags)


def check(world: World, call: Call) -> None:
    """Raise the service's not-found error if a call names a resource that is not visible yet."""
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
