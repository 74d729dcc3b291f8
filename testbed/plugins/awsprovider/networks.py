"""EC2 networks: VPCs, subnets, gateways, routes, security groups and VPC endpoints."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final

from botocore import xform_name

from testbed.plugins.awsprovider.resourcetype import (
    Function,
    Resource,
    api_arguments,
    change_tags,
    from_tag_list,
    name_of,
    to_tag_list,
)
from testbed.plugins.awsprovider.session import Session, unless_gone
from testbed.plugins.codec import Bag
from testbed.plugins.provider import ProviderError

WAIT_SECONDS: Final = 600
POLL_SECONDS: Final = 0.1
ANYWHERE: Final = {"IpProtocol": "-1", "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}


class NetworkResource(Resource):
    """A network resource, described by its ID.

    EC2 names its operations, their arguments and their answers after the type of the resource.
    """

    service = "ec2"
    is_taggable = True
    kind: ClassVar[str]
    """The resource type in EC2's tag specifications."""

    noun: ClassVar[str]
    """The resource type in the names of EC2's operations: `Vpc` of `CreateVpc`."""

    id_name: ClassVar[str]
    """The argument of EC2's operations that holds the ID of the resource."""

    created_with: ClassVar[Mapping[str, str]] = {}
    """Argument of the operation that creates the resource → input."""

    def call(self, verb: str, **arguments: Any) -> Any:
        """Call the operation of EC2 with this verb for one resource of this type."""
        return getattr(self.api, xform_name(f"{verb}{self.noun}"))(**arguments)

    def arguments(self, inputs: Bag) -> dict[str, Any]:
        """Return the arguments that create the resource, without its tags."""
        return api_arguments(inputs, **self.created_with)

    def properties(self, live: Mapping[str, Any]) -> Bag:
        """Return the properties of the resource as EC2 describes it, without ARN and tags."""
        raise NotImplementedError

    def create(self, inputs: Bag) -> str:
        made = self.call("Create", **self.arguments(inputs), **self.new_tags(inputs))
        return str(made.get(self.noun, made)[self.id_name])

    def describe(self, identity: str) -> Mapping[str, Any] | None:
        """Return EC2's description of the resource, None if it is deleted."""
        describe = getattr(self.api, xform_name(f"Describe{self.noun}s"))
        described = describe(**{f"{self.id_name}s": [identity]})[f"{self.noun}s"]
        return next((dict(each) for each in described if each.get("State") != "deleted"), None)

    def read(self, identity: str, state: Bag) -> Bag | None:
        live = self.describe(identity)
        if live is None:
            return None
        owned = {}
        if "arn" in self.computed:
            owned = {"arn": self.arn(identity), "ownerId": live.get("OwnerId")}
        return {**self.properties(live), **owned, "tags": from_tag_list(live.get("Tags"))}

    def delete(self, identity: str, state: Bag) -> None:
        self.call("Delete", **{self.id_name: identity})

    def complete(self, identity: str, inputs: Bag) -> None:
        """Wait until EC2 shows the resource and its tags, then finish it.

        The real provider waits for this as well.
        """
        wait(lambda: self._sight(identity, inputs), until="seen", what=identity)
        self.finish(identity, inputs)

    def _sight(self, identity: str, inputs: Bag) -> str | None:
        live = unless_gone(lambda: self.read(identity, inputs))
        wanted, held = inputs.get("tags") or {}, (live or {}).get("tags") or {}
        return "seen" if live is not None and wanted.items() <= held.items() else None

    def finish(self, identity: str, inputs: Bag) -> None:
        """Make the calls that need a visible resource."""
        self.switch(identity, {}, inputs)

    def switch(self, identity: str, old: Bag, new: Bag) -> None:
        """Make the calls that change single attributes from the old inputs to the new.

        `old` is empty if the resource has just been created.
        """
        del identity, old, new

    def new_tags(self, inputs: Bag) -> dict[str, Any]:
        """Return the argument that tags the resource at its creation."""
        tags = to_tag_list(inputs.get("tags"))
        return {"TagSpecifications": [{"ResourceType": self.kind, "Tags": tags}]} if tags else {}

    def update(self, identity: str, old: Bag, new: Bag) -> None:
        self.switch(identity, old, new)
        change_tags(
            old,
            new,
            tag=lambda tags: self.api.create_tags(Resources=[identity], Tags=to_tag_list(tags)),
            untag=lambda keys: self.api.delete_tags(
                Resources=[identity], Tags=[{"Key": key} for key in keys]
            ),
        )

    def arn(self, identity: str) -> str:
        """Return the ARN of a resource by its ID."""
        account = self.session.client("sts").get_caller_identity()["Account"]
        kind = self.kind
        return f"arn:{self.session.partition}:ec2:{self.region}:{account}:{kind}/{identity}"


def wait(state_of: Callable[[], str | None], *, until: str | None, what: str) -> None:
    """Poll until `state_of` returns the state `until`; None is the state of a deleted resource.

    Raises `ProviderError`, whose message names the resource as `what`, if the state is `failed`, or
    after `WAIT_SECONDS`.
    """
    end = time.monotonic() + WAIT_SECONDS
    while (state := state_of()) != until:
        if state == "failed" or time.monotonic() > end:
            raise ProviderError(f"{what} is {state}, and was to be {until or 'gone'}")
        time.sleep(POLL_SECONDS)


class SlowResource(NetworkResource):
    """A resource that is pending at first, and that EC2 still describes once it is deleted."""

    def wait_until(self, state: str | None, identity: str) -> None:
        """Wait until the resource has a state, or, if `state` is None, until it is deleted."""
        wait(
            lambda: (self.describe(identity) or {}).get("State"),
            until=state,
            what=f"{self.kind} {identity}",
        )

    def finish(self, identity: str, inputs: Bag) -> None:
        self.wait_until("available", identity)


class Vpc(NetworkResource):
    """`aws.ec2.Vpc`."""

    token = "aws:ec2/vpc:Vpc"
    source = "ec2/vpc_.go"
    kind, noun, id_name = "vpc", "Vpc", "VpcId"
    fixed = ("cidrBlock", "ipv4IpamPoolId", "ipv4NetmaskLength", "ipv6IpamPoolId")
    computed = ("arn", "ipv6AssociationId", "ipv6CidrBlock", "ownerId")
    defaults = {"enableDnsSupport": True, "instanceTenancy": "default"}
    created_with = {
        "AmazonProvidedIpv6CidrBlock": "assignGeneratedIpv6CidrBlock",
        "CidrBlock": "cidrBlock",
        "InstanceTenancy": "instanceTenancy",
    }
    SWITCHES: Final = {
        "enableDnsHostnames": "EnableDnsHostnames",
        "enableDnsSupport": "EnableDnsSupport",
    }

    def switch(self, identity: str, old: Bag, new: Bag) -> None:
        _switch(self.api.modify_vpc_attribute, self.SWITCHES, {"VpcId": identity}, old, new)

    def properties(self, live: Mapping[str, Any]) -> Bag:
        look, identity = self.api.describe_vpc_attribute, live["VpcId"]
        return {
            **{
                name: look(VpcId=identity, Attribute=name)[attribute]["Value"]
                for name, attribute in self.SWITCHES.items()
            },
            **_ipv6_block(live),
            "cidrBlock": live["CidrBlock"],
            "instanceTenancy": live["InstanceTenancy"],
        }


def _switch(
    modify: Callable[..., Any],
    switches: Mapping[str, str],
    place: Mapping[str, str],
    old: Bag,
    new: Bag,
) -> None:
    """Change each flag of a resource that differs; EC2 takes one flag per call."""
    for name, attribute in switches.items():
        if new.get(name) is not None and old.get(name, False) != new[name]:
            modify(**place, **{attribute: {"Value": new[name]}})


def _ipv6_block(live: Mapping[str, Any]) -> Bag:
    """Return the properties of a VPC or a subnet that describe its IPv6 addresses."""
    blocks = live.get("Ipv6CidrBlockAssociationSet") or [{}]
    of_vpc = {"assignGeneratedIpv6CidrBlock": True} if "CidrBlockAssociationSet" in live else {}
    if not blocks[0].get("Ipv6CidrBlock"):
        return {"ipv6CidrBlock": None, "ipv6AssociationId": None, **dict.fromkeys(of_vpc)}
    block, association = blocks[0]["Ipv6CidrBlock"], blocks[0].get("AssociationId")
    return {"ipv6CidrBlock": block, "ipv6AssociationId": association, **of_vpc}


class Subnet(NetworkResource):
    """`aws.ec2.Subnet`."""

    token = "aws:ec2/subnet:Subnet"
    source = "ec2/vpc_subnet.go"
    kind, noun, id_name = "subnet", "Subnet", "SubnetId"
    fixed = ("availabilityZone", "availabilityZoneId", "cidrBlock", "ipv6Native", "vpcId")
    computed = ("arn", "availabilityZoneId", "ipv6AssociationId", "ipv6CidrBlock", "ownerId")
    defaults = {"assignIpv6AddressOnCreation": False, "mapPublicIpOnLaunch": False}
    created_with = {
        "VpcId": "vpcId",
        "CidrBlock": "cidrBlock",
        "Ipv6CidrBlock": "ipv6CidrBlock",
        "AvailabilityZone": "availabilityZone",
    }
    SWITCHES: Final = {
        "assignIpv6AddressOnCreation": "AssignIpv6AddressOnCreation",
        "mapPublicIpOnLaunch": "MapPublicIpOnLaunch",
    }

    def switch(self, identity: str, old: Bag, new: Bag) -> None:
        _switch(self.api.modify_subnet_attribute, self.SWITCHES, {"SubnetId": identity}, old, new)

    def properties(self, live: Mapping[str, Any]) -> Bag:
        return {
            **_ipv6_block(live),
            "assignIpv6AddressOnCreation": live.get("AssignIpv6AddressOnCreation", False),
            "availabilityZone": live["AvailabilityZone"],
            "availabilityZoneId": live["AvailabilityZoneId"],
            "cidrBlock": live["CidrBlock"],
            "mapPublicIpOnLaunch": live["MapPublicIpOnLaunch"],
            "vpcId": live["VpcId"],
        }


class InternetGateway(NetworkResource):
    """`aws.ec2.InternetGateway`."""

    token = "aws:ec2/internetGateway:InternetGateway"
    source = "ec2/vpc_internet_gateway.go"
    kind, noun, id_name = "internet-gateway", "InternetGateway", "InternetGatewayId"
    computed = ("arn", "ownerId")

    def switch(self, identity: str, old: Bag, new: Bag) -> None:
        if old.get("vpcId") == new.get("vpcId"):
            return
        if old.get("vpcId"):
            self._detach(identity)
        if new.get("vpcId"):
            self.api.attach_internet_gateway(InternetGatewayId=identity, VpcId=new["vpcId"])

    def properties(self, live: Mapping[str, Any]) -> Bag:
        attached = live.get("Attachments") or [{}]
        return {"vpcId": attached[0].get("VpcId")}

    def _detach(self, identity: str) -> None:
        vpc = self.properties(self.describe(identity) or {})["vpcId"]
        if vpc:
            self.api.detach_internet_gateway(InternetGatewayId=identity, VpcId=vpc)

    def delete(self, identity: str, state: Bag) -> None:
        self._detach(identity)
        super().delete(identity, state)


class EgressOnlyInternetGateway(NetworkResource):
    """`aws.ec2.EgressOnlyInternetGateway`."""

    token = "aws:ec2/egressOnlyInternetGateway:EgressOnlyInternetGateway"
    source = "ec2/vpc_egress_only_internet_gateway.go"
    kind = "egress-only-internet-gateway"
    noun, id_name = "EgressOnlyInternetGateway", "EgressOnlyInternetGatewayId"
    fixed = ("vpcId",)
    created_with = {"VpcId": "vpcId"}

    def properties(self, live: Mapping[str, Any]) -> Bag:
        return {"vpcId": live["Attachments"][0]["VpcId"]}


class Eip(NetworkResource):
    """`aws.ec2.Eip`."""

    token = "aws:ec2/eip:Eip"
    source = "ec2/ec2_eip.go"
    kind, noun, id_name = "elastic-ip", "Address", "AllocationId"
    fixed = ("address", "domain", "ipamPoolId", "networkBorderGroup", "publicIpv4Pool")
    computed = ("allocationId", "publicIp")
    defaults = {"domain": "vpc"}

    def create(self, inputs: Bag) -> str:
        answer = self.call("Allocate", Domain=inputs["domain"], **self.new_tags(inputs))
        return str(answer["AllocationId"])

    def describe(self, identity: str) -> Mapping[str, Any] | None:
        (address,) = self.api.describe_addresses(AllocationIds=[identity])["Addresses"]
        return dict(address)

    def properties(self, live: Mapping[str, Any]) -> Bag:
        return {
            "allocationId": live["AllocationId"],
            "domain": live["Domain"],
            "publicIp": live["PublicIp"],
        }

    def delete(self, identity: str, state: Bag) -> None:
        self.call("Release", AllocationId=identity)


class NatGateway(SlowResource):
    """`aws.ec2.NatGateway`."""

    token = "aws:ec2/natGateway:NatGateway"
    source = "ec2/vpc_nat_gateway.go"
    kind, noun, id_name = "natgateway", "NatGateway", "NatGatewayId"
    fixed = ("allocationId", "connectivityType", "privateIp", "subnetId")
    computed = ("networkInterfaceId", "privateIp", "publicIp")
    defaults = {"connectivityType": "public"}
    created_with = {
        "AllocationId": "allocationId",
        "ConnectivityType": "connectivityType",
        "SubnetId": "subnetId",
    }

    def properties(self, live: Mapping[str, Any]) -> Bag:
        (address,) = live["NatGatewayAddresses"]
        return {
            "allocationId": address.get("AllocationId"),
            "connectivityType": live.get("ConnectivityType") or "public",
            "networkInterfaceId": address.get("NetworkInterfaceId"),
            "privateIp": address.get("PrivateIp"),
            "publicIp": address.get("PublicIp"),
            "subnetId": live["SubnetId"],
        }

    def delete(self, identity: str, state: Bag) -> None:
        super().delete(identity, state)
        self.wait_until(None, identity)


class RouteTable(NetworkResource):
    """`aws.ec2.RouteTable`; its routes are separate resources."""

    token = "aws:ec2/routeTable:RouteTable"
    source = "ec2/vpc_route_table.go"
    kind, noun, id_name = "route-table", "RouteTable", "RouteTableId"
    fixed = ("vpcId",)
    computed = ("arn", "ownerId")
    created_with = {"VpcId": "vpcId"}

    def properties(self, live: Mapping[str, Any]) -> Bag:
        return {"vpcId": live["VpcId"]}


class Route(Resource):
    """`aws.ec2.Route`."""

    token = "aws:ec2/route:Route"
    source = "ec2/vpc_route.go"
    service = "ec2"
    fixed = ("destinationCidrBlock", "destinationIpv6CidrBlock", "routeTableId")
    computed = ("origin", "state")
    TARGETS: Final = {
        "egressOnlyGatewayId": "EgressOnlyInternetGatewayId",
        "gatewayId": "GatewayId",
        "natGatewayId": "NatGatewayId",
    }
    DESTINATIONS: Final = {
        "destinationCidrBlock": "DestinationCidrBlock",
        "destinationIpv6CidrBlock": "DestinationIpv6CidrBlock",
    }
    exclusive = (("destinationCidrBlock", "destinationIpv6CidrBlock"),)

    def create(self, inputs: Bag) -> str:
        self.api.create_route(**self._arguments(inputs))
        (destination,) = self._place(inputs).values()
        digest = hashlib.sha256(destination.encode()).hexdigest()[:8]
        return f"r-{inputs['routeTableId']}{digest}"

    def _place(self, inputs: Bag) -> dict[str, str]:
        """Return the argument that names the route in its table: an IPv4 or an IPv6 block."""
        return {
            argument: inputs[name]
            for name, argument in self.DESTINATIONS.items()
            if inputs.get(name)
        }

    def _arguments(self, inputs: Bag) -> dict[str, Any]:
        targets = {argument: name for name, argument in self.TARGETS.items()}
        return {
            "RouteTableId": inputs["routeTableId"],
            **self._place(inputs),
            **api_arguments(inputs, **targets),
        }

    def read(self, identity: str, state: Bag) -> Bag | None:
        table = state["routeTableId"]
        (found,) = self.api.describe_route_tables(RouteTableIds=[table])["RouteTables"]
        for route in found["Routes"]:
            if self._place(state).items() <= route.items():
                return {
                    "routeTableId": table,
                    **{name: route.get(key) or None for name, key in self.DESTINATIONS.items()},
                    "origin": route.get("Origin"),
                    "state": route.get("State"),
                    **{name: route.get(key) or None for name, key in self.TARGETS.items()},
                }
        return None

    def update(self, identity: str, old: Bag, new: Bag) -> None:
        self.api.replace_route(**self._arguments(new))

    def delete(self, identity: str, state: Bag) -> None:
        self.api.delete_route(RouteTableId=state["routeTableId"], **self._place(state))


class RouteTableAssociation(Resource):
    """`aws.ec2.RouteTableAssociation`."""

    token = "aws:ec2/routeTableAssociation:RouteTableAssociation"
    source = "ec2/vpc_route_table_association.go"
    service = "ec2"
    fixed = ("gatewayId", "subnetId")

    def create(self, inputs: Bag) -> str:
        answer = self.api.associate_route_table(
            RouteTableId=inputs["routeTableId"], SubnetId=inputs["subnetId"]
        )
        return str(answer["AssociationId"])

    def read(self, identity: str, state: Bag) -> Bag | None:
        name = "association.route-table-association-id"
        answer = self.api.describe_route_tables(Filters=[{"Name": name, "Values": [identity]}])
        for table in answer["RouteTables"]:
            for each in table["Associations"]:
                if each["RouteTableAssociationId"] == identity:
                    return {"routeTableId": each["RouteTableId"], "subnetId": each["SubnetId"]}
        return None

    def update(self, identity: str, old: Bag, new: Bag) -> None:
        # EC2 changes the association's ID; the real provider's state follows on refresh.
        raise ProviderError("the aws stand-in cannot give a subnet another route table")

    def delete(self, identity: str, state: Bag) -> None:
        self.api.disassociate_route_table(AssociationId=identity)


class SecurityGroup(NetworkResource):
    """`aws.ec2.SecurityGroup` with inline rules; EC2's default egress rule is removed."""

    token = "aws:ec2/securityGroup:SecurityGroup"
    source = "ec2/vpc_security_group.go"
    kind, noun, id_name = "security-group", "SecurityGroup", "GroupId"
    automatic_name = "name"
    name_limit = 255
    fixed = ("description", "name", "namePrefix", "vpcId")
    computed = ("arn", "ownerId")
    defaults = {"description": "Managed by Pulumi", "revokeRulesOnDelete": False}

    def arguments(self, inputs: Bag) -> dict[str, Any]:
        named = {"GroupName": name_of(inputs)}
        return {**named, "Description": inputs["description"], "VpcId": inputs["vpcId"]}

    def finish(self, identity: str, inputs: Bag) -> None:
        self.api.revoke_security_group_egress(GroupId=identity, IpPermissions=[ANYWHERE])
        for direction in ("ingress", "egress"):
            if rules := [_permission(rule) for rule in inputs.get(direction) or []]:
                authorize = getattr(self.api, f"authorize_security_group_{direction}")
                authorize(GroupId=identity, IpPermissions=rules)

    def properties(self, live: Mapping[str, Any]) -> Bag:
        return {
            "description": live["Description"],
            "ingress": [_rule(each) for each in live["IpPermissions"]],
            "egress": [_rule(each) for each in live["IpPermissionsEgress"]],
            "name": live["GroupName"],
            "vpcId": live["VpcId"],
        }


def _permission(rule: Bag) -> dict[str, Any]:
    return {
        "IpProtocol": rule["protocol"],
        "FromPort": rule["fromPort"],
        "ToPort": rule["toPort"],
        "IpRanges": [{"CidrIp": cidr} for cidr in rule.get("cidrBlocks") or []],
    }


def _rule(permission: Mapping[str, Any]) -> Bag:
    return {
        "protocol": permission["IpProtocol"],
        "fromPort": permission.get("FromPort", 0),
        "toPort": permission.get("ToPort", 0),
        "cidrBlocks": [each["CidrIp"] for each in permission.get("IpRanges") or []],
    }


class VpcEndpoint(SlowResource):
    """`aws.ec2.VpcEndpoint`."""

    token = "aws:ec2/vpcEndpoint:VpcEndpoint"
    source = "ec2/vpc_endpoint.go"
    kind, noun, id_name = "vpc-endpoint", "VpcEndpoint", "VpcEndpointId"
    fixed = ("serviceName", "vpcEndpointType", "vpcId")
    computed = ("arn", "ownerId", "state")
    defaults = {"vpcEndpointType": "Gateway"}
    created_with = {
        "VpcId": "vpcId",
        "ServiceName": "serviceName",
        "VpcEndpointType": "vpcEndpointType",
        "PrivateDnsEnabled": "privateDnsEnabled",
        "RouteTableIds": "routeTableIds",
        "SecurityGroupIds": "securityGroupIds",
        "SubnetIds": "subnetIds",
    }

    SETS: Final = {
        "routeTableIds": "RouteTableIds",
        "securityGroupIds": "SecurityGroupIds",
        "subnetIds": "SubnetIds",
    }

    def update(self, identity: str, old: Bag, new: Bag) -> None:
        changes: dict[str, Any] = {}
        for name, argument in self.SETS.items():
            before, after = set(old.get(name) or ()), set(new.get(name) or ())
            changes |= {f"Add{argument}": sorted(after - before)} if after - before else {}
            changes |= {f"Remove{argument}": sorted(before - after)} if before - after else {}
        if old.get("privateDnsEnabled") != new.get("privateDnsEnabled"):
            changes["PrivateDnsEnabled"] = bool(new.get("privateDnsEnabled"))
        if changes:
            self.api.modify_vpc_endpoint(VpcEndpointId=identity, **changes)
            self.wait_until("available", identity)
        super().update(identity, old, new)

    def properties(self, live: Mapping[str, Any]) -> Bag:
        groups = [each["GroupId"] for each in live.get("Groups") or []]
        return {
            "privateDnsEnabled": live.get("PrivateDnsEnabled"),
            "routeTableIds": sorted(live.get("RouteTableIds") or []) or None,
            "securityGroupIds": sorted(groups) or None,
            "serviceName": live["ServiceName"],
            "state": live["State"],
            "subnetIds": sorted(live.get("SubnetIds") or []) or None,
            "vpcEndpointType": live["VpcEndpointType"],
            "vpcId": live["VpcId"],
        }

    def delete(self, identity: str, state: Bag) -> None:
        self.api.delete_vpc_endpoints(VpcEndpointIds=[identity])
        self.wait_until(None, identity)


def _filters(arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [_filter(block["name"], block["values"]) for block in arguments.get("filters") or []]


def _filter(name: str, values: Sequence[str]) -> dict[str, Any]:
    return {"Name": name, "Values": list(values)}


def get_availability_zones(session: Session, arguments: Mapping[str, Any]) -> Bag:
    """`aws.get_availability_zones`."""
    region = arguments.get("region") or session.region
    filters = _filters(arguments)
    if arguments.get("state"):
        filters.append(_filter("state", [arguments["state"]]))
    answer = session.client("ec2", region).describe_availability_zones(Filters=filters)
    excluded = {*(arguments.get("excludeNames") or []), *(arguments.get("excludeZoneIds") or [])}
    zones = [
        zone
        for zone in sorted(answer["AvailabilityZones"], key=lambda zone: str(zone["ZoneName"]))
        if not excluded & {zone["ZoneName"], zone["ZoneId"]}
    ]
    return {
        "id": region,
        "region": region,
        "names": [zone["ZoneName"] for zone in zones],
        "zoneIds": [zone["ZoneId"] for zone in zones],
        "groupNames": sorted({zone.get("GroupName") or region for zone in zones}),
    }


def get_vpc_endpoint_service(session: Session, arguments: Mapping[str, Any]) -> Bag:
    """`aws.ec2.get_vpc_endpoint_service`: exactly one service.

    The lookup by `service` assumes the prefix `com.amazonaws`, in each partition.
    """
    region = arguments.get("region") or session.region
    wanted, kind = arguments.get("service"), arguments.get("serviceType")
    filters = [*_filters(arguments), *([_filter("service-type", [kind])] if kind else [])]
    named = {"ServiceNames": [f"com.amazonaws.{region}.{wanted}"]} if wanted else {}
    pages = session.client("ec2", region).get_paginator("describe_vpc_endpoint_services")
    matching = [
        each for page in pages.paginate(Filters=filters, **named) for each in page["ServiceDetails"]
    ]
    if len(matching) != 1:
        raise ProviderError(f"{len(matching)} VPC endpoint services {named or filters} matched")
    (service,) = matching
    name = service["ServiceName"]
    return {
        "id": name,
        "acceptanceRequired": service["AcceptanceRequired"],
        "arn": "",
        "availabilityZones": service["AvailabilityZones"],
        "baseEndpointDnsNames": [],
        "managesVpcEndpoints": False,
        "owner": service["Owner"],
        "privateDnsName": "",
        "privateDnsNames": [],
        "region": region,
        "service": wanted or "",
        "serviceId": service["ServiceId"],
        "serviceName": name,
        "serviceRegions": [region],
        "serviceType": service["ServiceType"][0]["ServiceType"],
        "supportedIpAddressTypes": ["ipv4"],
        "tags": {},
        "vpcEndpointPolicySupported": True,
    }


RESOURCES: Final = (
    EgressOnlyInternetGateway,
    Eip,
    InternetGateway,
    NatGateway,
    Route,
    RouteTable,
    RouteTableAssociation,
    SecurityGroup,
    Subnet,
    Vpc,
    VpcEndpoint,
)
FUNCTIONS: Final[Mapping[str, Function]] = {
    "aws:ec2/getVpcEndpointService:getVpcEndpointService": get_vpc_endpoint_service,
    "aws:index/getAvailabilityZones:getAvailabilityZones": get_availability_zones,
}
