"""Simple Queue Service: queues and their policies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from testbed.plugins.awsprovider.resourcetype import (
    Function,
    Resource,
    canonical,
    change_tags,
    name_of,
)
from testbed.plugins.awsprovider.session import Session
from testbed.plugins.codec import Bag

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
        answer = self.api.create_queue(
            QueueName=name_of(inputs), Attributes=attributes, tags=inputs.get("tags") or {}
        )
        return str(answer["QueueUrl"])

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
