"""Instance types and their offerings: moto's data, with cached XML and paging."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

from testbed.cloud.operations import operation
from testbed.cloud.protocol import backends
from testbed.cloud.protocol.errors import AwsError
from testbed.cloud.protocol.filters import select_page
from testbed.cloud.protocol.wire import Call, Xml, ec2_items, ec2_list
from testbed.cloud.state.world import World

TYPES: Mapping[str, Mapping[str, Any]] = backends.INSTANCE_TYPES
"""Instance type → its description, as DescribeInstanceTypes returns it."""


@cache
def zones_of(region: str) -> Mapping[str, frozenset[str]]:
    """Return the zones of the region that offer each instance type, by instance type."""
    by_type: dict[str, set[str]] = {}
    for offering in backends.INSTANCE_TYPE_OFFERINGS["availability-zone"].get(region, []):
        by_type.setdefault(offering["InstanceType"], set()).add(offering["Location"])
    return {name: frozenset(zones) for name, zones in by_type.items() if name in TYPES}


def architectures(instance_type: str) -> list[str]:
    """Return the CPU architectures that an instance type supports."""
    return list(TYPES[instance_type]["ProcessorInfo"]["SupportedArchitectures"])


def usage_classes(instance_type: str) -> list[str]:
    """Return the usage classes of an instance type: on-demand, spot, capacity-block."""
    return list(TYPES[instance_type].get("SupportedUsageClasses") or [])


def pods_by_interfaces(instance_type: str) -> int:
    """Return the pod limit of an instance type: the IPs of its default network card.

    interfaces × (IPv4 addresses per interface - 1) + 2, as in EKS's max-pods formula.
    """
    network = TYPES[instance_type]["NetworkInfo"]
    card = network["NetworkCards"][network.get("DefaultNetworkCardIndex") or 0]
    interfaces = int(card["MaximumNetworkInterfaces"])
    return interfaces * (int(network["Ipv4AddressesPerInterface"]) - 1) + 2


@cache
def _fragment(instance_type: str) -> str:
    return ec2_items("DescribeInstanceTypes", "InstanceTypes", [TYPES[instance_type]])[0]


def _attribute(path: Iterable[str]) -> Callable[[str], list[str] | None]:
    def look(instance_type: str) -> list[str] | None:
        fact: Any = TYPES[instance_type]
        for key in path:
            if isinstance(fact, list):
                fact = [each.get(key) for each in fact]
            else:
                fact = (fact or {}).get(key)
        if fact is None:
            return None
        values = fact if isinstance(fact, list) else [fact]
        return [str(value).lower() if isinstance(value, bool) else str(value) for value in values]

    return look


ATTRIBUTES = {name: _attribute(path) for name, path in backends.INSTANCE_TYPE_FILTERS.items()}


@operation("ec2", "DescribeInstanceTypes")
def describe_instance_types(world: World, call: Call) -> Xml:
    """Describe the instance types offered in the region."""
    call.stop_if_dry_run()
    offered = zones_of(world.region)
    wanted = call.get("InstanceTypes") or sorted(offered)
    unknown = [name for name in wanted if name not in offered]
    if unknown:
        raise AwsError(
            "InvalidInstanceType",
            f"The following supplied instance types do not exist: [{', '.join(unknown)}]",
        )
    listed, token = select_page(wanted, call, attributes=ATTRIBUTES, default=100)
    return ec2_list(
        "DescribeInstanceTypes",
        "InstanceTypes",
        [_fragment(name) for name in listed],
        next_token=token,
    )


@cache
def _offering_fragment(instance_type: str, location_type: str, location: str) -> str:
    offering = {
        "InstanceType": instance_type,
        "LocationType": location_type,
        "Location": location,
    }
    return ec2_items("DescribeInstanceTypeOfferings", "InstanceTypeOfferings", [offering])[0]


@operation("ec2", "DescribeInstanceTypeOfferings")
def describe_instance_type_offerings(world: World, call: Call) -> Xml:
    """Describe the offerings: instance types by region, zone or zone ID."""
    call.stop_if_dry_run()
    location_type = call.get("LocationType", "region")
    offerings = backends.INSTANCE_TYPE_OFFERINGS[location_type].get(world.region, [])
    listed, token = select_page(
        (o for o in offerings if o["InstanceType"] in TYPES),
        call,
        attributes={
            "instance-type": lambda o: str(o["InstanceType"]),
            "location": lambda o: str(o["Location"]),
        },
    )
    items = [_offering_fragment(o["InstanceType"], location_type, o["Location"]) for o in listed]
    return ec2_list(
        "DescribeInstanceTypeOfferings", "InstanceTypeOfferings", items, next_token=token
    )
