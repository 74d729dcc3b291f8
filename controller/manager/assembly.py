"""Creates every reconciler with its ports, the interfaces that it uses."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Protocol

from controller.apis import kinds
from controller.apis.kinds import Kind
from controller.cloudprovider.provider import CloudProvider
from controller.disruption.modes import Mode
from controller.disruption.problem import settings_of
from controller.manager.loops import Loop, Pace, Reconciler, Rounds, Singleton, Workers
from controller.manager.nudges import Nudges
from controller.options import Options
from controller.reconcilers.capacitybuffer.resolution import Resolution
from controller.reconcilers.capacityreservation.capacitytype import CapacityType
from controller.reconcilers.capacityreservation.expiration import BlockExpiration
from controller.reconcilers.disruption.advising import Advice, Advisor, Recommender
from controller.reconcilers.disruption.deletioncosts import DeletionCosts
from controller.reconcilers.disruption.disruptor import Disruptor
from controller.reconcilers.disruption.engine import DisruptionEngine
from controller.reconcilers.disruption.history import History
from controller.reconcilers.disruption.orchestration import Orchestrator
from controller.reconcilers.featuregates.disabled import DisabledFeatures
from controller.reconcilers.interruption.handler import NoticeHandler
from controller.reconcilers.interruption.listener import Listener, StatusListener
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
from controller.reconcilers.ports import Ports
from controller.reconcilers.provisioning.batchwindow import BatchWindow
from controller.reconcilers.provisioning.nomination import Nomination
from controller.reconcilers.provisioning.provisioner import Provisioner, Solve
from controller.reconcilers.provisioning.resizing import Resizing
from controller.reconcilers.provisioning.startupgate import StartupGate
from controller.reconcilers.staticcapacity.replication import Replication
from controller.reconcilers.termination.eviction import Eviction
from controller.reconcilers.termination.gangrestart import GangRestart
from controller.reconcilers.termination.reboot import Reboots
from controller.reconcilers.termination.surge import Surge
from controller.reconcilers.termination.terminator import Terminator
from controller.reconcilers.zonalshift.reporting import ZonalShiftReporting
from controller.state.registrations import Registrations
from controller.state.spreads import DefaultSpreads
from controller.telemetry.metrics import CONDITIONED

ONE = Workers(1, 1)
FEW = Workers(10, 1000)
MANY = Workers(100, 5000)
"""The workers of reconcilers that mostly wait for cloud calls, which are batched."""

MOST = Workers(1000, 5000)
"""The workers of the NodeClaim lifecycle, as in Karpenter: all wait for the CreateFleet call that
they share."""

SHORTEST_NOMINATION = timedelta(seconds=10)

POOLS_APART = 1.0
"""Seconds between two reconciliations of a NodePool. Every change of a NodeClaim triggers one, and
each sums the resources of all nodes."""


class RunningCloud(CloudProvider, Protocol):
    """A cloud provider with background tasks, which run while the replica leads or observes."""

    async def start(self) -> None:
        """Load the instance types and prices that every decision needs."""

    async def run(self) -> None:
        """Keep the instance types and prices up to date until cancelled."""

    async def shutdown(self) -> None:
        """Start no further calls, and wait for those in progress.

        Nothing changes in the cloud afterwards.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcilerPorts(Ports):
    """The interfaces of all reconcilers, and the engines that decide in worker processes."""

    cloud: RunningCloud
    solve: Solve
    engine: DisruptionEngine
    spreads: DefaultSpreads


class Assembly:
    """The reconcilers of one controller; they act while `run` runs."""

    def __init__(
        self,
        ports: ReconcilerPorts,
        options: Options,
        *,
        ca_bundle: str = "",
        pace: Pace | None = None,
    ) -> None:
        self._cloud, self._cluster = ports.cloud, ports.cluster
        self._metrics, self._recorder = ports.metrics, ports.recorder
        self._is_acting = False
        self._pace = pace or Pace()

        def loop(
            name: str, reconciler: Reconciler, workers: Workers = FEW, apart: float = 0.0
        ) -> Loop:
            most = workers.with_cpu(options.cpu_requests)
            return Loop(name, reconciler, ports.metrics, most, apart, self._pace)

        def singleton(name: str, rounds: Rounds) -> Singleton:
            return Singleton(name, rounds, ports.metrics)

        batch_window = BatchWindow(options.batch_idle_duration, options.batch_max_duration)
        registrations = Registrations()
        registration_backoff = RegistrationBackoff(ports, registrations)
        provisioner = _provisioner(ports, options, batch_window, registration_backoff)
        nomination = Nomination(ports, provisioner.plan, ports.spreads)
        history = History(ports)
        orchestrator = Orchestrator(ports, ClaimWriter(ports, provisioner.plan), history)
        notices = NoticeHandler(ports, registrations)
        gates = options.feature_gates
        readiness = Readiness(ports, registrations, gates.static_capacity, gates.reserved_capacity)
        lifecycle = _lifecycle(ports, options, nomination, registrations)
        replication = Replication(ports, registration_backoff, settings_of(options))
        disruptor = _disruptor(ports, options, orchestrator, registration_backoff)
        self._tagging = tagging = Tagging(ports, options.cluster_name, options.installation_tag)

        self._nudges = hears = Nudges(
            cluster=ports.cluster,
            batch_window=batch_window,
            pools=loop("nodepool.readiness", readiness, apart=POOLS_APART),
            classes=loop("nodeclass", Resolver(ports, ca_bundle)),
            claims=loop("nodeclaim.lifecycle", lifecycle, MOST),
            consolidatable=loop("nodeclaim.disruption", Consolidatable(ports)),
            drift=loop("nodeclaim.drift", Drift(ports)),
            consistency=loop("nodeclaim.consistency", Consistency(ports)),
            tagging=loop("nodeclaim.tagging", tagging, ONE),
            expiration=loop("nodeclaim.expiration", Expiration(ports)),
            pod_events=loop("nodeclaim.podevents", PodEvents(ports)),
            nodes=loop("node.termination", _terminator(ports, options), MANY),
            nominations=loop("pod.nomination", nomination),
            resizes=loop("pod.resize", _build_resizing(ports, options, registration_backoff)),
            repair=loop("node.health", Repair(ports)),
            reboots=loop("nodeclaim.reboot", _reboots(ports, options)),
            overlays=loop("nodeoverlay.controller", Evaluation(ports), ONE),
            buffers=loop("capacitybuffer", Resolution(ports)),
            static=loop("static.provisioning", replication),
            disruption=singleton("disruption", disruptor),
            disruption_queue=singleton("disruption.queue", orchestrator),
            garbage=singleton("nodeclaim.garbagecollection", GarbageCollection(ports)),
        )
        # Reconcilers of disabled features get no task. Their loops ignore nudges.
        self._loops = (
            hears.pools, hears.classes, hears.claims, hears.consolidatable, hears.drift,
            hears.expiration, hears.consistency, hears.tagging,
            hears.pod_events, hears.nodes, hears.nominations, hears.resizes,
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
            singleton("interruption", Listener(ports, notices)),
            singleton("interruption.instancestatus", StatusListener(ports, notices)),
        ]
        if not (gates.node_overlay and gates.capacity_buffer):
            self._singletons.append(singleton("featuregates", DisabledFeatures(ports, gates)))
        if gates.pod_deletion_cost_management:
            costs = _deletion_costs(ports, options, disruptor)
            self._singletons.append(singleton("pod.deletioncost", costs))
        if options.enable_zonal_shift:
            self._singletons.append(singleton("zonalshift", ZonalShiftReporting(ports)))
        if gates.reserved_capacity:
            self._singletons += [
                singleton("capacityreservation.capacitytype", CapacityType(ports)),
                singleton("capacityreservation.expiration", BlockExpiration(ports)),
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
                await self._nudges.nudge_all(self._pace)
        finally:
            self._is_acting = False
            await self._cloud.shutdown()

    def notify(self, kind: Kind[Any], before: Any, after: Any) -> None:
        """Update the metrics for a change, and nudge the reconcilers that it concerns.

        `before` is None for a created object, `after` for a deleted one.
        """
        if kind == kinds.POD and after is not None:
            self._metrics.record_pod_change(before, after)
        elif kind in CONDITIONED and after is not None:
            known = before.status.conditions if before is not None else ()
            self._metrics.record_condition_changes(kind, known, after.status.conditions)
        if self._is_acting:
            self._nudges.on_change(kind, before, after)


def _provisioner(
    ports: ReconcilerPorts,
    options: Options,
    batch_window: BatchWindow,
    registration_backoff: RegistrationBackoff,
) -> Provisioner:
    return Provisioner(
        ports=ports,
        solve=ports.solve,
        batch_window=batch_window,
        nomination=max(2 * options.batch_max_duration, SHORTEST_NOMINATION),
        registration_backoff=registration_backoff,
        min_values_policy=options.min_values_policy,
    )


def _lifecycle(
    ports: ReconcilerPorts, options: Options, nomination: Nomination, registrations: Registrations
) -> Lifecycle:
    return Lifecycle(
        ports=ports,
        finalization=Finalization(ports),
        preparation=StartupGate(ports, nomination),
        registrations=registrations,
        registration_timeout=options.registration_timeout,
    )


def _build_resizing(
    ports: ReconcilerPorts, options: Options, registration_backoff: RegistrationBackoff
) -> Resizing:
    return Resizing(
        ports=ports,
        solve=ports.solve,
        registration_backoff=registration_backoff,
        settings=settings_of(options),
        mode=Mode(options.disruption_mode),
        evicts=options.evict_for_resize,
    )


def _terminator(ports: ReconcilerPorts, options: Options) -> Terminator:
    eviction = Eviction(ports)
    surge = Surge(ports) if options.surge_single_replicas else None
    gangs = GangRestart(ports, eviction) if options.gang_scheduling else None
    return Terminator(ports, eviction, surge, gangs)


def _reboots(ports: ReconcilerPorts, options: Options) -> Reboots:
    eviction = Eviction(ports)
    return Reboots(
        ports, eviction, GangRestart(ports, eviction) if options.gang_scheduling else None
    )


def _disruptor(
    ports: ReconcilerPorts,
    options: Options,
    orchestrator: Orchestrator,
    registration_backoff: RegistrationBackoff,
) -> Disruptor:
    advice = partial(Advice, ports, ports.engine)
    advisor = Advisor(advice(Mode.OBSERVE))
    recommender = Recommender(advice(Mode.RECOMMEND), orchestrator.history, orchestrator)
    return Disruptor(
        ports=ports,
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
        ports=ports,
        engine=ports.engine,
        planned=lambda: disruptor.planned,
        settings=settings_of(options),
    )
