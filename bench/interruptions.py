"""Measure how many messages per second the interruption queue's listener handles.

    python -m bench.interruptions [--messages N] [--claims N]

The queue is a minimal SQS over HTTP in its own process. moto walks through all messages for each
one it returns, so the benchmark would measure moto. Calls go through boto3. The cluster is in
memory, so the benchmark measures reading, acting on and deleting messages. By default, two of five
messages concern instances of a NodeClaim.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

from bench.arguments import make_parser
from controller.apis import labels
from controller.apis.karpenter.nodeclaim import NodeClaim, NodeClaimSpec, NodeClaimStatus
from controller.apis.kubernetes.meta import ObjectMeta
from controller.aws.instancetypes.reservations import Reservations
from controller.aws.interruption.messages import Interruptions
from controller.aws.session import Session
from controller.cloudprovider.fake import FakeCloud
from controller.cloudprovider.provider import Notice
from controller.reconcilers.interruption.handler import NoticeHandler
from controller.reconcilers.interruption.listener import Listener
from tests.builders import CLASS
from tests.reconcilers.world import World

QUEUE, REGION = "joiner", "us-west-2"
DELETED = "karpenter_interruption_deleted_messages_total"


class QueuedCloud(FakeCloud):
    """An in-memory cloud whose interruption notices come from a queue over HTTP."""

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


class Queue(BaseHTTPRequestHandler):
    """The part of SQS that the listener uses.

    It returns each message once, as SQS does within the visibility timeout of 20 s.
    """

    protocol_version = "HTTP/1.1"
    bodies: Iterator[tuple[int, str]] = iter(())

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        operation = self.headers["X-Amz-Target"].partition(".")[2]
        answer = json.dumps(getattr(self, operation)(asked)).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/x-amz-json-1.0")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def GetQueueUrl(self, _: Any) -> dict[str, Any]:  # noqa: N802 - SQS's name
        return {"QueueUrl": f"http://{self.headers['Host']}/{QUEUE}"}

    def ReceiveMessage(self, asked: Any) -> dict[str, Any]:  # noqa: N802
        numbers = zip(range(asked["MaxNumberOfMessages"]), self.bodies, strict=False)
        return {
            "Messages": [
                {
                    "MessageId": str(number),
                    "ReceiptHandle": f"receipt-{number}",
                    "Body": body,
                    "MD5OfBody": md5(body.encode()).hexdigest(),
                    "Attributes": {"SentTimestamp": str(int(time.time() * 1000))},
                }
                for _, (number, body) in numbers
            ]
        }

    def DeleteMessageBatch(self, asked: Any) -> dict[str, Any]:  # noqa: N802
        return {"Successful": [{"Id": entry["Id"]} for entry in asked["Entries"]], "Failed": []}

    def log_message(self, format: str, *args: object) -> None: ...  # noqa: A002 - the base class's


def serve(pipe: Connection, messages: int) -> None:
    """Serve a queue of `messages` messages, and send its port through the pipe."""
    Queue.bodies = iter([*enumerate(map(message, range(messages)))])
    with ThreadingHTTPServer(("127.0.0.1", 0), Queue) as server:
        pipe.send(server.server_port)
        server.serve_forever()


@contextmanager
def queue(messages: int) -> Iterator[str]:
    """Run a queue in its own process; yield its endpoint."""
    processes = get_context("spawn")
    here, there = processes.Pipe()
    process = processes.Process(target=serve, args=(there, messages), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{here.recv()}"
    finally:
        process.terminate()
        process.join()


async def handle_all(url: str, messages: int, claims: int) -> tuple[float, float]:
    """Return the time until the queue is empty: wall clock and CPU, in seconds.

    The queue at `url` has `messages` messages, and the cluster has `claims` NodeClaims.
    """
    os.environ |= {"AWS_ENDPOINT_URL": url, "AWS_REGION": REGION}
    os.environ |= {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}
    session = Session(region=REGION)
    world = World()
    world.seed(*map(claim, range(claims)))
    cloud = QueuedCloud(Interruptions(session, QUEUE, Reservations(session)))
    ports = dataclasses.replace(world.ports, cloud=cloud)
    listener = Listener(ports, NoticeHandler(ports, world.registrations))
    began, worked = time.perf_counter(), time.process_time()
    done = 0.0
    while done < messages:
        await listener.run_once()
        done = world.metrics.registry.get_sample_value(DELETED) or 0.0
        print(f"\r{done:.0f} of {messages}", end="", file=sys.stderr, flush=True)
    seconds, worked = time.perf_counter() - began, time.process_time() - worked
    print(file=sys.stderr)
    session.close()
    return seconds, worked


def main(argv: Sequence[str]) -> int:
    """Fill the queue, handle all its messages, and print the rate."""
    parser = make_parser("bench.interruptions", __doc__)
    parser.add_argument("--messages", type=int, default=5000, help="messages in the queue (5000)")
    parser.add_argument("--claims", type=int, default=2000, help="NodeClaims in the cluster (2000)")
    options = parser.parse_args(argv)
    with queue(options.messages) as url:
        seconds, worked = asyncio.run(handle_all(url, options.messages, options.claims))
    print(
        f"{options.messages} messages, {options.claims} nodes: {seconds:.2f} s, "
        f"{options.messages / seconds:.0f} a second; {worked:.2f} s of processor time, "
        f"{options.messages / worked:.0f} a second of it"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
