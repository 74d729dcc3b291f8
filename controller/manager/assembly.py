"""Every reconciler with its ports."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

from controller.apis import kinds
from controller.apis.kinds import Kind
from controller.apiserver.port import ApiServer
from controller.cloudprovider.provider import CloudProvider
from controller.disruption.modes import Mode
from controller.manager.loops import Loop, Reconciler, Rounds, Singleton, Workers
from controller.manager.nudges import Nudges
from controller.options import Options
from controller.reconcilers.capacitybuffer.resolution import Resolution
from controller.reconcilers.capacityreservation.capacitytype import CapacityType
from controller.reconcilers.capacityreservation.expiration import BlockExpiration
from controller.reconcilers.clock import Clock
from controller.reconcilers.disruption.advising import Advisor, Recommender
from controller.reconcilers.disruption.bookkeeping import Ledger
from controller.reconcilers.disruption.disruptor import Disruptor
from controller.reconcilers.disruption.judging import Judge
from controller.reconcilers.disruption.orchestration import Orchestrator
from controller.reconcilers.interruption.listener import Listener
from controller.reconcilers.newnodes.plan import PlacementPlan
from controller.reconcilers.newnodes.trials import Trials
from controller.reconcilers.newnodes.writer import ClaimWriter
from controller.reconcilers.nodeclaim.consistency import Consistency
from controller.reconcilers.nodeclaim.consolidatable import Consolidatable
from controller.reconcilers.nodeclaim.drift import Drift
from controller.reconcilers.nodeclaim.expiration import Expiration
from controller.reconcilers.nodeclaim.finalization import Finalization
from controller.reconcilers.nodeclaim.garbagecollection import GarbageCollection
from controller.reconcilers.nodeclaim.lifecycle import Lifecycle
from controller.reconcilers.nodeclaim.podevents import PodEvents
from controller.reconcilers.nodeclaim.tagging import Tagging
from controller.reconcilers.nodeclass.resolver import Resolver
from controller.reconcilers.nodehealth.repair import Repair
from controller.reconcilers.nodeoverlay.evaluation import Evaluation
from controller.reconcilers.nodepool.readiness import Readiness
from controller.reconcilers.provisioning.batchwindow import BatchWindow
from controller.reconcilers.provisioning.nomination import Nomination
from controller.reconcilers.provisioning.provisioner import Provisioner, Solve
from controller.reconcilers.provisioning.startupgate import StartupGate
from controller.reconcilers.staticcapacity.replication import Replication
from controller.reconcilers.termination.eviction import Eviction
from controller.reconcilers.termination.surge import Surge
from controller.reconcilers.termination.terminator import Terminator
from controller.state.cluster import Cluster
from controller.state.registrations import Registrations
from controller.state.spreads import DefaultSpreads
from controller.telemetry.events import Recorder
from controller.telemetry.metrics import CONDITIONED, Metrics

ONE = Workers(1, 1)
FEW = Workers(10, 1000)
MANY = Workers(100, 5000)
"""Where passes mostly wait: for calls to the cloud, which are joined into batches."""

SHORTEST_NOMINATION = timedelta(seconds=10)

POOLS_APART = 1.0
"""Seconds between two looks at a pool: each adds all of its machines up, and every step of every
claim is a reason for one."""


class RunningCloud(CloudProvider, Protocol):
    """A cloud with a life of its own, which belongs to the leader."""

    async def start(self) -> None:
        """Load what every decision needs."""

    async def run(self) -> None:
        """Keep it fresh until cancelled."""

    async def settle(self) -> None:
        """Begin nothing more, and wait for what is under way: then nothing can land any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcilerPorts:
    """All that reconcilers act through."""

    api: ApiServer
    cloud: RunningCloud
    cluster: Cluster
    recorder: Recorder
    metrics: Metrics
    clock: Clock
    solve: Solve
    judge: Judge
    spreads: DefaultSpreads


class Assembly:
    """The reconcilers of one controller, at work while `run` runs."""

    def __init__(self, ports: ReconcilerPorts, options: Options, *, ca_bundle: str = "") -> None:
        api, cloud, cluster = ports.api, ports.cloud, ports.cluster
        metrics, clock = ports.metrics, ports.clock
        self._cloud, self._metrics = cloud, metrics
        self._recorder = ports.recorder
        self._is_acting = False

        def loop(
            name: str, reconciler: Reconciler, workers: Workers = FEW, apart: float = 0.0
        ) -> Loop:
            return Loop(name, reconciler, metrics, workers.with_cpu(options.cpu_requests), apart)

        def singleton(name: str, rounds: Rounds) -> Singleton:
            return Singleton(name, rounds, metrics)

        batch_window = BatchWindow(options.batch_idle_duration, options.batch_max_duration)
        registrations = Registrations()
        trials = Trials(cluster, clock, registrations)
        provisioner = _provisioner(ports, options, batch_window, trials)
        nomination = _nomination(ports, provisioner.plan)
        ledger = _ledger(ports)
        orchestrator = _orchestrator(ports, provisioner.plan, ledger)
        readiness = Readiness(api, cluster, clock, registrations)
        lifecycle = _lifecycle(ports, options, nomination, registrations)
        replication = Replication(api, cluster, metrics, clock, trials)
        disruptor = _disruptor(ports, options, orchestrator, trials)

        self._nudges = hears = Nudges(
            cluster=cluster,
            batch_window=batch_window,
            pools=loop("nodepool.readiness", readiness, apart=POOLS_APART),
            classes=loop("nodeclass", _resolver(ports, ca_bundle)),
            claims=loop("nodeclaim.lifecycle", lifecycle, MANY),
            consolidatable=loop("nodeclaim.disruption", Consolidatable(api, cluster, clock)),
            drift=loop("nodeclaim.drift", Drift(api, cloud, cluster, clock)),
            consistency=loop("nodeclaim.consistency", _consistency(ports)),
            tagging=loop("nodeclaim.tagging", _tagging(ports, options), ONE),
            expiration=loop("nodeclaim.expiration", Expiration(api, cluster, metrics, clock)),
            pod_events=loop("nodeclaim.podevents", PodEvents(api, cluster, clock)),
            nodes=loop("node.termination", _terminator(ports, options), MANY),
            nominations=loop("pod.nomination", nomination),
            repair=loop("node.health", _repair(ports)),
            overlays=loop("nodeoverlay.controller", Evaluation(api, cloud, cluster, clock), ONE),
            buffers=loop("capacitybuffer", Resolution(api, cluster, clock)),
            static=loop("static.provisioning", replication),
            disruption=singleton("disruption", disruptor),
            disruption_queue=singleton("disruption.queue", orchestrator),
        )
        # Nobody runs these where they are switched off, and then nobody hears their nudges.
        gates = options.feature_gates
        self._loops = (
            hears.pools, hears.classes, hears.claims, hears.consolidatable, hears.drift,
            hears.expiration, hears.consistency, hears.tagging,
            hears.pod_events, hears.nodes, hears.nominations,
            *((hears.repair,) if gates.node_repair else ()),
            *((hears.overlays,) if gates.node_overlay else ()),
            *((hears.buffers,) if gates.capacity_buffer else ()),
            *((hears.static,) if gates.static_capacity else ()),
        )  # fmt: skip
        self._singletons = [
            singleton("provisioner", provisioner),
            hears.disruption,
            hears.disruption_queue,
            singleton("disruption.ledger", ledger),
            singleton("nodeclaim.garbagecollection", _garbage_collection(ports)),
            # Without a queue there is still what the cloud's own checks of instances find.
            singleton("interruption", _listener(ports, registrations)),
        ]
        if gates.reserved_capacity:
            self._singletons += [
                singleton(
                    "capacityreservation.capacitytype",
                    CapacityType(api=api, cloud=cloud, cluster=cluster),
                ),
                singleton(
                    "capacityreservation.expiration",
                    BlockExpiration(api, cloud, cluster, metrics, clock),
                ),
            ]

    async def run(self) -> None:
        """Start the cloud, then act on everything there is, until cancelled.

        It ends when all that it began in the cloud has ended: whoever acts next must not be
        surprised by it.
        """
        try:
            await self._cloud.start()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._cloud.run())
                tasks.create_task(self._recorder.run())
                for loop in self._loops:
                    tasks.create_task(loop.run())
                for singleton in self._singletons:
                    tasks.create_task(singleton.run())
                await asyncio.sleep(0)  # loops take nudges from when they run
                self._is_acting = True
                self._nudges.everything()
        finally:
            self._is_acting = False
            await self._cloud.settle()

    def notify(self, kind: Kind[Any], before: Any, after: Any) -> None:
        """Take note of a change; `before` or `after` is None for what is not there."""
        if kind == kinds.POD and after is not None:
            self._metrics.pod_changed(before, after)
        elif kind in CONDITIONED and after is not None:
            known = before.status.conditions if before is not None else ()
            self._metrics.conditions_changed(kind, known, after.status.conditions)
        if self._is_acting:
            self._nudges.changed(kind, before, after)


def _provisioner(
    ports: ReconcilerPorts, options: Options, batch_window: BatchWindow, trials: Trials
) -> Provisioner:
    return Provisioner(
        api=ports.api,
        cloud=ports.cloud,
        cluster=ports.cluster,
        recorder=ports.recorder,
        metrics=ports.metrics,
        clock=ports.clock,
        solve=ports.solve,
        batch_window=batch_window,
        nomination=max(2 * options.batch_max_duration, SHORTEST_NOMINATION),
        trials=trials,
    )


def _nomination(ports: ReconcilerPorts, plan: PlacementPlan) -> Nomination:
    return Nomination(
        api=ports.api,
        cloud=ports.cloud,
        cluster=ports.cluster,
        clock=ports.clock,
        spreads=ports.spreads,
        plan=plan,
    )


def _finalization(ports: ReconcilerPorts) -> Finalization:
    return Finalization(
        api=ports.api,
        cloud=ports.cloud,
        cluster=ports.cluster,
        recorder=ports.recorder,
        metrics=ports.metrics,
        clock=ports.clock,
    )


def _lifecycle(
    ports: ReconcilerPorts, options: Options, nomination: Nomination, registrations: Registrations
) -> Lifecycle:
    return Lifecycle(
        api=ports.api,
        cloud=ports.cloud,
        cluster=ports.cluster,
        recorder=ports.recorder,
        metrics=ports.metrics,
        clock=ports.clock,
        finalization=_finalization(ports),
        preparation=StartupGate(ports.api, ports.cluster, ports.clock, nomination),
        registrations=registrations,
        registration_timeout=options.registration_timeout,
    )


def _resolver(ports: ReconcilerPorts, ca_bundle: str) -> Resolver:
    return Resolver(
        api=ports.api,
        cloud=ports.cloud,
        cluster=ports.cluster,
        recorder=ports.recorder,
        clock=ports.clock,
        ca_bundle=ca_bundle,
    )


def _terminator(ports: ReconcilerPorts, options: Options) -> Terminator:
    surge = Surge(ports.api, ports.recorder, ports.clock)
    return Terminator(
        api=ports.api,
        cloud=ports.cloud,
        cluster=ports.cluster,
        recorder=ports.recorder,
        metrics=ports.metrics,
        clock=ports.clock,
        eviction=Eviction(ports.api, ports.recorder, ports.metrics, ports.clock),
        surge=surge if options.surge_single_replicas else None,
    )


def _consistency(ports: ReconcilerPorts) -> Consistency:
    return Consistency(
        api=ports.api, cluster=ports.cluster, recorder=ports.recorder, clock=ports.clock
    )


def _tagging(ports: ReconcilerPorts, options: Options) -> Tagging:
    return Tagging(
        api=ports.api,
        cloud=ports.cloud,
        cluster=ports.cluster,
        cluster_name=options.cluster_name,
        installation=options.installation_tag,
    )


def _repair(ports: ReconcilerPorts) -> Repair:
    return Repair(
        api=ports.api,
        cloud=ports.cloud,
        cluster=ports.cluster,
        recorder=ports.recorder,
        metrics=ports.metrics,
        clock=ports.clock,
    )


def _orchestrator(ports: ReconcilerPorts, plan: PlacementPlan, ledger: Ledger) -> Orchestrator:
    return Orchestrator(
        api=ports.api,
        cluster=ports.cluster,
        recorder=ports.recorder,
        metrics=ports.metrics,
        clock=ports.clock,
        writer=_claim_writer(ports, plan),
        ledger=ledger,
    )


def _ledger(ports: ReconcilerPorts) -> Ledger:
    return Ledger(
        api=ports.api,
        cloud=ports.cloud,
        cluster=ports.cluster,
        metrics=ports.metrics,
        clock=ports.clock,
    )


def _claim_writer(ports: ReconcilerPorts, plan: PlacementPlan) -> ClaimWriter:
    return ClaimWriter(
        api=ports.api,
        cluster=ports.cluster,
        metrics=ports.metrics,
        clock=ports.clock,
        plan=plan,
    )


def _disruptor(
    ports: ReconcilerPorts, options: Options, orchestrator: Orchestrator, trials: Trials
) -> Disruptor:
    advisor = Advisor(
        judge=ports.judge, cluster=ports.cluster, metrics=ports.metrics, clock=ports.clock
    )
    recommender = Recommender(
        judge=ports.judge,
        cluster=ports.cluster,
        metrics=ports.metrics,
        clock=ports.clock,
        ledger=orchestrator.ledger,
        orchestrator=orchestrator,
    )
    return Disruptor(
        cloud=ports.cloud,
        cluster=ports.cluster,
        recorder=ports.recorder,
        metrics=ports.metrics,
        clock=ports.clock,
        judge=ports.judge,
        orchestrator=orchestrator,
        trials=trials,
        recommender=recommender,
        advisor=advisor,
        mode=Mode(options.disruption_mode),
    )


def _garbage_collection(ports: ReconcilerPorts) -> GarbageCollection:
    return GarbageCollection(
        api=ports.api,
        cloud=ports.cloud,
        cluster=ports.cluster,
        metrics=ports.metrics,
        clock=ports.clock,
    )


def _listener(ports: ReconcilerPorts, registrations: Registrations) -> Listener:
    return Listener(
        api=ports.api,
        cloud=ports.cloud,
        cluster=ports.cluster,
        recorder=ports.recorder,
        metrics=ports.metrics,
        clock=ports.clock,
        registrations=registrations,
    )
