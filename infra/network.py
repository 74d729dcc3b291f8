"""A network for a cluster made from nothing: three zones, public and private subnets.

Nodes start in the private subnets, and go out by NAT. Images come by way of the endpoints for
ECR and S3, which costs less than NAT and works where NAT fails.
"""

from __future__ import annotations

import ipaddress
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pulumi
import pulumi_aws as aws

from infra.config import ConfigError, Nat

ZONES = 3
LEAST_ZONES = 2
"""EKS refuses a cluster in fewer."""

WITHOUT_EKS = ("cac1-az3", "use1-az3", "usw1-az2")
"""Zones that take no control plane, by ID: EKS user guide, "Subnet requirements for clusters"."""

INTERFACE_ENDPOINTS = ("ecr.api", "ecr.dkr")


@dataclass(frozen=True, kw_only=True)
class NetworkArgs:
    """What the network is for, and how large."""

    cluster_name: str
    cidr: str = "10.128.0.0/16"
    nat: Nat = "single"
    """One NAT gateway for all zones; or one in each, for more money and without a single point
    of failure."""

    private_tags: Mapping[str, str] = field(default_factory=dict)
    """Of the private subnets, where nodes start: so that node classes find them."""


class Network(pulumi.ComponentResource):
    """A VPC with a public and a private subnet in each zone, NAT, and endpoints for images."""

    def __init__(
        self, name: str, args: NetworkArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("joiner:infra:Network", name, None, opts)
        self._name, self._args = name, args
        self._mine = pulumi.ResourceOptions(parent=self)
        zones = _zones(pulumi.InvokeOptions(parent=self))
        private, public = _subnet_cidrs(args.cidr)
        self.vpc = aws.ec2.Vpc(
            name,
            cidr_block=args.cidr,
            enable_dns_hostnames=True,
            enable_dns_support=True,
            tags={"Name": args.cluster_name},
            opts=self._mine,
        )
        self.private_subnets = [
            self._subnet("private", "internal-elb", zone, cidr)
            for zone, cidr in zip(zones, private, strict=False)
        ]
        self.public_subnets = [
            self._subnet("public", "elb", zone, cidr)
            for zone, cidr in zip(zones, public, strict=False)
        ]
        gateway = aws.ec2.InternetGateway(
            name, vpc_id=self.vpc.id, tags={"Name": args.cluster_name}, opts=self._mine
        )
        outside = self._table("public", gateway_id=gateway.id)
        for zone, subnet in zip(zones, self.public_subnets, strict=True):
            self._associate(f"public-{_letter(zone)}", subnet, outside)
        self._endpoints(self._ways_out(zones, gateway))
        self.register_outputs({"vpcId": self.vpc.id})

    def _ways_out(
        self, zones: Sequence[str], gateway: aws.ec2.InternetGateway
    ) -> list[aws.ec2.RouteTable]:
        """Let the private subnets out by NAT; returns the tables that say so."""
        tables: list[aws.ec2.RouteTable] = []
        for number, zone in enumerate(zones):
            if not tables or self._args.nat == "zonal":
                nat = self._nat(zone, self.public_subnets[number], gateway)
                tables.append(self._table(f"private-{_letter(zone)}", nat_gateway_id=nat.id))
            self._associate(f"private-{_letter(zone)}", self.private_subnets[number], tables[-1])
        return tables

    def _subnet(self, kind: str, role: str, zone: str, cidr: str) -> aws.ec2.Subnet:
        tags = {
            "Name": f"{self._args.cluster_name}-{kind}-{zone}",
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
            # A zone that opens between others must not move the subnets there are.
            opts=pulumi.ResourceOptions(parent=self, ignore_changes=["availabilityZone"]),
        )

    def _nat(
        self, zone: str, subnet: aws.ec2.Subnet, gateway: aws.ec2.InternetGateway
    ) -> aws.ec2.NatGateway:
        name = f"{self._name}-{_letter(zone)}"
        tags = {"Name": f"{self._args.cluster_name}-{zone}"}
        # Neither can be had, nor let go of, without the way to the internet.
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
            tags={"Name": f"{self._args.cluster_name}-{title}"},
            opts=self._mine,
        )
        aws.ec2.Route(
            name,
            route_table_id=table.id,
            destination_cidr_block="0.0.0.0/0",
            opts=self._mine,
            **way,
        )
        return table

    def _associate(self, title: str, subnet: aws.ec2.Subnet, table: aws.ec2.RouteTable) -> None:
        # A subnet has one table; and an association that is changed in place gets another ID.
        options = pulumi.ResourceOptions(
            parent=self, replace_on_changes=["routeTableId"], delete_before_replace=True
        )
        aws.ec2.RouteTableAssociation(
            f"{self._name}-{title}", subnet_id=subnet.id, route_table_id=table.id, opts=options
        )

    def _endpoints(self, tables: Sequence[aws.ec2.RouteTable]) -> None:
        group = aws.ec2.SecurityGroup(
            f"{self._name}-endpoints",
            description="From the network to the endpoints of AWS's services",
            vpc_id=self.vpc.id,
            ingress=[
                {
                    "protocol": "tcp",
                    "from_port": 443,
                    "to_port": 443,
                    "cidr_blocks": [self.vpc.cidr_block],
                }
            ],
            tags={"Name": f"{self._args.cluster_name}-endpoints"},
            opts=self._mine,
        )
        aws.ec2.VpcEndpoint(
            f"{self._name}-s3",
            vpc_id=self.vpc.id,
            service_name=self._service("s3", "Gateway"),
            vpc_endpoint_type="Gateway",
            route_table_ids=[table.id for table in tables],
            tags={"Name": f"{self._args.cluster_name}-s3"},
            opts=self._mine,
        )
        for service in INTERFACE_ENDPOINTS:
            aws.ec2.VpcEndpoint(
                f"{self._name}-{service}",
                vpc_id=self.vpc.id,
                service_name=self._service(service, "Interface"),
                vpc_endpoint_type="Interface",
                subnet_ids=[subnet.id for subnet in self.private_subnets],
                security_group_ids=[group.id],
                private_dns_enabled=True,
                tags={"Name": f"{self._args.cluster_name}-{service}"},
                opts=self._mine,
            )

    def _service(self, service: str, kind: str) -> str:
        """Return a service's full name, which differs among partitions."""
        options = pulumi.InvokeOptions(parent=self)
        found = aws.ec2.get_vpc_endpoint_service(service=service, service_type=kind, opts=options)
        return str(found.service_name)


def _zones(options: pulumi.InvokeOptions) -> list[str]:
    """Return the zones for a cluster: the first three of the region that EKS can use."""
    available = aws.get_availability_zones(
        state="available",
        exclude_zone_ids=list(WITHOUT_EKS),
        # Local and wavelength zones are asked for; they have no control planes.
        filters=[{"name": "opt-in-status", "values": ["opt-in-not-required"]}],
        opts=options,
    )
    zones = sorted(available.names)[:ZONES]
    if len(zones) < LEAST_ZONES:
        raise ConfigError(
            [f"joiner:cluster='create': there is no room for a cluster in {len(zones)} zones"]
        )
    return zones


def _subnet_cidrs(cidr: str) -> tuple[list[str], list[str]]:
    """Divide a network: a quarter of it for each private subnet, and of the rest for public ones.

    The public ones hold load balancers and NAT; nodes and pods take addresses of the others.
    """
    network = ipaddress.ip_network(cidr)
    *private, rest = network.subnets(prefixlen_diff=2)
    public = itertools.islice(rest.subnets(prefixlen_diff=2), ZONES)
    return [str(subnet) for subnet in private], [str(subnet) for subnet in public]


def _letter(zone: str) -> str:
    """Return what tells a zone from others of its region."""
    return zone[-1]
