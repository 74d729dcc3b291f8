"""Parses lists in AWS responses item by item: an invalid item does not affect the others."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")

_SHOWN = 5
_WIDTH = 160
_UNREADABLE = (KeyError, IndexError, TypeError, ValueError, AttributeError)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Rows(Generic[T]):
    """The parsed items of a list; not `complete` if invalid items were skipped."""

    values: list[T]
    complete: bool


def readable(rows: Iterable[R], read: Callable[[R], T], *, what: str) -> Rows[T]:
    """Parse the items of a list; invalid items are skipped, and logged as one error.

    `read` parses an item. `what` names the items in the log.
    """
    values: list[T] = []
    left_out: list[str] = []
    for row in rows:
        try:
            values.append(read(row))
        except _UNREADABLE as exc:
            left_out.append(f"{exc!r} in {str(row)[:_WIDTH]}")
    if left_out:
        log.error(
            "skipped items of an AWS response that have an unexpected format; please report it",
            extra={"what": what, "count": len(left_out), "rows": left_out[:_SHOWN]},
        )
    return Rows(values, complete=not left_out)
