"""The way to AWS: clients, credentials, threads.

boto3 is synchronous, so every call runs in a bounded pool of threads, never on
the event loop. Credentials come from botocore's default chain: the container
credentials endpoint (EKS Pod Identity), a web identity token (IRSA), or the
instance's role. `AWS_ENDPOINT_URL` is honoured as everywhere.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any, ParamSpec, Protocol, TypeVar

import boto3
from botocore.config import Config
from botocore.utils import IMDSRegionProvider

from controller.aws.answers import INCOMPLETE, check
from controller.aws.errors import UnreachableError, translated
from controller.cloudprovider.errors import CloudProviderError

THREADS = 24
"""Calls in flight at once: more than EC2 lets one account sustain."""

P = ParamSpec("P")
R = TypeVar("R")

_PRICING_REGIONS = {"ap": "ap-south-1", "cn": "cn-northwest-1", "eu": "eu-central-1"}


class Rows(list[dict[str, Any]]):
    """What stood in the pages of an answer."""

    calls = 0
    """How many calls it took: one for each page, and those that botocore made again."""


class Aws(Protocol):
    """AWS as the rest of the room sees it: an operation by name, answered as a dictionary."""

    region: str

    async def call(self, service: str, operation: str, **parameters: Any) -> dict[str, Any]:
        """Make one call, such as `call("ec2", "describe_subnets", SubnetIds=[…])`."""

    async def pages(
        self, service: str, operation: str, key: str, **parameters: Any
    ) -> list[dict[str, Any]]:
        """Make a call page by page and return all that stands under `key`."""

    async def waiting_call(self, service: str, operation: str, **parameters: Any) -> dict[str, Any]:
        """Make one call that may take long to answer, and that nobody waits for at the end."""

    async def settle(self) -> None:
        """Begin no more calls, and wait for those under way: then none can land any more."""


READS = ("describe_", "get_", "list_")
"""How operations begin that change nothing."""


class ReadOnly:
    """AWS for one who must not change anything: whatever is no read is refused before it leaves
    the process. Implements `Aws`.
    """

    def __init__(self, aws: Aws) -> None:
        self.region = aws.region
        self._aws = aws

    async def call(self, service: str, operation: str, **parameters: Any) -> dict[str, Any]:
        """Make a call that reads."""
        _refuse_writes(operation)
        return await self._aws.call(service, operation, **parameters)

    async def pages(
        self, service: str, operation: str, key: str, **parameters: Any
    ) -> list[dict[str, Any]]:
        """Make a call that reads, page by page."""
        _refuse_writes(operation)
        return await self._aws.pages(service, operation, key, **parameters)

    async def waiting_call(self, service: str, operation: str, **parameters: Any) -> dict[str, Any]:
        """Make a call that reads, and may take long."""
        _refuse_writes(operation)
        return await self._aws.waiting_call(service, operation, **parameters)

    async def settle(self) -> None:
        """Wait for the calls under way."""
        await self._aws.settle()


def _refuse_writes(operation: str) -> None:
    if not operation.startswith(READS):
        raise CloudProviderError(f"{operation}: nothing is changed while everything is observed")


def pricing_region(region: str) -> str:
    """Return the region whose Pricing endpoint serves this one."""
    return _PRICING_REGIONS.get(region.partition("-")[0], "us-east-1")


def user_agent() -> str:
    """Return what we call ourselves in AWS's logs."""
    try:
        return f"joiner/{version('joiner')}"
    except PackageNotFoundError:
        return "joiner/source"


class Session:
    """boto3 behind a pool of threads; clients are made once, when first asked for."""

    def __init__(
        self, *, region: str | None = None, attempts: int = 5, threads: int = THREADS
    ) -> None:
        self._session = boto3.Session(region_name=region or _region())
        self.region: str = self._session.region_name
        self._config = Config(
            retries={"mode": "standard", "total_max_attempts": attempts},
            user_agent_extra=user_agent(),
            connect_timeout=5,
            read_timeout=30,
            max_pool_connections=threads,
        )
        self._clients: dict[str, Any] = {}
        self._making = threading.Lock()
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="aws")

    async def call(self, service: str, operation: str, **parameters: Any) -> dict[str, Any]:
        """Make one call in a thread. Raises CloudProviderError, never botocore's errors."""
        return await self._in_thread(self._call, service, operation, parameters)

    async def pages(
        self, service: str, operation: str, key: str, **parameters: Any
    ) -> list[dict[str, Any]]:
        """Make a call page by page, in one thread, and return all that stands under `key`."""
        return await self._in_thread(self._pages, service, operation, key, parameters)

    async def waiting_call(self, service: str, operation: str, **parameters: Any) -> dict[str, Any]:
        """Make one call that may take long to answer, in a thread of its own.

        The thread is a daemon: a process that ends does not wait for the answer.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[dict[str, Any]] = loop.create_future()

        def settle(result: dict[str, Any] | None, error: CloudProviderError | None) -> None:
            if answer.done():
                return
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(result or {})

        def work() -> None:
            result, error = None, None
            try:
                result = self._call(service, operation, parameters)
            except CloudProviderError as exc:
                error = exc
            # A loop that is closed has nobody left to hear the answer.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(settle, result, error)

        threading.Thread(target=work, name=f"aws-{operation}", daemon=True).start()
        return await answer

    async def settle(self) -> None:
        """Begin no more calls, and wait for those under way: then none can reach AWS any more.

        Those of `waiting_call` change nothing, and are not waited for.
        """
        await asyncio.to_thread(self._threads.shutdown, wait=True, cancel_futures=True)

    def close(self) -> None:
        """Let the threads go; calls under way are waited for."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        for client in self._clients.values():
            client.close()

    async def _in_thread(self, function: Callable[P, R], *arguments: P.args, **_: P.kwargs) -> R:
        loop = asyncio.get_running_loop()
        try:
            running = loop.run_in_executor(self._threads, function, *arguments)
        except RuntimeError as exc:
            message = "no more calls are made to AWS: the controller is stopping"
            raise UnreachableError(message, reason="Stopping") from exc
        return await running

    def _call(self, service: str, operation: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        with translated(operation):
            answer: dict[str, Any] = getattr(self._client(service), operation)(**parameters)
        check(operation, answer)
        return answer

    def _pages(self, service: str, operation: str, key: str, parameters: Mapping[str, Any]) -> Rows:
        items = Rows()
        with translated(operation):
            for page in self._client(service).get_paginator(operation).paginate(**parameters):
                if page.get(key) is None:
                    raise UnreachableError(
                        f"{operation}: the answer is incomplete: {key} is missing",
                        reason=INCOMPLETE,
                    )
                items += page[key]
                items.calls += 1 + repeats(page)
        check(operation, items)
        return items

    def _client(self, service: str) -> Any:
        # boto3 sessions are not safe to share while a client is being made; clients are.
        with self._making:
            if service not in self._clients:
                region = pricing_region(self.region) if service == "pricing" else self.region
                self._clients[service] = self._session.client(
                    service, region_name=region, config=self._config
                )
            return self._clients[service]


def repeats(answer: Mapping[str, Any]) -> int:
    """Return how often botocore asked again before it had this answer; each time is a call."""
    return int(answer.get("ResponseMetadata", {}).get("RetryAttempts", 0))


def _region() -> str:
    named = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if named:
        return named
    core = boto3.Session()
    region = core.region_name or IMDSRegionProvider(core._session).provide()
    if not region:
        raise UnreachableError(
            "the AWS region is unknown: set AWS_REGION, or let instance metadata be reached",
            reason="RegionUnknown",
        )
    return str(region)
