"""Measure a controller in a large cluster: start, memory, and 1,000 pod events per second.

    python -m bench.largecluster [--nodes 2000] [--pods 20000] [--rate 1000]
    python -m bench.largecluster --nodes 5000 --pods 100000 --opening 300

With `--opening N`, N nodes launch at once during the events. Ten NodePools then own the existing
nodes, and 50 of those drain and wait for their volumes. The metrics, with a series for every
object, are scraped every 15 s.

The controller is the whole process with its solvers, and an in-memory cloud of a few instance
types. For the memory with a whole region's types, see `footprint`. Kubernetes is also in memory,
over HTTP. Seconds to the first decision run from the process start until the first NodeClaim is
created. Delays run from the write of an event until the controller's cluster state has it. A pause
is how late the event loop ran, which on a busy machine includes the wait for a CPU. A step is one
callback, during which no other runs. MiB are proportional memory (PSS) of all processes.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from bench import backgroundload
from bench.apifront import Front, kubeconfig
from bench.arguments import make_parser
from bench.largecluster import opening
from bench.largecluster.observedreplica import SENT
from bench.memory import Meter, pss
from controller.apis import kinds
from controller.apiserver.fake import FakeApiServer
from testbed.environment import CHECKOUT
from testbed.processes.ports import free_ports
from tests.builders import make_nodeclass, make_nodepool, make_pod, make_replicaset

REST_SECONDS = 20.0
"""Seconds of idle time before memory is measured."""

PATIENCE_SECONDS = 300.0
TICKS = 20
"""Number of times per second at which events are written."""

LONGEST_REPORT = 2**26
INSIDE = "from bench.largecluster import observedreplica; observedreplica.run()"


class LoadedApiServer(FakeApiServer):
    """API server that deletes an object without searching for its dependents, since there are none.

    Each search would take as long as reading 100,000 pods.
    """

    def _collect(self, uid: str) -> None:
        """Do nothing: no object here owns another."""


def make_api_server(nodes: int, pods: int, *, is_managed: bool = False) -> FakeApiServer:
    """Return an API server with `nodes` full nodes, and one pending pod that needs another node.

    If `is_managed`, each node has a NodeClaim and a volume.
    """
    api = LoadedApiServer()
    made = backgroundload.BackgroundLoad(None, nodes, pods)  # type: ignore[arg-type]
    for number in range(nodes):
        body = backgroundload.node(number)
        if is_managed:
            claim, body = opening.managed_node(number)
            api.store_json(kinds.NODE_CLAIM, claim)
            api.store_json(kinds.VOLUME_ATTACHMENT, opening.attachment(number))
        body["status"]["conditions"] = [{"type": "Ready", "status": "True", "reason": "Kubelet"}]
        api.store_json(kinds.NODE, body)
    for number in range(pods):
        body = made.pod(number)
        body["metadata"]["namespace"] = backgroundload.NAMESPACE
        body["status"] = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        api.store_json(kinds.POD, body)
    waiting = make_pod("web-1", owner="ReplicaSet/web")
    api.seed(make_nodeclass(), make_nodepool(), make_replicaset(), waiting)
    if is_managed:
        api.seed(*opening.pools())
    return api


async def write_events(api: FakeApiServer, rate: int, seconds: int) -> int:
    """Write `rate` events of running pods per second for `seconds`; return their number."""
    running = [body for body in api.bodies(kinds.POD) if body["spec"].get("nodeName")]
    bodies = itertools.cycle(running)
    begin, written = time.monotonic(), 0
    for tick in range(seconds * TICKS):
        for body in itertools.islice(bodies, rate // TICKS):
            marked = {**body["metadata"], "annotations": {SENT: str(time.monotonic())}}
            api.store_json(kinds.POD, {**body, "metadata": marked})
            written += 1
        await asyncio.sleep(max(begin + (tick + 1) / TICKS - time.monotonic(), 0))
    return written


async def measure(
    nodes: int, pods: int, rate: int, seconds: int, work: Path, *, opened: int = 0
) -> None:
    """Measure a controller in a cluster and print the results.

    The cluster has `nodes` nodes and `pods` pods. After the start of the controller, `rate` pod
    events per second are written for `seconds`, and `opened` nodes launch meanwhile. `work` is a
    folder for the controller's kubeconfig.
    """
    front = Front(make_api_server(nodes, pods, is_managed=opened > 0))
    runner = web.AppRunner(front.application(), shutdown_timeout=1)
    await runner.setup()
    port, metrics, probes = free_ports(3)
    await web.TCPSite(runner, "127.0.0.1", port).start()
    config = work / "kubeconfig"
    _write(config, kubeconfig(f"http://127.0.0.1:{port}"))
    began = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", INSIDE,
        cwd=CHECKOUT, stdout=asyncio.subprocess.PIPE, limit=LONGEST_REPORT,
        env={
            **os.environ,
            "PYTHONPATH": str(CHECKOUT),
            "OPENBLAS_NUM_THREADS": "1",
            "KUBECONFIG": str(config),
            "CLUSTER_NAME": opening.INSTALLATION,
            "BIND_ADDRESS": "127.0.0.1",
            "METRICS_PORT": str(metrics),
            "HEALTH_PROBE_PORT": str(probes),
            **({"DETAILED_METRICS": "true", "BACKGROUND_NODES": str(nodes)} if opened else {}),
        },
    )  # fmt: skip
    meter = Meter(lambda: {"controller": _pids(process.pid)})
    metering = asyncio.create_task(meter.run())
    try:
        await _wait_for_nodeclaim(front, process)
        first = time.monotonic() - began
        await asyncio.sleep(REST_SECONDS)
        rest = _memory_of_family(process.pid)
        started = await _request_report(process)
        async with busy(front.api, opened, metrics):
            events = await write_events(front.api, rate, seconds)
        await asyncio.sleep(1)
        seen = await _request_report(process)
        stirred = _memory_of_family(process.pid)
        series = await _series(metrics)
    finally:
        metering.cancel()
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        await process.wait()
        await runner.cleanup()
    peak = meter.peak["controller"]
    _show(nodes, pods, first, rest, stirred, peak, series, events, started, seen)


async def _wait_for_nodeclaim(front: Front, controller: asyncio.subprocess.Process) -> None:
    """Wait for the first NodeClaim.

    Raises SystemExit if the controller ends before, or after `PATIENCE_SECONDS`.
    """
    first, ended = (asyncio.ensure_future(each) for each in (
        front.created["nodeclaims"].wait(), controller.wait(),
    ))  # fmt: skip
    await asyncio.wait(
        [first, ended], timeout=PATIENCE_SECONDS, return_when=asyncio.FIRST_COMPLETED
    )
    if not first.done():
        raise SystemExit("the controller created no NodeClaim")
    ended.cancel()


@asynccontextmanager
async def busy(api: FakeApiServer, opened: int, metrics: int) -> AsyncIterator[None]:
    """Launch `opened` nodes, drain others and scrape the metrics while the block runs.

    At its end, wait until all launched nodes are ready, `PATIENCE_SECONDS` at most. If `opened` is
    0, do nothing. `metrics` is the port of the metrics endpoint.
    """
    if not opened:
        yield
        return
    region = opening.Region(api, opened)
    started = [
        asyncio.create_task(each)
        for each in (region.run(), opening.drain(api), opening.scrape(metrics))
    ]
    await asyncio.sleep(0)
    for body in opening.waiting_pods(opened):
        api.store_json(kinds.POD, body)
    try:
        yield
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_SECONDS):
                await region.all_open.wait()
        print(f"  nodes joined, opened                 {len(region.joined)}, {len(region.opened)}")
    finally:
        for task in started:
            task.cancel()
        await asyncio.gather(*started, return_exceptions=True)


def _write(path: Path, text: str) -> None:
    path.write_text(text)


def _show(
    nodes: int, pods: int, first: float, rest: Sequence[float], stirred: Sequence[float],
    peak: float, series: int, events: int, started: dict[str, Any], seen: dict[str, Any],
) -> None:  # fmt: skip
    delays = sorted(seen["delays"]) or [0.0]
    last = delays[int(len(delays) * 0.99)]
    load = os.getloadavg()[0]
    print(f"beside {nodes} nodes and {pods} pods, load average {load:.1f}")
    print(f"  process start to first decision      {first:.1f} s")
    print(f"  at rest                              {_together(rest)}")
    print(f"  after the events                     {_together(stirred)}")
    print(f"  at the peak                          {peak:.0f} MiB")
    print(f"  metric series                        {series}")
    print(f"  pod events taken in                  {len(delays)} of {events}")
    print(
        f"  from event to mirror                 median {statistics.median(delays) * 1000:.0f} ms, "
        f"99 of 100 within {last * 1000:.0f} ms, at most {delays[-1] * 1000:.0f} ms"
    )
    print(
        f"  longest pause of the event loop      {seen['pause'] * 1000:.0f} ms, "
        f"of which it worked {seen['work'] * 1000:.0f} ms at most"
    )
    print(
        f"  longest step of the event loop       {seen['step'] * 1000:.0f} ms of CPU time, "
        f"{started['step'] * 1000:.0f} ms while it started"
    )


def _together(each: Sequence[float]) -> str:
    return f"{sum(each):.0f} MiB ({' + '.join(f'{mib:.0f}' for mib in each)})"


def _memory_of_family(pid: int) -> list[float]:
    """Return the memory of a process and of each of its children, in MiB."""
    return [pss(each) for each in _pids(pid)]


def _pids(pid: int) -> list[int]:
    """Return the ids of a process and its children; only its own once it has ended."""
    with suppress(OSError):
        return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
    return [pid]


async def _request_report(process: asyncio.subprocess.Process) -> dict[str, Any]:
    """Return the controller's measurements since the last report."""
    process.send_signal(signal.SIGUSR1)
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE_SECONDS):
        report: dict[str, Any] = json.loads(await process.stdout.readline())
    return report


async def _series(port: int) -> int:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}/metrics") as page,
    ):
        lines = (await page.text()).splitlines()
    return sum(not line.startswith("#") for line in lines)


def main(argv: Sequence[str]) -> int:
    """Run the benchmark and return the exit code."""
    parser = make_parser("bench.largecluster", __doc__)
    parser.add_argument("--nodes", type=int, default=2_000, help="existing nodes (2000)")
    parser.add_argument("--pods", type=int, default=20_000, help="running pods (20000)")
    parser.add_argument("--rate", type=int, default=1_000, help="pod events per second (1000)")
    parser.add_argument("--seconds", type=int, default=20, help="seconds of events (20)")
    parser.add_argument("--opening", type=int, default=0, help="nodes that launch at once (0)")
    chosen = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="joiner-large-") as folder:
        work = Path(folder)
        asyncio.run(
            measure(
                chosen.nodes,
                chosen.pods,
                chosen.rate,
                chosen.seconds,
                work,
                opened=chosen.opening,
            )
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
