"""On-demand prices that ship with the controller, each with the day they were read.

They order types, and let nodes be bought, while the Pricing API cannot be asked.
`prices.json` holds one table per region and date; where a region has none, that of the
same partition's first region stands in, and says so. AWS publishes the prices; the
tables are taken from those that Karpenter's releases carry, and rendered by
`python -m controller.aws.pricelist`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PATH = Path(__file__).with_name("prices.json")

_STAND_INS = (("us-gov-", "us-gov-west-1"), ("cn-", "cn-north-1"), ("", "us-east-1"))
"""By how a region's name begins: whose prices are taken where the region has no table."""


@dataclass(frozen=True, slots=True)
class PriceList:
    """Prices in $/h (¥/h in China) by instance type, as read for `region` on `day`."""

    region: str
    day: str
    prices: Mapping[str, float]


@cache
def shipped(region: str) -> PriceList:
    """Return the table of a region, or the one that stands in for it."""
    tables = json.loads(PATH.read_text())["regions"]
    if region not in tables:
        region = next(other for start, other in _STAND_INS if region.startswith(start))
    table = tables[region]
    prices = {
        f"{family}.{size}": float(price)
        for family, sizes in table["prices"].items()
        for size, price in sizes.items()
    }
    return PriceList(region, table["day"], prices)
