"""Prices that are part of a release, used while the Pricing API is not available.

`prices.json` has one table of on-demand prices per region, with the date on which it was read. A
region without a table uses that of another region of its partition, named by `PriceList.region`.
The tables are those of Karpenter's releases; `python -m controller.aws.instancetypes.pricelist`
renders them.

`volumes.json` has EBS prices in $ a month: per GiB by volume type, and per provisioned IOPS. They
were transcribed by hand from AWS's price page, on the date that the file states.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PATH = Path(__file__).with_name("prices.json")
_VOLUMES = Path(__file__).with_name("volumes.json")

_SUBSTITUTES = (("us-gov-", "us-gov-west-1"), ("cn-", "cn-north-1"), ("", "us-east-1"))
"""Start of a region's name, and the region whose table it uses if it has none of its own."""


@dataclass(frozen=True, slots=True)
class PriceList:
    """On-demand prices in $/h (¥/h in China) by instance type, as read for `region` on `day`."""

    region: str
    day: str
    prices: Mapping[str, float]


@cache
def shipped_prices(region: str) -> PriceList:
    """Return the price list of a region, or that of another region of its partition."""
    tables = json.loads(PATH.read_text())["regions"]
    if region not in tables:
        region = next(other for start, other in _SUBSTITUTES if region.startswith(start))
    table = tables[region]
    prices = {
        f"{family}.{size}": float(price)
        for family, sizes in table["prices"].items()
        for size, price in sizes.items()
    }
    return PriceList(region, table["day"], prices)


@cache
def shipped_volumes(region: str) -> Mapping[str, float]:
    """Return the EBS prices of a region in $ a month; empty in China, for which there are none.

    Keys are volume types (per GiB), and `gp3-iops`, `io1-iops` (per provisioned IOPS). A region
    without prices, GovCloud included, uses those of us-east-1.
    """
    tables = json.loads(_VOLUMES.read_text())["regions"]
    if region.startswith("cn-"):
        return {}
    prices: Mapping[str, float] = tables.get(region, tables["us-east-1"])
    return prices
