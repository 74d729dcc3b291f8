"""An offering that EC2 refused is avoided for a while, and for longer after each refusal."""

from __future__ import annotations

import pytest

from controller.aws.unavailable import LONGEST_TTL, TTL, Unavailable

OFFERING = ("m5.large", "us-west-2a", "spot")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def unavailable(clock: Clock) -> Unavailable:
    return Unavailable(clock=clock)


def avoided_for(unavailable: Unavailable, clock: Clock) -> float:
    """Return for how many seconds from now the offering is avoided, on to its last moment."""
    began = clock.now
    while unavailable.is_marked(*OFFERING):
        clock.now += TTL / 2
        unavailable.sweep()
    return clock.now - began


def test_what_is_refused_again_and_again_is_avoided_for_longer_each_time(
    unavailable: Unavailable, clock: Clock
) -> None:
    lengths = []
    for _ in range(6):
        unavailable.mark(*OFFERING)
        lengths.append(avoided_for(unavailable, clock))

    assert lengths == [TTL, 2 * TTL, 4 * TTL, LONGEST_TTL, LONGEST_TTL, LONGEST_TTL]


def test_launches_that_are_refused_side_by_side_count_once(
    unavailable: Unavailable, clock: Clock
) -> None:
    for _ in range(20):
        unavailable.mark(*OFFERING)

    assert avoided_for(unavailable, clock) == TTL


def test_what_has_been_good_for_a_while_begins_anew(unavailable: Unavailable, clock: Clock) -> None:
    unavailable.mark(*OFFERING)
    unavailable.mark(*OFFERING)
    clock.now += 2 * TTL
    unavailable.mark(*OFFERING)

    assert avoided_for(unavailable, clock) == TTL


def test_whoever_caches_offerings_hears_of_every_mark_and_of_its_end(
    unavailable: Unavailable, clock: Clock
) -> None:
    seen = [unavailable.sequence("m5.large")]
    unavailable.mark(*OFFERING)
    seen.append(unavailable.sequence("m5.large"))
    clock.now += TTL
    unavailable.sweep()
    seen.append(unavailable.sequence("m5.large"))
    unavailable.sweep()

    assert seen == sorted(set(seen))
    assert unavailable.sequence("m5.large") == seen[-1]


def test_what_a_placement_group_lacks_others_may_have(unavailable: Unavailable) -> None:
    unavailable.mark(*OFFERING, group="pg-1")

    assert unavailable.is_marked(*OFFERING, group="pg-1")
    assert not unavailable.is_marked(*OFFERING, group="pg-2")
    assert not unavailable.is_marked(*OFFERING)


def test_what_the_zone_lacks_no_placement_group_has(unavailable: Unavailable) -> None:
    unavailable.mark(*OFFERING)

    assert unavailable.is_marked(*OFFERING, group="pg-1")


def test_a_placement_group_that_is_full_in_a_zone_takes_no_type_there(
    unavailable: Unavailable, clock: Clock
) -> None:
    before = unavailable.sequence("c5.large")
    unavailable.mark_group("pg-1", "us-west-2a")

    assert unavailable.is_marked("c5.large", "us-west-2a", "on-demand", group="pg-1")
    assert unavailable.sequence("c5.large") != before, "whoever keeps offerings hears of it"
    assert not unavailable.is_marked("c5.large", "us-west-2b", "on-demand", group="pg-1")
    assert not unavailable.is_marked("c5.large", "us-west-2a", "on-demand")
    clock.now += TTL
    assert not unavailable.is_marked("c5.large", "us-west-2a", "on-demand", group="pg-1")
