"""A whole controller on fakes, in one process."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from controller.apis import kinds, labels
from controller.apis.karpenter.nodeclaim import NodeClaim
from controller.apis.kubernetes import conditions
from controller.apis.kubernetes.meta import KubernetesObject
from controller.apis.kubernetes.pods import Pod
from controller.apis.kubernetes.taints import Taint
from controller.apiserver.fake import FakeApiServer
from controller.cloudprovider.fake import FakeCloud
from controller.manager.assembly import Assembly, ReconcilerPorts
from controller.manager.cloud.metered import MeteredCloud
from controller.manager.cloud.overlaid import OverlaidCloud
from controller.manager.observation import ObservingAssembly
from controller.manager.watches import Watches, mirrored_kinds
from controller.options import DisruptionMode, FeatureGates, Options
from controller.reconcilers.clock import Clock
from controller.scheduling.results import Results
from controller.scheduling.scheduler import schedule
from controller.state.cluster import Cluster
from controller.state.snapshot import Snapshot
from controller.state.spreads import DefaultSpreads
from controller.telemetry.events import Recorder
from controller.telemetry.market import Market
from controller.telemetry.metrics import Metrics
from tests.builders import changed, make_node
from tests.reconcilers.disrupting import SameProcess

OPTIONS = Options(
    cluster_name="joiner",
    batch_idle_duration=timedelta(milliseconds=10),
    batch_max_duration=timedelta(milliseconds=100),
)


NO_GATES = FeatureGates()


def clock() -> datetime:
    return datetime.now(UTC)


class LivingCloud(FakeCloud):
    is_shut_down = False

    async def start(self) -> None: ...

    async def run(self) -> None:
        await asyncio.Event().wait()

    async def shutdown(self) -> None:
        await asyncio.sleep(1)
        self.is_shut_down = True


async def solve(pods: Sequence[Pod], snapshot: Snapshot) -> Results:
    return schedule(pods, snapshot=snapshot)


class WholeController:
    """A whole controller on fakes, with methods for changes from outside."""

    def __init__(
        self,
        gates: FeatureGates = NO_GATES,
        clock: Clock = clock,
        *,
        mode: DisruptionMode = "act",
        api: FakeApiServer | None = None,
        options: Options = OPTIONS,
    ) -> None:
        options = dataclasses.replace(options, feature_gates=gates, disruption_mode=mode)
        self.api = api or FakeApiServer(clock)
        self.cloud = LivingCloud(clock=clock, idle=lambda: asyncio.sleep(1))
        self.metrics = Metrics()
        self.cluster = Cluster(
            mirrored_kinds(options),
            installation="" if mode == "observe" else options.installation_tag,
        )
        ports = ReconcilerPorts(
            api=self.api,
            cloud=MeteredCloud(OverlaidCloud(self.cloud, self.cluster), self.metrics, Market()),
            cluster=self.cluster,
            recorder=Recorder(self.api, clock),
            metrics=self.metrics,
            clock=clock,
            solve=solve,
            engine=SameProcess(),
            spreads=DefaultSpreads((), self.cluster),
        )
        self.assembly = (ObservingAssembly if mode == "observe" else Assembly)(ports, options)
        self.cluster.subscribe(self.assembly.notify)
        self.watches = Watches(self.api, self.cluster)

    async def live(self) -> None:
        await self.watches.list_custom_resources()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.watches.run())
            for kind in self.watches.custom_resources:
                tasks.create_task(self.watch(kind))
            await self.watches.until_synced()
            tasks.create_task(self.assembly.run())

    async def watch(self, kind: kinds.Kind[KubernetesObject]) -> None:
        """Deliver changes of custom resources, as Kopf does."""
        async for change in self.api.watch(kind):
            if change.object is not None:
                self.watches.take(kind, change)

    async def claim(self, condition: str) -> NodeClaim:
        """Wait for a NodeClaim on which a condition is true, and return it."""
        async with asyncio.timeout(20):
            async for change in self.api.watch(kinds.NODE_CLAIM):
                claim = change.object
                if claim is not None and conditions.is_true(claim.status.conditions, condition):
                    return claim
        raise AssertionError("a watch never ends")

    def join(self, claim: NodeClaim) -> None:
        """Register a ready node for the NodeClaim's instance."""
        node = make_node(
            f"node-of-{claim.metadata.name}",
            provider_id=claim.status.provider_id,
            taints=[Taint(key=labels.UNREGISTERED_TAINT, effect="NoExecute")],
            status={"capacity": claim.status.capacity, "allocatable": claim.status.allocatable},
        )
        self.api.seed(changed(node, metadata={"labels": {}}))

    def bind(self, name: str, node: str) -> None:
        pod = self.api.find(kinds.POD, name, "default")
        assert pod is not None
        self.api.seed(changed(pod, spec={"node_name": node}))
