"""Prices that are part of a release, each with the date on which they were read.

While the Pricing API is not available, they order instance types and allow launches. `prices.json`
holds one table of on-demand prices per region with its date. A region without a table uses the
table of the first region of its partition, and `PriceList.region` says so. AWS publishes the
prices. The tables are those of Karpenter's releases, and `python -m
controller.aws.instancetypes.pricelist` renders them.

`volumes.json` holds EBS prices as AWS' page of prices stated them on its date, transcribed by hand
and not read since: in $ a month, per GiB by volume type and per provisioned IOPS.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PATH = Path(__file__).with_name("prices.json")
_VOLUMES = Path(__file__).with_name("volumes.json")

_STAND_INS = (("us-gov-", "us-gov-west-1"), ("cn-", "cn-north-1"), ("", "us-east-1"))
"""Start of a region's name, and the region whose table it uses if it has none of its own."""


@dataclass(frozen=True, slots=True)
class PriceList:
    """On-demand prices in $/h (¥/h in China) by instance type, as read for `region` on `day`."""

    region: str
    day: str
    prices: Mapping[str, float]


@cache
def shipped(region: str) -> PriceList:
    """Return the price list of a region, or the one of the region that substitutes for it."""
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
