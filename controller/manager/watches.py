"""Feeds the mirror, the controller's copy of the cluster's objects.

Kinds with many objects (pods, nodes, volumes, PodDisruptionBudgets) are listed in pages and watched
here. Kopf watches the custom resources (see `handlers`), but does not report when its first list is
complete, nor which objects were deleted while it did not watch. So this module lists the custom
resources before Kopf starts, and compares the mirror with the server's list periodically.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from controller.apis import kinds
from controller.apis.kinds import Kind, T
from controller.apiserver.errors import ApiError, NotFoundError, UnreadableError
from controller.apiserver.port import ApiServer, Change
from controller.options import Options
from controller.state.buffers import SCALABLES
from controller.state.cluster import MIRRORED, Cluster, key_of
from controller.telemetry import logs

WATCHED_BY_KOPF: tuple[Kind[Any], ...] = (
    kinds.NODE_POOL,
    kinds.NODE_CLAIM,
    kinds.EC2_NODE_CLASS,
    kinds.NODE_OVERLAY,
    kinds.CAPACITY_BUFFER,
)

RECHECK_SECONDS = 60.0
NOT_SERVED_SECONDS = 1.0

TAKEN_AT_ONCE = 100
"""The number of objects after which other tasks of the event loop may run."""

log = logging.getLogger(__name__)


SELECTING: tuple[Kind[Any], ...] = (
    kinds.SERVICE,
    kinds.REPLICATION_CONTROLLER,
    kinds.REPLICA_SET,
    kinds.STATEFUL_SET,
)
"""The kinds whose selectors determine default topology spread constraints."""


BUFFERING: tuple[Kind[Any], ...] = (
    kinds.CAPACITY_BUFFER,
    kinds.POD_TEMPLATE,
    *SCALABLES.values(),
)
"""Capacity buffers, and the kinds that their pods are derived from."""

DEVICES: tuple[Kind[Any], ...] = (
    kinds.RESOURCE_SLICE,
    kinds.RESOURCE_CLAIM,
    kinds.DEVICE_CLASS,
    kinds.DEVICE_TAINT_RULE,
)
"""Kinds of Dynamic Resource Allocation."""


GANGS: tuple[Kind[Any], ...] = (kinds.POD_GROUP, kinds.COSCHEDULING_POD_GROUP)
"""The kinds that have the size of gangs."""

OPTIONAL = frozenset({*GANGS, kinds.DEVICE_TAINT_RULE})
"""The kinds that some clusters do not serve. Kubernetes serves DeviceTaintRules since 1.37."""


def mirrored_kinds(options: Options) -> tuple[Kind[Any], ...]:
    """Return the kinds to mirror, with the kinds of enabled features."""
    gates = options.feature_gates
    wanted = (
        *MIRRORED,
        *((kinds.NODE_OVERLAY,) if gates.node_overlay else ()),
        *(BUFFERING if gates.capacity_buffer else ()),
        *(SELECTING if options.scheduler_config else ()),
        *(() if options.ignore_dra_requests else DEVICES),
        *(GANGS if options.gang_scheduling else ()),
    )
    return tuple(dict.fromkeys(wanted))  # some features need the same kinds


@dataclass(frozen=True, slots=True)
class Watches:
    """Applies the API server's changes to the mirror."""

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
        """Watch the kinds that Kopf does not watch, and recheck the others, until cancelled.

        A recheck compares the mirror with the server's list, every `RECHECK_SECONDS`.
        """
        async with asyncio.TaskGroup() as tasks:
            for kind in self.cluster.mirrored:
                follow = self._recheck if kind in WATCHED_BY_KOPF else self._follow
                tasks.create_task(follow(kind))

    async def list_custom_resources(self) -> None:
        """Fill the mirror with the custom resources; waits until their definitions are served."""
        await asyncio.gather(*(self._list(kind) for kind in self.custom_resources))
        self._listed.set()

    def take(self, kind: Kind[T], change: Change[T]) -> None:
        """Apply one change to the mirror."""
        self.cluster.apply(kind, change)
        if self.cluster.synced:
            self._synced.set()

    async def _follow(self, kind: Kind[T]) -> None:
        if kind in OPTIONAL:
            await self._until_served(kind)
        async for change in self.api.watch(kind):
            self.take(kind, change)

    async def _until_served(self, kind: Kind[T]) -> None:
        """Wait until the API server serves a kind; until then the mirror has no such objects."""
        while True:
            try:
                await self.api.list(kind)
                return
            except NotFoundError:
                self.take(kind, Change("RESET"))
                self.take(kind, Change("SYNCED"))
            except ApiError as exc:
                log.info("cannot list %s yet; retrying: %s", kind.plural, exc)
            await asyncio.sleep(RECHECK_SECONDS)

    async def _list(self, kind: Kind[T]) -> None:
        reported = logs.ChangeMonitor()
        while True:
            try:
                values = await self.api.list(kind)
                break
            except ApiError as exc:
                if reported.has_changed(kind.plural, str(exc)):
                    log.warning("cannot list %s yet; retrying: %s", kind.plural, exc)
                await asyncio.sleep(NOT_SERVED_SECONDS)
        self.take(kind, Change("RESET"))
        await self._take_all(kind, values, "ADDED")
        self.take(kind, Change("SYNCED"))

    async def _take_all(
        self, kind: Kind[T], values: Iterable[T], change: Literal["ADDED", "MODIFIED"]
    ) -> None:
        """Apply a list of objects to the mirror; other tasks run in between."""
        for number, value in enumerate(values, start=1):
            self.take(kind, Change(change, value))
            if not number % TAKEN_AT_ONCE:
                await asyncio.sleep(0)

    async def _recheck(self, kind: Kind[T]) -> None:
        """Compare the mirror with the server's list periodically, and correct the mirror."""
        while True:
            await asyncio.sleep(RECHECK_SECONDS)
            try:
                await self._compare(kind)
            except ApiError as exc:
                log.info(
                    "cannot list %s to check the cached objects; retrying: %s", kind.plural, exc
                )

    async def _compare(self, kind: Kind[T]) -> None:
        listed = {key_of(value): value for value in await self.api.list(kind)}
        await self._take_all(kind, listed.values(), "MODIFIED")
        for value in self.cluster.list(kind):
            if key_of(value) not in listed:
                await self._confirm(kind, value)

    async def _confirm(self, kind: Kind[T], value: T) -> None:
        """Remove an object that the list did not contain, unless it is newer than the list."""
        try:
            await self.api.get(kind, value.metadata.name, value.metadata.namespace)
        except NotFoundError:
            self.take(kind, Change("DELETED", value))
        except UnreadableError:
            pass  # It exists. The list has logged the error.
