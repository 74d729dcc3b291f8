"""How fast EC2 is asked: no faster than it lets an account ask.

EC2 counts the calls of an account, API by API, in token buckets. Here are copies of them,
which all that this process asks goes through: whoever finds one empty waits for its turn,
first come, first served, instead of being refused. When EC2 throttles all the same, because
others share the account, its bucket is taken to be empty. Waiting concludes nothing.
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
"""Part of a bucket that is used: on their way to EC2 calls come closer to one another."""

TRIFLE = 1e-6
"""Part of a token that nobody waits for: so little time may not be told from none."""

log = logging.getLogger(__name__)


class Size(NamedTuple):
    """A bucket: how many tokens it holds, and how many come back in a second."""

    most: float
    per_second: float


OF_READS = Size(100, 20)
OF_WRITES = Size(50, 5)
OF_CALLS: Mapping[str, Size] = {
    "create_tags": Size(100, 10),
    "run_instances": Size(5, 2),
    "terminate_instances": Size(100, 5),
}
"""APIs with buckets of their own size. CreateFleet has none: it counts as any other write."""

OF_RESOURCES: Mapping[str, tuple[str, Size]] = {
    "terminate_instances": ("InstanceIds", Size(1000, 20)),
}
"""APIs that cost a token for each resource, too, and which parameter lists these."""


def size_of(operation: str) -> Size:
    """Return EC2's bucket for the calls of an operation, such as `create_fleet`."""
    return OF_CALLS.get(operation, OF_READS if operation.startswith(READS) else OF_WRITES)


@dataclass(slots=True)
class Bucket:
    """Tokens; full in the beginning."""

    size: Size
    _tokens: float
    _counted_at: float
    _turn: asyncio.Lock

    @classmethod
    def full(cls, size: Size) -> Bucket:
        """Return a bucket as full as it gets."""
        return cls(size, size.most * USED, asyncio.get_running_loop().time(), asyncio.Lock())

    async def take(self, count: int = 1) -> None:
        """Take tokens, once there are so many; of more than it can hold, once it is full."""
        async with self._turn:
            wanted = min(count, self.size.most * USED)
            while (lacking := wanted - self._count()) > TRIFLE:  # noqa: ASYNC110 - for time itself
                await asyncio.sleep(lacking / self.size.per_second)
            self._tokens -= count

    def charge(self, count: int) -> None:
        """Take tokens for what has cost more than was known before; whoever comes next waits."""
        self._tokens = self._count() - count

    def empty(self) -> None:
        """Take all there is: EC2 says that there is nothing."""
        self._tokens = min(self._count(), 0.0)

    def _count(self) -> float:
        now = asyncio.get_running_loop().time()
        gained = (now - self._counted_at) * self.size.per_second
        self._tokens, self._counted_at = min(self._tokens + gained, self.size.most * USED), now
        return self._tokens


class Paced:
    """AWS, of which EC2 is asked no faster than its buckets allow. Implements `Aws`."""

    def __init__(self, aws: Aws) -> None:
        self.region = aws.region
        self._aws = aws
        self._calls: dict[str, Bucket] = {}
        self._resources: dict[str, Bucket] = {}

    async def call(self, service: str, operation: str, **parameters: Any) -> dict[str, Any]:
        """Make a call when its turn has come."""
        if service != "ec2":
            return await self._aws.call(service, operation, **parameters)
        bucket = await self._admitted(operation, parameters)
        with _charging(operation, bucket):
            answer = await self._aws.call(service, operation, **parameters)
        bucket.charge(repeats(answer))
        return answer

    async def pages(
        self, service: str, operation: str, key: str, **parameters: Any
    ) -> list[dict[str, Any]]:
        """Make a call page by page, beginning when its turn has come."""
        if service != "ec2":
            return await self._aws.pages(service, operation, key, **parameters)
        bucket = await self._admitted(operation, parameters)
        with _charging(operation, bucket):
            rows = await self._aws.pages(service, operation, key, **parameters)
        bucket.charge(further_calls(rows))
        return rows

    async def waiting_call(self, service: str, operation: str, **parameters: Any) -> dict[str, Any]:
        """Make a call that may take long to answer; EC2 has none."""
        return await self._aws.waiting_call(service, operation, **parameters)

    async def settle(self) -> None:
        """Begin no more calls, and wait for those under way."""
        await self._aws.settle()

    async def _admitted(self, operation: str, parameters: Mapping[str, Any]) -> Bucket:
        bucket = self._calls.get(operation)
        if bucket is None:
            bucket = self._calls[operation] = Bucket.full(size_of(operation))
        await bucket.take()
        if operation in OF_RESOURCES:
            listed, size = OF_RESOURCES[operation]
            if operation not in self._resources:
                self._resources[operation] = Bucket.full(size)
            await self._resources[operation].take(len(parameters[listed]))
        return bucket


def further_calls(rows: list[dict[str, Any]]) -> int:
    """Return how many calls an answer in pages took beyond the first."""
    return rows.calls - 1 if isinstance(rows, Rows) else 0


@contextmanager
def _charging(operation: str, bucket: Bucket) -> Iterator[None]:
    """Pay for what botocore asked again in vain, and slow down where EC2 throttles."""
    try:
        yield
    except ThrottledError:
        bucket.empty()
        log.warning("EC2 throttles, slowing down", extra={"operation": operation})
        raise
    except CloudProviderError as exc:
        bucket.charge(repeats(getattr(exc.__cause__, "response", {})))
        raise
