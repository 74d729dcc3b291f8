"""Creates every reconciler with its ports."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Protocol

from controller.apis import kinds
from controller.apis.kinds import Kind
from controller.apiserver.port import ApiServer
from controller.cloudprovider.provider import CloudProvider
from controller.disruption.modes import Mode
from controller.disruption.problem import settings_of
from controller.manager.loops import Loop, Pace, Reconciler, Rounds, Singleton, Workers
from controller.manager.nudges import Nudges
from controller.options import Options
from controller.reconcilers.capacitybuffer.resolution import Resolution
from controller.reconcilers.capacityreservation.capacitytype import CapacityType
from controller.reconcilers.capacityreservation.expiration import BlockExpiration
from controller.reconcilers.clock import Clock
from controller.reconcilers.disruption.advising import Advice, Advisor, Recommender
from controller.reconcilers.disruption.deletioncosts import DeletionCosts
from controller.reconcilers.disruption.disruptor import Disruptor
from controller.reconcilers.disruption.engine import DisruptionEngine
from controller.reconcilers.disruption.history import History
from controller.reconcilers.disruption.orchestration import Orchestrator
from controller.reconcilers.featuregates.disabled import DisabledFeatures
from controller.reconcilers.interruption.handler import NoticeHandler
from controller.reconcilers.interruption.listener import Listener, StatusListener
from controller.reconcilers.newnodes.plan import PlacementPlan
from controller.reconcilers.newnodes.registrationbackoff import RegistrationBackoff
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
from controller.reconcilers.termination.reboot import Reboots
from controller.reconcilers.termination.surge import Surge
from controller.reconcilers.termination.terminator import Terminator
from controller.reconcilers.zonalshift.reporting import ZonalShiftReporting
from controller.state.cluster import Cluster
from controller.state.registrations import Registrations
from controller.state.spreads import DefaultSpreads
from controller.telemetry.events import Recorder
from controller.telemetry.metrics import CONDITIONED, Metrics

ONE = Workers(1, 1)
FEW = Workers(10, 1000)
MANY = Workers(100, 5000)
"""Workers of reconcilers that mostly wait for cloud calls, which are joined into batches."""

SHORTEST_NOMINATION = timedelta(seconds=10)

POOLS_APART = 1.0
"""Seconds between two reconciliations of a NodePool. Each adds up the resources of all its nodes,
and every change of a NodeClaim triggers one."""


class RunningCloud(CloudProvider, Protocol):
    """A cloud provider with background tasks, which only the leader runs."""

    async def start(self) -> None:
        """Load the data that every decision needs."""

    async def run(self) -> None:
        """Refresh the data until cancelled."""

    async def settle(self) -> None:
        """Start no further calls, and wait for those in progress.

        Nothing changes in the cloud afterwards.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcilerPorts:
    """The interfaces through which reconcilers act."""

    api: ApiServer
    cloud: RunningCloud
    cluster: Cluster
    recorder: Recorder
    metrics: Metrics
    clock: Clock
    solve: Solve
    engine: DisruptionEngine
    spreads: DefaultSpreads


class Assembly:
    """The reconcilers of one controller; they act while `run` runs."""

    def __init__(self, ports: ReconcilerPorts, options: Options, *, ca_bundle: str = "") -> None:
        api, cloud, cluster = ports.api, ports.cloud, ports.cluster
        metrics, clock = ports.metrics, ports.clock
        self._cloud, self._metrics = cloud, metrics
        self._recorder = ports.recorder
        self._is_acting = False
        self._pace = Pace()

        def loop(
            name: str, reconciler: Reconciler, workers: Workers = FEW, apart: float = 0.0
        ) -> Loop:
            most = workers.with_cpu(options.cpu_requests)
            return Loop(name, reconciler, metrics, most, apart, self._pace)

        def singleton(name: str, rounds: Rounds) -> Singleton:
            return Singleton(name, rounds, metrics)

        batch_window = BatchWindow(options.batch_idle_duration, options.batch_max_duration)
        registrations = Registrations()
        registration_backoff = RegistrationBackoff(cluster, clock, registrations)
        provisioner = _provisioner(ports, options, batch_window, registration_backoff)
        nomination = _nomination(ports, provisioner.plan)
        history = _history(ports)
        orchestrator = _orchestrator(ports, provisioner.plan, history)
        gates = options.feature_gates
        readiness = Readiness(api, cluster, clock, registrations, cloud, gates.static_capacity)
        lifecycle = _lifecycle(ports, options, nomination, registrations)
        replication = Replication(
            api,
            cluster,
            ports.recorder,
            metrics,
            clock,
            registration_backoff,
            settings_of(options),
        )
        disruptor = _disruptor(ports, options, orchestrator, registration_backoff)
        self._cluster = cluster
        self._tagging = tagging = _tagging(ports, options)

        self._nudges = hears = Nudges(
            cluster=cluster,
            batch_window=batch_window,
            pools=loop("nodepool.readiness", readiness, apart=POOLS_APART),
            classes=loop("nodeclass", _resolver(ports, ca_bundle)),
            claims=loop("nodeclaim.lifecycle", lifecycle, MANY),
            consolidatable=loop("nodeclaim.disruption", Consolidatable(api, cluster, clock)),
            drift=loop("nodeclaim.drift", Drift(api, cloud, cluster, clock)),
            consistency=loop("nodeclaim.consistency", _consistency(ports)),
            tagging=loop("nodeclaim.tagging", tagging, ONE),
            expiration=loop("nodeclaim.expiration", Expiration(api, cluster, metrics, clock)),
            pod_events=loop("nodeclaim.podevents", PodEvents(api, cluster, clock)),
            nodes=loop("node.termination", _terminator(ports, options), MANY),
            nominations=loop("pod.nomination", nomination),
            repair=loop("node.health", _repair(ports)),
            reboots=loop("nodeclaim.reboot", _reboots(ports)),
            overlays=loop("nodeoverlay.controller", Evaluation(api, cloud, cluster, clock), ONE),
            buffers=loop("capacitybuffer", Resolution(api, cluster, clock)),
            static=loop("static.provisioning", replication),
            disruption=singleton("disruption", disruptor),
            disruption_queue=singleton("disruption.queue", orchestrator),
            garbage=singleton("nodeclaim.garbagecollection", _garbage_collection(ports)),
        )
        # Reconcilers of disabled features get no task. Their loops ignore nudges.
        self._loops = (
            hears.pools, hears.classes, hears.claims, hears.consolidatable, hears.drift,
            hears.expiration, hears.consistency, hears.tagging,
            hears.pod_events, hears.nodes, hears.nominations,
            *((hears.repair,) if gates.node_repair and options.legacy_node_repair else ()),
            *((hears.reboots,) if gates.node_repair else ()),
            *((hears.overlays,) if gates.node_overlay else ()),
            *((hears.buffers,) if gates.capacity_buffer else ()),
            *((hears.static,) if gates.static_capacity else ()),
        )  # fmt: skip
        self._singletons = [
            singleton("provisioner", provisioner),
            hears.disruption,
            hears.disruption_queue,
            singleton("disruption.history", history),
            hears.garbage,
            *(
                singleton(name, listener)
                for name, listener in _listeners(ports, registrations).items()
            ),
        ]
        if not (gates.node_overlay and gates.capacity_buffer):
            self._singletons.append(singleton("featuregates", DisabledFeatures(api, clock, gates)))
        if gates.pod_deletion_cost_management:
            costs = _deletion_costs(ports, options, disruptor)
            self._singletons.append(singleton("pod.deletioncost", costs))
        if options.enable_zonal_shift:
            reporting = ZonalShiftReporting(cloud=cloud, cluster=cluster, recorder=ports.recorder)
            self._singletons.append(singleton("zonalshift", reporting))
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
        """Start the cloud provider, then reconcile all objects and every change, until cancelled.

        It returns after all calls to the cloud have ended, so that the next leader sees their
        results.
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
                await asyncio.sleep(0)  # loops ignore nudges until they run
                self._is_acting = True
                self._tagging.inherit(self._cluster.list(kinds.NODE_CLAIM))
                await self._nudges.everything(self._pace)
        finally:
            self._is_acting = False
            await self._cloud.settle()

    def notify(self, kind: Kind[Any], before: Any, after: Any) -> None:
        """Update the metrics for a change, and nudge the reconcilers that it concerns.

        `before` is None for a created object, `after` for a deleted one.
        """
        if kind == kinds.POD and after is not None:
            self._metrics.pod_changed(before, after)
        elif kind in CONDITIONED and after is not None:
            known = before.status.conditions if before is not None else ()
            self._metrics.conditions_changed(kind, known, after.status.conditions)
        if self._is_acting:
            self._nudges.changed(kind, before, after)


def _provisioner(
    ports: ReconcilerPorts,
    options: Options,
    batch_window: BatchWindow,
    registration_backoff: RegistrationBackoff,
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
        registration_backoff=registration_backoff,
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


def _reboots(ports: ReconcilerPorts) -> Reboots:
    return Reboots(
        api=ports.api,
        cloud=ports.cloud,
        cluster=ports.cluster,
        recorder=ports.recorder,
        metrics=ports.metrics,
        clock=ports.clock,
        eviction=Eviction(ports.api, ports.recorder, ports.metrics, ports.clock),
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
        recorder=ports.recorder,
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


def _orchestrator(ports: ReconcilerPorts, plan: PlacementPlan, history: History) -> Orchestrator:
    return Orchestrator(
        api=ports.api,
        cluster=ports.cluster,
        recorder=ports.recorder,
        metrics=ports.metrics,
        clock=ports.clock,
        writer=_claim_writer(ports, plan),
        history=history,
    )


def _history(ports: ReconcilerPorts) -> History:
    return History(
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
        recorder=ports.recorder,
        metrics=ports.metrics,
        clock=ports.clock,
        plan=plan,
    )


def _disruptor(
    ports: ReconcilerPorts,
    options: Options,
    orchestrator: Orchestrator,
    registration_backoff: RegistrationBackoff,
) -> Disruptor:
    advice = partial(Advice, ports.engine, ports.cluster, ports.metrics)
    advisor = Advisor(advice(Mode.OBSERVE))
    recommender = Recommender(advice(Mode.RECOMMEND), orchestrator.history, orchestrator)
    return Disruptor(
        cloud=ports.cloud,
        cluster=ports.cluster,
        recorder=ports.recorder,
        metrics=ports.metrics,
        clock=ports.clock,
        engine=ports.engine,
        orchestrator=orchestrator,
        registration_backoff=registration_backoff,
        recommender=recommender,
        advisor=advisor,
        mode=Mode(options.disruption_mode),
        repairs=options.feature_gates.node_repair and not options.legacy_node_repair,
    )


def _deletion_costs(
    ports: ReconcilerPorts, options: Options, disruptor: Disruptor
) -> DeletionCosts:
    return DeletionCosts(
        api=ports.api,
        cloud=ports.cloud,
        cluster=ports.cluster,
        metrics=ports.metrics,
        clock=ports.clock,
        engine=ports.engine,
        planned=lambda: disruptor.planned,
        settings=settings_of(options),
    )


def _garbage_collection(ports: ReconcilerPorts) -> GarbageCollection:
    return GarbageCollection(
        api=ports.api,
        cloud=ports.cloud,
        cluster=ports.cluster,
        metrics=ports.metrics,
        clock=ports.clock,
    )


def _listeners(
    ports: ReconcilerPorts, registrations: Registrations
) -> Mapping[str, Listener | StatusListener]:
    cloud, metrics = ports.cloud, ports.metrics
    handler = NoticeHandler(
        api=ports.api,
        cloud=ports.cloud,
        cluster=ports.cluster,
        recorder=ports.recorder,
        metrics=ports.metrics,
        clock=ports.clock,
        registrations=registrations,
    )
    return {
        "interruption": Listener(cloud=cloud, handler=handler, metrics=metrics, clock=ports.clock),
        "interruption.instancestatus": StatusListener(
            cloud=cloud, handler=handler, metrics=metrics
        ),
    }
