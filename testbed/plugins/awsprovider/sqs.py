"""Simple Queue Service: queues and their policies."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from testbed.plugins.awsprovider.resourcetype import (
    Resource,
    canonical,
    change_tags,
    name_of,
)
from testbed.plugins.codec import Bag

ATTRIBUTES: Final[Mapping[str, str]] = {
    "kmsMasterKeyId": "KmsMasterKeyId",
    "messageRetentionSeconds": "MessageRetentionPeriod",
    "sqsManagedSseEnabled": "SqsManagedSseEnabled",
}
"""Property of a queue → SQS attribute."""


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
    unsupported = (
        "delaySeconds", "fifoQueue", "kmsDataKeyReusePeriodSeconds", "maxMessageSize", "policy",
        "receiveWaitTimeSeconds", "redriveAllowPolicy", "redrivePolicy", "visibilityTimeoutSeconds",
    )  # fmt: skip
    computed = ("arn", "url")
    defaults = {"messageRetentionSeconds": 345600}

    def create(self, inputs: Bag) -> str:
        attributes = {
            attribute: _to_text(inputs[name])
            for name, attribute in ATTRIBUTES.items()
            if inputs.get(name) is not None
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
                name: _from_text(attributes[attribute])
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


def _from_text(text: str) -> Any:
    return json.loads(text) if text.isdigit() or text in ("true", "false") else text


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
