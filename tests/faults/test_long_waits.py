"""NodeClaims that wait for EC2's rate limits longer than a launch may keep failing."""

from __future__ import annotations

import logging

import pytest

from bench.launches import LONGEST, play
from controller.aws import ratelimits
from controller.manager import assembly
from controller.manager.loops import Workers
from controller.reconcilers.nodeclaim.lifecycle import LAUNCH_TIMEOUT

NODES = 40
SLOW = ratelimits.Size(5, 0.1)
"""A fiftieth of EC2's own bucket for writes: forty launches wait as 1,800 do there."""


def test_claims_that_fail_and_wait_behind_others_are_not_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Few may launch at once, as of two thousand claims: one whose launch has failed waits for all
    the others, and has not begun to fail again meanwhile.
    """
    monkeypatch.setattr(ratelimits, "OF_WRITES", SLOW)
    monkeypatch.setattr(assembly, "MANY", Workers(2, 2))
    caplog.set_level(logging.CRITICAL)

    played = play(NODES, failures=2)

    assert len(played.created) == NODES, "a claim was given up, or bought anew"
    assert len(played.region.machines) == NODES


@pytest.mark.parametrize("failures", [0, 2])
def test_claims_that_wait_for_minutes_are_launched_once_and_none_is_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, failures: int
) -> None:
    monkeypatch.setattr(ratelimits, "OF_WRITES", SLOW)
    caplog.set_level(logging.CRITICAL)

    played = play(NODES, failures=failures)

    assert played.waits[-1] > LAUNCH_TIMEOUT.total_seconds()
    assert played.region.failed.total() == failures * NODES // 4
    assert len(played.created) == NODES, "a claim was given up, or bought anew"
    assert len(played.region.machines) == NODES
    assert not played.region.refused
    assert played.seconds < LONGEST
