"""Kubernetes quantities as integers in thousandths of their unit.

`"100m"` CPU is 100, `"1"` CPU is 1,000, `"1Gi"` of memory is 1,073,741,824,000:
exact in int64 for anything a node can hold, and one scale for every resource.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache

MILLI = 1000
"""Thousandths in a unit."""

_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}
_DECIMAL = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    "": Fraction(1),
    "k": Fraction(10**3),
    "M": Fraction(10**6),
    "G": Fraction(10**9),
    "T": Fraction(10**12),
    "P": Fraction(10**15),
    "E": Fraction(10**18),
}
_FORM = re.compile(  # longer exponents mean nothing, and take minutes to write out
    r"([+-]?(?:\d+\.?\d*|\.\d+))(?:([eE][+-]?\d{1,3})|(Ki|Mi|Gi|Ti|Pi|Ei|[numkMGTPE])|)$"
)


@lru_cache(maxsize=65536)
def parse(quantity: str | int | float) -> int:
    """Return a quantity in thousandths of its unit, rounded up as Kubernetes does.

    Raises:
        ValueError: the text is not a quantity; the message carries it.

    """
    if isinstance(quantity, int):
        return quantity * MILLI
    if isinstance(quantity, float):
        return math.ceil(Fraction(Decimal(str(quantity))) * MILLI)
    match = _FORM.fullmatch(quantity.strip())
    if match is None:
        raise ValueError(f"{quantity!r} is not a quantity such as 100m, 2 or 1.5Gi")
    number, exponent, suffix = match.groups()
    scale = Fraction(_BINARY[suffix]) if suffix in _BINARY else _DECIMAL[suffix or ""]
    value = Fraction(Decimal(number + (exponent or ""))) * scale
    return math.ceil(value * MILLI)


def written(milli: int, resource: str = "") -> str:
    """Write thousandths back as a quantity in the form people use for the resource."""
    if milli % MILLI:
        return f"{milli}m"
    units = milli // MILLI
    if resource == "memory" or "storage" in resource or resource.startswith("hugepages-"):
        for suffix in ("Ti", "Gi", "Mi", "Ki"):
            if units and units % _BINARY[suffix] == 0:
                return f"{units // _BINARY[suffix]}{suffix}"
    return str(units)
