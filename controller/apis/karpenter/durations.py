"""Durations in the format of Go and Karpenter: `1h30m`, `720h`, `1.5s`, `0s`, or `Never`."""

from __future__ import annotations

import re
from datetime import timedelta

_WHOLE = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|h|m|s))+")
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|h|m|s)")
LONGEST = timedelta(microseconds=(2**63 - 1) // 1000)
"""The longest duration in Go, about 292 years; a longer duration counts as this.

The sum of this duration and the current time is a valid `datetime`.
"""

_UNITS = {
    "h": timedelta(hours=1),
    "m": timedelta(minutes=1),
    "s": timedelta(seconds=1),
    "ms": timedelta(milliseconds=1),
}


def parse(text: str | None) -> timedelta | None:
    """Return the duration; None for `Never` and for None.

    Raises:
        ValueError: the text is neither a duration nor `Never`.

    """
    return None if text is None or text == "Never" else _parse(text, "30s, 1h30m or Never")


def parse_finite(text: str) -> timedelta:
    """Return a finite duration; a longer one than `LONGEST` becomes `LONGEST`.

    Raises:
        ValueError: the text is not a duration.

    """
    return _parse(text, "30s or 1h30m")


def _parse(text: str, examples: str) -> timedelta:
    if not _WHOLE.fullmatch(text):
        raise ValueError(f"{text!r} is not a duration such as {examples}")
    parts = _PART.findall(text)
    try:
        whole = sum((float(number) * _UNITS[unit] for number, unit in parts), timedelta())
    except OverflowError:
        return LONGEST
    return min(whole, LONGEST)


def format_duration(duration: timedelta) -> str:
    """Return a duration in the format of `parse_finite`, largest unit first."""
    rest, text = duration, ""
    for unit, length in _UNITS.items():
        count, rest = divmod(rest, length)
        text += f"{count}{unit}" if count else ""
    return text or "0s"
