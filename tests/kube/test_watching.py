"""A long list is read page by page."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from controller.apis.kinds import POD, Kind
from controller.kube import decoding, watching
from tests.builders import make_pod


class OnePage:
    """Lists everything on one page, and reports nothing after that."""

    async def pages(self, kind: Kind[Any]) -> AsyncGenerator[decoding.Page[Any], None]:
        pods = [make_pod(f"p-{n}", node="node") for n in range(3 * watching.AT_ONCE)]
        yield decoding.Page(decoding.ListMeta(resource_version="7"), pods)

    async def stream(
        self, kind: Kind[Any], params: Mapping[str, str], *, silence_seconds: float
    ) -> AsyncGenerator[bytes, None]:
        await asyncio.Event().wait()
        yield b""


async def test_other_tasks_run_while_a_page_is_processed() -> None:
    turns: list[int] = []
    taken = 0

    async def other() -> None:
        while True:
            turns.append(taken)
            await asyncio.sleep(0)

    waiting = asyncio.create_task(other())
    async with contextlib.aclosing(watching.follow(OnePage(), POD)) as changes:
        async for change in changes:
            taken += change.type == "ADDED"
            if change.type == "SYNCED":
                break
    waiting.cancel()

    assert taken == 3 * watching.AT_ONCE
    assert {watching.AT_ONCE, 2 * watching.AT_ONCE} <= set(turns)
