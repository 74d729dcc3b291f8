"""Simple Queue Service: queues and their policies."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from botocore.exceptions import ClientError

from testbed.plugins.awsprovider.resourcetype import (
    Function,
    Resource,
    canonical,
    change_tags,
    name_of,
)
from testbed.plugins.awsprovider.session import Session, unless_gone
from testbed.plugins.codec import Bag
from testbed.plugins.provider import ProviderError

ATTRIBUTES: Final[Mapping[str, str]] = {
    "delaySeconds": "DelaySeconds",
    "fifoQueue": "FifoQueue",
    "kmsDataKeyReusePeriodSeconds": "KmsDataKeyReusePeriodSeconds",
    "kmsMasterKeyId": "KmsMasterKeyId",
    "maxMessageSize": "MaximumMessageSize",
    "messageRetentionSeconds": "MessageRetentionPeriod",
    "policy": "Policy",
    "receiveWaitTimeSeconds": "ReceiveMessageWaitTimeSeconds",
    "redriveAllowPolicy": "RedriveAllowPolicy",
    "redrivePolicy": "RedrivePolicy",
    "sqsManagedSseEnabled": "SqsManagedSseEnabled",
    "visibilityTimeoutSeconds": "VisibilityTimeout",
}
"""Property of a queue → SQS attribute."""

NUMBERS: Final = frozenset(name for name in ATTRIBUTES if name.endswith(("Seconds", "Size")))
FLAGS: Final = frozenset({"fifoQueue", "sqsManagedSseEnabled"})
DOCUMENTS: Final = ("policy", "redriveAllowPolicy", "redrivePolicy")


RECENTLY_DELETED: Final = "QueueDeletedRecently"
NAME_SECONDS: Final = 90.0
"""How long a creation is retried while the name of a deleted queue is not free."""
STABLE_READS: Final = 6
GONE_READS: Final = 15
"""Equal reads for which the real provider waits after a creation and a deletion. It waits 5 s and
3 s between them, so that a creation takes 30 s and a deletion 45 s. Here the time is compressed."""
POLL_SECONDS: Final = 0.01


class Queue(Resource):
    """`aws.sqs.Queue`."""

    token = "aws:sqs/queue:Queue"
    source = "sqs/queue.go"
    service = "sqs"
    is_taggable = True
    automatic_name = "name"
    name_limit = 80
    fixed = ("name", "namePrefix", "fifoQueue")
    exclusive = (("kmsMasterKeyId", "sqsManagedSseEnabled"),)
    computed = ("arn", "url")
    settling_seconds = 20.0
    defaults = {
        "delaySeconds": 0,
        "fifoQueue": False,
        "messageRetentionSeconds": 345600,
        "receiveWaitTimeSeconds": 0,
        "visibilityTimeoutSeconds": 30,
    }
    documents = DOCUMENTS

    def create(self, inputs: Bag) -> str:
        attributes = {
            attribute: _to_text(inputs[name])
            for name, attribute in ATTRIBUTES.items()
            if inputs.get(name) is not None and (name != "fifoQueue" or inputs[name])
        }
        name, end = name_of(inputs), time.monotonic() + NAME_SECONDS
        while True:
            try:
                answer = self.api.create_queue(
                    QueueName=name, Attributes=attributes, tags=inputs.get("tags") or {}
                )
            except ClientError as error:
                is_late = time.monotonic() > end
                if RECENTLY_DELETED not in error.response["Error"]["Code"] or is_late:
                    raise
                time.sleep(POLL_SECONDS)
            else:
                return str(answer["QueueUrl"])

    def complete(self, identity: str, inputs: Bag) -> None:
        self._settle(identity, is_there=True, reads=STABLE_READS)

    def _settle(self, identity: str, *, is_there: bool, reads: int) -> None:
        """Wait until this many reads in a row have the same result."""
        equal, end = 0, time.monotonic() + NAME_SECONDS
        while equal < reads:
            found = unless_gone(lambda: self.api.get_queue_attributes(QueueUrl=identity))
            equal = equal + 1 if (found is not None) is is_there else 0
            if time.monotonic() > end:
                raise ProviderError(f"waiting for SQS Queue ({identity}): timeout")
            time.sleep(POLL_SECONDS)

    def read(self, identity: str, state: Bag) -> Bag | None:
        answer = self.api.get_queue_attributes(QueueUrl=identity, AttributeNames=["All"])
        attributes = answer["Attributes"]
        return {
            "arn": attributes["QueueArn"],
            "url": identity,
            "name": identity.rpartition("/")[2],
            "tags": self.api.list_queue_tags(QueueUrl=identity).get("Tags") or {},
            **{
                name: _from_text(name, attributes[attribute])
                for name, attribute in ATTRIBUTES.items()
                if attributes.get(attribute)
            },
        }

    def update(self, identity: str, old: Bag, new: Bag) -> None:
        changed = {
            attribute: _to_text(new.get(name, self.defaults.get(name, "")))
            for name, attribute in ATTRIBUTES.items()
            if old.get(name) != new.get(name)
        }
        if changed:
            self.api.set_queue_attributes(QueueUrl=identity, Attributes=changed)
        change_tags(
            old,
            new,
            tag=lambda tags: self.api.tag_queue(QueueUrl=identity, Tags=tags),
            untag=lambda keys: self.api.untag_queue(QueueUrl=identity, TagKeys=keys),
        )

    def delete(self, identity: str, state: Bag) -> None:
        self.api.delete_queue(QueueUrl=identity)
        self._settle(identity, is_there=False, reads=GONE_READS)


def _to_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _from_text(name: str, text: str) -> Any:
    if name in NUMBERS:
        return int(text)
    if name in FLAGS:
        return text == "true"
    return canonical(text) if name in DOCUMENTS else text


class QueuePolicy(Resource):
    """`aws.sqs.QueuePolicy`."""

    token = "aws:sqs/queuePolicy:QueuePolicy"
    source = "sqs/queue_policy.go"
    service = "sqs"
    fixed = ("queueUrl",)
    documents = ("policy",)

    def create(self, inputs: Bag) -> str:
        self._put(inputs["queueUrl"], inputs["policy"])
        return str(inputs["queueUrl"])

    def _put(self, url: str, policy: str) -> None:
        self.api.set_queue_attributes(QueueUrl=url, Attributes={"Policy": policy})

    def read(self, identity: str, state: Bag) -> Bag | None:
        answer = self.api.get_queue_attributes(QueueUrl=identity, AttributeNames=["Policy"])
        policy = (answer.get("Attributes") or {}).get("Policy")
        return {"queueUrl": identity, "policy": canonical(policy)} if policy else None

    def update(self, identity: str, old: Bag, new: Bag) -> None:
        self._put(identity, new["policy"])

    def delete(self, identity: str, state: Bag) -> None:
        self._put(identity, "")


RESOURCES: Final = (Queue, QueuePolicy)


def get_queue(session: Session, arguments: Mapping[str, Any]) -> Bag:
    """`aws.sqs.get_queue`."""
    region = arguments.get("region") or session.region
    api, name = session.client("sqs", region), arguments["name"]
    url = api.get_queue_url(QueueName=name)["QueueUrl"]
    attributes = api.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]
    return {
        "arn": attributes["QueueArn"],
        "id": url,
        "name": name,
        "region": region,
        "tags": api.list_queue_tags(QueueUrl=url).get("Tags") or {},
        "url": url,
    }


FUNCTIONS: Final[Mapping[str, Function]] = {"aws:sqs/getQueue:getQueue": get_queue}
