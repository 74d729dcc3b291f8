from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from controller.aws.errors import AwsError
from controller.aws.instancetypes.reservations import Reservations
from controller.aws.interruption.messages import Interruptions, parse_message
from controller.aws.provider import AWSCloudProvider
from controller.cloudprovider.errors import CloudProviderError
from controller.options import Options
from tests.aws.builders import CLUSTER, QUEUE
from tests.aws.conftest import Region


def event(source: str, kind: str, detail: dict[str, object], version: str = "0") -> str:
    return json.dumps({"version": version, "source": source, "detail-type": kind, "detail": detail})


def health(**detail: object) -> str:
    """Write an event of AWS Health: a scheduled change of EC2 unless `detail` says otherwise."""
    usual = {"service": "EC2", "eventTypeCategory": "scheduledChange"}
    return event("aws.health", "AWS Health Event", usual | detail)


STATE = "EC2 Instance State-change Notification"


@pytest.mark.parametrize(
    ("body", "kind", "instances"),
    [
        (
            event("aws.ec2", "EC2 Spot Instance Interruption Warning", {"instance-id": "i-1"}),
            "spot_interrupted",
            ("i-1",),
        ),
        (
            event("aws.ec2", "EC2 Instance Rebalance Recommendation", {"instance-id": "i-1"}),
            "rebalance_recommendation",
            ("i-1",),
        ),
        (
            event("aws.ec2", STATE, {"instance-id": "i-1", "state": "stopping"}),
            "instance_stopped",
            ("i-1",),
        ),
        (
            event("aws.ec2", STATE, {"instance-id": "i-1", "state": "terminated"}),
            "instance_terminated",
            ("i-1",),
        ),
        (event("aws.ec2", STATE, {"instance-id": "i-1", "state": "running"}), "no_op", ("i-1",)),
        (
            event(
                "aws.ec2",
                "EC2 Capacity Reservation Instance Interruption Warning",
                {"instance-id": "i-1"},
            ),
            "capacity_reservation_interrupted",
            ("i-1",),
        ),
        (
            health(affectedEntities=[{"entityValue": "i-1"}, {"entityValue": "i-2"}]),
            "scheduled_change",
            ("i-1", "i-2"),
        ),
        (health(service="RDS", eventTypeCategory="issue"), "no_op", ()),
        (
            health(statusCode="closed", affectedEntities=[{"entityValue": "i-1"}]),
            "no_op",
            ("i-1",),
        ),
        *(
            (health(affectedEntities=odd), "scheduled_change", ())
            for odd in (7, "i-1", {"entityValue": "i-1"}, [7, {"entityValue": ["i-1"]}, {}])
        ),
        (event("aws.ec2", STATE, {"instance-id": "i-1", "state": "stopped"}, "1"), "no_op", ()),
        (event("com.example", "Something Else", {}), "no_op", ()),
    ],
)
def test_each_event_is_parsed(body: str, kind: str, instances: tuple[str, ...]) -> None:
    assert parse_message(body)[:2] == (kind, instances)


@pytest.mark.parametrize(
    "body", ["", "not json", "[]", '{"detail": "text"}', '{"detail": {"a": ' + "[" * 100_000]
)
def test_an_invalid_event_is_refused(body: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_message(body)


async def test_a_notice_is_received_from_the_queue_and_acknowledged(
    provider: AWSCloudProvider, region: Region
) -> None:
    sqs = region.client("sqs")
    url = sqs.get_queue_url(QueueName=QUEUE)["QueueUrl"]
    sqs.send_message(QueueUrl=url, MessageBody="broken")
    sqs.send_message(
        QueueUrl=url,
        MessageBody=event(
            "aws.ec2", "EC2 Spot Instance Interruption Warning", {"instance-id": "i-1"}
        ),
    )
    notices = [*await provider.notices()]
    while len(notices) < 2:  # SQS may return fewer messages than it has
        notices += await provider.notices()
    by_kind = {notice.kind: notice for notice in notices}
    assert by_kind.keys() == {"spot_interrupted", "malformed"}
    assert by_kind["spot_interrupted"].instance_ids == ("i-1",)
    assert all(notice.sent_at is not None for notice in notices)
    await asyncio.gather(*map(provider.acknowledge, notices))
    counts = sqs.get_queue_attributes(
        QueueUrl=url,
        AttributeNames=[
            "ApproximateNumberOfMessages",
            "ApproximateNumberOfMessagesNotVisible",
        ],
    )["Attributes"]
    assert set(counts.values()) == {"0"}


async def test_many_messages_are_received_concurrently_and_deleted_in_batches(
    provider: AWSCloudProvider, region: Region
) -> None:
    sqs = region.client("sqs")
    url = sqs.get_queue_url(QueueName=QUEUE)["QueueUrl"]
    body = event("aws.ec2", "EC2 Spot Instance Interruption Warning", {"instance-id": "i-1"})
    for batch in range(7):
        entries = [{"Id": f"{batch}-{n}", "MessageBody": body} for n in range(10)]
        sqs.send_message_batch(QueueUrl=url, Entries=entries)
    sizes: list[int] = []
    while sum(sizes) < 70:
        notices = await provider.notices()
        await asyncio.gather(*map(provider.acknowledge, notices))
        sizes.append(len(notices))

    assert sizes == [10, 20, 40]
    attributes = sqs.get_queue_attributes(
        QueueUrl=url, AttributeNames=["ApproximateNumberOfMessagesNotVisible"]
    )["Attributes"]
    assert attributes == {"ApproximateNumberOfMessagesNotVisible": "0"}


class Queue:
    """SQS with the given messages; each call receives up to ten."""

    region = "us-west-2"

    def __init__(self, messages: int) -> None:
        self.left = messages
        self.refused = 0
        self.waits: list[int] = []

    async def call(self, service: str, operation: str, **parameters: Any) -> dict[str, Any]:
        return {"QueueUrl": "https://queue"}

    async def waiting_call(self, service: str, operation: str, **parameters: Any) -> dict[str, Any]:
        self.waits.append(parameters["WaitTimeSeconds"])
        if self.refused:
            self.refused -= 1
            raise AwsError("no", code="InternalError", operation=operation)
        taken = min(self.left, parameters["MaxNumberOfMessages"])
        self.left -= taken
        body = event("aws.ec2", "EC2 Spot Instance Interruption Warning", {"instance-id": "i-1"})
        message = {"Body": body, "ReceiptHandle": "receipt"}
        return {"Messages": [message] * taken}

    async def pages(
        self, service: str, operation: str, key: str, **parameters: Any
    ) -> list[dict[str, Any]]:
        return []

    async def shutdown(self) -> None: ...


async def test_a_failing_receiver_hides_no_message_of_the_other_receivers() -> None:
    queue = Queue(messages=40)
    interruptions = Interruptions(queue, QUEUE, Reservations(queue))
    assert len(await interruptions.notices()) == 10

    queue.refused = 1
    assert len(await interruptions.notices()) == 10
    assert len(await interruptions.notices()) == 10

    queue.refused = 2
    with pytest.raises(CloudProviderError):
        await interruptions.notices()


async def test_receivers_do_not_wait_for_more_messages_while_they_hold_some() -> None:
    """None else receives them for 20 s, and a spot instance has two minutes."""
    queue = Queue(messages=13)
    interruptions = Interruptions(queue, QUEUE, Reservations(queue))
    sizes = [len(await interruptions.notices()) for _ in range(3)]

    assert sizes == [10, 3, 0]
    assert queue.waits == [20, 0, 0, 20]


async def test_a_queue_that_does_not_exist_is_named(provider: AWSCloudProvider) -> None:
    lost = AWSCloudProvider(
        Options(cluster_name=CLUSTER, interruption_queue="nowhere"), aws=provider.aws
    )
    with pytest.raises(CloudProviderError, match="INTERRUPTION_QUEUE") as raised:
        await lost.notices()
    assert raised.value.reason == "QueueNotFound"
