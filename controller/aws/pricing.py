"""What machines cost, as AWS tells.

On-demand prices come from the Pricing API, spot prices from EC2, both every
twelve hours. What cannot be read keeps its last known price, and on-demand prices
that were never read are those that ship with the controller: `caveat` says how old
they are. What has no price at all is not offered: a made-up price would be a decision.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from controller.aws.pricelist import shipped
from controller.aws.rows import readable
from controller.aws.session import Aws
from controller.cloudprovider.errors import CloudProviderError

PERIOD = 12 * 3600.0
"""Seconds between two readings of all prices."""

RETRY = 300.0
"""Seconds until a failed reading is tried again."""

ON_DEMAND, SPOT = "on-demand", "spot"
_RIGHTS = {ON_DEMAND: "pricing:GetProducts", SPOT: "ec2:DescribeSpotPriceHistory"}
_PRODUCTS = "Linux/UNIX", "Linux/UNIX (Amazon VPC)"


class Pricing:
    """The last known prices in $/h (¥/h in China); `revision` grows when any of them may differ."""

    def __init__(self, aws: Aws, *, isolated: bool = False) -> None:
        self._aws = aws
        # No Pricing endpoint can be reached from an isolated VPC or from GovCloud.
        self._on_demand_readable = not isolated and not aws.region.startswith("us-gov-")
        self._shipped = shipped(aws.region)
        self._on_demand: dict[str, float] = dict(self._shipped.prices)
        self._spot: dict[tuple[str, str], float] = {}
        self._read_at: dict[str, datetime] = {}
        self._refreshing = asyncio.Lock()
        self.revision = 0
        self.problems: dict[str, str] = {}
        """What could not be read the last time, by kind: `on-demand`, `spot`."""

    def on_demand(self, instance_type: str) -> float | None:
        """Return the price of a type, or None when it was never known."""
        return self._on_demand.get(instance_type)

    def spot(self, instance_type: str, zone: str) -> float | None:
        """Return the spot price of a type in a zone, or None when it was never known."""
        return self._spot.get((instance_type, zone))

    @property
    def caveat(self) -> str:
        """What whoever buys by these prices must know; empty while they are those of today."""
        caveats = []
        if ON_DEMAND not in self._read_at or ON_DEMAND in self.problems:
            caveats.append(f"on-demand prices are {self._provenance}: {self._reason(ON_DEMAND)}")
        if SPOT in self.problems:
            since = self._read_at.get(SPOT)
            age = f"those of {since:%Y-%m-%d %H:%M} UTC" if since else "unknown, so none is bought"
            caveats.append(f"spot prices are {age}: {self._reason(SPOT)}")
        return "; ".join(caveats)

    @property
    def _provenance(self) -> str:
        since = self._read_at.get(ON_DEMAND)
        if since:
            return f"those of {since:%Y-%m-%d %H:%M} UTC"
        return f"those of {self._shipped.region} on {self._shipped.day}, as shipped"

    def _reason(self, kind: str) -> str:
        if kind == ON_DEMAND and not self._on_demand_readable:
            return "the Pricing API cannot be reached from here"
        if kind not in self.problems:
            return "they are being read"
        return f"{self.problems[kind]}; allow {_RIGHTS[kind]}, and a way to its endpoint"

    async def refresh(self) -> bool:
        """Read all prices anew; return whether every reading succeeded."""
        async with self._refreshing:
            readings = {SPOT: self._read_spot}
            if self._on_demand_readable:
                readings[ON_DEMAND] = self._read_on_demand
            problems = {}
            for kind, read in readings.items():
                try:
                    await read()
                except CloudProviderError as exc:
                    problems[kind] = str(exc)
                else:
                    self._read_at[kind] = datetime.now(UTC)
            self.problems = problems
            self.revision += 1
            return not problems

    async def _read_on_demand(self) -> None:
        prices: dict[str, float] = {}
        currency = "CNY" if self._aws.region.startswith("cn-") else "USD"
        for tenancy, family in (
            ("Shared", "Compute Instance"),
            ("Dedicated", "Compute Instance (bare metal)"),
        ):
            listed = await self._aws.pages(
                "pricing",
                "get_products",
                "PriceList",
                ServiceCode="AmazonEC2",
                Filters=_filters(self._aws.region, tenancy, family),
            )
            prices.update(parsed(listed, currency))
        if not prices:
            raise CloudProviderError("the Pricing API returned no on-demand price")
        # What ships is for want of better: it fills no gap in what the region itself says.
        self._on_demand = self._on_demand | prices if ON_DEMAND in self._read_at else prices

    async def _read_spot(self) -> None:
        listed = await self._aws.pages(
            "ec2",
            "describe_spot_price_history",
            "SpotPriceHistory",
            ProductDescriptions=list(_PRODUCTS),
            StartTime=datetime.now(UTC),
        )
        newest: dict[tuple[str, str], tuple[datetime, float]] = {}
        for key, since, price in readable(listed, _spot_row, what="spot prices"):
            if key not in newest or since > newest[key][0]:
                newest[key] = since, price
        if not newest:
            raise CloudProviderError("EC2 returned no spot price")
        self._spot |= {key: price for key, (_, price) in newest.items()}


def _filters(region: str, tenancy: str, family: str) -> list[dict[str, str]]:
    wanted = {
        "regionCode": region,
        "serviceCode": "AmazonEC2",
        "preInstalledSw": "NA",
        "operatingSystem": "Linux",
        "capacitystatus": "Used",
        "marketoption": "OnDemand",
        "tenancy": tenancy,
        "productFamily": family,
    }
    return [{"Type": "TERM_MATCH", "Field": f, "Value": v} for f, v in wanted.items()]


def _spot_row(row: Mapping[str, Any]) -> tuple[tuple[str, str], datetime, float]:
    price = float(row["SpotPrice"])
    if not 0 < price < math.inf:
        raise ValueError("nothing is sold at this price")
    return (row["InstanceType"], row["AvailabilityZone"]), row["Timestamp"], price


def parsed(listed: Iterable[Any], currency: str = "USD") -> Mapping[str, float]:
    """Return prices by instance type from products of the Pricing API; free ones are left out."""
    read = readable(listed, lambda product: _product(product, currency), what="products")
    return {instance_type: price for instance_type, price in read if 0 < price < math.inf}


def _product(listed: Any, currency: str) -> tuple[str, float]:
    product = json.loads(listed) if isinstance(listed, str) else listed
    instance_type = product["product"]["attributes"].get("instanceType") or ""
    prices = [
        float(dimension["pricePerUnit"].get(currency, 0))
        for term in product["terms"].get("OnDemand", {}).values()
        for dimension in term["priceDimensions"].values()
    ]
    return instance_type, max(prices, default=0.0) if instance_type else 0.0
