"""What AWS says about instances through the interruption queue.

EventBridge puts each event into an SQS queue. An event we do not know is still a
notice, of kind `no_op`, so that whoever reads them can count and acknowledge it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from controller.aws.batching import Batcher
from controller.aws.errors import AwsError
from controller.aws.reservations import Reservations
from controller.aws.session import Aws
from controller.cloudprovider.errors import CloudProviderError
from controller.cloudprovider.provider import Notice

WAIT = 20
"""Seconds a question to the queue waits for a message."""

BATCH = 10
"""How many messages SQS gives or takes at once."""

MOST_RECEIVERS = 16
"""How many questions are asked side by side while the queue is full: an interruption of a whole
zone, or the shift of a reservation, brings thousands of messages at once."""

MALFORMED = "malformed"
NO_OP = "no_op"
_KINDS: Mapping[tuple[str, str], str] = {
    ("aws.ec2", "EC2 Spot Instance Interruption Warning"): "spot_interrupted",
    ("aws.ec2", "EC2 Instance Rebalance Recommendation"): "rebalance_recommendation",
    ("aws.ec2", "EC2 Capacity Reservation Instance Interruption Warning"): (
        "capacity_reservation_interrupted"
    ),
}
_STATES: Mapping[str, str] = {
    "stopping": "instance_stopped",
    "stopped": "instance_stopped",
    "shutting-down": "instance_terminated",
    "terminated": "instance_terminated",
}

log = logging.getLogger(__name__)


class EventBridgeEvent(msgspec.Struct, frozen=True):
    """An EventBridge event, cut to what is read."""

    source: str = ""
    kind: str = msgspec.field(default="", name="detail-type")
    version: str = "0"
    resources: list[str] = []
    detail: dict[str, Any] = {}


def parsed(body: str) -> tuple[str, tuple[str, ...], Mapping[str, Any]]:
    """Return what a message says: kind, ids of the instances, details.

    Raises:
        ValueError: the body is not an event.

    """
    try:
        event = msgspec.json.decode(body, type=EventBridgeEvent)
    except RecursionError as exc:
        raise ValueError("it is nested too deeply") from exc
    detail = event.detail
    if event.version != "0":
        return NO_OP, (), detail
    instance = detail.get("instance-id")
    instances = (instance,) if isinstance(instance, str) else ()
    if (event.source, event.kind) in _KINDS:
        return _KINDS[event.source, event.kind], instances, detail
    if (event.source, event.kind) == ("aws.ec2", "EC2 Instance State-change Notification"):
        return _STATES.get(str(detail.get("state")), NO_OP), instances, detail
    if (event.source, event.kind) == ("aws.health", "AWS Health Event") and (
        detail.get("service") == "EC2" and detail.get("eventTypeCategory") == "scheduledChange"
    ):
        # What is over is told once more.
        kind = NO_OP if detail.get("statusCode") == "closed" else "scheduled_change"
        return kind, tuple(_affected(detail)), detail
    return NO_OP, (), detail


def _affected(detail: Mapping[str, Any]) -> list[str]:
    listed = detail.get("affectedEntities")
    entities = listed if isinstance(listed, list) else []
    named = (entity.get("entityValue") for entity in entities if isinstance(entity, Mapping))
    return [value for value in named if isinstance(value, str)]


class Interruptions:
    """Reads the queue."""

    def __init__(self, aws: Aws, queue_name: str, reservations: Reservations) -> None:
        self._aws = aws
        self._name = queue_name
        self._reservations = reservations
        self._url = ""
        self._receivers = 1
        self._deletions = Batcher(self._delete, idle=0.01, longest=0.1, size=BATCH)

    async def notices(self) -> Sequence[Notice]:
        """Wait for messages, 20 s at most; with no queue configured there is never one."""
        if not self._name:
            await asyncio.sleep(WAIT)
            return ()
        # Only the first waits where there is none: the others are there for a full queue.
        waits = [WAIT, *[0] * (self._receivers - 1)]
        received = await asyncio.gather(*map(self._receive, waits))
        is_full = all(len(messages) == BATCH for messages in received)
        self._receivers = min(2 * self._receivers, MOST_RECEIVERS) if is_full else 1
        return [self._notice(message) for messages in received for message in messages]

    async def acknowledge(self, notice: Notice) -> None:
        """Delete the message; those that come close together are deleted by one call.

        Raises:
            CloudProviderError: it could not be deleted, and will come back.

        """
        if not await self._deletions.get(notice.receipt):
            raise CloudProviderError(
                f"a message could not be deleted from {self._name}: it will be handled again"
            )

    async def _receive(self, wait: int) -> Sequence[Mapping[str, Any]]:
        answer = await self._ask(
            "receive_message",
            MaxNumberOfMessages=BATCH,
            WaitTimeSeconds=wait,
            VisibilityTimeout=WAIT,
            MessageSystemAttributeNames=["SentTimestamp"],
        )
        return answer.get("Messages") or []

    def _notice(self, message: Mapping[str, Any]) -> Notice:
        instances: tuple[str, ...] = ()
        detail: Mapping[str, Any] = {}
        try:
            kind, instances, detail = parsed(message["Body"])
        except ValueError as exc:
            # It will never be readable: it is counted, and acknowledged like any other.
            log.error("a message in the queue is no event", extra={"error": str(exc)})
            kind = MALFORMED
        if kind == "capacity_reservation_interrupted":
            reservation = detail.get("capacity-reservation-id")
            if isinstance(reservation, str):
                self._reservations.exhausted(reservation)
        sent = (message.get("Attributes") or {}).get("SentTimestamp")
        return Notice(
            kind=kind,
            instance_ids=instances,
            receipt=message["ReceiptHandle"],
            sent_at=datetime.fromtimestamp(int(sent) / 1000, UTC) if sent else None,
        )

    async def _delete(self, receipts: Sequence[str]) -> Mapping[str, bool]:
        """Delete messages; returns which of them are gone now."""
        entries = [{"Id": str(n), "ReceiptHandle": receipt} for n, receipt in enumerate(receipts)]
        answer = await self._ask("delete_message_batch", Entries=entries)
        return {receipts[int(done["Id"])]: True for done in answer.get("Successful") or []}

    async def _ask(self, operation: str, **parameters: Any) -> dict[str, Any]:
        try:
            if not self._url:
                queue = await self._aws.call("sqs", "get_queue_url", QueueName=self._name)
                self._url = queue["QueueUrl"]
            return await self._aws.waiting_call("sqs", operation, QueueUrl=self._url, **parameters)
        except AwsError as exc:
            if exc.is_not_found:
                # The queue may be made again, at another address.
                self._url = ""
                raise CloudProviderError(
                    f"the interruption queue {self._name} does not exist: create it, or "
                    "correct INTERRUPTION_QUEUE",
                    reason="QueueNotFound",
                ) from exc
            raise
