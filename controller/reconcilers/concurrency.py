"""Concurrent calls whose failure is raised only after all of them have ended."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

Result = TypeVar("Result")


async def gather_all(*calls: Awaitable[Result]) -> list[Result]:
    """Run calls together until each has ended, and return their results in the same order.

    Raises the first failure, in the order of the calls, once all have ended.
    """
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    results = []
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
        results.append(outcome)
    return results
