"""Runs Kopf, the framework of the process: it logs in, starts the replica, watches, and stops it.

Kopf runs in the process's only event loop and handles its signals. It writes no annotations,
finalizers or Kubernetes events, and uses no peering. Its access to the API server is that of the
rest of the controller. The handlers contain no logic. docs/explanation/kopf.md lists the limits of
Kopf.
"""

from __future__ import annotations

import asyncio
import signal
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

import kopf
import msgspec

from controller.apis.kinds import Kind
from controller.apiserver.port import Change
from controller.kube.access import Access
from controller.manager.leadership import cancel_and_wait

CREDENTIALS_LAST = timedelta(minutes=5)
"""How long Kopf uses credentials before it signs in again, which reads a token from its file."""

SIGN_IN_APART = 5.0
"""Seconds between two sign-ins. Kopf signs in again after each response with status 401: without a
pause it would send a request each time a response arrives."""

MOST_WORKERS = 50
"""Number of objects of a kind that Kopf handles at once; each takes about a millisecond."""

IDLE_SECONDS = 0.02
"""How long a Kopf worker waits for another event of its object."""

FATAL = kopf.ErrorsMode.PERMANENT
"""Kopf does not retry failures of startup and cleanup: only a new process can recover."""

Take = Callable[[Kind[Any], Change[Any]], None]


class Runnable(Protocol):
    """The part of the process that Kopf starts and stops."""

    async def run_until_cancelled(self) -> None:
        """Run until cancelled, then shut down in order."""

    async def until_listed(self) -> None:
        """Wait until the custom resources have been listed; Kopf watches them afterwards."""


async def operate(
    runnable: Runnable, watched: Sequence[Kind[Any]], access: Access, take: Take
) -> None:
    """Run until SIGTERM, SIGINT or the end of `runnable`; `take` is called with every change.

    Raises:
        Exception: the failure of `runnable` or of Kopf.

    """
    lifespan = _Lifespan(runnable)
    handlers = registry(watched, access, take)
    kopf.on.startup(registry=handlers, errors=FATAL)(lifespan.start)
    kopf.on.cleanup(registry=handlers, errors=FATAL)(lifespan.stop)
    await kopf.operator(
        registry=handlers,
        settings=settings(),
        standalone=True,
        clusterwide=True,
        stop_flag=lifespan.ended,
    )
    lifespan.raise_failure()


@dataclass(slots=True)
class _Lifespan:
    """Starts and stops `runnable` with Kopf, and stops Kopf if `runnable` ends first."""

    runnable: Runnable
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    _living: asyncio.Task[None] | None = None

    async def start(self, **_: Any) -> None:
        self._living = asyncio.create_task(self.runnable.run_until_cancelled(), name="runnable")
        self._living.add_done_callback(lambda _: self.ended.set())
        try:
            await self.runnable.until_listed()
        except asyncio.CancelledError:
            # Kopf runs the cleanup handlers only if all startup handlers have completed.
            await self.stop()
            raise

    async def stop(self, **_: Any) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            # Kopf fails on a second signal, and it is already stopping.
            loop.add_signal_handler(number, lambda: None)
        if self._living is not None:
            await cancel_and_wait(self._living)

    def raise_failure(self) -> None:
        living = self._living
        if living is not None and not living.cancelled() and (failure := living.exception()):
            raise failure


def registry(watched: Sequence[Kind[Any]], access: Access, take: Take) -> kopf.OperatorRegistry:
    """Return the handlers: one for each kind, and one for the credentials."""
    handlers = kopf.OperatorRegistry()
    next_at = 0.0

    @kopf.on.login(registry=handlers)
    async def sign_in(**_: Any) -> kopf.ConnectionInfo:
        nonlocal next_at
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(next_at - loop.time(), 0.0))
        next_at = loop.time() + SIGN_IN_APART
        return await asyncio.to_thread(connection, access)  # it may run a program

    for kind in watched:
        _on_event(handlers, kind, take)
    return handlers


def settings() -> kopf.OperatorSettings:
    """Return Kopf settings under which Kopf changes nothing in the cluster."""
    chosen = kopf.OperatorSettings()
    chosen.peering.standalone = True
    chosen.posting.enabled = False
    # Karpenter's role does not allow to list all kinds and namespaces.
    chosen.scanning.disabled = True
    chosen.watching.server_timeout = 300
    chosen.watching.connect_timeout = 10
    chosen.networking.request_timeout = 30
    # Without a limit, Kopf handles all objects of a list in one iteration of the event loop.
    chosen.queueing.worker_limit = MOST_WORKERS
    # A worker that waits for more events of its object blocks other objects.
    chosen.queueing.idle_timeout = IDLE_SECONDS
    chosen.process.ultimate_exiting_timeout = None
    chosen.persistence.diffbase_storage = NoDiffs()
    return chosen


class NoDiffs(kopf.DiffBaseStorage):
    """Stores no state of objects, because event handlers get each event.

    Kopf's own storage copies each object twice for each event, a tenth of the event loop's work in
    a cluster of 5,000 nodes.
    """

    def build(self, **_: Any) -> kopf.BodyEssence:
        """Return nothing to compare."""
        return kopf.BodyEssence()

    def fetch(self, **_: Any) -> None:
        """Return None: no earlier state of an object is stored."""

    def store(self, **_: Any) -> None:
        """Store nothing."""


@dataclass(frozen=True, kw_only=True)
class Connection(kopf.ConnectionInfo):
    """The controller's access as Kopf's connection.

    The TLS context is the controller's, so that both trust the same certificate authorities.
    """

    access: Access

    def as_ssl_context(self) -> ssl.SSLContext:
        """Return the TLS context of the controller's access."""
        return self.access.ssl_context()


def connection(access: Access) -> Connection:
    """Return the controller's access as Kopf's connection, with the current token.

    It expires even if the credentials do not: Kopf ends the process if it gets the same connection
    again after a response with status 401.
    """
    return Connection(
        access=access,
        server=access.server,
        token=access.token or None,
        default_namespace=access.namespace or None,
        proxy_url=access.proxy or None,
        expiration=datetime.now(UTC) + CREDENTIALS_LAST,
    )


def _on_event(handlers: kopf.OperatorRegistry, kind: Kind[Any], take: Take) -> None:
    version = kind.api_version.rpartition("/")[2]

    @kopf.on.event(kind.group, version, kind.plural, registry=handlers, id=kind.plural)
    async def apply_event(event: kopf.RawEvent, **_: Any) -> None:
        value = msgspec.convert(event["object"], kind.type)
        gone = event["type"] == "DELETED"
        take(kind, Change("DELETED" if gone else "MODIFIED", value))
