"""One of many acts: leader election by a Lease, as Kubernetes' own components do it.

Whoever holds the Lease writes the time into it every `RETRY`. Others take it over when
it has not changed for `LEASE` by their own clock; nobody's clock is compared with
another's. The holder stops acting when it has not managed to renew for
`RENEW_DEADLINE`, counted from the moment it *sent* its last renewal. So it has stopped
before anybody can follow. Should the process be too stuck even to stop itself, a thread
that needs no event loop ends it (`Fence`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from controller.apis.kinds import LEASE
from controller.apis.workloads import Lease
from controller.apiserver.errors import ApiError, ConflictError, NotFoundError
from controller.apiserver.port import ApiServer

LEASE_DURATION = timedelta(seconds=15)
RENEW_DEADLINE = timedelta(seconds=10)
RETRY = timedelta(seconds=2)
LAST_MOMENT = timedelta(seconds=2)
"""How long before the Lease may be taken the fence ends a process that is still acting."""

FENCED_EXIT_CODE = 70

log = logging.getLogger(__name__)


class LeadershipLostError(RuntimeError):
    """The Lease could not be renewed in time: nothing may be done any more."""


@dataclass(frozen=True, slots=True)
class Timing:
    """The intervals of an election; client-go's by default."""

    lease: timedelta = LEASE_DURATION
    renew_deadline: timedelta = RENEW_DEADLINE
    retry: timedelta = RETRY
    last_moment: timedelta = LAST_MOMENT


@dataclass(slots=True, kw_only=True)
class Leadership:
    """A candidate for the Lease `namespace/name`; `identity` is unique to this process.

    `on_change` is told when it begins and when it ends to lead.
    """

    api: ApiServer
    namespace: str
    name: str
    identity: str
    timing: Timing = field(default_factory=Timing)
    on_change: Callable[[bool], None] = lambda _: None
    _known: Lease | None = None
    _seen_at: float = 0.0

    async def hold(self, act: Callable[[], Awaitable[None]]) -> None:
        """Wait for the Lease, act while holding it, and give it back at the end.

        Cancelled, it stops acting first, renews the Lease until `act` has ended, and gives
        it back then.

        Raises:
            LeadershipLostError: the Lease could not be renewed; acting has been stopped.

        """
        renewed_at = await self._acquire()
        fence = Fence(self.timing, renewed_at, clock=asyncio.get_running_loop().time)
        self.on_change(True)
        log.info("became leader", extra={"identity": self.identity})
        try:
            with fence:
                acting = asyncio.ensure_future(act())
                renewing = asyncio.ensure_future(self._renew(fence))
                try:
                    await asyncio.wait([acting, renewing], return_when=asyncio.FIRST_COMPLETED)
                finally:
                    # What was begun and cannot be called back is ours until it has ended.
                    await stopped(acting)
                    await stopped(renewing)
                for task in (acting, renewing):
                    if not task.cancelled() and (exc := task.exception()) is not None:
                        raise exc
        finally:
            self.on_change(False)
            await self._release()

    async def _acquire(self) -> float:
        """Try until the Lease is ours; return when (`_now`) the winning try was sent."""
        while True:
            began = _now()
            try:
                if await self._try():
                    return began
            except ApiError as exc:
                log.info("cannot get the lease: %s", exc)
            await asyncio.sleep(self.timing.retry.total_seconds())

    async def _renew(self, fence: Fence) -> None:
        while True:
            await asyncio.sleep(self.timing.retry.total_seconds())
            deadline = fence.renewed_at + self.timing.renew_deadline.total_seconds()
            try:
                async with asyncio.timeout_at(deadline):
                    fence.renewed_at = await self._renewed()
            except TimeoutError:
                raise LeadershipLostError("the lease could not be renewed in time") from None

    async def _renewed(self) -> float:
        """Renew, trying again until it works; return when the try that worked was sent."""
        while True:
            began = _now()
            try:
                if await self._try():
                    return began
                raise LeadershipLostError("somebody else holds the lease")
            except ApiError as exc:
                log.warning("cannot renew the lease: %s", exc)
            await asyncio.sleep(self.timing.retry.total_seconds())

    async def _try(self) -> bool:
        """Take or renew the Lease if we may; return whether it is ours now."""
        lease = await self._read()
        if lease is None:
            return await self._create()
        if self._known is None or lease.spec != self._known.spec:
            self._seen_at = _now()
        self._known = lease
        holder = lease.spec.holder_identity
        lasts = lease.spec.lease_duration_seconds or self.timing.lease.total_seconds()
        if holder not in ("", self.identity) and _now() < self._seen_at + lasts:
            return False
        spec = self._spec(lease)
        try:
            await self._write(lease, spec)
        except ConflictError:
            return False if holder != self.identity else await self._is_still_ours()
        return True

    async def _is_still_ours(self) -> bool:
        """After a conflict over our own Lease: raise to try again, unless it was taken."""
        lease = await self._read()
        if lease is not None and lease.spec.holder_identity == self.identity:
            raise ConflictError("the lease changed while it was renewed", status=409)
        return False

    async def _read(self) -> Lease | None:
        try:
            return await self.api.get(LEASE, self.name, self.namespace)
        except NotFoundError:
            return None

    async def _create(self) -> bool:
        body = {"metadata": {"name": self.name}, "spec": self._spec(None)}
        try:
            self._known = await self.api.create(LEASE, body, self.namespace)
        except ConflictError:
            return False
        return True

    async def _write(self, lease: Lease, spec: dict[str, Any]) -> None:
        self._known = await self.api.patch(
            LEASE,
            self.name,
            {"spec": spec},
            namespace=self.namespace,
            resource_version=lease.metadata.resource_version,
        )

    def _spec(self, lease: Lease | None) -> dict[str, Any]:
        now = _written(datetime.now(UTC))
        spec: dict[str, Any] = {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": max(round(self.timing.lease.total_seconds()), 1),
            "renewTime": now,
        }
        if lease is None:
            return spec | {"acquireTime": now, "leaseTransitions": 0}
        if lease.spec.holder_identity != self.identity:
            spec |= {"acquireTime": now, "leaseTransitions": lease.spec.lease_transitions + 1}
        return spec

    async def _release(self) -> None:
        """Give the Lease back, if it is still ours, so that nobody has to wait for its end."""
        try:
            async with asyncio.timeout(self.timing.retry.total_seconds()):
                lease = await self._read()
                if lease is None or lease.spec.holder_identity != self.identity:
                    return
                now = _written(datetime.now(UTC))
                await self._write(
                    lease, {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": now}
                )
                log.info("gave the lease back")
        except (ApiError, TimeoutError) as exc:
            log.warning("cannot give the lease back: %s", exc)


class Fence:
    """Ends the process when the Lease is about to run out and it is still acting.

    `renewed_at` is when, by `clock`, the last renewal was sent. The thread does not
    depend on the event loop, which may be what is stuck.
    """

    def __init__(
        self,
        timing: Timing,
        renewed_at: float,
        *,
        clock: Callable[[], float],
        end: Callable[[int], object] = os._exit,
    ) -> None:
        self.renewed_at = renewed_at
        self._clock = clock
        self._patience = (timing.lease - timing.last_moment).total_seconds()
        self._pause = timing.retry.total_seconds() / 4
        self._end = end
        self._lifted = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="lease fence", daemon=True)

    def __enter__(self) -> Fence:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._lifted.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._lifted.wait(self._pause):
            if self._clock() > self.renewed_at + self._patience:
                log.error("the lease runs out and this process is still acting: ending it")
                self._end(FENCED_EXIT_CODE)
                return


async def stopped(task: asyncio.Future[None]) -> None:
    """Stop a task, and wait until it has ended, however often that is called off."""
    task.cancel()
    while not task.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([task])


def _now() -> float:
    """Return the event loop's time, in seconds: monotonic, and any thread may read it."""
    return asyncio.get_running_loop().time()


def _written(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
