"""Queue policies, as far as moto lacks them.

A queue keeps its policy when a caller sets another attribute. EventBridge delivers an event to a
queue only if the queue's policy allows it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from testbed.cloud.iam import policies
from testbed.cloud.protocol import backends
from testbed.cloud.protocol.wire import Call
from testbed.cloud.state.calllog import Denial
from testbed.cloud.state.world import World

EVENTBRIDGE = "events.amazonaws.com"


@contextmanager
def keeping_policy(world: World, call: Call) -> Iterator[None]:
    """Restore a queue's policy after the block, in which moto handles the call.

    moto drops the policy when another attribute is set.
    """
    queue = None
    if call.service == "sqs" and call.operation == "SetQueueAttributes":
        name = str(call.get("QueueUrl", "")).rsplit("/", 1)[-1]
        queue = backends.sqs(world.region).queues.get(name)
    policy = queue.policy if queue is not None else None
    yield
    if policy and "Policy" not in call.get("Attributes", {}):
        backends.sqs(world.region).queues[name].policy = policy


def may_deliver(world: World, *, queue_name: str, rule_arn: str) -> bool:
    """Return whether a queue's policy allows EventBridge to send it a rule's events.

    AWS does not report undelivered events. The test cloud records each as a denial.
    """
    queue = backends.sqs(world.region).queues.get(queue_name)
    if queue is None:
        return False
    verdict = policies.evaluate(
        [policies.parse(queue.policy)] if queue.policy else [],
        action="sqs:SendMessage",
        resource=queue.queue_arn,
        context={
            # The loopback endpoint emulates AWS's HTTPS endpoints.
            "aws:SecureTransport": ["true"],
            "aws:SourceArn": [rule_arn],
            "aws:SourceAccount": [backends.ACCOUNT],
        },
        principal={"Service": EVENTBRIDGE},
    )
    if not verdict.allowed:
        denial = Denial(EVENTBRIDGE, "sqs:SendMessage", queue.queue_arn, verdict.reason)
        world.call_log.record_denial(denial)
    return verdict.allowed
