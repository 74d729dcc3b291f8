"""Limits the rate of EC2 requests to EC2's limits for an account.

EC2 counts an account's requests per API in token buckets. This module keeps copies of these
buckets, and every EC2 request of the process takes its tokens from them. A request waits, in order
of arrival, until its bucket has enough tokens. If EC2 throttles nevertheless, because other clients
share the account, the module empties its bucket. Waiting is not an error.

Source: https://docs.aws.amazon.com/ec2/latest/devguide/ec2-api-throttling.html
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from controller.aws.session import READS, Aws, Rows, repeats
from controller.cloudprovider.errors import CloudProviderError, ThrottledError

USED = 0.9
"""The share of a bucket that is used, because requests may reach EC2 closer together than sent."""

EPSILON = 1e-6
"""A missing fraction of a token for which a request does not wait: clocks are not that precise."""

log = logging.getLogger(__name__)


class Size(NamedTuple):
    """Size of a bucket: its maximum number of tokens, and the tokens added per second."""

    most: float
    per_second: float


OF_READS = Size(100, 20)
OF_WRITES = Size(50, 5)
OF_CALLS: Mapping[str, Size] = {
    "create_tags": Size(100, 10),
    "run_instances": Size(5, 2),
    "terminate_instances": Size(100, 5),
}
"""Operations with a bucket size of their own; CreateFleet has none and counts as a write."""

OF_RESOURCES: Mapping[str, tuple[str, Size]] = {
    "terminate_instances": ("InstanceIds", Size(1000, 20)),
}
"""Operations that also cost one token per resource, with the parameter that lists the resources."""


def size_of(operation: str) -> Size:
    """Return the size of EC2's bucket for an operation of boto3, such as `create_fleet`."""
    return OF_CALLS.get(operation, OF_READS if operation.startswith(READS) else OF_WRITES)


@dataclass(slots=True)
class Bucket:
    """A token bucket, full at first."""

    size: Size
    _tokens: float
    _counted_at: float
    _turn: asyncio.Lock
    _waiting: int = 0
    """Number of tokens that the waiting requests will take."""

    @classmethod
    def full(cls, size: Size) -> Bucket:
        """Return a full bucket."""
        return cls(size, size.most * USED, asyncio.get_running_loop().time(), asyncio.Lock())

    async def take(self, count: int = 1) -> None:
        """Wait for tokens and take them; if the bucket is smaller, wait until it is full."""
        self._waiting += count
        try:
            async with self._turn:
                wanted = min(count, self.size.most * USED)
                while (lacking := wanted - self._count()) > EPSILON:  # noqa: ASYNC110 - time itself
                    await asyncio.sleep(lacking / self.size.per_second)
                self._tokens -= count
        finally:
            self._waiting -= count

    def delay(self) -> float:
        """Return the seconds for which a request of one token would wait if it were made now."""
        return max(self._waiting + 1 - self._count(), 0.0) / self.size.per_second

    def charge(self, count: int) -> None:
        """Take tokens for calls that were made already, even below 0; later callers wait."""
        self._tokens = self._count() - count

    def empty(self) -> None:
        """Remove all tokens, because EC2 throttles."""
        self._tokens = min(self._count(), 0.0)

    def _count(self) -> float:
        now = asyncio.get_running_loop().time()
        gained = (now - self._counted_at) * self.size.per_second
        self._tokens, self._counted_at = min(self._tokens + gained, self.size.most * USED), now
        return self._tokens


class Paced:
    """Implements `Aws` and delays EC2 requests until their token buckets allow them."""

    def __init__(self, aws: Aws) -> None:
        self.region = aws.region
        self._aws = aws
        self._calls: dict[str, Bucket] = {}
        self._resources: dict[str, Bucket] = {}

    async def call(self, service: str, operation: str, **parameters: Any) -> dict[str, Any]:
        """Make a call once its bucket allows it."""
        if service != "ec2":
            return await self._aws.call(service, operation, **parameters)
        bucket = await self._admit(operation, parameters)
        with _charging(operation, bucket):
            response = await self._aws.call(service, operation, **parameters)
        bucket.charge(repeats(response))
        return response

    async def pages(
        self, service: str, operation: str, key: str, **parameters: Any
    ) -> list[dict[str, Any]]:
        """Make a call page by page, starting once its bucket allows it."""
        if service != "ec2":
            return await self._aws.pages(service, operation, key, **parameters)
        bucket = await self._admit(operation, parameters)
        with _charging(operation, bucket):
            rows = await self._aws.pages(service, operation, key, **parameters)
        bucket.charge(further_calls(rows))
        return rows

    async def waiting_call(self, service: str, operation: str, **parameters: Any) -> dict[str, Any]:
        """Make a call that `shutdown` does not wait for; never of EC2, so it takes no tokens."""
        return await self._aws.waiting_call(service, operation, **parameters)

    async def shutdown(self) -> None:
        """Start no more calls, and wait for those in progress."""
        await self._aws.shutdown()

    def delay(self, operation: str) -> float:
        """Return the seconds for which a call to EC2 would wait if it were made now."""
        return self._bucket(operation).delay()

    def _bucket(self, operation: str) -> Bucket:
        bucket = self._calls.get(operation)
        if bucket is None:
            bucket = self._calls[operation] = Bucket.full(size_of(operation))
        return bucket

    async def _admit(self, operation: str, parameters: Mapping[str, Any]) -> Bucket:
        bucket = self._bucket(operation)
        await bucket.take()
        if operation in OF_RESOURCES:
            listed, size = OF_RESOURCES[operation]
            if operation not in self._resources:
                self._resources[operation] = Bucket.full(size)
            await self._resources[operation].take(len(parameters[listed]))
        return bucket


def further_calls(rows: list[dict[str, Any]]) -> int:
    """Return the number of calls that a paginated response took after the first."""
    return rows.calls - 1 if isinstance(rows, Rows) else 0


@contextmanager
def _charging(operation: str, bucket: Bucket) -> Iterator[None]:
    """Charge the bucket for botocore's retries of a failed call; empty it if EC2 throttles."""
    try:
        yield
    except ThrottledError:
        bucket.empty()
        log.warning(
            "EC2 throttles the controller; reducing its request rate",
            extra={"operation": operation},
        )
        raise
    except CloudProviderError as exc:
        bucket.charge(repeats(getattr(exc.__cause__, "response", {})))
        raise
