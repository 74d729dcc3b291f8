"""Reads a live cluster as a world, again and again."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from controller.apis.karpenter.disruption import Disruption
from controller.apis.kinds import DISRUPTION
from controller.apiserver.errors import ApiError
from controller.apiserver.port import ApiServer
from controller.offline.record import InstanceTypeSource, instance_types_of, recorded
from controller.options import Options

TYPES_SECONDS = 600.0
"""How long instance types and prices are used again. Reading them takes many calls to AWS."""

Connect = Callable[[], AbstractAsyncContextManager[tuple[ApiServer, Options]]]
"""Connects to a cluster; also yields the settings of its controller."""


class LiveCluster:
    """A cluster, read through its API server.

    Instance types are read again after ten minutes, or when a NodePool has changed.
    """

    def __init__(
        self,
        connect: Connect,
        market: Callable[[Options], InstanceTypeSource | None],
        *,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`say` receives the progress and the warnings of the reads that ask AWS."""
        self._connect, self._market, self._say, self._clock = connect, market, say, clock
        self._types: list[dict[str, Any]] = []
        self._known: list[tuple[str, Any]] | None = None
        self._read_at = 0.0

    async def read(self) -> tuple[dict[str, Any], Sequence[Disruption]]:
        """Return the cluster as a world, and the recorded decisions.

        Raises:
            QuestionError: a required kind cannot be listed.

        """
        first = self._known is None
        async with self._connect() as (api, options):
            world = await recorded(api, None, options, self._say if first else _ignore)
            pools = [(pool["metadata"]["name"], pool["spec"]) for pool in world["nodePools"]]
            if pools != self._known or self._clock() - self._read_at > TYPES_SECONDS:
                self._types = await instance_types_of(api, self._market(options), self._say)
                self._known, self._read_at = pools, self._clock()
            world["instanceTypes"] = self._types
            try:
                return world, await api.list(DISRUPTION)
            except ApiError:
                return world, ()  # a cluster run by Karpenter has no such kind


def _ignore(_: str) -> None:
    """Drop what was said at the first read already."""
