"""Record when a watch of the API server reports that pods, NodeClaims and nodes reach a stage."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from testbed.kube.client import Change, ChangeType, KubeClient

NODE_POOL = "karpenter.sh/nodepool"
PATHS = {
    "pod": "/api/v1/namespaces/default/pods",
    "claim": "/apis/karpenter.sh/v1/nodeclaims",
    "node": "/api/v1/nodes",
}
STAGES = (
    "pod created",
    "claim created",
    "claim launched",
    "node created",
    "claim registered",
    "claim initialized",
    "pod bound",
    "pod running",
)
"""The recorded stages, in the order of a pod's life."""


@dataclass(slots=True)
class Stopwatch:
    """Seconds since `start` at which each object reached each stage, by stage and object UID."""

    kube: KubeClient
    began: float = 0.0
    reached: dict[str, dict[str, float]] = field(default_factory=lambda: {s: {} for s in STAGES})
    nodes: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """Nodes that carry a NodePool label, by name."""

    _moved: asyncio.Event = field(default_factory=asyncio.Event)

    def start(self) -> None:
        """Restart the clock at zero and forget every recorded stage."""
        self.began = time.monotonic()
        for seen in self.reached.values():
            seen.clear()

    def span(self, stage: str) -> tuple[float, float]:
        """Return when the first and the last object reached a stage, in seconds.

        Both are zero if no object did.
        """
        seen = self.reached[stage].values()
        return (min(seen), max(seen)) if seen else (0.0, 0.0)

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Watch pods, NodeClaims and nodes while the block runs.

        The block starts once all three watches are synced.
        """
        synced = {kind: asyncio.Event() for kind in PATHS}
        tasks = [asyncio.create_task(self._follow(kind, synced[kind])) for kind in PATHS]
        try:
            await asyncio.gather(*(event.wait() for event in synced.values()))
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def until(self, stage: str, count: int, *, patience: float) -> None:
        """Wait until `count` objects have reached a stage.

        Raises TimeoutError after `patience` seconds.
        """
        async with asyncio.timeout(patience):
            while len(self.reached[stage]) < count:
                self._moved.clear()
                await self._moved.wait()

    async def _follow(self, kind: str, synced: asyncio.Event) -> None:
        async for change in self.kube.follow(PATHS[kind]):
            if change.type is ChangeType.SYNCED:
                synced.set()
            else:
                self._take(kind, change)
            self._moved.set()

    def _take(self, kind: str, change: Change) -> None:
        metadata = change.object["metadata"]
        if kind == "node":
            if NODE_POOL not in metadata.get("labels", {}):
                return
            if change.type is ChangeType.DELETED:
                self.nodes.pop(metadata["name"], None)
            else:
                self.nodes[metadata["name"]] = change.object
        if change.type is ChangeType.DELETED:
            return
        seconds = time.monotonic() - self.began
        for stage in _stages(kind, change.object):
            self.reached[stage].setdefault(metadata["uid"], seconds)


def _stages(kind: str, wire: Mapping[str, Any]) -> Iterator[str]:
    yield f"{kind} created"
    true = {
        c["type"]
        for c in (wire.get("status") or {}).get("conditions") or []
        if c["status"] == "True"
    }
    if kind == "claim":
        yield from (
            f"claim {c.lower()}" for c in ("Launched", "Registered", "Initialized") if c in true
        )
    if kind == "pod" and wire["spec"].get("nodeName"):
        yield "pod bound"
        if "Ready" in true:
            yield "pod running"
