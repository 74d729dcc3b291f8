"""Replicas of the real controller, each with its own clients; the one that holds the Lease acts."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

from bench.faults.processes import Process, current
from bench.faults.region import CLUSTER, QUEUE, Region
from bench.faults.wires import ApiWire, AwsWire, CallFaults
from controller.apis import kinds
from controller.apis.kubernetes.pods import Pod
from controller.apiserver.fake import FakeApiServer
from controller.aws.provider import AWSCloudProvider
from controller.disruption.problem import DisruptionSettings
from controller.manager.assembly import Assembly, ReconcilerPorts
from controller.manager.cloud.metered import MeteredCloud
from controller.manager.leadership import LAST_MOMENT, LEASE_DURATION, Leadership, Timing
from controller.manager.loops import SLICE_SECONDS, Pace
from controller.manager.watches import Watches, mirrored_kinds
from controller.options import FeatureGates, Options
from controller.scheduling.results import Results
from controller.scheduling.scheduler import schedule
from controller.scheduling.settings import Settings
from controller.state.cluster import Cluster
from controller.state.snapshot import Snapshot
from controller.state.spreads import DefaultSpreads
from controller.telemetry.events import Recorder
from controller.telemetry.market import Market
from controller.telemetry.metrics import Metrics
from tests.reconcilers.disrupting import SameProcess

NAMESPACE, LEASE = "kube-system", "karpenter-leader-election"
PATIENCE = (LEASE_DURATION - LAST_MOMENT).total_seconds()
RESTART = 5.0
"""Seconds until a process that has ended is restarted."""

OPTIONS = Options(
    cluster_name=CLUSTER,
    interruption_queue=QUEUE,
    disable_dry_run=True,
    feature_gates=FeatureGates(node_repair=True, static_capacity=True),
    gang_scheduling=True,
)


SCHEDULING = Settings(gangs=True)


async def solve(pods: Sequence[Pod], snapshot: Snapshot) -> Results:
    return schedule(pods, snapshot=snapshot, settings=SCHEDULING)


def make_datetime(epoch: datetime) -> type[datetime]:
    """Return a `datetime` class whose `now` is the wall clock of the calling process."""

    class Moment(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Any:
            return wall_clock(epoch, current())

    return Moment


def wall_clock(epoch: datetime, process: Process | None) -> datetime:
    """Return the wall-clock time of a process, with its clock error; without one if it is None."""
    error = process.clock_error if process is not None else 0.0
    return epoch + timedelta(seconds=asyncio.get_running_loop().time() + error)


class LooseFence:
    """A substitute for the controller's `Fence`, whose thread ends a process that is stuck.

    `Controllers` ends the process instead.
    """

    def __init__(self, timing: Timing, renewed_at: float, *, clock: Callable[[], float]) -> None:
        self.renewed_at = renewed_at
        self.process = current()

    def __enter__(self) -> LooseFence:
        if self.process is not None:
            FENCES[self.process] = self
        return self

    def __exit__(self, *exc: object) -> None:
        if self.process is not None:
            FENCES.pop(self.process, None)


FENCES: dict[Process, LooseFence] = {}


class BusyClock:
    """The clock that limits the time of a process's reconciliations per iteration of the loop.

    How many of them run in `SLICE_SECONDS` depends on the speed of a machine. Here it depends on
    the seed: this time is used up after about two, five or ten reconciliations.
    """

    def __init__(self, chance: random.Random) -> None:
        self._chance = random.Random(chance.random())
        self._share = self._chance.choice((0.1, 0.2, 0.5))
        self._now = 0.0

    def __call__(self) -> float:
        """Return the time in seconds; it passes in steps of `SLICE_SECONDS`."""
        if self._chance.random() < self._share:
            self._now += SLICE_SECONDS
        return self._now


class Replica:
    """A whole controller in a simulated process of its own (`bench.faults.processes`)."""

    def __init__(
        self, process: Process, api: FakeApiServer, region: Region, strikes: CallFaults, seed: int
    ) -> None:
        chance = random.Random(f"{seed}/{process.name}")
        self.process = process
        self.port = ApiWire(api, process, strikes, chance)
        self.leads = False
        self._epoch = region.epoch
        metrics = Metrics()
        cluster = Cluster(mirrored_kinds(OPTIONS), installation=OPTIONS.installation_tag)
        aws = AwsWire(region, process, strikes, chance)
        provider = AWSCloudProvider(
            OPTIONS,
            aws=aws,
            cluster_dns="10.100.0.10",
            clock=lambda: asyncio.get_running_loop().time(),
        )
        ports = ReconcilerPorts(
            api=self.port,
            cloud=MeteredCloud(provider, metrics, Market()),
            cluster=cluster,
            recorder=Recorder(self.port, self.clock),
            metrics=metrics,
            clock=self.clock,
            solve=solve,
            engine=SameProcess(DisruptionSettings(image_soak=timedelta(0)), SCHEDULING),
            spreads=DefaultSpreads((), cluster),
        )
        self.assembly = Assembly(ports, OPTIONS, pace=Pace(clock=BusyClock(chance)))
        cluster.subscribe(self.assembly.notify)
        self.watches = Watches(self.port, cluster)

    def clock(self) -> datetime:
        return wall_clock(self._epoch, self.process)

    async def live(self) -> None:
        """Watch the cluster, and act while leading."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.watches.list_custom_resources())
            tasks.create_task(self.watches.run())
            for kind in self.watches.custom_resources:
                tasks.create_task(self._watch(kind))
            tasks.create_task(self._lead())

    async def _watch(self, kind: kinds.Kind[Any]) -> None:
        """Deliver changes of custom resources as Kopf does.

        Kopf omits objects that were deleted while it was not watching.
        """
        await self.watches.until_listed()
        async for change in self.port.watch(kind):
            if change.object is not None:
                self.watches.take(kind, change)

    async def _lead(self) -> None:
        leadership = Leadership(
            api=self.port,
            namespace=NAMESPACE,
            name=LEASE,
            identity=self.process.name,
            on_change=self._on_leadership_change,
        )
        await leadership.hold(self._act)

    async def _act(self) -> None:
        await self.watches.until_synced()
        await self.assembly.run()

    def _on_leadership_change(self, leads: bool) -> None:
        self.leads = leads


CLOCKED = (
    "launching.launcher",
    "provider",
    "instancetypes.pricing",
    "nodeclass.instanceprofiles",
    "nodeclass.amis",
)
"""Modules of `controller.aws` that read the wall clock."""

EPOCH = datetime(2026, 11, 22, 12, tzinfo=UTC)


class Controllers:
    """Two replicas that are restarted whenever they end."""

    def __init__(self, api: FakeApiServer, region: Region, strikes: CallFaults, seed: int) -> None:
        self._api, self._region, self._strikes, self._seed = api, region, strikes, seed
        self._ended: list[Replica] = []
        self._started = 0
        self._due = [0.0, 0.0]
        self.replicas: list[Replica | None] = [None, None]
        self.lease_edited_at = -math.inf

    async def edit_lease(self, spec: Mapping[str, Any]) -> None:
        """Change the Lease as a user does; raises NotFoundError if no replica created it yet."""
        await self._api.patch(kinds.LEASE, LEASE, {"spec": spec}, namespace=NAMESPACE)
        self.lease_edited_at = asyncio.get_running_loop().time()

    @property
    def leader(self) -> Replica | None:
        """The replica that acts, or would if it were not paused; None if none leads."""
        leading = [r for r in self.replicas if r is not None and r.leads and not _is_over(r)]
        return leading[-1] if leading else None

    def supervise(self) -> None:
        """Kill stuck processes, as `Fence` would, and restart ended ones, as the kubelet would."""
        now = asyncio.get_running_loop().time()
        for process, fence in [*FENCES.items()]:
            if process.state == "running" and now > fence.renewed_at + PATIENCE:
                process.kill()
        for place, replica in enumerate(self.replicas):
            if replica is not None and _is_over(replica):
                self._ended.append(replica)
                FENCES.pop(replica.process, None)
                self.replicas[place] = None
                self._due[place] = now + RESTART
            elif replica is None and now >= self._due[place]:
                self.replicas[place] = self._start()

    def _start(self) -> Replica:
        self._started += 1
        process = Process(f"replica-{self._started}")
        replica = Replica(process, self._api, self._region, self._strikes, self._seed)
        process.start(replica.live())
        return replica


def _is_over(replica: Replica) -> bool:
    task = replica.process.task
    return replica.process.state == "dead" or (task is not None and task.done())
