"""The network of a new cluster: a VPC with public and private subnets in up to three zones.

Nodes launch in the private subnets, and reach the internet through NAT. Image layers are pulled
through the S3 gateway endpoint, which is free. An interface endpoint costs money in each zone, so
it is created only for the services that are listed.
"""

from __future__ import annotations

import ipaddress
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pulumi
import pulumi_aws as aws
from botocore.exceptions import BotoCoreError, ClientError

from controller.apis import labels
from infra.clusterapi import ClusterLocation
from infra.config.forms import ConfigError, IpFamily, Nat
from infra.policies import Place

ZONES = 3
LEAST_ZONES = 2
"""EKS requires subnets in at least two zones."""

WITHOUT_EKS = ("cac1-az3", "use1-az3", "usw1-az2")
"""IDs of zones without EKS control planes: EKS user guide, "Subnet requirements for clusters"."""

CHINA = "aws-cn"
"""Partition in which the names of some endpoint services begin with `cn.com.amazonaws`, such as
those of ecr, ec2, sqs and eks. Pulumi's lookup by service assumes `com.amazonaws`."""

EVERYWHERE = "0.0.0.0/0"
EVERYWHERE_IPV6 = "::/0"


@dataclass(frozen=True, kw_only=True)
class NetworkArgs:
    """The cluster of the network, its address range, and its optional parts."""

    place: Place
    cidr: str = "10.128.0.0/16"
    nat: Nat = "single"
    """`single`: one NAT gateway for all zones. `zonal`: one in each zone, which costs more and has
    no single point of failure."""

    private_tags: Mapping[str, str] = field(default_factory=dict)
    """Tags of the private subnets, by which EC2NodeClasses select them."""

    interface_endpoints: Sequence[str] = ()
    """AWS services that get an interface endpoint in each zone, such as ecr.api."""

    ip_family: IpFamily = "ipv4"
    """With ipv6, subnets are dual-stack."""

    zones: Mapping[str, str] = field(default_factory=dict)
    """Zone of each existing private subnet, by the subnet's CIDR: see `zones_in_use`."""


class Network(pulumi.ComponentResource):
    """A VPC with a public and a private subnet in each zone, NAT, and VPC endpoints."""

    def __init__(
        self, name: str, args: NetworkArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("joiner:infra:Network", name, None, opts)
        self._name, self._args = name, args
        self._mine = pulumi.ResourceOptions(parent=self)
        private, public = _subnet_cidrs(args.cidr)
        zones = _zones(private, args.zones, pulumi.InvokeOptions(parent=self))
        dual = {"assign_generated_ipv6_cidr_block": True} if self._has_ipv6 else {}
        self.vpc = aws.ec2.Vpc(
            name,
            cidr_block=args.cidr,
            enable_dns_hostnames=True,
            enable_dns_support=True,
            tags={"Name": args.place.cluster_name},
            opts=self._mine,
            **dual,
        )
        self.private_subnets = [
            self._subnet("private", "internal-elb", zone, cidr, index)
            for index, (zone, cidr) in enumerate(zip(zones, private, strict=False))
        ]
        self.public_subnets = [
            self._subnet("public", "elb", zone, cidr, ZONES + index)
            for index, (zone, cidr) in enumerate(zip(zones, public, strict=False))
        ]
        gateway = aws.ec2.InternetGateway(
            name, vpc_id=self.vpc.id, tags={"Name": args.place.cluster_name}, opts=self._mine
        )
        outside = self._table("public", gateway_id=gateway.id)
        if self._has_ipv6:
            self._route_ipv6("public", outside, gateway_id=gateway.id)
        for zone, subnet in zip(zones, self.public_subnets, strict=True):
            self._associate(f"public-{_letter(zone)}", subnet, outside)
        tables = self._internet_routes(zones, gateway)
        self._endpoint_of_s3(tables)
        if args.interface_endpoints:
            self._endpoints(args.interface_endpoints)
        self.register_outputs({"vpcId": self.vpc.id})

    @property
    def _has_ipv6(self) -> bool:
        return self._args.ip_family == "ipv6"

    def _internet_routes(
        self, zones: Sequence[str], gateway: aws.ec2.InternetGateway
    ) -> list[aws.ec2.RouteTable]:
        """Route the private subnets to the internet through NAT; return their route tables."""
        tables: list[aws.ec2.RouteTable] = []
        egress = self._egress_gateway() if self._has_ipv6 else None
        for number, zone in enumerate(zones):
            if not tables or self._args.nat == "zonal":
                nat = self._nat(zone, self.public_subnets[number], gateway)
                tables.append(self._table(f"private-{_letter(zone)}", nat_gateway_id=nat.id))
                if egress:
                    title = f"private-{_letter(zone)}"
                    self._route_ipv6(title, tables[-1], egress_only_gateway_id=egress.id)
            self._associate(f"private-{_letter(zone)}", self.private_subnets[number], tables[-1])
        return tables

    def _egress_gateway(self) -> aws.ec2.EgressOnlyInternetGateway:
        """Create the egress-only gateway: private subnets reach the internet by IPv6, one way."""
        return aws.ec2.EgressOnlyInternetGateway(
            self._name,
            vpc_id=self.vpc.id,
            tags={"Name": self._args.place.cluster_name},
            opts=self._mine,
        )

    def _subnet(self, kind: str, role: str, zone: str, cidr: str, index: int) -> aws.ec2.Subnet:
        """Create a subnet; its index selects its /64 block of the VPC's IPv6 addresses."""
        tags = {
            "Name": f"{self._args.place.cluster_name}-{kind}-{zone}",
            f"kubernetes.io/role/{role}": "1",
            **(self._args.private_tags if kind == "private" else {}),
        }
        return aws.ec2.Subnet(
            f"{self._name}-{kind}-{_letter(zone)}",
            vpc_id=self.vpc.id,
            availability_zone=zone,
            cidr_block=cidr,
            map_public_ip_on_launch=kind == "public",
            tags=tags,
            **self._ipv6_of_subnet(index),
            # An existing subnet stays in its zone: a change would replace it.
            opts=pulumi.ResourceOptions(parent=self, ignore_changes=["availabilityZone"]),
        )

    def _ipv6_of_subnet(self, index: int) -> dict[str, Any]:
        if not self._has_ipv6:
            return {}
        block = self.vpc.ipv6_cidr_block.apply(lambda whole: _ipv6_subnet(whole, index))
        return {"ipv6_cidr_block": block, "assign_ipv6_address_on_creation": True}

    def _nat(
        self, zone: str, subnet: aws.ec2.Subnet, gateway: aws.ec2.InternetGateway
    ) -> aws.ec2.NatGateway:
        name = f"{self._name}-{_letter(zone)}"
        tags = {"Name": f"{self._args.place.cluster_name}-{zone}"}
        # AWS needs the internet gateway to create and to delete an address or a NAT gateway.
        after = pulumi.ResourceOptions(parent=self, depends_on=[gateway])
        address = aws.ec2.Eip(name, domain="vpc", tags=tags, opts=after)
        return aws.ec2.NatGateway(
            name, allocation_id=address.id, subnet_id=subnet.id, tags=tags, opts=after
        )

    def _table(self, title: str, **way: pulumi.Input[str]) -> aws.ec2.RouteTable:
        name = f"{self._name}-{title}"
        table = aws.ec2.RouteTable(
            name,
            vpc_id=self.vpc.id,
            tags={"Name": f"{self._args.place.cluster_name}-{title}"},
            opts=self._mine,
        )
        aws.ec2.Route(
            name,
            route_table_id=table.id,
            destination_cidr_block=EVERYWHERE,
            opts=self._mine,
            **way,
        )
        return table

    def _route_ipv6(self, title: str, table: aws.ec2.RouteTable, **way: pulumi.Input[str]) -> None:
        aws.ec2.Route(
            f"{self._name}-{title}-ipv6",
            route_table_id=table.id,
            destination_ipv6_cidr_block=EVERYWHERE_IPV6,
            opts=self._mine,
            **way,
        )

    def _associate(self, title: str, subnet: aws.ec2.Subnet, table: aws.ec2.RouteTable) -> None:
        # A subnet has one route table, so the old association is deleted first. AWS gives an
        # association that is changed in place another ID, so it is replaced.
        options = pulumi.ResourceOptions(
            parent=self, replace_on_changes=["routeTableId"], delete_before_replace=True
        )
        aws.ec2.RouteTableAssociation(
            f"{self._name}-{title}", subnet_id=subnet.id, route_table_id=table.id, opts=options
        )

    def _endpoint_of_s3(self, tables: Sequence[aws.ec2.RouteTable]) -> None:
        aws.ec2.VpcEndpoint(
            f"{self._name}-s3",
            vpc_id=self.vpc.id,
            service_name=self._service("s3", "Gateway"),
            vpc_endpoint_type="Gateway",
            route_table_ids=[table.id for table in tables],
            tags={"Name": f"{self._args.place.cluster_name}-s3"},
            opts=self._mine,
        )

    def _endpoints(self, services: Sequence[str]) -> None:
        group = aws.ec2.SecurityGroup(
            f"{self._name}-endpoints",
            description="From the network to the endpoints of AWS services",
            vpc_id=self.vpc.id,
            ingress=[
                {
                    "protocol": "tcp",
                    "from_port": 443,
                    "to_port": 443,
                    "cidr_blocks": [self.vpc.cidr_block],
                }
            ],
            tags={"Name": f"{self._args.place.cluster_name}-endpoints"},
            opts=self._mine,
        )
        for service in services:
            aws.ec2.VpcEndpoint(
                f"{self._name}-{service}",
                vpc_id=self.vpc.id,
                service_name=self._service(service, "Interface"),
                vpc_endpoint_type="Interface",
                subnet_ids=[subnet.id for subnet in self.private_subnets],
                security_group_ids=[group.id],
                private_dns_enabled=True,
                tags={"Name": f"{self._args.place.cluster_name}-{service}"},
                opts=self._mine,
            )

    def _service(self, service: str, kind: str) -> str:
        """Return the full name of an endpoint service, which differs between partitions."""
        options = pulumi.InvokeOptions(parent=self)
        place = self._args.place
        asked: dict[str, Any] = {"service": service}
        if place.partition == CHINA:
            name = f"com.amazonaws.{place.region}.{service}"
            asked = {"filters": [{"name": "service-name", "values": [name, f"cn.{name}"]}]}
        found = aws.ec2.get_vpc_endpoint_service(**asked, service_type=kind, opts=options)
        return str(found.service_name)


def zones_in_use(location: ClusterLocation, installation: str) -> dict[str, str]:
    """Return the zone of each subnet of the installation, by the subnet's CIDR.

    Zones are chosen once: when AWS opens another zone, subnets keep their zone, addresses and NAT.
    The zones are read from AWS instead of the state. So the choice survives an `up` that ended
    before the state was written, and a lost state.

    Raises:
        ConfigError: the request to EC2 failed.

    """
    asked = [{"Name": f"tag:{labels.TAG_INSTALLATION}", "Values": [installation]}]
    try:
        pages = location.client("ec2").get_paginator("describe_subnets").paginate(Filters=asked)
        subnets = [subnet for page in pages for subnet in page["Subnets"]]
    except (BotoCoreError, ClientError) as exc:
        raise ConfigError(
            f"EC2 does not list the subnets of the stack: {exc}. Check the credentials, which "
            "need ec2:DescribeSubnets, and joiner:region"
        ) from exc
    return {subnet["CidrBlock"]: subnet["AvailabilityZone"] for subnet in subnets}


def _zones(
    cidrs: Sequence[str], in_use: Mapping[str, str], options: pulumi.InvokeOptions
) -> list[str]:
    """Return the zones of the private subnets with these CIDRs, in the same order.

    An existing subnet keeps its zone. The others take free zones of the region in which EKS has
    control planes. If the region has too few zones, the result is shorter than `cidrs`.

    Raises:
        ConfigError: fewer than `LEAST_ZONES` zones are available.

    """
    available = aws.get_availability_zones(
        state="available",
        exclude_zone_ids=list(WITHOUT_EKS),
        # Excludes local and wavelength zones, which need an opt-in and have no control planes.
        filters=[{"name": "opt-in-status", "values": ["opt-in-not-required"]}],
        opts=options,
    )
    taken = {in_use[cidr] for cidr in cidrs if cidr in in_use}
    free = iter(sorted(set(available.names) - taken))
    chosen = [in_use.get(cidr) or next(free, "") for cidr in cidrs]
    zones = list(itertools.takewhile(bool, chosen))
    if len(zones) < LEAST_ZONES:
        raise ConfigError(
            f"joiner:cluster='create': EKS needs {LEAST_ZONES} availability zones, but the "
            f"region has {len(zones)} that can be used: choose another joiner:region"
        )
    return zones


def _subnet_cidrs(cidr: str) -> tuple[list[str], list[str]]:
    """Return the CIDRs of the private and of the public subnets.

    Each private subnet gets a quarter of the network, for nodes and pods. Each public subnet gets
    a quarter of the remaining quarter, for load balancers and NAT.
    """
    network = ipaddress.ip_network(cidr)
    *private, rest = network.subnets(prefixlen_diff=2)
    public = itertools.islice(rest.subnets(prefixlen_diff=2), ZONES)
    return [str(subnet) for subnet in private], [str(subnet) for subnet in public]


def _ipv6_subnet(cidr: str, index: int) -> str:
    """Return the /64 block with this index in a VPC's IPv6 block."""
    network = ipaddress.IPv6Network(cidr)
    return str(next(itertools.islice(network.subnets(new_prefix=64), index, None)))


def _letter(zone: str) -> str:
    """Return a zone's letter, which is unique in its region."""
    return zone[-1]
