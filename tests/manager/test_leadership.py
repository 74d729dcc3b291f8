"""At most one replica acts at any time, and eventually one does."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from controller.apis.kinds import LEASE
from controller.apis.kubernetes.workloads import MOST_TRANSITIONS
from controller.apiserver.errors import ApiError, ConflictError, InvalidError, UnavailableError
from controller.apiserver.fake import FakeApiServer
from controller.manager.leadership import (
    LEASE_DURATION,
    LONGEST_LEASE,
    Fence,
    Leadership,
    LeadershipLostError,
    Timing,
)

pytestmark = pytest.mark.virtual_clock

LEASE_SECONDS = LEASE_DURATION.total_seconds()
PATIENCE_SECONDS = 4 * LEASE_SECONDS
SHORT_OF_THE_FENCE = LEASE_SECONDS - 5


class Candidate:
    """A contender for the Lease, and whether it acts."""

    def __init__(self, api: FakeApiServer, name: str) -> None:
        self.leadership = Leadership(api=api, namespace="kube-system", name="lease", identity=name)
        self.acting = asyncio.Event()
        self.stopped = asyncio.Event()
        self.task = asyncio.create_task(self.leadership.hold(self.act))

    async def act(self) -> None:
        self.acting.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.acting.clear()
            self.stopped.set()

    async def leads(self) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self.acting.wait()

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])


class Election:
    def __init__(self) -> None:
        self.api = FakeApiServer()
        self.candidates: list[Candidate] = []

    def enter(self, name: str) -> Candidate:
        self.candidates.append(Candidate(self.api, name))
        return self.candidates[-1]

    async def seed(self, **spec: Any) -> None:
        """Create the Lease, as a person or another program would."""
        body = {"metadata": {"name": "lease"}, "spec": spec}
        await self.api.create(LEASE, body, "kube-system")

    @property
    def holder(self) -> str:
        lease = self.api.find(LEASE, "lease", "kube-system")
        return lease.spec.holder_identity if lease is not None else ""


@pytest.fixture
async def election() -> AsyncIterator[Election]:
    election = Election()
    yield election
    for candidate in election.candidates:
        await candidate.stop()


async def test_the_first_replica_leads_and_the_second_waits(election: Election) -> None:
    first = election.enter("first")
    await first.leads()
    second = election.enter("second")
    before = election.api.find(LEASE, "lease", "kube-system")
    # The first replica renews its Lease for longer than the lease duration; the second still waits.
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(second.acting.wait(), 1.5 * LEASE_SECONDS)
    after = election.api.find(LEASE, "lease", "kube-system")
    assert before is not None
    assert after is not None
    assert election.holder == "first"
    assert after.spec.renew_time != before.spec.renew_time
    assert after.spec.lease_transitions == 0


async def test_a_stopping_leader_releases_the_lease(election: Election) -> None:
    first = election.enter("first")
    await first.leads()
    second = election.enter("second")
    await first.stop()
    assert first.stopped.is_set()
    assert election.holder in ("", "second")
    await second.leads()
    lease = election.api.find(LEASE, "lease", "kube-system")
    assert lease is not None
    assert (lease.spec.holder_identity, lease.spec.lease_transitions) == ("second", 1)


async def test_a_leader_holds_the_lease_until_its_work_has_ended(election: Election) -> None:
    acting, ended = asyncio.Event(), asyncio.Event()

    async def act() -> None:
        acting.set()
        try:
            await asyncio.Event().wait()
        finally:  # a call in progress that cannot be cancelled
            await asyncio.sleep(SHORT_OF_THE_FENCE)
            ended.set()

    leadership = Leadership(
        api=election.api, namespace="kube-system", name="lease", identity="first"
    )
    first = asyncio.create_task(leadership.hold(act))
    await acting.wait()
    first.cancel()
    await asyncio.sleep(SHORT_OF_THE_FENCE / 2)
    half_way = election.api.find(LEASE, "lease", "kube-system")
    first.cancel()  # a second cancellation has no effect

    await ended.wait()
    last = election.api.find(LEASE, "lease", "kube-system")

    assert half_way is not None
    assert last is not None
    assert last.spec.holder_identity == "first"
    assert last.spec.renew_time != half_way.spec.renew_time
    await asyncio.wait([first])
    assert election.holder == ""


async def test_a_leader_that_cannot_renew_stops_before_another_can_follow(
    election: Election,
) -> None:
    first = election.enter("first")
    await first.leads()
    election.api.refuse("patch", UnavailableError("down", status=503), kind=LEASE, times=100)
    refused_at = asyncio.get_running_loop().time()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await first.stopped.wait()
    # The Lease lasts from the last renewal; the next leader waits at least that long.
    assert asyncio.get_running_loop().time() - refused_at < LEASE_SECONDS
    with pytest.raises(LeadershipLostError):
        await first.task


async def test_a_leader_whose_lease_was_taken_stops(election: Election) -> None:
    first = election.enter("first")
    await first.leads()
    await election.api.patch(
        LEASE, "lease", {"spec": {"holderIdentity": "thief"}}, namespace="kube-system"
    )
    with pytest.raises(LeadershipLostError):
        await first.task
    assert first.stopped.is_set()
    assert election.holder == "thief"


async def test_one_conflict_does_not_lose_the_lease(election: Election) -> None:
    first = election.enter("first")
    await first.leads()
    before = election.api.find(LEASE, "lease", "kube-system")
    election.api.refuse("patch", ConflictError("changed", status=409), kind=LEASE)
    async with asyncio.timeout(PATIENCE_SECONDS):
        async for change in election.api.watch(LEASE):
            if change.object not in (None, before):
                break
    assert first.acting.is_set()


@pytest.mark.parametrize("request_", ["get", "patch"])
async def test_one_hanging_request_does_not_lose_the_lease(
    election: Election, monkeypatch: pytest.MonkeyPatch, request_: str
) -> None:
    first = election.enter("first")
    await first.leads()
    answer = getattr(election.api, request_)
    hung = asyncio.Event()

    async def hang_once(*arguments: Any, **named: Any) -> Any:
        if not hung.is_set():
            hung.set()
            await asyncio.Event().wait()
        return await answer(*arguments, **named)

    monkeypatch.setattr(election.api, request_, hang_once)
    await hung.wait()
    before = election.api.find(LEASE, "lease", "kube-system")

    async with asyncio.timeout(PATIENCE_SECONDS):
        async for change in election.api.watch(LEASE):
            if change.object not in (None, before):
                break

    assert first.acting.is_set()
    assert election.holder == "first"


async def test_a_lease_whose_transitions_are_at_their_maximum_is_acquired(
    election: Election, caplog: pytest.LogCaptureFixture
) -> None:
    await election.seed(holderIdentity="", leaseTransitions=MOST_TRANSITIONS)

    first = election.enter("first")
    await first.leads()

    lease = election.api.find(LEASE, "lease", "kube-system")
    assert lease is not None
    assert lease.spec.lease_transitions == MOST_TRANSITIONS  # one more is no int32
    assert ["leaseTransitions" in line for line in _warnings(caplog)] == [True]


async def test_a_foreign_holder_with_an_endless_duration_is_replaced(
    election: Election, caplog: pytest.LogCaptureFixture
) -> None:
    await election.seed(holderIdentity="by-hand", leaseDurationSeconds=2**31 - 1)

    first = election.enter("first")
    async with asyncio.timeout(LONGEST_LEASE.total_seconds() + LEASE_SECONDS):
        await first.acting.wait()

    (warning,) = _warnings(caplog)
    assert "by-hand" in warning
    assert "leaseDurationSeconds to 2147483647" in warning


async def test_a_foreign_holder_that_renews_keeps_its_long_lease(election: Election) -> None:
    long = 2 * round(LONGEST_LEASE.total_seconds())
    await election.seed(holderIdentity="other", leaseDurationSeconds=long)
    first = election.enter("first")

    for number in range(4):
        renewed = {"spec": {"renewTime": f"2026-11-28T22:0{number}:00.000000Z"}}
        await election.api.patch(LEASE, "lease", renewed, namespace="kube-system")
        await asyncio.sleep(LONGEST_LEASE.total_seconds() - LEASE_SECONDS)

    assert not first.acting.is_set()


@pytest.mark.parametrize(
    ("error", "level"),
    [
        (UnavailableError("down", status=503), logging.WARNING),
        (InvalidError("leaseTransitions: invalid", status=422), logging.ERROR),
    ],
)
async def test_a_lease_that_cannot_be_acquired_is_reported_once_by_its_cause(
    election: Election, caplog: pytest.LogCaptureFixture, error: ApiError, level: int
) -> None:
    await election.seed(holderIdentity="")
    election.api.refuse("patch", error, kind=LEASE, times=5)

    await election.enter("first").leads()

    levels = [r.levelno for r in caplog.records if "failed to acquire" in r.getMessage()]
    assert levels == [level]


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


async def test_an_error_of_the_leader_is_raised_and_the_lease_released() -> None:
    api = FakeApiServer()

    async def fail() -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await Leadership(api=api, namespace="kube-system", name="lease", identity="me").hold(fail)
    lease = api.find(LEASE, "lease", "kube-system")
    assert lease is not None
    assert lease.spec.holder_identity == ""


def test_a_blocked_process_is_killed() -> None:
    ended = threading.Event()
    codes: list[int] = []

    def end(code: int) -> None:
        codes.append(code)
        ended.set()

    quick = Timing(retry=timedelta(milliseconds=1))
    with Fence(quick, renewed_at=0.0, clock=lambda: LEASE_SECONDS, end=end):
        assert ended.wait(20)
    assert codes == [70]
