"""Prices of instance types and of EBS volumes.

Joiner reads on-demand prices and those of EBS from the Pricing API, and spot prices from EC2, every
12 hours. After a failure it keeps the last known prices, or those that are part of its release;
`caveat` says how old on-demand and spot prices are. On-demand and spot offerings without a price
are not launched.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from controller.aws.instancetypes.pricelist import shipped_prices, shipped_volumes
from controller.aws.instancetypes.surcharges import VolumePrices
from controller.aws.rows import readable
from controller.aws.session import Aws
from controller.cloudprovider.errors import CloudProviderError

PERIOD = 12 * 3600.0
"""Seconds between two updates of all prices."""

RETRY = 300.0
"""Seconds until an update is retried that failed or returned invalid items."""

ON_DEMAND, SPOT, VOLUMES = "on-demand", "spot", "volumes"
_RIGHTS = {ON_DEMAND: "pricing:GetProducts", SPOT: "ec2:DescribeSpotPriceHistory"}
_PRODUCTS = "Linux/UNIX", "Linux/UNIX (Amazon VPC)"
_LINUX = {
    "serviceCode": "AmazonEC2",
    "preInstalledSw": "NA",
    "operatingSystem": "Linux",
    "capacitystatus": "Used",
    "marketoption": "OnDemand",
}
"""Attributes of the products of running Linux instances."""

_TIERS = {"EBS IOPS Tier 2": "-iops-2", "EBS IOPS Tier 3": "-iops-3"}
_SUFFIXES = {"Storage": "", "System Operation": "-iops", "Provisioned Throughput": "-throughput"}
"""The suffix of a key of `VolumePrices`, by product family."""


class Pricing:
    """The last known prices, in $/h (¥/h in China); `revision` grows with every update."""

    def __init__(self, aws: Aws, *, isolated: bool = False) -> None:
        self._aws = aws
        # No Pricing endpoint can be reached from an isolated VPC or from GovCloud.
        self._on_demand_readable = not isolated and not aws.region.startswith("us-gov-")
        self._shipped = shipped_prices(aws.region)
        self._on_demand: dict[str, float] = dict(self._shipped.prices)
        self._spot: dict[tuple[str, str], float] = {}
        self.volumes = VolumePrices(shipped_volumes(aws.region))
        self._read_at: dict[str, datetime] = {}
        self._refreshing = asyncio.Lock()
        self.revision = 0
        self.problems: dict[str, str] = {}
        """The errors of the last update, by price type: `on-demand`, `spot`, `volumes`."""

    def on_demand(self, instance_type: str) -> float | None:
        """Return the on-demand price of an instance type in $/h, or None if unknown."""
        return self._on_demand.get(instance_type)

    def spot(self, instance_type: str, zone: str) -> float | None:
        """Return the spot price of an instance type in a zone in $/h, or None if unknown."""
        return self._spot.get((instance_type, zone))

    @property
    def caveat(self) -> str:
        """Why prices are not current and what to do; empty if they are current."""
        caveats = []
        if ON_DEMAND not in self._read_at or ON_DEMAND in self.problems:
            caveats.append(f"on-demand prices are {self._provenance}: {self._reason(ON_DEMAND)}")
        if SPOT in self.problems:
            since = self._read_at.get(SPOT)
            age = (
                f"those of {since:%Y-%m-%d %H:%M} UTC"
                if since
                else "unknown, so no spot instances are launched"
            )
            caveats.append(f"spot prices are {age}: {self._reason(SPOT)}")
        return "; ".join(caveats)

    @property
    def _provenance(self) -> str:
        since = self._read_at.get(ON_DEMAND)
        if since:
            return f"those of {since:%Y-%m-%d %H:%M} UTC"
        return f"those of {self._shipped.region} on {self._shipped.day}, part of this release"

    def _reason(self, kind: str) -> str:
        if kind == ON_DEMAND and not self._on_demand_readable:
            return "the Pricing API is not available in this region or VPC"
        if kind not in self.problems:
            return "the first update is in progress"
        return (
            f"{self.problems[kind]}; allow {_RIGHTS[kind]} in the controller's IAM role, and "
            "network access to its endpoint"
        )

    async def refresh(self) -> bool:
        """Update all prices; return whether every request succeeded and every item was valid."""
        async with self._refreshing:
            complete = True
            readings = {SPOT: self._read_spot}
            if self._on_demand_readable:
                readings |= {ON_DEMAND: self._read_on_demand, VOLUMES: self._read_volumes}
            problems = {}
            for kind, read in readings.items():
                try:
                    complete &= await read()
                except CloudProviderError as exc:
                    if exc.reason == "Stopping":
                        return False
                    problems[kind] = str(exc)
                else:
                    self._read_at[kind] = datetime.now(UTC)
            self.problems = problems
            self.revision += 1
            return complete and not problems

    async def _read_on_demand(self) -> bool:
        requests = (
            {"productFamily": "Compute Instance", "tenancy": "Shared", **_LINUX},
            {"productFamily": "Compute Instance (bare metal)", "tenancy": "Dedicated", **_LINUX},
        )
        prices, complete = await self._prices(requests, _product, what="products")
        if not prices:
            raise CloudProviderError(
                f"the Pricing API returned no on-demand price for {self._aws.region}"
            )
        # The release's prices are not merged with those of the API: they are only a fallback.
        self._on_demand = self._on_demand | prices if ON_DEMAND in self._read_at else prices
        return complete

    async def _read_volumes(self) -> bool:
        families = ("Storage", "System Operation", "Provisioned Throughput")
        requests = [{"productFamily": family} for family in families]
        rates, complete = await self._prices(requests, _volume_rate, what="volumes")
        self.volumes = VolumePrices({**self.volumes.rates, **rates})
        return complete

    async def _prices(
        self,
        requests: Iterable[Mapping[str, str]],
        read: Callable[[Any, str], tuple[str, float]],
        *,
        what: str,
    ) -> tuple[dict[str, float], bool]:
        """Return the prices of the products by name, and whether every product was valid.

        A request is the attributes of its products. `read` returns the name and the price of a
        product in a currency. Products without a name or a price are left out.
        """
        listed = [product for request in requests for product in await self._products(request)]
        products = readable(listed, lambda product: read(product, self._currency), what=what)
        prices = {name: price for name, price in products.values if name and 0 < price < math.inf}
        return prices, products.complete

    async def _products(self, attributes: Mapping[str, str]) -> list[Any]:
        """Return the EC2 products of the region with these attributes."""
        wanted = {"regionCode": self._aws.region, **attributes}
        return await self._aws.pages(
            "pricing",
            "get_products",
            "PriceList",
            ServiceCode="AmazonEC2",
            Filters=[{"Type": "TERM_MATCH", "Field": f, "Value": v} for f, v in wanted.items()],
        )

    @property
    def _currency(self) -> str:
        return "CNY" if self._aws.region.startswith("cn-") else "USD"

    async def _read_spot(self) -> bool:
        listed = await self._aws.pages(
            "ec2",
            "describe_spot_price_history",
            "SpotPriceHistory",
            ProductDescriptions=list(_PRODUCTS),
            StartTime=datetime.now(UTC),
        )
        newest: dict[tuple[str, str], tuple[datetime, float]] = {}
        read = readable(listed, _spot_row, what="spot prices")
        for key, since, price in read.values:
            if key not in newest or since > newest[key][0]:
                newest[key] = since, price
        if not newest:
            raise CloudProviderError(f"EC2 returned no spot price for {self._aws.region}")
        self._spot |= {key: price for key, (_, price) in newest.items()}
        return read.complete


def _spot_row(row: Mapping[str, Any]) -> tuple[tuple[str, str], datetime, float]:
    price = float(row["SpotPrice"])
    if not 0 < price < math.inf:
        raise ValueError("invalid spot price")
    return (row["InstanceType"], row["AvailabilityZone"]), row["Timestamp"], price


def _volume_rate(listed: Any, currency: str) -> tuple[str, float]:
    """Return the key and the price of a product; the key is empty for other products."""
    product = json.loads(listed) if isinstance(listed, str) else listed
    attributes = product["product"]["attributes"]
    name = attributes.get("volumeApiName")
    if not name:
        return "", 0.0
    suffix = _SUFFIXES[product["product"]["productFamily"]]
    suffix = _TIERS.get(attributes.get("group", ""), suffix)
    # AWS states the price of throughput per GiB/s.
    per_gib = any(one["unit"].startswith("GiBps") for one in _dimensions(product))
    return f"{name}{suffix}", _price(product, currency) / (1024 if per_gib else 1)


def _product(listed: Any, currency: str) -> tuple[str, float]:
    product = json.loads(listed) if isinstance(listed, str) else listed
    instance_type = product["product"]["attributes"].get("instanceType") or ""
    return instance_type, _price(product, currency) if instance_type else 0.0


def _price(product: Mapping[str, Any], currency: str) -> float:
    """Return the greatest on-demand price of a product; 0 if it has none."""
    prices = [float(one["pricePerUnit"].get(currency, 0)) for one in _dimensions(product)]
    return max(prices, default=0.0)


def _dimensions(product: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    terms = product["terms"].get("OnDemand", {}).values()
    return [dimension for term in terms for dimension in term["priceDimensions"].values()]
