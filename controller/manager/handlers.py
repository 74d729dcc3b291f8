"""Kopf, the frame of the process: it signs in, starts what lives in it, watches, and stops it.

Kopf runs in the one event loop there is and takes over the signals. It writes nothing to
the objects (no annotations, no finalizers, no Kubernetes events), talks to no peers, and
uses the same way to the API server as everything else. No logic stands here. What Kopf
cannot do is in docs/kopf.md.
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
from controller.manager.leadership import stopped

CREDENTIALS_LAST = timedelta(minutes=5)
"""How long Kopf may use a token that lies in a file before it asks for it again."""

FATAL = kopf.ErrorsMode.PERMANENT
"""What fails at the start or at the end is not tried again: only a new process can mend it."""

Take = Callable[[Kind[Any], Change[Any]], None]


class Life(Protocol):
    """What lives in the frame."""

    async def live(self) -> None:
        """Run until cancelled; end in good order."""

    async def until_listed(self) -> None:
        """Wait until the custom resources have been listed: Kopf watches from then on."""


async def operate(life: Life, watched: Sequence[Kind[Any]], access: Access, take: Take) -> None:
    """Run until SIGTERM, SIGINT or the end of `life`; `take` is called with every change.

    Raises:
        Exception: what `life` or Kopf failed with.

    """
    frame = _Frame(life)
    handlers = registry(watched, access, take)
    kopf.on.startup(registry=handlers, errors=FATAL)(frame.start)
    kopf.on.cleanup(registry=handlers, errors=FATAL)(frame.stop)
    await kopf.operator(
        registry=handlers,
        settings=settings(),
        standalone=True,
        clusterwide=True,
        stop_flag=frame.ended,
    )
    frame.raise_failure()


@dataclass(slots=True)
class _Frame:
    """Starts a life with Kopf and stops it with Kopf, and stops Kopf when it ends by itself."""

    life: Life
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    _living: asyncio.Task[None] | None = None

    async def start(self, **_: Any) -> None:
        self._living = asyncio.create_task(self.life.live(), name="life")
        self._living.add_done_callback(lambda _: self.ended.set())
        try:
            await self.life.until_listed()
        except asyncio.CancelledError:
            # Kopf cleans up only what it has started to the end.
            await self.stop()
            raise

    async def stop(self, **_: Any) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            # Kopf stumbles over a second signal; it is stopping already.
            loop.add_signal_handler(number, lambda: None)
        if self._living is not None:
            await stopped(self._living)

    def raise_failure(self) -> None:
        living = self._living
        if living is not None and not living.cancelled() and (failure := living.exception()):
            raise failure


def registry(watched: Sequence[Kind[Any]], access: Access, take: Take) -> kopf.OperatorRegistry:
    """Return the handlers: one for each kind, and one that signs in."""
    handlers = kopf.OperatorRegistry()

    @kopf.on.login(registry=handlers)
    def sign_in(**_: Any) -> kopf.ConnectionInfo:
        return connection(access)

    for kind in watched:
        _on_event(handlers, kind, take)
    return handlers


def settings() -> kopf.OperatorSettings:
    """Return settings that leave the cluster as it is."""
    chosen = kopf.OperatorSettings()
    chosen.peering.standalone = True
    chosen.posting.enabled = False
    # Observing which kinds and namespaces there are takes rights that Karpenter's role lacks.
    chosen.scanning.disabled = True
    chosen.watching.server_timeout = 300
    chosen.watching.connect_timeout = 10
    chosen.networking.request_timeout = 30
    chosen.process.ultimate_exiting_timeout = None
    return chosen


@dataclass(frozen=True, kw_only=True)
class Connection(kopf.ConnectionInfo):
    """Our access in Kopf's words; TLS is ours, so that both trust the same servers."""

    access: Access

    def as_ssl_context(self) -> ssl.SSLContext:
        """Return the context that all our connections have."""
        return self.access.ssl_context()


def connection(access: Access) -> Connection:
    """Return our access, with the token as it is now."""
    expires = datetime.now(UTC) + CREDENTIALS_LAST if access.token_file is not None else None
    return Connection(
        access=access,
        server=access.server,
        token=access.token or None,
        default_namespace=access.namespace or None,
        expiration=expires,
    )


def _on_event(handlers: kopf.OperatorRegistry, kind: Kind[Any], take: Take) -> None:
    version = kind.api_version.rpartition("/")[2]

    @kopf.on.event(kind.group, version, kind.plural, registry=handlers, id=kind.plural)
    async def changed(event: kopf.RawEvent, **_: Any) -> None:
        value = msgspec.convert(event["object"], kind.type)
        gone = event["type"] == "DELETED"
        take(kind, Change("DELETED" if gone else "MODIFIED", value))
