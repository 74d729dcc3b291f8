"""A live cluster, kept up to date by watches."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any

from controller.apis.karpenter.disruption import Disruption
from controller.apis.karpenter.nodeoverlay import NodeOverlay
from controller.apis.karpenter.nodepool import NodePool
from controller.apis.kinds import DISRUPTION, EC2_NODE_CLASS, NODE, NODE_POOL, POD, Kind
from controller.apis.kubernetes.workloads import Event
from controller.apiserver.errors import ApiError, NotFoundError, UnavailableError
from controller.apiserver.port import ApiServer
from controller.cloudprovider.instancetypes import InstanceType
from controller.console.mirror import Mirror
from controller.offline.commandline import CommandError
from controller.offline.instancetypes import Types, from_rows
from controller.offline.pending import failure_events
from controller.offline.record.command import kinds_of, settings_of
from controller.offline.record.deployed import ControllerContainer, controller_container
from controller.offline.record.offers import InstanceTypeSource, instance_types_of
from controller.offline.world import Objects, World, compose, effective, types_by_pool
from controller.options import Options

TYPES_SECONDS = 600.0
"""How long instance types and prices are cached, because reading them takes many calls to AWS."""

RETRY_SECONDS = 5.0
"""The pause before the objects of a Kubernetes kind that could not be listed are listed again."""

PROBE_SECONDS = 10.0
"""The interval at which the command checks that the API server still responds."""

TYPE_INPUTS = (NODE_POOL, EC2_NODE_CLASS)
"""The kinds that determine which instance types are read."""

Connect = Callable[[], AbstractAsyncContextManager[tuple[ApiServer, Options]]]
"""Connects to a cluster; also yields the settings of its controller."""

_NO_ANSWER, _NO_TYPES = "", "instance types"
"""The keys of the errors that the API server does not answer, and that instance types cannot be
read; others have their kind's plural."""

log = logging.getLogger(__name__)


class _SettingsChangedError(Exception):
    """The settings of the controller have changed, so that the cluster must be read again."""


class LiveCluster:
    """A cluster, followed through its API server.

    Instance types are read again after ten minutes, or when a NodePool or an EC2NodeClass changes.
    """

    def __init__(
        self,
        connect: Connect,
        market: Callable[[Options], InstanceTypeSource],
        *,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start without data; `market` returns the source of instance types.

        `say` receives the progress and the warnings.
        """
        self._connect, self._market, self._say, self._clock = connect, market, say, clock
        self._mirror = Mirror(())
        self._settings: dict[str, Any] = {}
        self._types: Types | None = None
        self._types_of_pools: tuple[object, dict[str, tuple[InstanceType, ...]]] = (None, {})
        self._refused: dict[str, str] = {}
        self._events: tuple[Event, ...] = ()
        self._listed = asyncio.Event()
        self._inputs_changed = asyncio.Event()
        self.changed = asyncio.Event()
        """Set by every change; the reader clears it."""

    @property
    def error(self) -> str:
        """Why the cluster cannot be read now; empty if it can."""
        return "; ".join(self._refused.values())

    @property
    def is_answering(self) -> bool:
        """Whether the API server answered the last request of the probe."""
        return _NO_ANSWER not in self._refused

    @property
    def has_types(self) -> bool:
        """Whether the instance types and prices have been read."""
        return self._types is not None

    async def run(self) -> None:
        """Follow the cluster until cancelled.

        Raises:
            OptionsError: a setting has a value that is not allowed.
            CommandError: a file that a setting names cannot be read.

        """
        while True:
            try:
                await self._follow_all()
            except UnavailableError as error:
                # The settings of the controller are not known yet: others could show other costs.
                self._report_no_answer(error)
                await asyncio.sleep(RETRY_SECONDS)

    async def _follow_all(self) -> None:
        """Follow the cluster until cancelled, or until the controller's settings change."""
        async with self._connect() as (api, options):
            self._refused.pop(_NO_ANSWER, None)
            self._settings = settings_of(options)
            self._mirror = Mirror((*kinds_of(options), EC2_NODE_CLASS, DISRUPTION))
            self._listed.clear()
            try:
                async with asyncio.TaskGroup() as tasks:
                    for kind in self._mirror.kinds:
                        tasks.create_task(self._follow(api, kind))
                    tasks.create_task(self._follow_instance_types(api, options))
                    tasks.create_task(self._probe(api))
                    tasks.create_task(self._follow_events(api))
            except* _SettingsChangedError:
                self._say("the settings of the controller have changed; reading the cluster again")

    def freeze(self) -> Callable[[], tuple[World, Sequence[Disruption]]] | None:
        """Return a function that another thread may call; None before the cluster is read.

        The function returns the present world and the recorded decisions.
        """
        if self._mirror.awaited or not self._mirror.kinds:
            return None
        frozen, types = self._mirror.freeze(), self._types or Types(())
        settings, events = self._settings, self._events

        def make() -> tuple[World, Sequence[Disruption]]:
            of, _ = effective(frozen)
            world = compose(of, self._offered_types(of, types), settings)
            return replace(world, events=events), of(Disruption)

        return make

    def _offered_types(self, of: Objects, types: Types) -> dict[str, tuple[InstanceType, ...]]:
        """Return the instance types by NodePool; the same objects until an input changes."""
        pools, overlays = of(NodePool), of(NodeOverlay)
        named = [(pool.metadata.name, pool.metadata.annotations) for pool in pools]
        made_of = (types, named, overlays and (pools, overlays))
        if self._types_of_pools[0] != made_of:
            self._types_of_pools = made_of, types_by_pool(types, pools, overlays, self._settings)
        return self._types_of_pools[1]

    async def _follow(self, api: ApiServer, kind: Kind[Any]) -> None:
        """Follow one kind, as soon as the cluster serves it."""
        while (refusal := await _refusal(api, kind)) is not None:
            self._report(kind, refusal)
            self._mirror.absent(kind)
            self._changes(kind)
            await asyncio.sleep(RETRY_SECONDS)
        self._refused.pop(kind.plural, None)
        async for change in api.watch(kind):
            self._mirror.apply(kind, change)
            if change.type == "SYNCED":
                self._say(f"{kind.plural}: {len(self._mirror.list(kind))}")
            self._changes(kind)

    def _report(self, kind: Kind[Any], error: ApiError) -> None:
        text = f"cannot list {kind.plural}: {error}"
        if kind in (POD, NODE) or (kind == NODE_POOL and not isinstance(error, NotFoundError)):
            self._refused[kind.plural] = text
        elif kind in self._mirror.awaited and not isinstance(error, NotFoundError):
            self._say(text)

    def _report_no_answer(self, error: UnavailableError) -> None:
        self._refused[_NO_ANSWER] = f"the API server does not answer: {error}"
        self.changed.set()

    def _changes(self, kind: Kind[Any]) -> None:
        if not self._mirror.awaited:
            self._listed.set()
            self.changed.set()
        if kind in TYPE_INPUTS:
            self._inputs_changed.set()

    async def _follow_instance_types(self, api: ApiServer, options: Options) -> None:
        """Read the instance types when they may have changed."""
        await self._listed.wait()
        known, read_at = None, 0.0
        while True:
            self._inputs_changed.clear()
            inputs, pause = self._inputs_of_types(), TYPES_SECONDS
            if inputs != known or self._clock() - read_at >= TYPES_SECONDS:
                try:
                    rows = await instance_types_of(api, self._market(options), self._say)
                except CommandError as error:
                    # The last known instance types stay.
                    self._refused[_NO_TYPES], pause = str(error), RETRY_SECONDS
                else:
                    self._refused.pop(_NO_TYPES, None)
                    self._types = from_rows(rows)
                    known, read_at = inputs, self._clock()
                self.changed.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._inputs_changed.wait()

    def _inputs_of_types(self) -> object:
        """Return the fields that determine the instance types."""
        return (
            [(pool.metadata.name, pool.spec) for pool in self._mirror.list(NODE_POOL)],
            [(of.metadata.name, of.spec, of.status) for of in self._mirror.list(EC2_NODE_CLASS)],
        )

    async def _follow_events(self, api: ApiServer) -> None:
        """Read the controller's events about pods without a node periodically.

        They are a small part of all events, so they are not watched.
        """
        while True:
            try:
                found = tuple(await failure_events(api))
            except ApiError as error:
                log.debug("cannot list events: %s", error)
            else:
                if found != self._events:
                    self._events = found
                    self.changed.set()
            await asyncio.sleep(PROBE_SECONDS)

    async def _probe(self, api: ApiServer) -> None:
        """Check periodically that the API server responds, which a silent watch does not show.

        Raises:
            _SettingsChangedError: the settings of the controller have changed.

        """
        known: ControllerContainer | None = None
        while True:
            try:
                found = await controller_container(api, log.debug)
            except UnavailableError as error:
                self._report_no_answer(error)
            else:
                if self._refused.pop(_NO_ANSWER, None):
                    self.changed.set()
                if known is not None and found is not None and found != known:
                    raise _SettingsChangedError
                known = found or known
            await asyncio.sleep(PROBE_SECONDS)


async def _refusal(api: ApiServer, kind: Kind[Any]) -> ApiError | None:
    """Return why a kind cannot be listed, without reading its objects."""
    try:
        await api.list(kind, field_selector="metadata.name=-")
    except ApiError as error:
        return error
    return None
