"""Whatever the world: nobody is lost, no rule is broken, and the answer is always the same."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.scheduling.answers import answer
from controller.scheduling.scheduler import schedule
from controller.state.world import load
from tests.scheduling.validator import findings
from tests.scheduling.worlds import World, diverse_world, mixed_world

QUICKLY = settings(max_examples=25)


def _solved(world: World) -> World:
    read = load(world)
    return answer(schedule(read.pods, snapshot=read.snapshot))


@QUICKLY
@given(st.integers(0, 10_000), st.integers(1, 120))
def test_a_mixed_world_is_answered_within_the_rules(seed: int, count: int) -> None:
    world = mixed_world(seed, count)

    assert findings(world, _solved(world)) == []


@pytest.mark.parametrize("count", [40, 200])
def test_pods_of_every_sort_are_placed_within_the_rules(count: int) -> None:
    world = diverse_world(count, count, types_=60)

    solved = _solved(world)

    assert findings(world, solved) == []
    assert not solved["unschedulable"]


def test_an_answer_is_the_same_byte_for_byte() -> None:
    world = mixed_world(11, 200)
    shuffled = {**world, "pods": list(reversed(world["pods"]))}

    assert json.dumps(_solved(world)) == json.dumps(_solved(shuffled))


def test_time_that_is_up_still_leaves_a_complete_answer() -> None:
    world = mixed_world(12, 300)
    read = load(world)

    hurried = answer(schedule(read.pods, snapshot=read.snapshot, expired=lambda: True))

    assert findings(world, hurried) == []


def test_the_validator_finds_what_is_wrong() -> None:
    world = mixed_world(13, 60)
    solved = _solved(world)
    crowded = json.loads(json.dumps(solved))
    crowded["newNodes"][0]["pods"] += crowded["newNodes"].pop()["pods"] * 2

    assert any("times" in one for one in findings(world, crowded))
