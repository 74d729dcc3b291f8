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


def test_repeated_refusals_double_the_time_an_offering_is_avoided(
    unavailable: Unavailable, clock: Clock
) -> None:
    lengths = []
    for _ in range(6):
        unavailable.mark(*OFFERING)
        lengths.append(avoided_for(unavailable, clock))

    assert lengths == [TTL, 2 * TTL, 4 * TTL, LONGEST_TTL, LONGEST_TTL, LONGEST_TTL]


def test_concurrent_refusals_count_once(unavailable: Unavailable, clock: Clock) -> None:
    for _ in range(20):
        unavailable.mark(*OFFERING)

    assert avoided_for(unavailable, clock) == TTL


def test_an_offering_without_recent_refusals_starts_with_the_shortest_time(
    unavailable: Unavailable, clock: Clock
) -> None:
    unavailable.mark(*OFFERING)
    unavailable.mark(*OFFERING)
    clock.now += 2 * TTL
    unavailable.mark(*OFFERING)

    assert avoided_for(unavailable, clock) == TTL


def test_caches_of_offerings_see_every_mark_and_its_expiry(
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


def test_insufficient_capacity_in_a_placement_group_does_not_exclude_other_groups(
    unavailable: Unavailable,
) -> None:
    unavailable.mark(*OFFERING, group="pg-1")

    assert unavailable.is_marked(*OFFERING, group="pg-1")
    assert not unavailable.is_marked(*OFFERING, group="pg-2")
    assert not unavailable.is_marked(*OFFERING)


def test_insufficient_capacity_in_a_zone_applies_to_every_placement_group(
    unavailable: Unavailable,
) -> None:
    unavailable.mark(*OFFERING)

    assert unavailable.is_marked(*OFFERING, group="pg-1")


def test_a_placement_group_that_is_full_in_a_zone_excludes_every_type_there(
    unavailable: Unavailable, clock: Clock
) -> None:
    before = unavailable.sequence("c5.large")
    unavailable.mark_group("pg-1", "us-west-2a")

    assert unavailable.is_marked("c5.large", "us-west-2a", "on-demand", group="pg-1")
    assert unavailable.sequence("c5.large") != before, "caches of offerings see the change"
    assert not unavailable.is_marked("c5.large", "us-west-2b", "on-demand", group="pg-1")
    assert not unavailable.is_marked("c5.large", "us-west-2a", "on-demand")
    clock.now += TTL
    assert not unavailable.is_marked("c5.large", "us-west-2a", "on-demand", group="pg-1")
