"""Prices: on-demand as AWS publishes them, spot by a formula.

The on-demand prices are those of the file that the controller ships for regions without the Pricing
API. It is data of AWS, so the test cloud reads it, although it imports nothing of the controller: a
copy could differ. Instance types without a published price have no product.

The spot price is 25 to 60 % of the on-demand price, by a hash of instance type and zone.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from testbed.cloud.ec2.instancetypes import TYPES, usage_classes, zones_of
from testbed.cloud.operations import operation
from testbed.cloud.protocol import backends
from testbed.cloud.protocol.filters import page, select_page
from testbed.cloud.protocol.wire import Call, Xml, ec2_items, ec2_list
from testbed.cloud.state.world import World, now

PRICE_LIST = Path(__file__).parents[3] / "controller/aws/instancetypes/pricelist/prices.json"

LISTED_REGION = "us-east-1"
"""The region whose prices count in regions that the file does not list. us-west-2 has the same."""

VOLUMES = {
    ("Storage", "gp3", "", "GB-Mo"): 0.08,
    ("Storage", "gp2", "", "GB-Mo"): 0.10,
    ("Storage", "io1", "", "GB-Mo"): 0.125,
    ("Storage", "io2", "", "GB-Mo"): 0.125,
    ("Storage", "st1", "", "GB-Mo"): 0.045,
    ("Storage", "sc1", "", "GB-Mo"): 0.015,
    ("Storage", "standard", "", "GB-Mo"): 0.05,
    ("System Operation", "gp3", "EBS IOPS", "IOPS-Mo"): 0.005,
    ("System Operation", "io1", "EBS IOPS", "IOPS-Mo"): 0.065,
    ("System Operation", "io2", "EBS IOPS", "IOPS-Mo"): 0.065,
    ("System Operation", "io2", "EBS IOPS Tier 2", "IOPS-Mo"): 0.0455,
    ("System Operation", "io2", "EBS IOPS Tier 3", "IOPS-Mo"): 0.03185,
    ("Provisioned Throughput", "gp3", "EBS Throughput", "GiBps-mo"): 40.96,
}
"""$ a month of EBS volumes, by product family, volume type, group and unit."""

WINDOWS_VCPU = 0.046
"""$/h per vCPU for the Windows licence."""

REGION = re.compile(r"[a-z]+(-[a-z]+)+-\d+")
"""The beginning of a zone's name."""

STARTED = now().replace(microsecond=0)


@cache
def price_list_of(region: str) -> Mapping[str, float]:
    """Return the on-demand prices of a region in $/h: Linux, shared tenancy."""
    tables = json.loads(PRICE_LIST.read_text())["regions"]
    return {
        f"{family}.{size}": float(price)
        for family, sizes in tables.get(region, tables[LISTED_REGION])["prices"].items()
        for size, price in sizes.items()
    }


@cache
def price(capacity_type: str, instance_type: str, zone: str) -> float:
    """Return the price of an offering in $/h for Linux; 0 if AWS publishes none.

    The capacity type is `spot` or `on-demand`.
    """
    region = REGION.match(zone)
    listed = price_list_of(region[0] if region else LISTED_REGION).get(instance_type, 0.0)
    if capacity_type != "spot":
        return listed
    digest = hashlib.sha256(f"{instance_type}/{zone}".encode()).digest()
    share = 0.25 + 0.35 * int.from_bytes(digest[:4]) / 0xFFFFFFFF
    return float(round(listed * share, 4))


@cache
def _spot_fragment(instance_type: str, zone: str, product: str) -> str:
    amount = price("spot", instance_type, zone)
    if product == "Windows":
        amount += WINDOWS_VCPU * TYPES[instance_type]["VCpuInfo"]["DefaultVCpus"]
    row = {
        "AvailabilityZone": zone,
        "InstanceType": instance_type,
        "ProductDescription": product,
        "SpotPrice": f"{amount:.6f}",
        "Timestamp": STARTED,
    }
    return ec2_items("DescribeSpotPriceHistory", "SpotPriceHistory", [row])[0]


@operation("ec2", "DescribeSpotPriceHistory")
def describe_spot_price_history(world: World, call: Call) -> Xml:
    """Describe the spot price of each instance type in each zone; spot prices never change."""
    call.stop_if_dry_run()
    asked = call.get("ProductDescriptions") or ["Linux/UNIX"]
    products = {"Linux/UNIX" if product.startswith("Linux/UNIX") else product for product in asked}
    wanted = set(call.get("InstanceTypes", []))
    zone_wanted = call.get("AvailabilityZone")
    rows = [
        (name, zone, product)
        for name, zones in sorted(zones_of(world.region).items())
        if (not wanted or name in wanted)
        and name in price_list_of(world.region)
        and "spot" in usage_classes(name)
        for zone in sorted(zones)
        if zone_wanted in (None, zone)
        for product in sorted(products & {"Linux/UNIX", "Windows"})
    ]
    listed, token = select_page(
        rows,
        call,
        attributes={
            "instance-type": lambda row: row[0],
            "availability-zone": lambda row: row[1],
            "product-description": lambda row: (row[2], f"{row[2]} (Amazon VPC)"),
        },
    )
    return ec2_list(
        "DescribeSpotPriceHistory",
        "SpotPriceHistory",
        [_spot_fragment(*row) for row in listed],
        next_token=token,
    )


@dataclass(frozen=True, slots=True)
class Product:
    """A product of the Pricing API, with one on-demand price."""

    family: str
    attributes: Mapping[str, str]
    amount: float
    unit: str
    description: str

    def matches(self, filters: Mapping[str, str]) -> bool:
        """Return whether every filter names an attribute, or the family, with its value."""
        named = {"productFamily": self.family, "serviceCode": "AmazonEC2"}
        return all(
            value in (named.get(name), self.attributes.get(name)) for name, value in filters.items()
        )

    def as_json(self) -> str:
        """Return the product as GetProducts lists it."""
        identity = json.dumps([self.attributes, self.family, self.unit])
        sku = hashlib.sha256(identity.encode()).hexdigest()[:16].upper()
        terms = f"{sku}.JRTCKXETXF"
        dimension = {
            "unit": self.unit,
            "endRange": "Inf",
            "beginRange": "0",
            "description": self.description,
            "appliesTo": [],
            "rateCode": f"{terms}.6YS6EN2CT7",
            "pricePerUnit": {"USD": f"{self.amount:.10f}"},
        }
        offer = {
            "priceDimensions": {f"{terms}.6YS6EN2CT7": dimension},
            "sku": sku,
            "effectiveDate": STARTED.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "offerTermCode": "JRTCKXETXF",
            "termAttributes": {},
        }
        product = {"productFamily": self.family, "attributes": self.attributes, "sku": sku}
        return json.dumps(
            {"product": product, "serviceCode": "AmazonEC2", "terms": {"OnDemand": {terms: offer}}}
        )


def _attributes(region: str, **attributes: str) -> dict[str, str]:
    return {
        "servicecode": "AmazonEC2",
        "regionCode": region,
        "locationType": "AWS Region",
        **attributes,
    }


def _instances(region: str, instance_type: str) -> Iterator[Product]:
    """Yield the products of an instance type, by operating system and tenancy."""
    facts = TYPES[instance_type]
    vcpus = facts["VCpuInfo"]["DefaultVCpus"]
    bare = " (bare metal)" if facts.get("BareMetal") else ""
    for system, surcharge in (("Linux", 0.0), ("Windows", WINDOWS_VCPU * vcpus)):
        amount = price_list_of(region)[instance_type] + surcharge
        for tenancy in ("Shared", "Dedicated"):
            attributes = _attributes(
                region,
                instanceType=instance_type,
                vcpu=str(vcpus),
                memory=f"{facts['MemoryInfo']['SizeInMiB'] / 1024:g} GiB",
                operatingSystem=system,
                preInstalledSw="NA",
                capacitystatus="Used",
                marketoption="OnDemand",
                tenancy=tenancy,
                licenseModel="No License required",
            )
            description = f"${amount:.6f} per On Demand {system} {instance_type} hour"
            yield Product(f"Compute Instance{bare}", attributes, amount, "Hrs", description)


def _volumes(region: str) -> Iterator[Product]:
    for (family, volume_type, group, unit), amount in VOLUMES.items():
        attributes = _attributes(region, volumeApiName=volume_type)
        if group:
            attributes["group"] = group
        description = f"${amount:.5f} per {unit} of {volume_type}"
        yield Product(family, attributes, amount, unit, description)


@cache
def _catalogue(region: str) -> list[Product]:
    offerings = backends.INSTANCE_TYPE_OFFERINGS["region"].get(region, [])
    sold = {each["InstanceType"] for each in offerings} & TYPES.keys()
    names = sorted(sold & price_list_of(region).keys())
    return [*_volumes(region), *(each for name in names for each in _instances(region, name))]


@operation("pricing", "GetProducts")
def get_products(world: World, call: Call) -> dict[str, Any]:
    """List the on-demand prices of EC2 and EBS, 100 per page."""
    filters = {item["Field"]: item["Value"] for item in call.get("Filters", [])}
    matching = [
        product
        for product in _catalogue(filters.get("regionCode", world.region))
        if call.get("ServiceCode", "AmazonEC2") == "AmazonEC2" and product.matches(filters)
    ]
    listed, token = page(matching, call, default=100)
    return {
        "FormatVersion": "aws_v1",
        "PriceList": [product.as_json() for product in listed],
        "NextToken": token,
    }
