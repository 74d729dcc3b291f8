"""The run on a real account, against stand-ins.

It always ends with a destroy, and the sweep finds what is left.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from bench.account.allowance import CPU, FIXED, Allowance, AllowanceSpentError
from bench.account.story import Story
from bench.account.sweep import Instance, instances, sweep
from controller.apis import labels
from infra.clusterapi import ClusterApi
from testbed.cloud import Cloud
from testbed.cloud.state.world import Settings
from tests import administrator

INSTALLATION = "organization/joiner/account"


@dataclass
class Clock:
    """A time that a test sets."""

    now: datetime = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def pass_by(self, **time: float) -> None:
        self.now += timedelta(**time)


def allowance(clock: Clock, *found: Instance, dollars: float = 5, hours: float = 2) -> Allowance:
    return Allowance(
        dollars=dollars,
        lasting=timedelta(hours=hours),
        clock=clock,
        instances=lambda: list(found),
    )


def test_the_price_counts_fixed_resources_and_running_instances() -> None:
    clock = Clock()
    money = allowance(clock, Instance("i-1", 4), Instance("i-2", 2))
    money.check()
    clock.pass_by(hours=1)
    money.check()

    assert money.spent == pytest.approx(FIXED + 6 * CPU)


def test_a_campaign_ends_when_its_budget_is_spent() -> None:
    clock = Clock()
    money = allowance(clock, Instance("i-1", 64), dollars=3)
    money.check()
    clock.pass_by(hours=1)

    with pytest.raises(AllowanceSpentError, match=r"of \$3.00 are spent"):
        money.check()


def test_a_campaign_ends_when_its_time_is_over() -> None:
    clock = Clock()
    money = allowance(clock, hours=0.5)
    money.check()
    clock.pass_by(minutes=31)

    with pytest.raises(AllowanceSpentError, match="0:30:00 is up"):
        money.check()


@dataclass
class FakeEngine:
    """An engine whose `up` lasts until it is interrupted."""

    fails: bool = False
    called: list[str] = field(default_factory=list)
    during_up: Callable[[], None] = lambda: None
    _interrupted: threading.Event = field(default_factory=threading.Event)

    def up(self, stack: str, config: Mapping[str, str]) -> object:
        self.called.append("up")
        self.during_up()
        if not self.fails:
            self._interrupted.wait()
        raise RuntimeError("the up has ended early")

    def destroy(self, stack: str) -> object:
        self.called.append("destroy")
        return None

    def interrupt(self) -> None:
        self.called.append("interrupt")
        self._interrupted.set()


def nowhere() -> ClusterApi:
    raise AssertionError("there is no cluster to be found")


def test_an_up_that_costs_too_much_is_interrupted_and_taken_down() -> None:
    clock = Clock()
    engine = FakeEngine(during_up=lambda: clock.pass_by(hours=3))
    money = allowance(clock)
    money.check()

    with pytest.raises(AllowanceSpentError):
        Story(engine=engine, settings={}, allowance=money, find=nowhere, poll_seconds=0.01).run()

    assert engine.called == ["up", "interrupt", "destroy"]


def test_an_up_that_fails_is_taken_down() -> None:
    engine = FakeEngine(fails=True)

    with pytest.raises(RuntimeError, match="ended early"):
        Story(engine=engine, settings={}, allowance=allowance(Clock()), find=nowhere).run()

    assert engine.called == ["up", "destroy"]


@pytest.fixture
def cloud() -> Iterator[Cloud]:
    with Cloud(settings=Settings(pending=0.0, shutting_down=0.0)) as running:
        yield running


def test_the_sweep_terminates_instances_and_lists_other_leftovers(cloud: Cloud) -> None:
    client = partial(administrator.client, cloud.url)
    ec2 = client("ec2")
    ours = [{"Key": labels.TAG_INSTALLATION, "Value": INSTALLATION}]
    image = ec2.describe_images(Owners=["amazon"])["Images"][0]["ImageId"]
    subnet = ec2.describe_subnets()["Subnets"][0]["SubnetId"]
    for tags in (ours, [{"Key": "team", "Value": "other"}]):
        ec2.run_instances(
            ImageId=image,
            InstanceType="m5.large",
            SubnetId=subnet,
            MinCount=1,
            MaxCount=1,
            TagSpecifications=[{"ResourceType": "instance", "Tags": tags}],
        )
    client("sqs").create_queue(QueueName="forgotten", tags={ours[0]["Key"]: INSTALLATION})
    (instance,) = instances(client, INSTALLATION)
    said: list[str] = []

    left = sweep(client, INSTALLATION, said.append)

    assert left == ["arn:aws:sqs:us-west-2:123456789012:forgotten"]
    assert said == [f"terminating what still runs: {instance.identity}"]
    assert instances(client, INSTALLATION) == []
    states = {
        instance["State"]["Name"]
        for reservation in ec2.describe_instances()["Reservations"]
        for instance in reservation["Instances"]
    }
    assert "running" in states or "pending" in states
