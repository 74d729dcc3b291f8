"""A scale-up within EC2's rate limits: shared calls do not wait, and others may wait for long."""

from __future__ import annotations

import logging

import pytest

from bench.launches import LONGEST, play
from controller.aws import ratelimits
from controller.aws.launching import launcher
from controller.manager import assembly
from controller.manager.loops import Workers
from controller.reconcilers.nodeclaim.lifecycle import LAUNCH_TIMEOUT

NODES_AT_ONCE = 110
"""With a CreateFleet call for each, the last would wait 13 s for EC2's rate limit."""

NODES = 40
SLOW = ratelimits.Size(5, 0.1)
"""A fiftieth of EC2's own bucket for writes: forty launches wait as 1,800 do there."""


@pytest.mark.parametrize("failures", [0, 2])
def test_equal_claims_share_a_call_and_launch_within_seconds(
    caplog: pytest.LogCaptureFixture, failures: int
) -> None:
    caplog.set_level(logging.CRITICAL)

    played = play(NODES_AT_ONCE, failures=failures)

    assert len(played.region.instances) == len(played.created) == NODES_AT_ONCE
    assert played.region.calls["create_fleet"] == 1 + failures
    assert max(played.region.fleets.values()) - played.pods_at < 10
    assert not played.region.refused


def test_nodepools_with_an_ec2nodeclass_each_launch_within_seconds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each needs seven launch templates of its own, and EC2 limits the rate of their creation."""
    caplog.set_level(logging.CRITICAL)

    played = play(20, classes=20)

    assert len(played.region.instances) == len(played.created) == 20
    assert max(played.region.fleets.values()) - played.pods_at < 8
    assert played.region.calls["create_launch_template"] < 20 * 7
    assert not played.region.refused


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each NodeClaim its own CreateFleet call, as if no two were equal."""
    monkeypatch.setattr(launcher, "MAX_INSTANCES", 1)


@pytest.mark.long
@pytest.mark.usefixtures("alone")
def test_failed_claims_that_wait_behind_others_are_not_deleted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Few may launch at once, as of two thousand claims: one whose launch has failed waits for all
    the others, and has not started to fail again since.
    """
    monkeypatch.setattr(ratelimits, "OF_WRITES", SLOW)
    monkeypatch.setattr(assembly, "MOST", Workers(2, 2))
    caplog.set_level(logging.CRITICAL)

    played = play(NODES, failures=2)

    assert len(played.created) == NODES, "a claim was deleted, or launched again"
    assert len(played.region.instances) == NODES


@pytest.mark.long
@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("failures", [0, 2])
def test_claims_that_wait_for_minutes_launch_once_and_none_is_deleted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, failures: int
) -> None:
    monkeypatch.setattr(ratelimits, "OF_WRITES", SLOW)
    caplog.set_level(logging.CRITICAL)

    played = play(NODES, failures=failures)

    assert played.waits[-1] > LAUNCH_TIMEOUT.total_seconds()
    assert played.region.failed.total() == failures * NODES // 4
    assert len(played.created) == NODES, "a claim was deleted, or launched again"
    assert len(played.region.instances) == NODES
    assert not played.region.refused
    assert played.seconds < LONGEST
