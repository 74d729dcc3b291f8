"""Kopf's part: the custom resources' events, as changes of the mirror. No logic.

Kopf runs embedded: it writes nothing to the objects (no annotations, no finalizers, no
Kubernetes events), talks to no peers, and uses the same way to the API server as
everything else. It has a thread and an event loop of its own, because it takes over the
signals of the main thread and, when it ends, cancels every task of its loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import kopf
import msgspec

from controller.apis.kinds import Kind
from controller.apiserver.port import Change
from controller.kube.access import Access

CREDENTIALS_LAST = timedelta(minutes=5)
"""How long Kopf may use a token that lies in a file before it asks for it again."""

STOP_SECONDS = 2.0
"""How long Kopf may take to end; it has nothing to finish."""

Take = Callable[[Kind[Any], Change[Any]], None]

log = logging.getLogger(__name__)


async def run(watched: Sequence[Kind[Any]], access: Access, take: Take) -> None:
    """Run Kopf until cancelled; `take` is called in this loop, with every change.

    Raises:
        RuntimeError: Kopf ended by itself.

    """
    loop, stop, ended = asyncio.get_running_loop(), threading.Event(), asyncio.Event()

    def hand_over(kind: Kind[Any], change: Change[Any]) -> None:
        loop.call_soon_threadsafe(take, kind, change)

    def operate() -> None:
        try:
            operator = kopf.operator(
                registry=registry(watched, access, hand_over),
                settings=settings(),
                standalone=True,
                clusterwide=True,
                stop_flag=stop,
            )
            asyncio.run(operator)
        except Exception:
            log.exception("Kopf failed")
        finally:
            if not loop.is_closed():
                loop.call_soon_threadsafe(ended.set)

    # It warns that signals are left alone outside the main thread, which is why it is there.
    logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)
    threading.Thread(target=operate, name="kopf", daemon=True).start()
    try:
        await ended.wait()
    finally:
        stop.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                await ended.wait()
    raise RuntimeError("Kopf ended by itself: custom resources are no longer watched")


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
