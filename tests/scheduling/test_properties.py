"""In every world, no pod is lost, no rule is broken, and the answer is deterministic."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.parity import generated
from bench.parity.worlds import World, benchmark_types, beside_others, diverse, mixed_world
from controller.offline.jsonresults import results_content
from controller.offline.world import load
from controller.scheduling.scheduler import schedule
from tests.oracle.replay import Finding, findings

QUICKLY = settings(max_examples=25)


def solved(world: World) -> dict[str, Any]:
    read = load(world)
    return results_content(schedule(read.pods, snapshot=read.snapshot))


def faults(world: World, answer: dict[str, Any]) -> list[Finding]:
    return findings(world, answer, world["instanceTypes"])


@QUICKLY
@given(st.integers(0, 10_000), st.integers(1, 120))
def test_a_mixed_world_is_solved_within_the_constraints(seed: int, count: int) -> None:
    world = mixed_world(count, seed)

    assert faults(world, solved(world)) == []


@pytest.mark.parametrize("count", [40, 200])
@pytest.mark.parametrize("types", [60, 400])
def test_pods_of_every_class_are_scheduled_within_the_constraints(count: int, types: int) -> None:
    world = {**diverse(count, seed=count), "instanceTypes": benchmark_types(types)}

    answer = solved(world)

    assert faults(world, answer) == []
    assert not answer["unschedulable"]


def test_pods_with_affinity_are_scheduled_within_the_constraints() -> None:
    world = beside_others()

    assert faults(world, solved(world)) == []


def test_an_answer_is_the_same_byte_for_byte() -> None:
    world = mixed_world(200, 11)
    shuffled = {**world, "pods": list(reversed(world["pods"]))}

    assert json.dumps(solved(world)) == json.dumps(solved(shuffled))


def test_at_the_timeout_the_answer_is_still_complete() -> None:
    world = mixed_world(300, 12)
    read = load(world)

    hurried = results_content(schedule(read.pods, snapshot=read.snapshot, expired=lambda: True))

    assert faults(world, hurried) == []


def test_an_infeasible_program_launches_nothing() -> None:
    """A limit leaves too little for whole nodes; it was then said to buy less than none."""
    world = generated.world(1_000_087)

    assert faults(world, solved(world)) == []


def test_the_oracle_finds_broken_constraints() -> None:
    world = mixed_world(60, 13)
    crowded = json.loads(json.dumps(solved(world)))
    crowded["newNodes"][0]["pods"] += crowded["newNodes"].pop()["pods"] * 2

    assert "conservation" in {finding.rule for finding in faults(world, crowded)}
