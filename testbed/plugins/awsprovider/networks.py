"""EC2 networks: VPCs, subnets, gateways, routes, security groups and VPC endpoints."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final

from botocore.exceptions import ClientError

from testbed.plugins.awsprovider.resourcetype import (
    Function,
    Resource,
    api_arguments,
    change_tags,
    from_tag_list,
    name_of,
    to_tag_list,
)
from testbed.plugins.awsprovider.session import Session, is_gone
from testbed.plugins.codec import Bag
from testbed.plugins.provider import ProviderError

WAIT_SECONDS: Final = 600
POLL_SECONDS: Final = 0.1
ANYWHERE: Final = {"IpProtocol": "-1", "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}


class NetworkResource(Resource):
    """A network resource, described by its ID."""

    service = "ec2"
    is_taggable = True
    kind: ClassVar[str]
    """The resource type in EC2's tag specifications."""

    def complete(self, identity: str, inputs: Bag) -> None:
        """Wait until EC2 shows the resource and its tags, then finish it.

        The real provider waits for this as well.
        """
        wait(lambda: self._sight(identity, inputs), until="seen", what=identity)
        self.finish(identity, inputs)

    def _sight(self, identity: str, inputs: Bag) -> str | None:
        try:
            live = self.read(identity, inputs)
        except ClientError as error:
            if is_gone(error):
                return None
            raise
        wanted, held = inputs.get("tags") or {}, (live or {}).get("tags") or {}
        return "seen" if live is not None and wanted.items() <= held.items() else None

    def finish(self, identity: str, inputs: Bag) -> None:
        """Make the calls that need a visible resource."""
        del identity, inputs

    def new_tags(self, inputs: Bag) -> dict[str, Any]:
        """Return the argument that tags the resource at its creation."""
        tags = to_tag_list(inputs.get("tags"))
        return {"TagSpecifications": [{"ResourceType": self.kind, "Tags": tags}]} if tags else {}

    def change_tags(self, identity: str, old: Bag, new: Bag) -> None:
        """Change the resource's tags from those of the old inputs to those of the new."""
        change_tags(
            old,
            new,
            tag=lambda tags: self.api.create_tags(Resources=[identity], Tags=to_tag_list(tags)),
            untag=lambda keys: self.api.delete_tags(
                Resources=[identity], Tags=[{"Key": key} for key in keys]
            ),
        )

    def update(self, identity: str, old: Bag, new: Bag) -> None:
        self.change_tags(identity, old, new)

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

    title: ClassVar[str]
    """The resource type in messages."""

    def describe(self, identity: str) -> list[Any]:
        """Return EC2's descriptions of the resource."""
        raise NotImplementedError

    def live(self, identity: str) -> Any | None:
        """Return EC2's description of the resource, None if it is deleted."""
        return next((each for each in self.describe(identity) if each["State"] != "deleted"), None)

    def wait_until(self, state: str | None, identity: str) -> None:
        """Wait until the resource has a state, or, if `state` is None, until it is deleted."""
        wait(
            lambda: (self.live(identity) or {}).get("State"),
            until=state,
            what=f"{self.title} {identity}",
        )

    def finish(self, identity: str, inputs: Bag) -> None:
        self.wait_until("available", identity)


class Vpc(NetworkResource):
    """`aws.ec2.Vpc`."""

    token = "aws:ec2/vpc:Vpc"
    source = "ec2/vpc_.go"
    kind = "vpc"
    fixed = ("cidrBlock", "ipv4IpamPoolId", "ipv4NetmaskLength", "ipv6IpamPoolId")
    computed = ("arn", "ownerId")
    defaults = {"enableDnsSupport": True, "instanceTenancy": "default"}
    SWITCHES: Final = {
        "enableDnsHostnames": "EnableDnsHostnames",
        "enableDnsSupport": "EnableDnsSupport",
    }

    def create(self, inputs: Bag) -> str:
        answer = self.api.create_vpc(
            CidrBlock=inputs["cidrBlock"],
            InstanceTenancy=inputs["instanceTenancy"],
            **self.new_tags(inputs),
        )
        return str(answer["Vpc"]["VpcId"])

    def finish(self, identity: str, inputs: Bag) -> None:
        self._switch(identity, {}, inputs)

    def _switch(self, identity: str, old: Bag, new: Bag) -> None:
        for name, attribute in self.SWITCHES.items():
            if new.get(name) is not None and old.get(name) != new[name]:
                self.api.modify_vpc_attribute(VpcId=identity, **{attribute: {"Value": new[name]}})

    def read(self, identity: str, state: Bag) -> Bag | None:
        (vpc,) = self.api.describe_vpcs(VpcIds=[identity])["Vpcs"]
        switches = {
            name: self.api.describe_vpc_attribute(VpcId=identity, Attribute=name)[attribute][
                "Value"
            ]
            for name, attribute in self.SWITCHES.items()
        }
        return {
            **switches,
            "arn": self.arn(identity),
            "cidrBlock": vpc["CidrBlock"],
            "instanceTenancy": vpc["InstanceTenancy"],
            "ownerId": vpc["OwnerId"],
            "tags": from_tag_list(vpc.get("Tags")),
        }

    def update(self, identity: str, old: Bag, new: Bag) -> None:
        self._switch(identity, old, new)
        self.change_tags(identity, old, new)

    def delete(self, identity: str, state: Bag) -> None:
        self.api.delete_vpc(VpcId=identity)


class Subnet(NetworkResource):
    """`aws.ec2.Subnet`."""

    token = "aws:ec2/subnet:Subnet"
    source = "ec2/vpc_subnet.go"
    kind = "subnet"
    fixed = ("availabilityZone", "availabilityZoneId", "cidrBlock", "ipv6Native", "vpcId")
    computed = ("arn", "availabilityZoneId", "ownerId")
    defaults = {"mapPublicIpOnLaunch": False}

    def create(self, inputs: Bag) -> str:
        answer = self.api.create_subnet(
            VpcId=inputs["vpcId"],
            **api_arguments(inputs, CidrBlock="cidrBlock", AvailabilityZone="availabilityZone"),
            **self.new_tags(inputs),
        )
        return str(answer["Subnet"]["SubnetId"])

    def finish(self, identity: str, inputs: Bag) -> None:
        self._switch(identity, {}, inputs)

    def _switch(self, identity: str, old: Bag, new: Bag) -> None:
        is_public = new["mapPublicIpOnLaunch"]
        if old.get("mapPublicIpOnLaunch", False) != is_public:
            self.api.modify_subnet_attribute(
                SubnetId=identity, MapPublicIpOnLaunch={"Value": is_public}
            )

    def read(self, identity: str, state: Bag) -> Bag | None:
        (subnet,) = self.api.describe_subnets(SubnetIds=[identity])["Subnets"]
        return {
            "arn": subnet["SubnetArn"],
            "availabilityZone": subnet["AvailabilityZone"],
            "availabilityZoneId": subnet["AvailabilityZoneId"],
            "cidrBlock": subnet["CidrBlock"],
            "mapPublicIpOnLaunch": subnet["MapPublicIpOnLaunch"],
            "ownerId": subnet["OwnerId"],
            "tags": from_tag_list(subnet.get("Tags")),
            "vpcId": subnet["VpcId"],
        }

    def update(self, identity: str, old: Bag, new: Bag) -> None:
        self._switch(identity, old, new)
        self.change_tags(identity, old, new)

    def delete(self, identity: str, state: Bag) -> None:
        self.api.delete_subnet(SubnetId=identity)


class InternetGateway(NetworkResource):
    """`aws.ec2.InternetGateway`."""

    token = "aws:ec2/internetGateway:InternetGateway"
    source = "ec2/vpc_internet_gateway.go"
    kind = "internet-gateway"
    computed = ("arn", "ownerId")

    def create(self, inputs: Bag) -> str:
        made = self.api.create_internet_gateway(**self.new_tags(inputs))
        return str(made["InternetGateway"]["InternetGatewayId"])

    def finish(self, identity: str, inputs: Bag) -> None:
        if inputs.get("vpcId"):
            self.api.attach_internet_gateway(InternetGatewayId=identity, VpcId=inputs["vpcId"])

    def _vpc(self, identity: str) -> tuple[Mapping[str, Any], str | None]:
        answer = self.api.describe_internet_gateways(InternetGatewayIds=[identity])
        (gateway,) = answer["InternetGateways"]
        attached = gateway.get("Attachments") or [{}]
        return gateway, attached[0].get("VpcId")

    def read(self, identity: str, state: Bag) -> Bag | None:
        gateway, vpc = self._vpc(identity)
        return {
            "arn": self.arn(identity),
            "ownerId": gateway["OwnerId"],
            "tags": from_tag_list(gateway.get("Tags")),
            "vpcId": vpc,
        }

    def update(self, identity: str, old: Bag, new: Bag) -> None:
        if old.get("vpcId") != new.get("vpcId"):
            self._detach(identity)
            self.finish(identity, new)
        self.change_tags(identity, old, new)

    def _detach(self, identity: str) -> None:
        _, vpc = self._vpc(identity)
        if vpc:
            self.api.detach_internet_gateway(InternetGatewayId=identity, VpcId=vpc)

    def delete(self, identity: str, state: Bag) -> None:
        self._detach(identity)
        self.api.delete_internet_gateway(InternetGatewayId=identity)


class EgressOnlyInternetGateway(NetworkResource):
    """`aws.ec2.EgressOnlyInternetGateway`."""

    token = "aws:ec2/egressOnlyInternetGateway:EgressOnlyInternetGateway"
    source = "ec2/vpc_egress_only_internet_gateway.go"
    kind = "egress-only-internet-gateway"
    fixed = ("vpcId",)

    def create(self, inputs: Bag) -> str:
        made = self.api.create_egress_only_internet_gateway(
            VpcId=inputs["vpcId"], **self.new_tags(inputs)
        )
        return str(made["EgressOnlyInternetGateway"]["EgressOnlyInternetGatewayId"])

    def read(self, identity: str, state: Bag) -> Bag | None:
        (gateway,) = self.api.describe_egress_only_internet_gateways(
            EgressOnlyInternetGatewayIds=[identity]
        )["EgressOnlyInternetGateways"]
        return {
            "tags": from_tag_list(gateway.get("Tags")),
            "vpcId": gateway["Attachments"][0]["VpcId"],
        }

    def delete(self, identity: str, state: Bag) -> None:
        self.api.delete_egress_only_internet_gateway(EgressOnlyInternetGatewayId=identity)


class Eip(NetworkResource):
    """`aws.ec2.Eip`."""

    token = "aws:ec2/eip:Eip"
    source = "ec2/ec2_eip.go"
    kind = "elastic-ip"
    fixed = ("address", "domain", "ipamPoolId", "networkBorderGroup", "publicIpv4Pool")
    computed = ("allocationId", "publicIp")
    defaults = {"domain": "vpc"}

    def create(self, inputs: Bag) -> str:
        answer = self.api.allocate_address(Domain=inputs["domain"], **self.new_tags(inputs))
        return str(answer["AllocationId"])

    def read(self, identity: str, state: Bag) -> Bag | None:
        (address,) = self.api.describe_addresses(AllocationIds=[identity])["Addresses"]
        return {
            "allocationId": identity,
            "domain": address["Domain"],
            "publicIp": address["PublicIp"],
            "tags": from_tag_list(address.get("Tags")),
        }

    def delete(self, identity: str, state: Bag) -> None:
        self.api.release_address(AllocationId=identity)


class NatGateway(SlowResource):
    """`aws.ec2.NatGateway`."""

    title = "NAT gateway"
    token = "aws:ec2/natGateway:NatGateway"
    source = "ec2/vpc_nat_gateway.go"
    kind = "natgateway"
    fixed = ("allocationId", "connectivityType", "privateIp", "subnetId")
    computed = ("networkInterfaceId", "privateIp", "publicIp")
    defaults = {"connectivityType": "public"}

    def create(self, inputs: Bag) -> str:
        answer = self.api.create_nat_gateway(
            SubnetId=inputs["subnetId"],
            ConnectivityType=inputs["connectivityType"],
            **api_arguments(inputs, AllocationId="allocationId"),
            **self.new_tags(inputs),
        )
        return str(answer["NatGateway"]["NatGatewayId"])

    def describe(self, identity: str) -> list[Any]:
        return list(self.api.describe_nat_gateways(NatGatewayIds=[identity])["NatGateways"])

    def read(self, identity: str, state: Bag) -> Bag | None:
        gateway = self.live(identity)
        if gateway is None:
            return None
        (address,) = gateway["NatGatewayAddresses"]
        return {
            "allocationId": address.get("AllocationId"),
            "connectivityType": gateway.get("ConnectivityType") or "public",
            "networkInterfaceId": address.get("NetworkInterfaceId"),
            "privateIp": address.get("PrivateIp"),
            "publicIp": address.get("PublicIp"),
            "subnetId": gateway["SubnetId"],
            "tags": from_tag_list(gateway.get("Tags")),
        }

    def delete(self, identity: str, state: Bag) -> None:
        self.api.delete_nat_gateway(NatGatewayId=identity)
        self.wait_until(None, identity)


class RouteTable(NetworkResource):
    """`aws.ec2.RouteTable`; its routes are separate resources."""

    token = "aws:ec2/routeTable:RouteTable"
    source = "ec2/vpc_route_table.go"
    kind = "route-table"
    fixed = ("vpcId",)
    computed = ("arn", "ownerId")

    def create(self, inputs: Bag) -> str:
        answer = self.api.create_route_table(VpcId=inputs["vpcId"], **self.new_tags(inputs))
        return str(answer["RouteTable"]["RouteTableId"])

    def read(self, identity: str, state: Bag) -> Bag | None:
        (table,) = self.api.describe_route_tables(RouteTableIds=[identity])["RouteTables"]
        return {
            "arn": self.arn(identity),
            "ownerId": table["OwnerId"],
            "tags": from_tag_list(table.get("Tags")),
            "vpcId": table["VpcId"],
        }

    def delete(self, identity: str, state: Bag) -> None:
        self.api.delete_route_table(RouteTableId=identity)


class Route(Resource):
    """`aws.ec2.Route`."""

    token = "aws:ec2/route:Route"
    source = "ec2/vpc_route.go"
    service = "ec2"
    fixed = ("destinationCidrBlock", "destinationIpv6CidrBlock", "routeTableId")
    computed = ("origin", "state")
    TARGETS: Final = {"gatewayId": "GatewayId", "natGatewayId": "NatGatewayId"}

    def create(self, inputs: Bag) -> str:
        self.api.create_route(**self._arguments(inputs))
        destination = hashlib.sha256(inputs["destinationCidrBlock"].encode()).hexdigest()[:8]
        return f"r-{inputs['routeTableId']}{destination}"

    def _arguments(self, inputs: Bag) -> dict[str, Any]:
        targets = {argument: name for name, argument in self.TARGETS.items()}
        return {
            "RouteTableId": inputs["routeTableId"],
            "DestinationCidrBlock": inputs["destinationCidrBlock"],
            **api_arguments(inputs, **targets),
        }

    def read(self, identity: str, state: Bag) -> Bag | None:
        table = state["routeTableId"]
        (found,) = self.api.describe_route_tables(RouteTableIds=[table])["RouteTables"]
        for route in found["Routes"]:
            if route.get("DestinationCidrBlock") == state["destinationCidrBlock"]:
                return {
                    "routeTableId": table,
                    "destinationCidrBlock": route["DestinationCidrBlock"],
                    "origin": route.get("Origin"),
                    "state": route.get("State"),
                    **{name: route.get(key) or None for name, key in self.TARGETS.items()},
                }
        return None

    def update(self, identity: str, old: Bag, new: Bag) -> None:
        self.api.replace_route(**self._arguments(new))

    def delete(self, identity: str, state: Bag) -> None:
        self.api.delete_route(
            RouteTableId=state["routeTableId"], DestinationCidrBlock=state["destinationCidrBlock"]
        )


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
    kind = "security-group"
    automatic_name = "name"
    name_limit = 255
    fixed = ("description", "name", "namePrefix", "vpcId")
    computed = ("arn", "ownerId")
    defaults = {"description": "Managed by Pulumi", "revokeRulesOnDelete": False}

    def create(self, inputs: Bag) -> str:
        answer = self.api.create_security_group(
            GroupName=name_of(inputs),
            Description=inputs["description"],
            VpcId=inputs["vpcId"],
            **self.new_tags(inputs),
        )
        return str(answer["GroupId"])

    def finish(self, identity: str, inputs: Bag) -> None:
        self.api.revoke_security_group_egress(GroupId=identity, IpPermissions=[ANYWHERE])
        for direction, way in (("ingress", "ingress"), ("egress", "egress")):
            if rules := [_permission(rule) for rule in inputs.get(direction) or []]:
                authorize = getattr(self.api, f"authorize_security_group_{way}")
                authorize(GroupId=identity, IpPermissions=rules)

    def read(self, identity: str, state: Bag) -> Bag | None:
        (group,) = self.api.describe_security_groups(GroupIds=[identity])["SecurityGroups"]
        return {
            "arn": self.arn(identity),
            "description": group["Description"],
            "ingress": [_rule(each) for each in group["IpPermissions"]],
            "egress": [_rule(each) for each in group["IpPermissionsEgress"]],
            "name": group["GroupName"],
            "ownerId": group["OwnerId"],
            "tags": from_tag_list(group.get("Tags")),
            "vpcId": group["VpcId"],
        }

    def delete(self, identity: str, state: Bag) -> None:
        self.api.delete_security_group(GroupId=identity)


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

    title = "endpoint"
    token = "aws:ec2/vpcEndpoint:VpcEndpoint"
    source = "ec2/vpc_endpoint.go"
    kind = "vpc-endpoint"
    fixed = ("serviceName", "vpcEndpointType", "vpcId")
    computed = ("arn", "ownerId", "state")
    defaults = {"vpcEndpointType": "Gateway"}
    PLACES: Final = {
        "RouteTableIds": "routeTableIds",
        "SecurityGroupIds": "securityGroupIds",
        "SubnetIds": "subnetIds",
    }

    def create(self, inputs: Bag) -> str:
        answer = self.api.create_vpc_endpoint(
            VpcId=inputs["vpcId"],
            ServiceName=inputs["serviceName"],
            VpcEndpointType=inputs["vpcEndpointType"],
            **api_arguments(inputs, PrivateDnsEnabled="privateDnsEnabled", **self.PLACES),
            **self.new_tags(inputs),
        )
        return str(answer["VpcEndpoint"]["VpcEndpointId"])

    def describe(self, identity: str) -> list[Any]:
        return list(self.api.describe_vpc_endpoints(VpcEndpointIds=[identity])["VpcEndpoints"])

    def read(self, identity: str, state: Bag) -> Bag | None:
        endpoint = self.live(identity)
        if endpoint is None:
            return None
        groups = [each["GroupId"] for each in endpoint.get("Groups") or []]
        return {
            "arn": self.arn(identity),
            "ownerId": endpoint.get("OwnerId"),
            "privateDnsEnabled": endpoint.get("PrivateDnsEnabled"),
            "routeTableIds": sorted(endpoint.get("RouteTableIds") or []) or None,
            "securityGroupIds": sorted(groups) or None,
            "serviceName": endpoint["ServiceName"],
            "state": endpoint["State"],
            "subnetIds": sorted(endpoint.get("SubnetIds") or []) or None,
            "tags": from_tag_list(endpoint.get("Tags")),
            "vpcEndpointType": endpoint["VpcEndpointType"],
            "vpcId": endpoint["VpcId"],
        }

    def delete(self, identity: str, state: Bag) -> None:
        self.api.delete_vpc_endpoints(VpcEndpointIds=[identity])
        self.wait_until(None, identity)


def get_availability_zones(session: Session, arguments: Mapping[str, Any]) -> Bag:
    """`aws.get_availability_zones`."""
    region = arguments.get("region") or session.region
    filters = [
        {"Name": block["name"], "Values": block["values"]}
        for block in arguments.get("filters") or []
    ]
    if arguments.get("state"):
        filters.append({"Name": "state", "Values": [arguments["state"]]})
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
    """`aws.ec2.get_vpc_endpoint_service`: exactly one service, by short name and type."""
    region = arguments.get("region") or session.region
    wanted, kind = arguments.get("service"), arguments.get("serviceType")
    pages = session.client("ec2", region).get_paginator("describe_vpc_endpoint_services")
    details = [each for page in pages.paginate() for each in page["ServiceDetails"]]
    matching = [
        each
        for each in details
        if str(each["ServiceName"]).endswith(f".{region}.{wanted}")
        and kind in (None, *(offered["ServiceType"] for offered in each["ServiceType"]))
    ]
    if len(matching) != 1:
        raise ProviderError(f"{len(matching)} VPC endpoint services {wanted} ({kind}) matched")
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
        "service": wanted,
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
