"""Kopf as the host: everything in it starts, receives events and stops, in one event loop."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import kopf
import pytest
from aiohttp import web

from controller.apis.kinds import NODE_POOL, Kind
from controller.apiserver.port import Change
from controller.kube.access import Access
from controller.manager import handlers
from testbed.processes.ports import free_ports

REFERENCE = {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"}
POOL = {
    "apiVersion": "karpenter.sh/v1",
    "kind": "NodePool",
    "metadata": {"name": "default", "uid": "1", "resourceVersion": "1"},
    "spec": {"template": {"spec": {"requirements": [], "nodeClassRef": REFERENCE}}},
}
RESOURCE = {
    "name": "nodepools", "singularName": "nodepool", "kind": "NodePool",
    "namespaced": False, "verbs": ["list", "watch"],
}  # fmt: skip
NAMESPACES = {
    "name": "namespaces", "singularName": "namespace", "kind": "Namespace",
    "namespaced": False, "verbs": ["list", "watch"],
}  # fmt: skip
GROUP = {
    "name": "karpenter.sh",
    "versions": [{"groupVersion": "karpenter.sh/v1", "version": "v1"}],
    "preferredVersion": {"groupVersion": "karpenter.sh/v1", "version": "v1"},
}

MANY = 60
"""Without a limit, Kopf handles about forty of so many objects at once."""


@dataclass
class Refusals:
    """How many of the next requests for NodePools are refused with 401, and the refusals' times."""

    left: int = 0
    at: list[float] = field(default_factory=list)


@pytest.fixture
def refusals() -> Refusals:
    return Refusals()


@pytest.fixture
async def server(request: pytest.FixtureRequest, refusals: Refusals) -> AsyncIterator[Access]:
    """An API server that has NodePools, one by default, and never reports a change."""
    metadata = [{"name": f"pool-{n}", "uid": str(n)} for n in range(getattr(request, "param", 1))]
    known = [{**POOL, "metadata": {**each, "resourceVersion": "1"}} for each in metadata]
    known[0] = POOL

    async def groups(_: web.Request) -> web.Response:
        return web.json_response({"groups": [GROUP]})

    async def resources(_: web.Request) -> web.Response:
        return web.json_response({"resources": [RESOURCE]})

    async def pools(request: web.Request) -> web.StreamResponse:
        if refusals.left:
            refusals.left -= 1
            refusals.at.append(asyncio.get_running_loop().time())
            return web.json_response({"kind": "Status", "code": 401}, status=401)
        if "watch" not in request.query:
            return web.json_response({"metadata": {"resourceVersion": "1"}, "items": known})
        stream = web.StreamResponse()
        await stream.prepare(request)
        await asyncio.Event().wait()
        return stream

    async def core(_: web.Request) -> web.Response:
        return web.json_response({"versions": ["v1"], "resources": [NAMESPACES]})

    application = web.Application()
    application.router.add_get("/api", core)
    application.router.add_get("/api/v1", core)
    application.router.add_get("/apis", groups)
    application.router.add_get("/apis/karpenter.sh/v1", resources)
    application.router.add_get("/apis/karpenter.sh/v1/nodepools", pools)
    runner = web.AppRunner(application, shutdown_timeout=0, handler_cancellation=True)
    await runner.setup()
    (port,) = free_ports(1)
    await web.TCPSite(runner, "127.0.0.1", port).start()
    yield Access(server=f"http://127.0.0.1:{port}")
    await runner.cleanup()


@dataclass
class FakeReplica:
    """Records its calls; fails with `failure` after the first change."""

    is_listed: bool = True
    failure: Exception | None = None
    story: list[str] = field(default_factory=list)
    has_changed: asyncio.Event = field(default_factory=asyncio.Event)
    began: asyncio.Event = field(default_factory=asyncio.Event)
    loop: asyncio.AbstractEventLoop | None = None
    at_the_end: Callable[[], None] = lambda: None

    async def run_until_cancelled(self) -> None:
        self.story.append("began")
        self.began.set()
        self.loop = asyncio.get_running_loop()
        try:
            await self.has_changed.wait()
            if self.failure is not None:
                raise self.failure
            await asyncio.Event().wait()
        finally:
            self.at_the_end()
            # Calls to the cloud that are in progress take time, and the handler waits for them.
            for _ in range(100):
                await asyncio.sleep(0)
            self.story.append("ended")

    async def until_listed(self) -> None:
        if not self.is_listed:
            await asyncio.Event().wait()

    def take(self, kind: Kind[Any], change: Change[Any]) -> None:
        assert change.object is not None
        assert asyncio.get_running_loop() is self.loop
        self.story.append(f"{change.type} {kind.name} {change.object.metadata.name}")
        self.has_changed.set()

    async def operate(self, access: Access) -> None:
        await handlers.operate(self, [NODE_POOL], access, self.take)
        self.story.append("returned")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_kopf_starts_the_replica_and_a_signal_stops_it_completely(
    server: Access, number: signal.Signals, caplog: pytest.LogCaptureFixture
) -> None:
    replica = FakeReplica()
    operating = asyncio.create_task(replica.operate(server))
    await replica.has_changed.wait()
    os.kill(os.getpid(), number)
    await operating
    assert replica.story == ["began", "MODIFIED NodePool default", "ended", "returned"]
    assert [r for r in caplog.records if r.levelno > logging.INFO] == []


async def test_kopf_signs_in_again_with_pauses_while_its_credentials_are_refused(
    server: Access, refusals: Refusals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handlers, "SIGN_IN_APART", 0.05)
    refusals.left = 4
    replica = FakeReplica()
    operating = asyncio.create_task(replica.operate(server))
    changed = asyncio.create_task(replica.has_changed.wait())

    await asyncio.wait([operating, changed], return_when=asyncio.FIRST_COMPLETED)

    assert not operating.done()  # its credentials may be accepted later
    between = [after - before for before, after in itertools.pairwise(refusals.at)]
    assert min(between) > 0.04
    operating.cancel()
    await asyncio.wait([operating])


async def test_a_second_signal_during_shutdown_changes_nothing(
    server: Access, caplog: pytest.LogCaptureFixture
) -> None:
    replica = FakeReplica()
    operating = asyncio.create_task(replica.operate(server))
    await replica.has_changed.wait()
    replica.at_the_end = lambda: os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGTERM)
    await operating
    assert replica.story == ["began", "MODIFIED NodePool default", "ended", "returned"]
    assert [r for r in caplog.records if r.levelno > logging.INFO] == []


async def test_a_signal_before_the_crds_are_served_stops_the_replica(
    server: Access,
) -> None:
    replica = FakeReplica(is_listed=False)
    operating = asyncio.create_task(replica.operate(server))
    await replica.began.wait()
    os.kill(os.getpid(), signal.SIGTERM)
    await operating
    assert replica.story == ["began", "ended", "returned"]


async def test_an_error_of_the_replica_stops_kopf_and_is_raised(server: Access) -> None:
    replica = FakeReplica(failure=RuntimeError("the lease was lost"))
    with pytest.raises(RuntimeError, match="the lease was lost"):
        await replica.operate(server)
    assert replica.story == ["began", "MODIFIED NodePool default", "ended"]


async def test_cancelling_kopf_stops_everything(server: Access) -> None:
    replica = FakeReplica()
    operating = asyncio.create_task(replica.operate(server))
    await replica.has_changed.wait()
    operating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await operating
    assert replica.story[-1] == "ended"


async def test_kopfs_probe_answers_one_path_and_only_after_the_start(
    server: Access,
) -> None:
    """Why `probes` answers the kubelet: the day this fails, `on.probe` may do it."""
    registry = handlers.registry([], server, lambda *_: None)
    (port,) = free_ports(1)
    address, stop, began = f"http://127.0.0.1:{port}", asyncio.Event(), asyncio.Event()
    answers = []

    async def status(path: str) -> int:
        try:
            async with aiohttp.ClientSession() as session, session.get(address + path) as answer:
                return answer.status
        except aiohttp.ClientConnectionError:
            return 0

    @kopf.on.startup(registry=registry)
    async def start(**_: Any) -> None:
        answers.append(await status("/healthz"))

    operating = asyncio.create_task(
        kopf.operator(
            registry=registry,
            settings=handlers.settings(),
            standalone=True,
            clusterwide=True,
            liveness_endpoint=f"{address}/healthz",
            ready_flag=began,
            stop_flag=stop,
        )
    )
    await began.wait()
    while not (answer := await status("/healthz")):
        continue
    answers += [answer, await status("/readyz")]
    stop.set()
    await operating
    assert answers == [0, 200, 404]


@pytest.mark.parametrize("server", [MANY], indirect=True)
async def test_kopf_handles_a_limited_number_of_objects_at_once(
    server: Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handlers, "MOST_WORKERS", 20)
    seen, at_once = 0, 0
    stop = asyncio.Event()

    def take(kind: Kind[Any], change: Change[Any]) -> None:
        nonlocal seen, at_once
        seen += 1
        names = [task.get_name() for task in asyncio.all_tasks()]
        at_once = max(at_once, sum(name.startswith("worker for") for name in names))
        if seen == MANY:
            stop.set()

    async with asyncio.timeout(60):
        await kopf.operator(
            registry=handlers.registry([NODE_POOL], server, take),
            settings=handlers.settings(),
            standalone=True,
            clusterwide=True,
            stop_flag=stop,
        )

    assert seen == MANY
    assert 0 < at_once <= handlers.MOST_WORKERS
