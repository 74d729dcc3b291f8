"""A controller that records its own delays; `largecluster` starts it and requests its reports.

The module itself imports next to nothing. Solver processes import the main module too, and the
benchmark's imports must not count as the controller's memory.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from dataclasses import dataclass, field

SENT = "benchmark/sent"
"""Pod annotation: when the event that carries it was written, in seconds of the monotonic clock."""

BEAT_SECONDS = 0.005


@dataclass
class Observer:
    """The delays in a controller's process since the last report, in seconds.

    `delays` has the delay of each pod event, from its write until the cluster state has it. A timer
    of the event loop runs every `BEAT_SECONDS`. A pause is how late it ran; on a busy machine, this
    includes the wait for a CPU. `longest_work` is the CPU time of the event loop's thread between
    two runs of the timer, and `longest_step` that of one callback, during which no other runs.
    """

    delays: list[float] = field(default_factory=list)
    longest_pause: float = 0.0
    longest_work: float = 0.0
    longest_step: float = 0.0

    def measure_steps(self) -> None:
        """Measure the callbacks of the event loop from now on."""
        run = asyncio.Handle._run

        def run_and_measure(handle: asyncio.Handle) -> None:
            worked = time.thread_time()
            run(handle)
            self.longest_step = max(self.longest_step, time.thread_time() - worked)

        asyncio.Handle._run = run_and_measure  # type: ignore[assignment]

    async def beat(self) -> None:
        """Measure how late the event loop runs, until cancelled."""
        while True:
            due, worked = time.monotonic() + BEAT_SECONDS, time.thread_time()
            await asyncio.sleep(BEAT_SECONDS)
            self.longest_pause = max(self.longest_pause, time.monotonic() - due)
            self.longest_work = max(self.longest_work, time.thread_time() - worked)

    def report(self) -> None:
        """Print the measurements since the last report as one line of JSON, and reset them."""
        import json

        seen = {
            "delays": self.delays,
            "pause": self.longest_pause,
            "work": self.longest_work,
            "step": self.longest_step,
        }
        print(json.dumps(seen), flush=True)
        self.delays = []
        self.longest_pause = self.longest_work = self.longest_step = 0.0


def run() -> None:
    """Run a controller with an in-memory cloud until SIGTERM; report on SIGUSR1."""
    asyncio.run(_run())


async def _run() -> None:
    from controller.cloudprovider.fake import FakeCloud
    from controller.cloudprovider.provider import Instance
    from controller.kube import access
    from controller.manager.replica import Replica
    from controller.options import Options
    from controller.telemetry import logs

    class RunningCloud(FakeCloud):
        async def start(self) -> None:
            """Register the instances of the existing nodes if those are managed."""
            for number in range(int(os.environ.get("BACKGROUND_NODES", "0"))):
                name = f"fake:///background-{number}"
                self.instances_by_id[name] = Instance(name, "m5.2xlarge", "us-west-2a", "on-demand")

        async def run(self) -> None:
            """Wait until cancelled."""
            await asyncio.Event().wait()

        async def shutdown(self) -> None:
            """Return at once, since no work is in progress."""

    options = Options.parse([], os.environ)
    logs.configure("error", ["stderr"])
    observer = Observer()
    _observe_pods(observer)
    observer.measure_steps()
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
    """Record the delay of each pod event once the controller's cluster state has it."""
    from controller.apis.kinds import POD, Kind, T
    from controller.state.cluster import Cluster

    observe = Cluster.observe

    def observe_and_measure(self: Cluster, kind: Kind[T], value: T) -> None:
        observe(self, kind, value)
        if kind == POD and (sent := value.metadata.annotations.get(SENT)):
            observer.delays.append(time.monotonic() - float(sent))

    Cluster.observe = observe_and_measure  # type: ignore[method-assign]
