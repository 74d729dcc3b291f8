"""Leader election by a Lease, as in Kubernetes' own components: only the leader acts.

The leader renews the Lease every `RETRY`. Another replica takes it over if it has not changed for
`LEASE_DURATION` by that replica's own clock; clocks of two hosts are never compared. The leader
stops acting if `RENEW_DEADLINE` has passed since it *sent* the last successful renewal, which is
before another replica can lead. If the event loop is blocked, a thread ends the process (`Fence`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from controller.apis.kinds import LEASE
from controller.apis.kubernetes.workloads import MOST_TRANSITIONS, Lease
from controller.apiserver.errors import (
    ApiError,
    ConflictError,
    NotFoundError,
    TooManyRequestsError,
    UnavailableError,
)
from controller.apiserver.port import ApiServer
from controller.telemetry.logs import ChangeMonitor

LEASE_DURATION = timedelta(seconds=15)
RENEW_DEADLINE = timedelta(seconds=10)
RETRY = timedelta(seconds=2)
ATTEMPT = timedelta(seconds=5)
"""Time limit of one request for the Lease, short enough for a second one before
`RENEW_DEADLINE`."""

LONGEST_LEASE = timedelta(seconds=150)
"""The longest duration of another holder's Lease that a replica waits for. Controllers ask for 15
to 137 s. A longer one was written by hand or by a faulty program."""

TRANSIENT = (ConflictError, TooManyRequestsError, UnavailableError)
"""Errors of the API server that end by themselves."""

LAST_MOMENT = timedelta(seconds=2)
"""How long before another replica may take the Lease the fence ends this process."""

FENCED_EXIT_CODE = 70

log = logging.getLogger(__name__)


class LeadershipLostError(RuntimeError):
    """The Lease was not renewed in time or has another holder: the replica must stop acting."""


@dataclass(frozen=True, slots=True)
class Timing:
    """The intervals of an election; client-go's by default."""

    lease: timedelta = LEASE_DURATION
    renew_deadline: timedelta = RENEW_DEADLINE
    retry: timedelta = RETRY
    attempt: timedelta = ATTEMPT
    last_moment: timedelta = LAST_MOMENT


@dataclass(slots=True, kw_only=True)
class Leadership:
    """A candidate for the Lease `namespace/name`; `identity` is unique to this process.

    `on_change` is called with True when it begins to lead, and with False when it ends.
    """

    api: ApiServer
    namespace: str
    name: str
    identity: str
    timing: Timing = field(default_factory=Timing)
    on_change: Callable[[bool], None] = lambda _: None
    _known: Lease | None = None
    _seen_at: float = 0.0
    _reported: ChangeMonitor = field(default_factory=ChangeMonitor)

    async def hold(self, act: Callable[[], Awaitable[None]]) -> None:
        """Wait for the Lease, run `act` while holding it, and release it at the end.

        When cancelled, it cancels `act`, renews the Lease until `act` has ended, and releases it.

        Raises:
            LeadershipLostError: the Lease could not be renewed; `act` has ended.
            Exception: `act` failed with it.

        """
        renewed_at = await self._acquire()
        fence = Fence(self.timing, renewed_at, clock=asyncio.get_running_loop().time)
        self.on_change(True)
        log.info(
            "became leader: acquired Lease %s/%s",
            self.namespace,
            self.name,
            extra={"identity": self.identity},
        )
        try:
            with fence:
                acting = asyncio.ensure_future(act())
                renewing = asyncio.ensure_future(self._renew(fence))
                try:
                    await asyncio.wait([acting, renewing], return_when=asyncio.FIRST_COMPLETED)
                finally:
                    # Requests in progress cannot be cancelled: hold the Lease until they end.
                    await cancel_and_wait(acting)
                    await cancel_and_wait(renewing)
                for task in (acting, renewing):
                    if not task.cancelled() and (exc := task.exception()) is not None:
                        raise exc
        finally:
            self.on_change(False)
            await self._release()

    async def _acquire(self) -> float:
        """Retry until this replica holds the Lease; return when (`_now`) it sent the request."""
        while True:
            began = _now()
            try:
                if await self._try():
                    return began
            except ApiError as exc:
                level = logging.WARNING if isinstance(exc, TRANSIENT) else logging.ERROR
                if self._reported.has_changed("acquire", f"{level} {exc}"):
                    log.log(
                        level,
                        "failed to acquire Lease %s/%s; retrying: %s",
                        self.namespace,
                        self.name,
                        exc,
                    )
            await asyncio.sleep(self.timing.retry.total_seconds())

    async def _renew(self, fence: Fence) -> None:
        while True:
            await asyncio.sleep(self.timing.retry.total_seconds())
            deadline = fence.renewed_at + self.timing.renew_deadline.total_seconds()
            try:
                async with asyncio.timeout_at(deadline):
                    fence.renewed_at = await self._renew_with_retries()
            except TimeoutError:
                raise LeadershipLostError(
                    f"Lease {self.namespace}/{self.name} was not renewed within "
                    f"{self.timing.renew_deadline.total_seconds():g} s"
                ) from None

    async def _renew_with_retries(self) -> float:
        """Renew with retries; return when the successful request was sent."""
        while True:
            began = _now()
            try:
                if await self._try():
                    return began
                raise LeadershipLostError(
                    f"Lease {self.namespace}/{self.name} is held by another replica"
                )
            except ApiError as exc:
                log.warning(
                    "failed to renew Lease %s/%s; retrying: %s", self.namespace, self.name, exc
                )
            # A request that hung has used up this time.
            pause = self.timing.retry.total_seconds() - (_now() - began)
            await asyncio.sleep(max(pause, 0))

    async def _try(self) -> bool:
        """Try to acquire or renew the Lease; return whether this replica holds it."""
        lease = await self._read()
        if lease is None:
            return await self._create()
        if self._known is None or lease.spec != self._known.spec:
            self._seen_at = _now()
        self._known = lease
        holder = lease.spec.holder_identity
        if holder not in ("", self.identity) and _now() < self._seen_at + self._duration(lease):
            return False
        spec = self._spec(lease)
        if lease.spec.lease_transitions == MOST_TRANSITIONS and self._reported.has_changed("count"):
            log.warning(
                "Lease %s/%s: leaseTransitions is the largest possible number, so it was changed "
                "by hand; it stays there. To count from 0 again, delete the Lease",
                self.namespace,
                self.name,
            )
        try:
            await self._write(lease, spec)
        except ConflictError:
            return False if holder != self.identity else await self._is_still_ours()
        return True

    def _duration(self, lease: Lease) -> float:
        """Return for how many seconds another replica's Lease counts if it is not renewed."""
        named = lease.spec.lease_duration_seconds or self.timing.lease.total_seconds()
        longest = LONGEST_LEASE.total_seconds()
        if named > longest and self._reported.has_changed("duration", lease.spec.holder_identity):
            log.warning(
                "Lease %s/%s: its holder %s set leaseDurationSeconds to %d, which no controller "
                "does; this replica takes it over if it is not renewed within %g s",
                self.namespace,
                self.name,
                lease.spec.holder_identity,
                named,
                longest,
            )
        return min(named, longest)

    async def _is_still_ours(self) -> bool:
        """Return False if another replica holds the Lease after a conflict.

        Raises:
            ConflictError: this replica still holds it.

        """
        lease = await self._read()
        if lease is not None and lease.spec.holder_identity == self.identity:
            raise ConflictError("conflict: the Lease changed; retrying", status=409)
        return False

    async def _read(self) -> Lease | None:
        try:
            async with self._attempt():
                return await self.api.get(LEASE, self.name, self.namespace)
        except NotFoundError:
            return None

    async def _create(self) -> bool:
        body = {"metadata": {"name": self.name}, "spec": self._spec(None)}
        try:
            async with self._attempt():
                self._known = await self.api.create(LEASE, body, self.namespace)
        except ConflictError:
            return False
        return True

    async def _write(self, lease: Lease, spec: dict[str, Any]) -> None:
        async with self._attempt():
            self._known = await self.api.patch(
                LEASE,
                self.name,
                {"spec": spec},
                namespace=self.namespace,
                resource_version=lease.metadata.resource_version,
            )

    @contextlib.asynccontextmanager
    async def _attempt(self) -> AsyncIterator[None]:
        """Limit the time of one request; raises UnavailableError after it."""
        seconds = self.timing.attempt.total_seconds()
        try:
            async with asyncio.timeout(seconds) as limit:
                yield
        except TimeoutError as exc:
            if not limit.expired():
                raise
            raise UnavailableError(f"no response within {seconds:g} s") from exc

    def _spec(self, lease: Lease | None) -> dict[str, Any]:
        now = _micro_time(datetime.now(UTC))
        spec: dict[str, Any] = {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": max(round(self.timing.lease.total_seconds()), 1),
            "renewTime": now,
        }
        if lease is None:
            return spec | {"acquireTime": now, "leaseTransitions": 0}
        if lease.spec.holder_identity != self.identity:
            transitions = min(lease.spec.lease_transitions + 1, MOST_TRANSITIONS)
            spec |= {"acquireTime": now, "leaseTransitions": transitions}
        return spec

    async def _release(self) -> None:
        """Release the Lease if this replica still holds it, so that another can lead at once."""
        try:
            async with asyncio.timeout(self.timing.retry.total_seconds()):
                lease = await self._read()
                if lease is None or lease.spec.holder_identity != self.identity:
                    return
                now = _micro_time(datetime.now(UTC))
                await self._write(
                    lease, {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": now}
                )
                log.info(
                    "released Lease %s/%s; another replica can lead", self.namespace, self.name
                )
        except (ApiError, TimeoutError) as exc:
            log.warning(
                "failed to release Lease %s/%s: %s; another replica leads once it expires",
                self.namespace,
                self.name,
                exc,
            )


class Fence:
    """Ends the process if the Lease is about to expire while the process still acts.

    `renewed_at` is when the last renewal was sent, by `clock`. The check runs in a thread, because
    the event loop may be blocked.
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
                log.error(
                    "the leader election Lease was not renewed and is about to expire, but this "
                    "process still acts: ending the process; kubelet restarts its container. If "
                    "this repeats, check the latency of the API server and the CPU limit of the "
                    "controller"
                )
                self._end(FENCED_EXIT_CODE)
                return


async def cancel_and_wait(task: asyncio.Future[None]) -> None:
    """Cancel a task, and wait until it has ended even if the caller is cancelled meanwhile."""
    task.cancel()
    while not task.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([task])


def _now() -> float:
    """Return the event loop's time in seconds; it is monotonic and readable in any thread."""
    return asyncio.get_running_loop().time()


def _micro_time(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
