"""What machines cost, as AWS tells.

On-demand prices come from the Pricing API, spot prices from EC2, both every
twelve hours. What cannot be read keeps its last known price; what was never
known has none, and is not offered: a made-up price would be a decision.

Where there is no way to the Pricing API at all, nothing would ever be offered on
demand. There an on-demand price is estimated from the type's highest spot price: good
enough to order types and to prefer spot, no more.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from controller.aws.session import Aws
from controller.cloudprovider.errors import CloudProviderError

PERIOD = 12 * 3600.0
"""Seconds between two readings of all prices."""

RETRY = 300.0
"""Seconds until a failed reading is tried again."""

SPOT_SHARE = 0.4
"""What spot is taken to cost of an on-demand price that cannot be known; AWS's own figure is
"up to 90 % off", and most pools are nearer to 60 %."""

_PRODUCTS = "Linux/UNIX", "Linux/UNIX (Amazon VPC)"


log = logging.getLogger(__name__)


class Pricing:
    """The last known prices in $/h (¥/h in China); `revision` grows when any of them may differ."""

    def __init__(self, aws: Aws, *, isolated: bool = False) -> None:
        self._aws = aws
        # No Pricing endpoint can be reached from an isolated VPC or from GovCloud.
        self._on_demand_readable = not isolated and not aws.region.startswith("us-gov-")
        self._on_demand: dict[str, float] = {}
        self._spot: dict[tuple[str, str], float] = {}
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
    def is_known(self) -> bool:
        """Whether there is any price to decide by."""
        return bool(self._on_demand or self._spot)

    async def refresh(self) -> bool:
        """Read all prices anew; return whether every reading succeeded."""
        self.problems = {}
        await self._reading("spot", self._read_spot)
        if self._on_demand_readable:
            await self._reading("on-demand", self._read_on_demand)
        else:
            self._estimate_on_demand()
        self.revision += 1
        return not self.problems

    async def _reading(self, kind: str, read: Any) -> None:
        try:
            await read()
        except CloudProviderError as exc:
            self.problems[kind] = str(exc)

    async def _read_on_demand(self) -> None:
        found: dict[str, float] = {}
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
            found.update(parsed(listed, currency))
        if not found:
            raise CloudProviderError("the Pricing API returned no on-demand price")
        self._on_demand |= found

    def _estimate_on_demand(self) -> None:
        log.info("there is no way to the Pricing API: on-demand prices are estimates")
        highest: dict[str, float] = {}
        for (instance_type, _), price in self._spot.items():
            highest[instance_type] = max(price, highest.get(instance_type, 0.0))
        self._on_demand = {name: price / SPOT_SHARE for name, price in highest.items()}

    async def _read_spot(self) -> None:
        listed = await self._aws.pages(
            "ec2",
            "describe_spot_price_history",
            "SpotPriceHistory",
            ProductDescriptions=list(_PRODUCTS),
            StartTime=datetime.now(UTC),
        )
        newest: dict[tuple[str, str], tuple[datetime, float]] = {}
        for row in listed:
            key = row["InstanceType"], row["AvailabilityZone"]
            if key not in newest or row["Timestamp"] > newest[key][0]:
                newest[key] = row["Timestamp"], float(row["SpotPrice"])
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


def parsed(listed: Iterable[Any], currency: str = "USD") -> Mapping[str, float]:
    """Return prices by instance type from products of the Pricing API; free ones are left out."""
    prices: dict[str, float] = {}
    for text in listed:
        product = json.loads(text) if isinstance(text, str) else text
        instance_type = product["product"]["attributes"].get("instanceType")
        if not instance_type:
            continue
        for term in product["terms"].get("OnDemand", {}).values():
            for dimension in term["priceDimensions"].values():
                price = float(dimension["pricePerUnit"].get(currency, 0))
                if price > 0:
                    prices[instance_type] = price
    return prices
