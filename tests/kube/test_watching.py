"""A long list is read page by page."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from controller.apis.kinds import POD, Kind
from controller.kube import decoding, watching
from tests.builders import make_pod


class OnePage:
    """Lists everything on one page, and sends the lines of a watch in one go."""

    async def pages(self, kind: Kind[Any]) -> AsyncGenerator[decoding.Page[Any], None]:
        pods = [make_pod(f"p-{n}", node="node") for n in range(3 * watching.AT_ONCE)]
        yield decoding.Page(decoding.ListMeta(resource_version="7"), pods)

    async def stream(
        self, kind: Kind[Any], params: Mapping[str, str], *, silence_seconds: float
    ) -> AsyncGenerator[bytes, None]:
        for number in range(3 * watching.AT_ONCE):
            pod = msgspec.json.encode(make_pod(f"late-{number}", node="node"))
            yield b'{"type":"MODIFIED","object":%s}' % pod
        await asyncio.Event().wait()


@pytest.mark.parametrize("kind", ["ADDED", "MODIFIED"], ids=["page", "lines of a watch"])
async def test_other_tasks_run_while_many_objects_are_processed(kind: str) -> None:
    turns: list[int] = []
    taken = 0

    async def other() -> None:
        while True:
            turns.append(taken)
            await asyncio.sleep(0)

    waiting = asyncio.create_task(other())
    async with contextlib.aclosing(watching.follow(OnePage(), POD)) as changes:
        async for change in changes:
            taken += change.type == kind
            if taken == 3 * watching.AT_ONCE:
                break
    waiting.cancel()

    reached = sorted({0, *turns, taken})
    assert max(later - earlier for earlier, later in pairwise(reached)) <= watching.AT_ONCE
