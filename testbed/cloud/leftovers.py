"""Resources that did not exist at the start of the cloud; tests assert that none are left."""

from __future__ import annotations

from collections.abc import Iterator

from testbed.cloud.ec2 import addresses, networks, reservations
from testbed.cloud.ec2.instances import alive
from testbed.cloud.protocol import backends
from testbed.cloud.state.world import World


def all_resources(world: World) -> Iterator[tuple[str, str]]:
    """Yield (resource type, name or ID) of every resource in the region."""
    for instance in alive(world):
        yield "instances", instance.identity
        for volume in instance.volumes:
            yield "volumes", volume.identity
        for interface in instance.interfaces:
            yield "networkInterfaces", interface.identity
    for volume_identity in world.detached_volumes:
        yield "volumes", volume_identity
    for interface_identity in world.detached_interfaces:
        yield "networkInterfaces", interface_identity
    for template in world.launch_templates.values():
        yield "launchTemplates", template.name
    yield from _iam()
    yield from _messaging_resources(world)
    yield from _eks(world)
    yield from _network(world)
    yield from _network_tags(world)
    for identity in reservations.active(world):
        yield "capacityReservations", identity
    for name in world.placement_groups:
        yield "placementGroups", name
    for identity in addresses.security_groups(world):
        yield "securityGroups", identity


def _iam() -> Iterator[tuple[str, str]]:
    iam = backends.iam()
    for profile in list(iam.instance_profiles.values()):
        yield "instanceProfiles", profile.name
    for role in list(iam.roles.values()):
        yield "roles", role.name
        for name in (*role.policies, *role.managed_policies):
            yield "rolePolicies", f"{role.name}: {name}"
    for policy in list(iam.managed_policies.values()):
        if f"::{backends.ACCOUNT}:" in policy.arn:
            yield "policies", policy.arn
    for provider in list(iam.open_id_providers.values()):
        yield "openIdConnectProviders", provider.arn


def _messaging_resources(world: World) -> Iterator[tuple[str, str]]:
    for name in list(backends.sqs(world.region).queues):
        yield "queues", name
    for bus in list(backends.events(world.region).event_buses.values()):
        for rule in list(bus.rules.values()):
            yield "rules", rule.name


def _eks(world: World) -> Iterator[tuple[str, str]]:
    held = world.clusters
    for _, principal in held.access_entries:
        yield "accessEntries", principal
    for association in held.associations.values():
        account = f"{association['namespace']}/{association['serviceAccount']}"
        yield "podIdentityAssociations", account
    for name, addon in held.addons:
        yield "addons", f"{name}/{addon}"
    for group, name in held.node_groups:
        yield "nodeGroups", f"{group}/{name}"
    for cluster_name, name in held.fargate_profiles:
        yield "fargateProfiles", f"{cluster_name}/{name}"
    for cluster in held.described.values():
        yield "clusters", cluster["name"]
        for key, value in cluster["tags"].items():
            yield "clusterTags", f"{cluster['name']}: {key}={value}"


def _network(world: World) -> Iterator[tuple[str, str]]:
    ec2 = backends.ec2(world.region)
    for vpc in list(ec2.vpcs):
        yield "vpcs", vpc
    for in_zone in list(ec2.subnets.values()):
        for subnet in list(in_zone):
            yield "subnets", subnet
    for gateway in list(ec2.internet_gateways):
        yield "internetGateways", gateway
    for gateway in list(ec2.egress_only_internet_gateways):
        yield "egressOnlyInternetGateways", gateway
    for table in list(ec2.route_tables):
        yield "routeTables", table
    for address in list(ec2.addresses):
        yield "addresses", address.allocation_id
    for nat in networks.nat_gateways(world):
        yield "natGateways", nat.id
    for endpoint in networks.endpoints(world):
        yield "vpcEndpoints", endpoint.id


def _network_tags(world: World) -> Iterator[tuple[str, str]]:
    for identity, tags in list(backends.ec2(world.region).tags.items()):
        if identity.startswith(("subnet-", "sg-", "vpc-", "rtb-")):
            for key, value in list(tags.items()):
                yield "networkTags", f"{identity}: {key}={value}"


def identities(world: World) -> frozenset[str]:
    """Return every resource in the region as `<resource type> <name or ID>`."""
    return frozenset(f"{kind} {identity}" for kind, identity in all_resources(world))


def report(world: World) -> dict[str, list[str]]:
    """Return names of resources that did not exist at the cloud's start, by type; empty if none."""
    by_kind: dict[str, list[str]] = {}
    with world.lock:
        for kind, identity in all_resources(world):
            if f"{kind} {identity}" not in world.seeded:
                by_kind.setdefault(kind, []).append(identity)
    return {kind: sorted(names) for kind, names in sorted(by_kind.items())}
