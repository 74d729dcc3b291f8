"""Calls the AWS APIs: clients, credentials, threads.

boto3 is synchronous, so every call runs in a bounded pool of threads, never on the event loop.
Credentials come from botocore's default chain: the container credentials endpoint (EKS Pod
Identity), a web identity token (IRSA), or the instance's role. `AWS_ENDPOINT_URL` applies.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any, ParamSpec, Protocol, TypeVar, cast

import boto3
from botocore.config import Config
from botocore.utils import IMDSRegionProvider

from controller.aws.errors import UnreachableError, translated
from controller.aws.responses import INCOMPLETE, check
from controller.cloudprovider.errors import CloudProviderError

THREADS = 24
"""Maximum number of concurrent calls, more than EC2's rate limits allow in the long run."""

P = ParamSpec("P")
R = TypeVar("R")

_PRICING_REGIONS = {"ap": "ap-south-1", "cn": "cn-northwest-1", "eu": "eu-central-1"}


class Rows(list[dict[str, Any]]):
    """The items of all pages of a response."""

    calls = 0
    """Number of calls: one for each page, plus botocore's retries."""


class Aws(Protocol):
    """The AWS APIs: an operation of boto3 by its name; the response is a dictionary."""

    region: str

    async def call(self, service: str, operation: str, **parameters: Any) -> dict[str, Any]:
        """Make one call, such as `call("ec2", "describe_subnets", SubnetIds=[…])`.

        Returns the response, as boto3 does.
        """

    async def pages(
        self, service: str, operation: str, key: str, **parameters: Any
    ) -> list[dict[str, Any]]:
        """Make a call page by page; return the items under `key` of all pages."""

    async def waiting_call(self, service: str, operation: str, **parameters: Any) -> dict[str, Any]:
        """Make one call that `shutdown` does not wait for, such as a long poll of an SQS queue."""

    async def shutdown(self) -> None:
        """Start no more calls, and wait for those in progress to end."""


READS = ("describe_", "get_", "list_")
"""Prefixes of the operations that only read."""


class ReadOnly:
    """Implements `Aws` for reads only.

    Any other call raises CloudProviderError and is not sent.
    """

    def __init__(self, aws: Aws) -> None:
        self.region = aws.region
        self._aws = aws

    async def call(self, service: str, operation: str, **parameters: Any) -> dict[str, Any]:
        """Make a call that only reads."""
        _refuse_writes(operation)
        return await self._aws.call(service, operation, **parameters)

    async def pages(
        self, service: str, operation: str, key: str, **parameters: Any
    ) -> list[dict[str, Any]]:
        """Make a call that only reads, page by page."""
        _refuse_writes(operation)
        return await self._aws.pages(service, operation, key, **parameters)

    async def waiting_call(self, service: str, operation: str, **parameters: Any) -> dict[str, Any]:
        """Make a call that only reads and that `shutdown` does not wait for."""
        _refuse_writes(operation)
        return await self._aws.waiting_call(service, operation, **parameters)

    async def shutdown(self) -> None:
        """Wait for the calls in progress."""
        await self._aws.shutdown()


def _refuse_writes(operation: str) -> None:
    if not operation.startswith(READS):
        raise CloudProviderError(
            f"{operation}: not sent, because DISRUPTION_MODE=observe changes nothing in AWS"
        )


def pricing_region(region: str) -> str:
    """Return the region whose Pricing endpoint serves this one."""
    return _PRICING_REGIONS.get(region.partition("-")[0], "us-east-1")


def user_agent() -> str:
    """Return the user agent of the controller's calls, which CloudTrail records."""
    try:
        return f"joiner/{version('joiner')}"
    except PackageNotFoundError:
        return "joiner/source"


class Session:
    """Implements `Aws` with boto3 and a pool of threads; clients are created at first use.

    If `waits` is False, neither `shutdown` nor the end of the process waits for calls in progress.
    """

    def __init__(
        self,
        *,
        region: str | None = None,
        attempts: int = 5,
        threads: int = THREADS,
        waits: bool = True,
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
        self._waits = waits

    async def call(self, service: str, operation: str, **parameters: Any) -> dict[str, Any]:
        """Make one call in a thread. Raises CloudProviderError, never botocore's errors."""
        return await self._in_thread(self._call, service, operation, parameters)

    async def pages(
        self, service: str, operation: str, key: str, **parameters: Any
    ) -> list[dict[str, Any]]:
        """Make a call page by page, in one thread; return the items under `key` of all pages."""
        return await self._in_thread(self._pages, service, operation, key, parameters)

    async def waiting_call(self, service: str, operation: str, **parameters: Any) -> dict[str, Any]:
        """Make one call in its own thread; `shutdown` does not wait for it.

        The thread is a daemon: the process does not wait for the response when it ends.
        """
        return await self._in_daemon(partial(self._call, service, operation, parameters))

    async def shutdown(self) -> None:
        """Start no more calls, and wait for those in progress, so that none reaches AWS later.

        It does not wait for calls of `waiting_call`, which only receive and delete messages.
        """
        await asyncio.to_thread(self._threads.shutdown, wait=True, cancel_futures=True)

    def close(self) -> None:
        """End the threads after the calls in progress, and close the clients."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        for client in self._clients.values():
            client.close()

    async def _in_daemon(self, function: Callable[[], R]) -> R:
        """Call a function in a thread of its own, for which the process does not wait."""
        loop = asyncio.get_running_loop()
        response: asyncio.Future[R] = loop.create_future()

        def resolve(result: R | None, error: CloudProviderError | None) -> None:
            if response.done():
                return
            if error is not None:
                response.set_exception(error)
            else:
                response.set_result(cast("R", result))

        def work() -> None:
            result, error = None, None
            try:
                result = function()
            except CloudProviderError as exc:
                error = exc
            # If the event loop is closed, the response is dropped.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(resolve, result, error)

        threading.Thread(target=work, name="aws-daemon", daemon=True).start()
        return await response

    async def _in_thread(self, function: Callable[P, R], *arguments: P.args, **_: P.kwargs) -> R:
        if not self._waits:
            return await self._in_daemon(partial(function, *arguments))
        loop = asyncio.get_running_loop()
        try:
            running = loop.run_in_executor(self._threads, function, *arguments)
        except RuntimeError as exc:
            message = "the controller is stopping and makes no more calls to AWS"
            raise UnreachableError(message, reason="Stopping") from exc
        return await running

    def _call(self, service: str, operation: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        with translated(operation):
            response: dict[str, Any] = getattr(self._client(service), operation)(**parameters)
        check(operation, response)
        return response

    def _pages(self, service: str, operation: str, key: str, parameters: Mapping[str, Any]) -> Rows:
        items = Rows()
        with translated(operation):
            for page in self._client(service).get_paginator(operation).paginate(**parameters):
                if page.get(key) is None:
                    raise UnreachableError(
                        f"{operation}: incomplete response: {key} is missing",
                        reason=INCOMPLETE,
                    )
                items += page[key]
                items.calls += 1 + repeats(page)
        check(operation, items)
        return items

    def _client(self, service: str) -> Any:
        # A boto3 session is not thread-safe while it creates a client; clients are.
        with self._making:
            if service not in self._clients:
                region = pricing_region(self.region) if service == "pricing" else self.region
                self._clients[service] = self._session.client(
                    service, region_name=region, config=self._config
                )
            return self._clients[service]


def repeats(response: Mapping[str, Any]) -> int:
    """Return the number of botocore's retries for a response; EC2 counts each as a call."""
    return int(response.get("ResponseMetadata", {}).get("RetryAttempts", 0))


def _region() -> str:
    named = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if named:
        return named
    core = boto3.Session()
    region = core.region_name or IMDSRegionProvider(core._session).provide()
    if not region:
        raise UnreachableError(
            "the AWS region is unknown: set AWS_REGION, or give the pod access to the instance "
            "metadata service",
            reason="RegionUnknown",
        )
    return str(region)
