"""Durations as Karpenter writes them: `1h30m`, `720h`, `0s`, or `Never`."""

from __future__ import annotations

import re
from datetime import timedelta

_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|h|m|s)")
_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}


def parse(text: str | None) -> timedelta | None:
    """Return the duration; None for `Never` and for nothing at all.

    Raises:
        ValueError: the text is neither a duration nor `Never`.

    """
    if text is None or text == "Never":
        return None
    parts = _PART.findall(text)
    if not parts or "".join(n + u for n, u in parts) != text:
        raise ValueError(f"{text!r} is not a duration such as 30s, 1h30m or Never")
    return timedelta(seconds=sum(float(n) * _SECONDS[u] for n, u in parts))


def written(duration: timedelta | None) -> str:
    """Write a duration back, largest unit first; None is `Never`."""
    if duration is None:
        return "Never"
    seconds = duration.total_seconds()
    if seconds != int(seconds):
        return f"{round(seconds * 1000)}ms"
    hours, rest = divmod(int(seconds), 3600)
    minutes, rest = divmod(rest, 60)
    text = "".join(f"{n}{u}" for n, u in ((hours, "h"), (minutes, "m"), (rest, "s")) if n)
    return text or "0s"
