"""What AWS lists, read row by row: one that cannot be read must not cost us the others."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

_SHOWN = 5
_WIDTH = 160
_UNREADABLE = (KeyError, IndexError, TypeError, ValueError, AttributeError)

log = logging.getLogger(__name__)


def readable(rows: Iterable[R], read: Callable[[R], T], *, what: str) -> list[T]:
    """Read each row; those that are not as AWS documents them are left out, and named."""
    values: list[T] = []
    left_out: list[str] = []
    for row in rows:
        try:
            values.append(read(row))
        except _UNREADABLE as exc:
            left_out.append(f"{exc!r} in {str(row)[:_WIDTH]}")
    if left_out:
        log.error(
            "left out rows that AWS lists and that cannot be read",
            extra={"what": what, "count": len(left_out), "rows": left_out[:_SHOWN]},
        )
    return values
