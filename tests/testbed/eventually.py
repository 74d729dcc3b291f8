"""Wait until a condition is true."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

DEADLINE_SECONDS = 120.0
INTERVAL_SECONDS = 0.05


async def eventually(
    question: Callable[[], Awaitable[T | None]], *, within: float = DEADLINE_SECONDS
) -> T:
    """Poll until the result is true and return it.

    An AssertionError counts as "not yet"; the last one is raised when the time is up.
    """
    deadline = asyncio.get_running_loop().time() + within
    while True:
        refusal = AssertionError(f"still not true after {within:g} s")
        try:
            if answer := await question():
                return answer
        except AssertionError as exc:
            refusal = exc
        if asyncio.get_running_loop().time() > deadline:
            raise refusal
        await asyncio.sleep(INTERVAL_SECONDS)
