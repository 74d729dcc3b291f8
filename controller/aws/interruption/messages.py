"""The messages of the interruption queue.

EventBridge sends each event to an SQS queue. An unknown event becomes a notice of kind `no_op`, so
that it is counted and acknowledged, too.
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
from controller.aws.instancetypes.reservations import Reservations
from controller.aws.session import Aws
from controller.cloudprovider.errors import CloudProviderError
from controller.cloudprovider.provider import Notice

WAIT = 20
"""Seconds that a ReceiveMessage call waits for a message."""

BATCH = 10
"""Maximum number of messages per ReceiveMessage or DeleteMessageBatch call."""

MOST_RECEIVERS = 16
"""Maximum number of concurrent ReceiveMessage calls while the queue is full.

An interruption of a whole zone, or of a capacity reservation, sends thousands of messages at once.
"""

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
    """An EventBridge event, reduced to the fields that are used."""

    source: str = ""
    kind: str = msgspec.field(default="", name="detail-type")
    version: str = "0"
    resources: list[str] = []
    detail: dict[str, Any] = {}


def parse_message(body: str) -> tuple[str, tuple[str, ...], Mapping[str, Any]]:
    """Return the notice kind of a message, the IDs of its instances, and its details.

    Raises:
        ValueError: the body is not an event.

    """
    try:
        event = msgspec.json.decode(body, type=EventBridgeEvent)
    except RecursionError as exc:
        raise ValueError("the JSON is nested too deeply") from exc
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
        # AWS Health sends another event when the scheduled change is over.
        kind = NO_OP if detail.get("statusCode") == "closed" else "scheduled_change"
        return kind, tuple(_affected_entities(detail)), detail
    return NO_OP, (), detail


def _affected_entities(detail: Mapping[str, Any]) -> list[str]:
    listed = detail.get("affectedEntities")
    entities = listed if isinstance(listed, list) else []
    named = (entity.get("entityValue") for entity in entities if isinstance(entity, Mapping))
    return [value for value in named if isinstance(value, str)]


class Interruptions:
    """Receives and deletes the messages of the interruption queue."""

    def __init__(self, aws: Aws, queue_name: str, reservations: Reservations) -> None:
        self._aws = aws
        self._name = queue_name
        self._reservations = reservations
        self._url = ""
        self._receivers = 1
        self._deletions = Batcher(self._delete, idle=0.01, longest=0.1, size=BATCH)

    async def notices(self) -> Sequence[Notice]:
        """Return new messages as notices; wait up to 20 s for one.

        Without an interruption queue, wait 20 s and return none.

        Raises:
            CloudProviderError: every ReceiveMessage call failed, or some failed and the others
                returned no message.

        """
        if not self._name:
            await asyncio.sleep(WAIT)
            return ()
        # Several receivers do not wait for messages: that would delay the messages that the others
        # have received.
        wait = WAIT if self._receivers == 1 else 0
        receiving = (self._receive(wait) for _ in range(self._receivers))
        outcomes = await asyncio.gather(*receiving, return_exceptions=True)
        failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        received = [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
        is_full = not failures and all(len(messages) == BATCH for messages in received)
        self._receivers = min(2 * self._receivers, MOST_RECEIVERS) if is_full else 1
        if failures and not any(received):
            raise failures[0]
        for failure in failures:
            fields = {"queue": self._name, "error": str(failure)}
            log.warning("sqs:ReceiveMessage failed; retrying", extra=fields)
        return [self._notice(message) for messages in received for message in messages]

    async def acknowledge(self, notice: Notice) -> None:
        """Delete the message; deletions close together share one call.

        Raises:
            CloudProviderError: the message was not deleted, so SQS delivers it again.

        """
        if not await self._deletions.get(notice.receipt):
            raise CloudProviderError(
                f"failed to delete a message of the interruption queue {self._name}; SQS "
                "delivers it again"
            )

    async def _receive(self, wait: int) -> Sequence[Mapping[str, Any]]:
        response = await self._call(
            "receive_message",
            MaxNumberOfMessages=BATCH,
            WaitTimeSeconds=wait,
            VisibilityTimeout=WAIT,
            MessageSystemAttributeNames=["SentTimestamp"],
        )
        return response.get("Messages") or []

    def _notice(self, message: Mapping[str, Any]) -> Notice:
        instances: tuple[str, ...] = ()
        detail: Mapping[str, Any] = {}
        try:
            kind, instances, detail = parse_message(message["Body"])
        except ValueError as exc:
            # A retry could not parse it either: count it, and delete it like any other message.
            log.error(
                "failed to parse a message of the interruption queue; deleting it: check which "
                "EventBridge rule or other sender writes to this SQS queue",
                extra={
                    "queue": self._name,
                    "message-id": message.get("MessageId", ""),
                    "error": str(exc),
                },
            )
            kind = MALFORMED
        if kind == "capacity_reservation_interrupted":
            reservation = detail.get("capacity-reservation-id")
            if isinstance(reservation, str):
                self._reservations.mark_unavailable(reservation)
        sent = (message.get("Attributes") or {}).get("SentTimestamp")
        return Notice(
            kind=kind,
            instance_ids=instances,
            receipt=message["ReceiptHandle"],
            sent_at=datetime.fromtimestamp(int(sent) / 1000, UTC) if sent else None,
        )

    async def _delete(self, receipts: Sequence[str]) -> Mapping[str, bool]:
        """Delete messages; return those that were deleted."""
        entries = [{"Id": str(n), "ReceiptHandle": receipt} for n, receipt in enumerate(receipts)]
        response = await self._call("delete_message_batch", Entries=entries)
        return {receipts[int(done["Id"])]: True for done in response.get("Successful") or []}

    async def _call(self, operation: str, **parameters: Any) -> dict[str, Any]:
        try:
            if not self._url:
                queue = await self._aws.call("sqs", "get_queue_url", QueueName=self._name)
                self._url = queue["QueueUrl"]
            return await self._aws.waiting_call("sqs", operation, QueueUrl=self._url, **parameters)
        except AwsError as exc:
            if exc.is_not_found:
                # The queue may be created again with another URL.
                self._url = ""
                raise CloudProviderError(
                    f"SQS queue {self._name} of INTERRUPTION_QUEUE does not exist: create it or "
                    "correct the setting",
                    reason="QueueNotFound",
                ) from exc
            raise
