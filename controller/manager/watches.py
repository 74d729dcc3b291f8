"""Feeds the mirror of the cluster.

The crowds (pods, nodes, volumes, budgets) are listed in pages and watched line by line.
The custom resources are watched by Kopf (see `handlers`), which tells neither when its
first list is complete nor what vanished while it was not looking: so they are listed
here before it starts, and compared with the server's list from time to time.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Any

from controller.apis import kinds
from controller.apis.kinds import Kind, T
from controller.apiserver.errors import ApiError, NotFoundError
from controller.apiserver.port import ApiServer, Change
from controller.options import Options
from controller.reconcilers.capacitybuffer.resolution import SCALABLES
from controller.state.cluster import MIRRORED, Cluster, key_of

WATCHED_BY_KOPF: tuple[Kind[Any], ...] = (
    kinds.NODE_POOL,
    kinds.NODE_CLAIM,
    kinds.EC2_NODE_CLASS,
    kinds.NODE_OVERLAY,
    kinds.CAPACITY_BUFFER,
)

RECHECK_SECONDS = 60.0
NOT_SERVED_SECONDS = 1.0

log = logging.getLogger(__name__)


SELECTING: tuple[Kind[Any], ...] = (
    kinds.SERVICE,
    kinds.REPLICATION_CONTROLLER,
    kinds.REPLICA_SET,
    kinds.STATEFUL_SET,
)
"""The kinds whose selectors say among whom a pod is spread by default."""


BUFFERING: tuple[Kind[Any], ...] = (
    kinds.CAPACITY_BUFFER,
    kinds.POD_TEMPLATE,
    *SCALABLES.values(),
)
"""Buffers, and the kinds that say what their pods are like."""

DEVICES: tuple[Kind[Any], ...] = (kinds.RESOURCE_SLICE, kinds.RESOURCE_CLAIM, kinds.DEVICE_CLASS)
"""The kinds of dynamic resource allocation."""


def followed(options: Options) -> tuple[Kind[Any], ...]:
    """Return the kinds to mirror: those always needed, and those of the features switched on."""
    gates = options.feature_gates
    wanted = (
        *MIRRORED,
        *((kinds.NODE_OVERLAY,) if gates.node_overlay else ()),
        *(BUFFERING if gates.capacity_buffer else ()),
        *(SELECTING if options.scheduler_config else ()),
        *(() if options.ignore_dra_requests else DEVICES),
    )
    return tuple(dict.fromkeys(wanted))  # features share some


@dataclass(frozen=True, slots=True)
class Watches:
    """Takes into the mirror whatever the API server tells."""

    api: ApiServer
    cluster: Cluster
    _listed: asyncio.Event = field(default_factory=asyncio.Event)
    _synced: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def custom_resources(self) -> tuple[Kind[Any], ...]:
        """The kinds that Kopf watches."""
        return tuple(kind for kind in self.cluster.mirrored if kind in WATCHED_BY_KOPF)

    async def until_listed(self) -> None:
        """Wait until the custom resources have been listed once."""
        await self._listed.wait()

    async def until_synced(self) -> None:
        """Wait until every kind has been listed once."""
        await self._synced.wait()

    async def run(self) -> None:
        """Follow every crowd, and recheck the custom resources, for ever."""
        async with asyncio.TaskGroup() as tasks:
            for kind in self.cluster.mirrored:
                follow = self._recheck if kind in WATCHED_BY_KOPF else self._follow
                tasks.create_task(follow(kind))

    async def list_custom_resources(self) -> None:
        """Fill the mirror with the custom resources, waiting until they are served."""
        await asyncio.gather(*(self._list(kind) for kind in self.custom_resources))
        self._listed.set()

    def take(self, kind: Kind[T], change: Change[T]) -> None:
        """Take in one change."""
        self.cluster.apply(kind, change)
        if self.cluster.synced:
            self._synced.set()

    async def _follow(self, kind: Kind[T]) -> None:
        async for change in self.api.watch(kind):
            self.take(kind, change)

    async def _list(self, kind: Kind[T]) -> None:
        while True:
            try:
                values = await self.api.list(kind)
                break
            except ApiError as exc:
                log.warning("cannot list %s yet: %s", kind.plural, exc)
                await asyncio.sleep(NOT_SERVED_SECONDS)
        self.take(kind, Change("RESET"))
        for value in values:
            self.take(kind, Change("ADDED", value))
        self.take(kind, Change("SYNCED"))

    async def _recheck(self, kind: Kind[T]) -> None:
        """Compare the mirror with the server, whose word on what is there is the last."""
        while True:
            await asyncio.sleep(RECHECK_SECONDS)
            try:
                listed = {key_of(value): value for value in await self.api.list(kind)}
                for value in listed.values():
                    self.take(kind, Change("MODIFIED", value))
                for value in self.cluster.list(kind):
                    if key_of(value) not in listed:
                        await self._confirm(kind, value)
            except ApiError as exc:
                log.info("cannot recheck %s: %s", kind.plural, exc)

    async def _confirm(self, kind: Kind[T], value: T) -> None:
        """Ask for an object that the list did not name: it may be younger than the list."""
        try:
            await self.api.get(kind, value.metadata.name, value.metadata.namespace)
        except NotFoundError:
            self.take(kind, Change("DELETED", value))
