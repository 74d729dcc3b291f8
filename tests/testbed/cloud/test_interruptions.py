"""EC2 events reach a queue through EventBridge if rule and policy allow it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from testbed.cloud import CloudControl
from testbed.cloud.control import ControlError
from tests.testbed.cloud.builders import Region, document, unique
from tests.testbed.cloud.conftest import Aws, eventually


@pytest.fixture(scope="module")
def region(aws: Aws) -> Region:
    return Region(aws)


@dataclass(frozen=True)
class Queue:
    """A queue and the events that have come to it."""

    aws: Aws
    url: str
    received: list[dict[str, Any]]

    def wait_for(self, detail_type: str, **detail: str) -> dict[str, Any]:
        def look() -> dict[str, Any] | None:
            answer = self.aws.client("sqs").receive_message(
                QueueUrl=self.url, MaxNumberOfMessages=10
            )
            self.received.extend(json.loads(m["Body"]) for m in answer.get("Messages", []))
            for event in self.received:
                if (
                    event["detail-type"] == detail_type
                    and detail.items() <= event["detail"].items()
                ):
                    return event
            return None

        seen: dict[str, Any] = eventually(look)
        return seen


def make_queue(aws: Aws, *, policy: bool = True, pattern: Any = None) -> Queue:
    name = unique("events")
    arn = f"arn:aws:sqs:us-west-2:123456789012:{name}"
    lets_events_in = {
        "Effect": "Allow",
        "Principal": {"Service": ["events.amazonaws.com", "sqs.amazonaws.com"]},
        "Action": "sqs:SendMessage",
        "Resource": arn,
    }
    attributes = {"Policy": document(lets_events_in)} if policy else {}
    url = aws.client("sqs").create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
    events = aws.client("events")
    chosen = pattern or {"source": ["aws.ec2", "aws.health"]}
    events.put_rule(Name=name, EventPattern=json.dumps(chosen))
    events.put_targets(Rule=name, Targets=[{"Id": "queue", "Arn": arn}])
    return Queue(aws, url, [])


def test_every_state_change_of_an_instance_sends_an_event(
    aws: Aws, ec2: Any, region: Region
) -> None:
    queue = make_queue(aws)

    [identity] = region.launch()
    change = "EC2 Instance State-change Notification"
    running = queue.wait_for(change, **{"instance-id": identity, "state": "running"})
    ec2.terminate_instances(InstanceIds=[identity])
    queue.wait_for(change, **{"instance-id": identity, "state": "terminated"})

    assert running["source"] == "aws.ec2"
    assert running["version"] == "0"
    assert running["account"] == "123456789012"
    assert running["region"] == "us-west-2"
    assert running["resources"] == [f"arn:aws:ec2:us-west-2:123456789012:instance/{identity}"]
    states = [
        e["detail"]["state"] for e in queue.received if e["detail"]["instance-id"] == identity
    ]
    assert set(states) == {"pending", "running", "shutting-down", "terminated"}


def test_a_spot_instance_is_warned_and_then_interrupted(
    aws: Aws, ec2: Any, region: Region, control: CloudControl
) -> None:
    queue = make_queue(aws)
    [identity] = region.launch(capacity_type="spot")

    control.interrupt(identity, delay_seconds=0.2)

    warning = queue.wait_for("EC2 Spot Instance Interruption Warning", **{"instance-id": identity})
    assert warning["detail"]["instance-action"] == "terminate"
    eventually(lambda: state_of(control, identity) == "terminated")
    [reservation] = ec2.describe_instances(InstanceIds=[identity])["Reservations"]
    assert reservation["Instances"][0]["StateReason"]["Code"] == "Server.SpotInstanceTermination"


def state_of(control: CloudControl, identity: str) -> str:
    states = {each.instance_id: each.state for each in control.instances().instances}
    return states[identity]


def test_an_on_demand_instance_is_not_interrupted(region: Region, control: CloudControl) -> None:
    [identity] = region.launch()

    with pytest.raises(ControlError, match="not a spot instance"):
        control.interrupt(identity)


@pytest.mark.parametrize(
    ("kind", "detail_type"),
    [
        ("rebalance", "EC2 Instance Rebalance Recommendation"),
        ("maintenance", "AWS Health Event"),
    ],
)
def test_a_rebalance_recommendation_leaves_the_instance_running(
    aws: Aws, region: Region, control: CloudControl, kind: str, detail_type: str
) -> None:
    queue = make_queue(aws)
    [identity] = region.launch(capacity_type="spot")

    control.interrupt(identity, kind=kind)

    event = queue.wait_for(detail_type)
    assert event["resources"] == [f"arn:aws:ec2:us-west-2:123456789012:instance/{identity}"]
    assert state_of(control, identity) in ("pending", "running")


def test_a_reclaimed_reservation_warns_and_terminates_its_instances(
    aws: Aws, region: Region, control: CloudControl
) -> None:
    queue = make_queue(aws)
    [identity] = region.launch()

    control.interrupt(identity, kind="reservation", delay_seconds=0.1)

    queue.wait_for(
        "EC2 Capacity Reservation Instance Interruption Warning", **{"instance-id": identity}
    )
    eventually(lambda: state_of(control, identity) == "terminated")


def test_events_do_not_reach_a_queue_whose_policy_denies_them(
    aws: Aws, region: Region, control: CloudControl
) -> None:
    closed, open_ = make_queue(aws, policy=False), make_queue(aws)
    name = closed.url.rsplit("/", 1)[-1]

    [identity] = region.launch()
    change = "EC2 Instance State-change Notification"
    open_.wait_for(change, **{"instance-id": identity, "state": "running"})

    assert "Messages" not in aws.client("sqs").receive_message(QueueUrl=closed.url)
    refused = [each for each in control.denied_calls() if each["resource"].endswith(f":{name}")]
    assert refused
    assert refused[0]["principal"] == "events.amazonaws.com"


def test_setting_one_attribute_of_a_queue_keeps_the_others(aws: Aws) -> None:
    queue, sqs = make_queue(aws), aws.client("sqs")
    before = sqs.get_queue_attributes(QueueUrl=queue.url, AttributeNames=["Policy"])

    sqs.set_queue_attributes(QueueUrl=queue.url, Attributes={"MessageRetentionPeriod": "300"})

    after = sqs.get_queue_attributes(QueueUrl=queue.url, AttributeNames=["All"])["Attributes"]
    assert json.loads(after["Policy"]) == json.loads(before["Attributes"]["Policy"])
    assert after["MessageRetentionPeriod"] == "300"


def test_a_long_poll_of_a_queue_does_not_block_other_requests(aws: Aws, region: Region) -> None:
    # Instances of earlier tests may still change state, but none of them becomes pending.
    queue = make_queue(aws, pattern={"source": ["aws.ec2"], "detail": {"state": ["pending"]}})

    [identity] = region.launch()
    answer = aws.client("sqs").receive_message(QueueUrl=queue.url, WaitTimeSeconds=20)

    assert json.loads(answer["Messages"][0]["Body"])["detail"]["instance-id"] == identity
