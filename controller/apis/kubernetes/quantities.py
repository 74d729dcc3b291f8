"""Kubernetes quantities as integers in thousandths of their unit.

`"100m"` CPU is 100, `"1"` CPU is 1,000, `"1Gi"` of memory is 1,073,741,824,000: one scale for
every resource. Grammar, rounding and the greatest amount are the same as in
`k8s.io/apimachinery/pkg/api/resource.Quantity`.
"""

from __future__ import annotations

import re
from decimal import MAX_EMAX, MIN_EMIN, ROUND_UP, Context, Decimal
from functools import lru_cache

MILLI = 1000
"""Thousandths per unit."""

MAX_AMOUNT = (2**63 - 1) * MILLI
"""The maximum amount, in thousandths of the resource's unit; a larger amount counts as this."""

_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_DECIMAL_ABOVE_ONE = [suffix for suffix, power in _DECIMAL.items() if power > 0]
_FORM = re.compile(
    r"([+-]?)([0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE]([+-]?[0-9]{1,18})|(Ki|Mi|Gi|Ti|Pi|Ei|[numkMGTPE])|)"
)
_FINEST, _COARSEST = -10, 20
"""Powers of ten below which a number rounds to the smallest amount, or above which to the
greatest."""

_SHOWN = 40
"""Number of characters of an invalid quantity that a message shows."""


@lru_cache(maxsize=65536)
def parse(quantity: str | int | float) -> int:
    """Return a quantity in thousandths of its unit.

    A finer quantity is rounded away from zero, as in Kubernetes, so that a request is never rounded
    to 0. A number counts as its JSON text.

    Raises:
        ValueError: the text is not a quantity; the message contains it.

    """
    match = _FORM.fullmatch(str(quantity))
    if match is None:
        shown = repr(quantity) if len(str(quantity)) <= _SHOWN else f"{str(quantity)[:_SHOWN]!r}…"
        raise ValueError(f"{shown} is not a quantity such as 100m, 2 or 1.5Gi")
    sign, digits, exponent, suffix = match.groups()
    number = Decimal(digits)
    power = int(exponent or 0) + _DECIMAL.get(suffix or "", 0)
    magnitude = number.adjusted() + power
    if not number:
        return 0
    if magnitude > _COARSEST:
        milli = MAX_AMOUNT
    elif magnitude < _FINEST:
        milli = 1
    else:
        exactly = Context(prec=len(digits) + _COARSEST, Emin=MIN_EMIN, Emax=MAX_EMAX)
        scaled = exactly.multiply(number.scaleb(power, exactly), MILLI * _BINARY.get(suffix, 1))
        milli = min(int(scaled.to_integral_value(ROUND_UP)), MAX_AMOUNT)
    return -milli if sign == "-" else milli


def amount(quantity: str | int | float) -> int:
    """Return a quantity that cannot be negative, in thousandths of its unit.

    Raises:
        ValueError: it is not a quantity, or negative; the message contains it.

    """
    milli = parse(quantity)
    if milli < 0:
        raise ValueError(f"{quantity!r} is negative; allowed are 0 and more")
    return milli


def format_quantity(milli: int, resource: str = "") -> str:
    """Return thousandths as a quantity, in the unit that is usual for the resource."""
    if milli % MILLI:
        return f"{milli}m"
    units = milli // MILLI
    if resource == "memory" or "storage" in resource or resource.startswith("hugepages-"):
        for suffix in ("Ti", "Gi", "Mi", "Ki"):
            if units and units % _BINARY[suffix] == 0:
                return f"{units // _BINARY[suffix]}{suffix}"
    return str(units)


def canonical(quantity: str | int) -> str:
    """Return a quantity in Kubernetes' canonical form: `1024Gi` is `1Ti`, `1500M` is `1500M`.

    Raises:
        ValueError: the text is not a quantity; the message contains it.

    """
    units, rest = divmod(parse(quantity), MILLI)
    if rest:
        return format_quantity(units * MILLI + rest)
    binary = str(quantity).endswith("i") and abs(units) >= 1024
    base, suffixes = (1024, _BINARY) if binary else (1000, _DECIMAL_ABOVE_ONE)
    suffix = ""
    for larger in suffixes:
        if not units or units % base:
            break
        units, suffix = units // base, larger
    return f"{units}{suffix}"
