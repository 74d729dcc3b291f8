"""Solves run in another process, and do not block the event loop."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import os
import signal
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from controller.apis.kubernetes.pods import Pod
from controller.apis.kubernetes.taints import Taint
from controller.apis.kubernetes.workloads import DaemonSet
from controller.cloudprovider.fake import make_instance_type
from controller.disruption.commands import Reason
from controller.disruption.methods import order
from controller.disruption.problem import EVICTIONS_FREE, DisruptionProblem
from controller.manager.solver import solving
from controller.manager.solver.offers import OfferWriter
from controller.manager.solver.solving import (
    SolverError,
    SolverProcess,
    TimedEngine,
    TimedSolve,
    WorldSolver,
)
from controller.manager.solver.transfer import ClusterSender
from controller.offline.world import load
from controller.scheduling.catalog import offerings
from controller.scheduling.results import Results
from controller.scheduling.scheduler import schedule
from controller.scheduling.settings import Settings
from controller.state.cluster import Cluster
from controller.state.snapshot import Snapshot
from controller.state.spreads import DefaultSpreads
from tests.builders import make_daemonset, make_nodepool, make_pod
from tests.disruption.clusters import underused
from tests.testbed.eventually import eventually


@pytest.fixture
def solver() -> Iterator[SolverProcess]:
    solver = SolverProcess()
    yield solver
    solver.stop()


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.process
async def test_the_answer_comes_from_another_process(solver: SolverProcess) -> None:
    pid = await solver.solve(os.getpid)
    assert pid != os.getpid()
    assert await solver.solve(os.getpid) == pid


def until_opened(place: Path) -> str:
    (place / "begun").touch()
    while not (place / "gate").exists():
        time.sleep(0.01)
    return "through"


@pytest.mark.process
async def test_the_event_loop_is_not_blocked_by_a_solve(
    solver: SolverProcess, tmp_path: Path
) -> None:
    solving = asyncio.create_task(solver.solve(until_opened, tmp_path))

    async def begun() -> bool:
        return (tmp_path / "begun").exists()

    await eventually(begun)
    (tmp_path / "gate").touch()
    assert await solving == "through"


def timed(solver: SolverProcess, *, seconds: float = 30.0) -> TimedSolve:
    return TimedSolve(
        solver=WorldSolver(solver),
        spreads=DefaultSpreads((), Cluster()),
        settings=Settings(),
        time_limit=timedelta(seconds=seconds),
    )


@pytest.mark.process
async def test_the_solver_process_gives_the_same_answer(solver: SolverProcess) -> None:
    pod = make_pod("web")
    pool = make_nodepool()
    types = {pool.metadata.name: (make_instance_type("m5.large"),)}
    snapshot = Snapshot(node_pools=(pool,), instance_types=types)
    solve = timed(solver)
    await solve.warm_up()
    answer = await solve([pod], snapshot)
    assert answer == schedule([pod], snapshot=snapshot)
    assert [node.pods for node in answer.new_nodes] == [("default/web",)]


def snapshot_of(price: float, *daemons: DaemonSet, taint: str = "") -> Snapshot:
    taints = [Taint(key=taint, effect="NoSchedule")] if taint else []
    pool = make_nodepool(taints=taints)
    types = {
        pool.metadata.name: (
            make_instance_type("m5.large", price=price),
            make_instance_type("m5.xlarge", cpu="4", memory="16Gi", price=0.2),
        )
    }
    return Snapshot(node_pools=(pool,), instance_types=types, daemon_sets=daemons)


AGENT = make_daemonset("agent", cpu="1500m")

WORLDS = {
    "as it was": snapshot_of(0.1),
    "at other prices": snapshot_of(0.3),
    "with a daemon": snapshot_of(0.1, AGENT),
    "with a taint": snapshot_of(0.1, taint="team"),
}


@pytest.mark.parametrize("world", [pytest.param(WORLDS[name], id=name) for name in WORLDS])
def test_a_former_snapshot_does_not_affect_the_next_solve(world: Snapshot) -> None:
    solve(WORLDS["as it was"], make_pod("before"))
    pod = make_pod("web")

    assert solve(world, pod) == schedule([pod], snapshot=world)


def test_instance_types_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Snapshot] = []
    encode = offerings.catalog

    def catalog(snapshot: Snapshot) -> offerings.Catalog:
        read.append(snapshot)
        return encode(snapshot)

    monkeypatch.setattr(offerings, "catalog", catalog)

    for number, price in enumerate((0.7, 0.7, 0.8, 0.8)):
        solve(snapshot_of(price), make_pod(f"web-{number}"))

    assert len(read) == 2


def test_disruption_decisions_encode_equal_instance_types_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = underused_problem(nodes=10)
    encoded: list[object] = []
    encode = offerings._join_blocks

    def join_blocks(*parts: Any) -> offerings.Catalog:
        encoded.append(parts)
        return encode(*parts)

    monkeypatch.setattr(offerings, "_join_blocks", join_blocks)
    monkeypatch.setattr(solving, "_CACHES", solving._Caches())
    snapshot, sender = problem.snapshot, ClusterSender()
    for batch in sender.batches(snapshot.nodes, snapshot.pods):
        solving.receive(batch)
    rest = dataclasses.replace(problem, snapshot=solving.without_transferred(snapshot))
    request = msgspec.msgpack.encode(rest)
    offer = OfferWriter().encode(snapshot.instance_types)

    for _ in range(2):
        decision = solving.decide(request, sender.sent, offer, 30.0)
        assert decision is not None
        assert decision.commands
        confirmation = solving.confirm(request, sender.sent, offer, 30.0, decision)
        assert confirmation is not None
        assert confirmation.commands == decision.commands

    assert len(encoded) == 1


def underused_problem(nodes: int) -> DisruptionProblem:
    cluster = load(underused(nodes, 1))
    return DisruptionProblem(
        snapshot=cluster.snapshot,
        node_pools={pool.metadata.name: pool for pool in cluster.node_pools},
        now=datetime(2026, 11, 1, tzinfo=UTC),
        pending=cluster.pods,
        settings=EVICTIONS_FREE,
    )


def solve(world: Snapshot, *pods: Pod) -> Results:
    """Solve as the solver process does."""
    offer = OfferWriter().encode(world.instance_types)
    rest = dataclasses.replace(world, instance_types={})
    question = msgspec.msgpack.encode((pods, rest))
    results = solving.schedule(question, 0, offer, Settings(), 30.0)
    assert results is not None
    return results


@pytest.mark.process
async def test_an_error_of_the_solver_is_reported_and_the_next_solve_works(
    solver: SolverProcess,
) -> None:
    with pytest.raises(SolverError, match="ValueError"):
        await solver.solve(int, "no number")
    assert await solver.solve(int, "7") == 7


@pytest.mark.process
async def test_several_calls_return_the_result_of_the_last(solver: SolverProcess) -> None:
    assert await solver.solve_all((int, (text,)) for text in ("5", "6", "7")) == 7


@pytest.mark.process
async def test_an_error_of_an_earlier_call_is_reported_and_the_next_solve_works(
    solver: SolverProcess,
) -> None:
    with pytest.raises(SolverError, match="ValueError"):
        await solver.solve_all((int, (text,)) for text in ("5", "no number", "7"))
    assert await solver.solve(int, "8") == 8


@pytest.mark.process
async def test_calls_that_cannot_be_prepared_leave_no_result_for_the_next_solve(
    solver: SolverProcess,
) -> None:
    with pytest.raises(ValueError, match="no number"):
        await solver.solve_all((abs, (int(text),)) for text in ("-5", "no number"))
    assert await solver.solve(int, "8") == 8


@pytest.mark.process
async def test_a_dead_solver_process_is_replaced(solver: SolverProcess) -> None:
    with pytest.raises(SolverError):
        await solver.solve(os._exit, 1)
    assert await solver.solve(int, "7") == 7


@pytest.mark.process
async def test_a_cancelled_solve_kills_the_solver_process(solver: SolverProcess) -> None:
    pid = await solver.solve(os.getpid)
    solving = asyncio.create_task(solver.solve(time.sleep, 600))
    await asyncio.sleep(0.05)
    solving.cancel()
    await asyncio.wait([solving])
    assert not is_running(pid)
    assert await solver.solve(int, "7") == 7


@pytest.mark.process
async def test_a_process_that_hangs_is_killed_long_before_its_time_limit(
    solver: SolverProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(solving, "STALLED", timedelta(seconds=0.2))
    monkeypatch.setattr(solving, "CHECK_SECONDS", 0.05)
    hung = await solver.solve(os.getpid)
    os.kill(hung, signal.SIGSTOP)

    with pytest.raises(SolverError, match="used no CPU"):
        await solver.solve(os.getpid)

    assert not is_running(hung)
    monkeypatch.undo()
    assert await solver.solve(os.getpid) != hung


@pytest.mark.process
async def test_a_solve_that_never_ends_kills_the_process_and_the_next_one_works(
    solver: SolverProcess,
) -> None:
    pid = await solver.solve(os.getpid)
    with pytest.raises(SolverError, match="no response"):
        await solver.solve(time.sleep, 600, seconds=0.05)
    assert not is_running(pid)
    assert await solver.solve(int, "7") == 7


def never(*_: object) -> None:
    time.sleep(600)


@pytest.mark.process
async def test_a_solve_beyond_its_time_limit_is_stopped_soon(
    monkeypatch: pytest.MonkeyPatch, solver: SolverProcess
) -> None:
    monkeypatch.setattr(solving, "schedule", never)
    monkeypatch.setattr(solving, "OVERDUE", timedelta(seconds=0.05))
    solve = timed(solver, seconds=0.05)
    with pytest.raises(SolverError, match="no response"):
        await solve([make_pod("web")], WORLDS["as it was"])


@pytest.mark.process
async def test_a_replaced_solver_process_receives_all_running_pods(
    solver: SolverProcess,
) -> None:
    world = load(underused(30, 1)).snapshot
    assert world.pods
    waiting = make_pod("web", cpu="1500m")
    expected = schedule([waiting], snapshot=world)
    solve = timed(solver)

    assert await solve([waiting], world) == expected
    with pytest.raises(SolverError):
        await solver.solve(os._exit, 1)
    assert await solve([waiting], world) == expected


@pytest.mark.process
async def test_the_solver_process_decides_the_same_disruption(solver: SolverProcess) -> None:
    problem = underused_problem(nodes=30)
    spreads = DefaultSpreads((), Cluster())
    engine = TimedEngine(
        solver=WorldSolver(solver),
        spreads=spreads,
        scheduling=Settings(),
        settings=EVICTIONS_FREE,
        time_limit=timedelta(seconds=30),
    )
    expected = order.decide(problem)

    decision = await engine.decide(problem)

    assert decision == expected
    assert [command.reason for command in decision.commands] == [Reason.UNDERUTILIZED] * len(
        decision.commands
    )
    assert (await engine.confirm(problem, decision)).commands == decision.commands
    assert decision.commands
    # The solver process disables garbage collection only while it computes a decision.
    assert await solver.solve(gc.isenabled)
