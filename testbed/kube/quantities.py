"""Kubernetes quantities, as far as the testbed's nodes and pods use them."""

from __future__ import annotations

import re
from fractions import Fraction

_QUANTITY = re.compile(
    r"(?P<number>[+-]?(\d+\.?\d*|\.\d+))(?P<suffix>[numkMGTPE]|[KMGTPE]i|[eE][+-]?\d+)?"
)
_SUFFIXES = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    "": Fraction(1),
    **{suffix: Fraction(1000 ** (power + 1)) for power, suffix in enumerate("kMGTPE")},
    **{f"{suffix}i": Fraction(1024 ** (power + 1)) for power, suffix in enumerate("KMGTPE")},
}

MEBIBYTE = 2**20
GIBIBYTE = 2**30


def parse_quantity(text: str | int | float) -> Fraction:
    """Return the exact value of a quantity, in cores, bytes or a count.

    Raises ValueError if the text is not a quantity.
    """
    match = _QUANTITY.fullmatch(str(text).strip())
    if match is None:
        raise ValueError(f"{text!r} is not a quantity")
    number, suffix = Fraction(match["number"]), match["suffix"] or ""
    if suffix in _SUFFIXES:
        return number * _SUFFIXES[suffix]
    return number * Fraction(10) ** int(suffix[1:])


def same_quantity(one: object, other: object) -> bool:
    """Return whether both values are quantities of the same amount, such as 1000m and 1."""
    if not (isinstance(one, str | int | float) and isinstance(other, str | int | float)):
        return False
    try:
        return parse_quantity(one) == parse_quantity(other)
    except ValueError:
        return False


def format_cpu(cores: Fraction) -> str:
    """Format cores as whole millicores, rounded down, as a kubelet does."""
    return f"{int(cores * 1000)}m"


def format_memory(amount: Fraction) -> str:
    """Format bytes as whole kibibytes, rounded down, as a kubelet does."""
    return f"{int(amount / 1024)}Ki"
