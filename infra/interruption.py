"""The interruption queue: EventBridge sends EC2's and AWS Health's events on nodes to it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import pulumi
import pulumi_aws as aws

from infra import names, policies
from infra.cluster.ekscluster import EksCluster
from infra.config.forms import Presence
from infra.inputs import then

EVENTS: Mapping[str, tuple[str, Sequence[str]]] = {
    "health": ("aws.health", ["AWS Health Event"]),
    "spot-interruption": ("aws.ec2", ["EC2 Spot Instance Interruption Warning"]),
    "rebalance": ("aws.ec2", ["EC2 Instance Rebalance Recommendation"]),
    "state-change": ("aws.ec2", ["EC2 Instance State-change Notification"]),
    "reservation-interruption": (
        "aws.ec2",
        ["EC2 Capacity Reservation Instance Interruption Warning"],
    ),
}
"""The events sent to the queue: end of the rule's name → source and detail types."""


@dataclass(frozen=True, kw_only=True)
class InterruptionQueueArgs:
    """The cluster and the queue's name, from which the names of the rules are derived."""

    cluster: EksCluster
    queue_name: pulumi.Input[str]
    presence: Presence = "create"
    """Whether the stack creates the queue, or it exists with its policy and its rules."""

    key: pulumi.Input[str] | None = None
    """ARN of the KMS key that encrypts the queue; SQS's own key if omitted."""

    # A spot interruption notice comes 2 minutes ahead; an older message would be misleading.
    retention_seconds: int = 300


class InterruptionQueue(pulumi.ComponentResource):
    """The SQS queue, its policy, and the EventBridge rules that send events to it."""

    def __init__(
        self, name: str, args: InterruptionQueueArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("joiner:infra:InterruptionQueue", name, None, opts)
        self._mine = pulumi.ResourceOptions(parent=self)
        if args.presence == "create":
            self._make(name, args)
        else:
            found = aws.sqs.get_queue_output(
                name=args.queue_name, opts=pulumi.InvokeOutputOptions(parent=self)
            )
            self.queue_name, self.queue_arn = found.name, found.arn
        self.register_outputs({"name": self.queue_name, "arn": self.queue_arn})

    def _make(self, name: str, args: InterruptionQueueArgs) -> None:
        queue = aws.sqs.Queue(
            name,
            name=args.queue_name,
            message_retention_seconds=args.retention_seconds,
            sqs_managed_sse_enabled=None if args.key else True,
            kms_master_key_id=args.key,
            opts=self._mine,
        )
        self.queue_name, self.queue_arn = queue.name, queue.arn
        rules = {event: then(args.queue_name, partial(names.rule, event=event)) for event in EVENTS}
        self.policy = aws.sqs.QueuePolicy(
            name,
            queue_url=queue.url,
            policy=pulumi.Output.all(args.cluster.place, queue.arn, *rules.values()).apply(
                lambda known: policies.text_of(
                    policies.queue_policy(known[0], known[1], rules=known[2:])
                )
            ),
            opts=self._mine,
        )
        for event, (source, kinds) in EVENTS.items():
            self._rule(f"{name}-{event}", rules[event], source, kinds)

    def _rule(
        self, name: str, rule_name: pulumi.Input[str], source: str, kinds: Sequence[str]
    ) -> None:
        rule = aws.cloudwatch.EventRule(
            name,
            name=rule_name,
            event_pattern=json.dumps({"source": [source], "detail-type": list(kinds)}),
            opts=self._mine,
        )
        aws.cloudwatch.EventTarget(
            name,
            rule=rule.name,
            target_id="InterruptionQueue",
            arn=self.queue_arn,
            # Events that EventBridge sends before the queue's policy allows it are lost.
            opts=pulumi.ResourceOptions(parent=self, depends_on=[self.policy]),
        )
