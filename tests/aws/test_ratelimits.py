"""Calls to EC2 stay within its token buckets, for all callers together."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from botocore.exceptions import ClientError

from controller.aws.errors import AwsError, translated
from controller.aws.ratelimits import OF_READS, USED, Paced, Size, size_of
from controller.aws.session import Rows
from controller.cloudprovider.errors import ThrottledError

pytestmark = pytest.mark.virtual_clock


class Clocked:
    """Records calls with their times, and throttles as many as a test says. Implements `Aws`."""

    region = "us-west-2"

    def __init__(self) -> None:
        self.asked: list[tuple[float, str]] = []
        self.throttles: Counter[str] = Counter()
        self.pages_each = 1
        self.repeats = 0
        self.fails = False

    async def call(self, service: str, operation: str, **parameters: Any) -> dict[str, Any]:
        self.asked.append((asyncio.get_running_loop().time(), operation))
        if self.throttles[operation]:
            self.throttles[operation] -= 1
            raise ThrottledError(operation)
        answer = {"ResponseMetadata": {"RetryAttempts": self.repeats}}
        if self.fails:
            with translated(operation):
                raise ClientError({"Error": {"Code": "InternalError"}, **answer}, operation)
        return answer

    async def pages(
        self, service: str, operation: str, key: str, **parameters: Any
    ) -> list[dict[str, Any]]:
        await self.call(service, operation, **parameters)
        rows = Rows()
        rows.calls = self.pages_each
        return rows

    async def waiting_call(self, service: str, operation: str, **parameters: Any) -> dict[str, Any]:
        return await self.call(service, operation, **parameters)

    async def shutdown(self) -> None: ...

    def times(self, operation: str = "") -> list[float]:
        """Return the times of the calls, in seconds since the first call."""
        at = [moment for moment, asked in self.asked if asked == operation or not operation]
        return [round(moment - at[0], 3) for moment in at]


@pytest.mark.parametrize(
    ("operation", "size"),
    [
        ("describe_instances", Size(100, 20)),
        ("create_fleet", Size(50, 5)),
        ("create_launch_template", Size(50, 5)),
        ("create_tags", Size(100, 10)),
        ("run_instances", Size(5, 2)),
        ("terminate_instances", Size(100, 5)),
    ],
)
def test_token_buckets_have_the_sizes_that_ec2_documents(operation: str, size: Size) -> None:
    assert size_of(operation) == size


async def test_launches_beyond_the_burst_wait_in_order() -> None:
    aws = Clocked()
    paced = Paced(aws)
    order: list[int] = []

    async def launch(number: int) -> None:
        await paced.call("ec2", "create_fleet")
        order.append(number)

    await asyncio.gather(*map(launch, range(60)))

    assert order == list(range(60))
    assert aws.times()[:45] == [0.0] * 45
    assert aws.times()[45:] == pytest.approx([0.2 * n for n in range(1, 16)])


async def test_the_delay_of_the_next_call_counts_the_calls_that_wait() -> None:
    paced = Paced(Clocked())
    assert paced.delay("create_launch_template") == 0.0

    waiting = [asyncio.create_task(paced.call("ec2", "create_launch_template")) for _ in range(50)]
    await asyncio.sleep(0)

    assert paced.delay("create_launch_template") == pytest.approx(1.2), "five wait before it"
    await asyncio.gather(*waiting)
    assert paced.delay("create_launch_template") == pytest.approx(0.2)
    assert paced.delay("create_fleet") == 0.0


async def test_retries_of_botocore_consume_tokens() -> None:
    aws = Clocked()
    aws.repeats = 2
    paced = Paced(aws)

    for _ in range(17):
        await paced.call("ec2", "create_fleet")

    assert aws.times()[:15] == [0.0] * 15, "three tokens each, of forty-five"
    assert aws.times()[15:] == pytest.approx([0.2, 0.8])


async def test_failed_retries_of_botocore_consume_tokens() -> None:
    aws = Clocked()
    aws.repeats, aws.fails = 4, True
    paced = Paced(aws)

    for _ in range(10):
        with pytest.raises(AwsError):
            await paced.call("ec2", "create_fleet")

    assert aws.times() == [0.0] * 9 + [0.2], "five tokens each, of forty-five"


async def test_each_ec2_api_has_its_own_bucket_and_other_services_have_none() -> None:
    aws = Clocked()
    paced = Paced(aws)
    await asyncio.gather(*(paced.call("ec2", "run_instances") for _ in range(7)))
    began = asyncio.get_running_loop().time()

    await asyncio.gather(*(paced.call("ec2", "create_fleet") for _ in range(45)))
    await asyncio.gather(*(paced.call("iam", "get_instance_profile") for _ in range(500)))

    assert aws.times("run_instances") == pytest.approx([0.0] * 4 + [0.25, 0.75, 1.25])
    assert asyncio.get_running_loop().time() == began


async def test_a_bucket_refills_up_to_its_size() -> None:
    aws = Clocked()
    paced = Paced(aws)
    await asyncio.gather(*(paced.call("ec2", "create_fleet") for _ in range(45)))
    await asyncio.sleep(3600)

    await asyncio.gather(*(paced.call("ec2", "create_fleet") for _ in range(46)))

    assert aws.times()[45:] == [3600.0] * 45 + [3600.2]


async def test_each_terminated_instance_costs_a_token() -> None:
    aws = Clocked()
    paced = Paced(aws)
    many = [f"i-{n}" for n in range(450)]

    for _ in range(3):
        await paced.call("ec2", "terminate_instances", InstanceIds=many)

    assert aws.times() == [0.0, 0.0, 22.5]


async def test_the_pages_of_a_response_consume_tokens_once_their_number_is_known() -> None:
    aws = Clocked()
    paced = Paced(aws)
    aws.pages_each = 120
    await paced.pages("ec2", "describe_instances", "Reservations")
    aws.pages_each = 1

    await paced.pages("ec2", "describe_instances", "Reservations")

    short = 120 + 1 - OF_READS.most * USED
    assert aws.times() == [0.0, pytest.approx(short / OF_READS.per_second)]


@pytest.mark.parametrize("asked", ["call", "pages"])
async def test_throttling_slows_all_requests_of_the_same_api(asked: str) -> None:
    aws = Clocked()
    paced = Paced(aws)
    aws.throttles["describe_subnets"] = 1

    async def ask() -> None:
        if asked == "call":
            await paced.call("ec2", "describe_subnets")
        else:
            await paced.pages("ec2", "describe_subnets", "Subnets")

    with pytest.raises(ThrottledError):
        await ask()
    await asyncio.gather(ask(), ask(), paced.call("ec2", "describe_images"))

    assert aws.times("describe_subnets") == [0.0, 0.05, 0.1]
    assert aws.times("describe_images") == [0.0]


async def test_a_cancelled_call_leaves_its_tokens_to_the_next() -> None:
    aws = Clocked()
    paced = Paced(aws)
    waiting = [asyncio.create_task(paced.call("ec2", "run_instances")) for _ in range(8)]
    await asyncio.sleep(0.1)
    for patience in (waiting[4], waiting[6], waiting[7]):
        patience.cancel()

    await asyncio.gather(*waiting, return_exceptions=True)

    assert aws.times() == [0.0] * 4 + [0.25]
