"""A process's clients of the API server and of AWS, into which faults are injected."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

from bench.faults.processes import Process
from bench.faults.region import NAME, Region
from controller.apis.kinds import POD, Kind, T
from controller.apiserver.fake import FakeApiServer
from controller.apiserver.port import Change, Patch
from controller.aws import responses
from controller.aws.errors import UnreachableError

R = TypeVar("R")

READS = ("get", "list", "describe_", "receive_")

API_SECONDS = (0.002, 0.02)
AWS_SECONDS = (0.05, 0.4)


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a process to Kubernetes or to AWS.

    To AWS, `verb` is the operation, such as `create_fleet`, and `kind` the service, such as `ec2`.
    """

    process: Process
    system: Literal["kubernetes", "aws"]
    verb: str
    kind: str
    name: str = ""

    @property
    def writes(self) -> bool:
        """Whether the call changes something."""
        return not self.verb.startswith(READS)

    @property
    def acts(self) -> bool:
        """Whether only a leader makes this call."""
        return self.writes and self.kind not in ("Lease", "Event", "sqs")


class CallFaults(Protocol):
    """What may happen to a call: it raises, takes long, or never returns."""

    async def before(self, call: Call) -> None:
        """Inject a fault before the call has its effect."""

    async def after(self, call: Call) -> None:
        """Inject a fault after the call has had its effect, before its answer arrives."""

    def answer(self, call: Call, answer: Any) -> Any:
        """Return AWS's answer as the process receives it."""

    def delay(self, process: Process) -> float:
        """Return the delay of watch events for a process, in seconds."""


class ApiWire:
    """A process's client of the API server. Implements `ApiServer`."""

    def __init__(
        self, api: FakeApiServer, process: Process, strikes: CallFaults, chance: random.Random
    ) -> None:
        self._api = api
        self._process = process
        self._strikes = strikes
        self._chance = chance

    async def _through(
        self, verb: str, kind: Kind[Any], name: str, effect: Callable[[], Awaitable[R]]
    ) -> R:
        call = Call(self._process, "kubernetes", verb, kind.name, name)
        await asyncio.sleep(self._chance.uniform(*API_SECONDS))
        await self._strikes.before(call)
        answer = await effect()
        await self._strikes.after(call)
        await asyncio.sleep(self._chance.uniform(*API_SECONDS))
        return answer

    async def get(self, kind: Kind[T], name: str, namespace: str = "") -> T:
        return await self._through("get", kind, name, lambda: self._api.get(kind, name, namespace))

    async def list(
        self, kind: Kind[T], *, label_selector: str = "", field_selector: str = ""
    ) -> list[T]:
        return await self._through(
            "list",
            kind,
            "",
            lambda: self._api.list(
                kind, label_selector=label_selector, field_selector=field_selector
            ),
        )

    async def watch(self, kind: Kind[T]) -> AsyncIterator[Change[T]]:
        async for change in self._api.watch(kind):
            if delay := self._strikes.delay(self._process):
                await asyncio.sleep(delay)
            yield change

    async def create(self, kind: Kind[T], body: Mapping[str, Any], namespace: str = "") -> T:
        return await self._through(
            "create", kind, "", lambda: self._api.create(kind, body, namespace)
        )

    async def patch(
        self,
        kind: Kind[T],
        name: str,
        patch: Patch,
        *,
        namespace: str = "",
        subresource: str = "",
        resource_version: str = "",
        uid: str = "",
    ) -> T:
        return await self._through(
            f"patch/{subresource}" if subresource else "patch",
            kind,
            name,
            lambda: self._api.patch(
                kind,
                name,
                patch,
                namespace=namespace,
                subresource=subresource,
                resource_version=resource_version,
                uid=uid,
            ),
        )

    async def delete(
        self,
        kind: Kind[T],
        name: str,
        *,
        namespace: str = "",
        uid: str = "",
        resource_version: str = "",
        grace_period_seconds: int | None = None,
    ) -> None:
        await self._through(
            "delete",
            kind,
            name,
            lambda: self._api.delete(
                kind,
                name,
                namespace=namespace,
                uid=uid,
                resource_version=resource_version,
                grace_period_seconds=grace_period_seconds,
            ),
        )

    async def evict(self, name: str, namespace: str, *, uid: str) -> None:
        await self._through("evict", POD, name, lambda: self._api.evict(name, namespace, uid=uid))


class AwsWire:
    """A process's client of AWS. Implements `Aws`.

    A call in progress cannot be cancelled, except one of `waiting_call`.
    """

    region = NAME

    def __init__(
        self, region: Region, process: Process, strikes: CallFaults, chance: random.Random
    ) -> None:
        self._to = region
        self._process = process
        self._strikes = strikes
        self._chance = chance
        self._in_flight: set[asyncio.Task[Any]] = set()
        self._is_closed = False

    async def call(self, service: str, operation: str, **parameters: Any) -> dict[str, Any]:
        answer: dict[str, Any] = await self._start(service, operation, parameters)
        return answer

    async def pages(
        self, service: str, operation: str, key: str, **parameters: Any
    ) -> list[dict[str, Any]]:
        answer: list[dict[str, Any]] = await self._start(service, operation, parameters)
        return answer

    async def waiting_call(self, service: str, operation: str, **parameters: Any) -> dict[str, Any]:
        answer: dict[str, Any] = await self._through(service, operation, parameters)
        return answer

    async def shutdown(self) -> None:
        self._is_closed = True
        if self._in_flight:
            await asyncio.wait(self._in_flight)

    async def _start(self, service: str, operation: str, parameters: Mapping[str, Any]) -> Any:
        if self._is_closed:
            raise UnreachableError("the controller is stopping", reason="Stopping")
        task = asyncio.ensure_future(self._through(service, operation, parameters))
        self._in_flight.add(task)
        task.add_done_callback(self._forget)
        return await asyncio.shield(task)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._in_flight.discard(task)
        if not task.cancelled():
            task.exception()  # the waiting process may have been killed

    async def _through(self, service: str, operation: str, parameters: Mapping[str, Any]) -> Any:
        call = Call(self._process, "aws", operation, service)
        await asyncio.sleep(self._chance.uniform(*AWS_SECONDS))
        await self._strikes.before(call)
        answer = await self._to.answer(operation, parameters)
        await self._strikes.after(call)
        answer = self._strikes.answer(call, answer)
        responses.check(operation, answer)
        await asyncio.sleep(self._chance.uniform(*AWS_SECONDS))
        return answer
