"""Arithmetic happens in another process, and the loop goes on meanwhile."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from controller.cloudprovider.fake import make_instance_type
from controller.manager.solving import Solver, SolverError, TimedSolve
from controller.scheduling.scheduler import schedule
from controller.scheduling.settings import Settings
from controller.state.snapshot import Snapshot
from tests.reconcilers.world import make_pool, make_waiting_pod
from tests.testbed.eventually import eventually


@pytest.fixture
def solver() -> Iterator[Solver]:
    solver = Solver()
    yield solver
    solver.stop()


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_the_answer_comes_from_another_process(solver: Solver) -> None:
    pid = await solver.solve(os.getpid)
    assert pid != os.getpid()
    assert await solver.solve(os.getpid) == pid


def until_opened(place: Path) -> str:
    (place / "begun").touch()
    while not (place / "gate").exists():
        time.sleep(0.01)
    return "through"


async def test_the_loop_goes_on_while_something_is_solved(solver: Solver, tmp_path: Path) -> None:
    solving = asyncio.create_task(solver.solve(until_opened, tmp_path))

    async def begun() -> bool:
        return (tmp_path / "begun").exists()

    await eventually(begun)
    (tmp_path / "gate").touch()
    assert await solving == "through"


async def test_the_engine_answers_from_there_as_it_would_here(solver: Solver) -> None:
    pod = make_waiting_pod("web")
    pool = make_pool()
    types = {pool.metadata.name: (make_instance_type("m5.large"),)}
    snapshot = Snapshot(node_pools=(pool,), instance_types=types)
    solve = TimedSolve(solver, Settings(), timedelta(seconds=30))
    await solve.warm_up()
    answer = await solve([pod], snapshot)
    assert answer == schedule([pod], snapshot=snapshot)
    assert [node.pods for node in answer.new_nodes] == [("default/web",)]


async def test_a_failure_says_what_it_was_and_the_next_question_is_answered(
    solver: Solver,
) -> None:
    with pytest.raises(SolverError, match="ValueError"):
        await solver.solve(int, "no number")
    assert await solver.solve(int, "7") == 7


async def test_a_solver_that_died_is_replaced(solver: Solver) -> None:
    with pytest.raises(SolverError):
        await solver.solve(os._exit, 1)
    assert await solver.solve(int, "7") == 7


async def test_an_answer_nobody_waits_for_ends_the_process(solver: Solver) -> None:
    pid = await solver.solve(os.getpid)
    solving = asyncio.create_task(solver.solve(time.sleep, 600))
    await asyncio.sleep(0.05)
    solving.cancel()
    await asyncio.wait([solving])
    assert not is_running(pid)
    assert await solver.solve(int, "7") == 7
