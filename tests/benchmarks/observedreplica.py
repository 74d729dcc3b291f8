"""A controller that notes what it sees of itself; `largecluster` starts it and asks for a report.

Imports next to nothing by itself: solvers import the main module too, and what a benchmark needs
must not be counted for the controller's.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from dataclasses import dataclass, field

SENT = "benchmark/sent"
"""On pods: when the event that tells of it was written, by the machine's clock."""

BEAT_SECONDS = 0.005


@dataclass
class Observer:
    """How long events took to be taken in, and by how much the event loop came late: seconds.

    `longest_work` is what its thread worked meanwhile: on a busy machine it also waits for a CPU.
    """

    delays: list[float] = field(default_factory=list)
    longest_pause: float = 0.0
    longest_work: float = 0.0

    async def beat(self) -> None:
        """Note how late the event loop comes, for ever."""
        while True:
            due, worked = time.monotonic() + BEAT_SECONDS, time.thread_time()
            await asyncio.sleep(BEAT_SECONDS)
            self.longest_pause = max(self.longest_pause, time.monotonic() - due)
            self.longest_work = max(self.longest_work, time.thread_time() - worked)

    def report(self) -> None:
        """Print in a line what was seen since the last report."""
        import json

        seen = {"delays": self.delays, "pause": self.longest_pause, "work": self.longest_work}
        print(json.dumps(seen), flush=True)
        self.delays, self.longest_pause, self.longest_work = [], 0.0, 0.0


def run() -> None:
    """Be a controller with a cloud in memory until SIGTERM; report on SIGUSR1."""
    asyncio.run(_run())


async def _run() -> None:
    from controller.cloudprovider.fake import FakeCloud
    from controller.kube import access
    from controller.manager.replica import Replica
    from controller.options import Options
    from controller.telemetry import logs

    class RunningCloud(FakeCloud):
        async def start(self) -> None:
            """Have everything ready."""

        async def run(self) -> None:
            """Wait for the end."""
            await asyncio.Event().wait()

        async def settle(self) -> None:
            """Have nothing under way."""

    options = Options.parse([], os.environ)
    logs.configure("error", ["stderr"])
    observer = Observer()
    _observe_pods(observer)
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, observer.report)
    replica = Replica(
        options,
        access.from_environment(os.environ),
        lambda options, dns: RunningCloud(idle=lambda: asyncio.sleep(1)),
        environ=os.environ,
    )
    beating = asyncio.create_task(observer.beat())
    await replica.run()
    beating.cancel()


def _observe_pods(observer: Observer) -> None:
    """Note when the mirror has taken a pod in."""
    from controller.apis.kinds import POD, Kind, T
    from controller.state.cluster import Cluster

    observe = Cluster.observe

    def observed(self: Cluster, kind: Kind[T], value: T) -> None:
        observe(self, kind, value)
        if kind == POD and (sent := value.metadata.annotations.get(SENT)):
            observer.delays.append(time.monotonic() - float(sent))

    Cluster.observe = observed  # type: ignore[method-assign]
