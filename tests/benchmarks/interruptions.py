"""How many messages of the interruption queue are handled in a second.

    python -m tests.benchmarks.interruptions [--messages N] [--claims N]

The queue is the test cloud's, behind HTTP, in a process of its own; calls go through boto3. The
cluster is in memory, so that what is measured is the reading, the acting and the deleting. Half
of the messages are about instances of ours.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

import boto3

from controller.apis import labels
from controller.apis.meta import ObjectMeta
from controller.apis.nodeclaim import NodeClaim, NodeClaimSpec, NodeClaimStatus
from controller.aws.interruptions import BATCH, Interruptions
from controller.aws.reservations import Reservations
from controller.aws.session import Session
from controller.cloudprovider.fake import FakeCloud
from controller.cloudprovider.provider import Notice
from controller.reconcilers.interruption.listener import Listener
from testbed.cloud import Cloud
from tests.reconcilers.world import CLASS, World

QUEUE, REGION = "joiner", "us-west-2"
DELETED = "karpenter_interruption_deleted_messages_total"


class QueuedCloud(FakeCloud):
    """A cloud in memory, the notices of which come from a real queue."""

    def __init__(self, interruptions: Interruptions) -> None:
        super().__init__()
        self._interruptions = interruptions

    async def notices(self) -> list[Notice]:
        return [*await self._interruptions.notices()]

    async def acknowledge(self, notice: Notice) -> None:
        await self._interruptions.acknowledge(notice)


def claim(n: int) -> NodeClaim:
    carried = {labels.INSTANCE_TYPE: "m5.large", labels.ZONE: "us-west-2a"}
    return NodeClaim(
        metadata=ObjectMeta(
            name=f"claim-{n}", labels=carried, finalizers=[labels.TERMINATION_FINALIZER]
        ),
        spec=NodeClaimSpec(node_class_ref=CLASS),
        status=NodeClaimStatus(provider_id=f"aws:///us-west-2a/i-{n:017x}"),
    )


def message(n: int) -> str:
    return json.dumps(
        {
            "version": "0",
            "source": "aws.ec2",
            "detail-type": "EC2 Spot Instance Interruption Warning",
            "detail": {"instance-id": f"i-{n:017x}", "instance-action": "terminate"},
        }
    )


def fill(sqs: Any, url: str, count: int) -> None:
    for first in range(0, count, BATCH):
        numbers = range(first, min(first + BATCH, count))
        entries = [{"Id": str(n), "MessageBody": message(n)} for n in numbers]
        sqs.send_message_batch(QueueUrl=url, Entries=entries)


async def handled(url: str, messages: int, claims: int) -> float:
    """Return how long it takes until the queue is empty, in seconds."""
    os.environ |= {"AWS_ENDPOINT_URL": url, "AWS_REGION": REGION}
    os.environ |= {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}
    session = Session(region=REGION)
    world = World()
    world.seed(*map(claim, range(claims)))
    cloud = QueuedCloud(Interruptions(session, QUEUE, Reservations(session)))
    listener = Listener(
        api=world.api, cloud=cloud, cluster=world.cluster, recorder=world.recorder,
        metrics=world.metrics, clock=world.clock,
    )  # fmt: skip
    began = time.perf_counter()
    done = 0.0
    while done < messages:
        await listener.run_once()
        done = world.metrics.registry.get_sample_value(DELETED) or 0.0
        print(f"\r{done:.0f} of {messages}", end="", file=sys.stderr, flush=True)
    seconds = time.perf_counter() - began
    print(file=sys.stderr)
    session.close()
    return seconds


def main(argv: Sequence[str]) -> int:
    """Fill the queue, empty it, and print how fast that went."""
    parser = argparse.ArgumentParser(prog="tests.benchmarks.interruptions", description=__doc__)
    parser.add_argument("--messages", type=int, default=5000, help="how many wait (5000)")
    parser.add_argument("--claims", type=int, default=2000, help="how many nodes there are (2000)")
    options = parser.parse_args(argv)
    with Cloud(cluster_name="joiner") as cloud:
        sqs = boto3.client(
            "sqs", region_name=REGION, endpoint_url=cloud.url,
            aws_access_key_id="testing", aws_secret_access_key="testing",
        )  # fmt: skip
        queue = sqs.create_queue(QueueName=QUEUE)["QueueUrl"]
        fill(sqs, queue, options.messages)
        seconds = asyncio.run(handled(cloud.url, options.messages, options.claims))
    print(
        f"{options.messages} messages, {options.claims} nodes: {seconds:.2f} s, "
        f"{options.messages / seconds:.0f} a second"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
