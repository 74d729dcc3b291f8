"""Every reconciler with its ports, and which change of the cluster concerns which of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Protocol

from controller.apis import conditions, kinds, labels
from controller.apis.kinds import Kind
from controller.apis.meta import ObjectMeta
from controller.apis.nodeclaim import CONSOLIDATABLE, DRIFTED, INITIALIZED, LAUNCHED, NodeClaim
from controller.apis.nodepool import NodePool
from controller.apis.nodes import Node
from controller.apis.pods import Pod
from controller.apiserver.port import ApiServer
from controller.cloudprovider.provider import CloudProvider
from controller.disruption.modes import Mode
from controller.manager.loops import Loop, Reconciler, Rounds, Singleton, Workers
from controller.options import Options
from controller.reconcilers.capacitybuffer.resolution import SCALABLES, Resolution
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
from controller.reconcilers.nodeclaim.podevents import PodEvents, node_concerned
from controller.reconcilers.nodeclaim.tagging import Tagging
from controller.reconcilers.nodeclass.resolver import Resolver
from controller.reconcilers.nodehealth.repair import Repair
from controller.reconcilers.nodeoverlay.evaluation import ALL, Evaluation
from controller.reconcilers.nodepool.readiness import Readiness
from controller.reconcilers.provisioning.batchwindow import BatchWindow
from controller.reconcilers.provisioning.nomination import Nomination, node_forgotten
from controller.reconcilers.provisioning.provisioner import Provisioner, Solve
from controller.reconcilers.provisioning.startupgate import StartupGate
from controller.reconcilers.staticcapacity.replication import Replication
from controller.reconcilers.termination.eviction import Eviction
from controller.reconcilers.termination.surge import Surge
from controller.reconcilers.termination.terminator import Terminator
from controller.state.cluster import Cluster, key_of
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
        self._cloud, self._cluster, self._metrics = cloud, cluster, metrics
        self._recorder = ports.recorder
        self._is_acting = False

        def loop(
            name: str, reconciler: Reconciler, workers: Workers = FEW, apart: float = 0.0
        ) -> Loop:
            return Loop(name, reconciler, metrics, workers.with_cpu(options.cpu_requests), apart)

        def singleton(name: str, rounds: Rounds) -> Singleton:
            return Singleton(name, rounds, metrics)

        self._batch_window = BatchWindow(options.batch_idle_duration, options.batch_max_duration)
        registrations = Registrations()
        trials = Trials(cluster, clock, registrations)
        provisioner = _provisioner(ports, options, self._batch_window, trials)
        nomination = _nomination(ports, provisioner.plan)
        ledger = _ledger(ports)
        orchestrator = _orchestrator(ports, provisioner.plan, ledger)

        readiness = Readiness(api, cluster, clock, registrations)
        self._pools = loop("nodepool.readiness", readiness, apart=POOLS_APART)
        self._classes = loop("nodeclass", _resolver(ports, ca_bundle))
        lifecycle = _lifecycle(ports, options, nomination, registrations)
        self._claims = loop("nodeclaim.lifecycle", lifecycle, MANY)
        self._consolidatable = loop("nodeclaim.disruption", Consolidatable(api, cluster, clock))
        self._drift = loop("nodeclaim.drift", Drift(api, cloud, cluster, clock))
        self._consistency = loop("nodeclaim.consistency", _consistency(ports))
        self._tagging = loop("nodeclaim.tagging", _tagging(ports, options), ONE)
        self._expiration = loop("nodeclaim.expiration", Expiration(api, cluster, metrics, clock))
        self._pod_events = loop("nodeclaim.podevents", PodEvents(api, cluster, clock))
        self._nodes = loop("node.termination", _terminator(ports, options), MANY)
        self._nominations = loop("pod.nomination", nomination)
        self._repair = loop("node.health", _repair(ports))
        # Nobody runs these where they are switched off, and then nobody hears their nudges.
        gates = options.feature_gates
        self._overlays = loop("nodeoverlay.controller", Evaluation(api, cloud, cluster, clock), ONE)
        self._buffers = loop("capacitybuffer", Resolution(api, cluster, clock))
        self._static = loop(
            "static.provisioning", Replication(api, cluster, metrics, clock, trials)
        )
        self._loops = (
            self._pools, self._classes, self._claims, self._consolidatable, self._drift,
            self._expiration, self._consistency, self._tagging,
            self._pod_events, self._nodes, self._nominations,
            *((self._repair,) if gates.node_repair else ()),
            *((self._overlays,) if gates.node_overlay else ()),
            *((self._buffers,) if gates.capacity_buffer else ()),
            *((self._static,) if gates.static_capacity else ()),
        )  # fmt: skip
        disruptor = _disruptor(ports, options, orchestrator, trials)
        self._disruption = singleton("disruption", disruptor)
        self._disruption_queue = singleton("disruption.queue", orchestrator)
        self._singletons = [
            singleton("provisioner", provisioner),
            self._disruption,
            self._disruption_queue,
            singleton("disruption.ledger", ledger),
            singleton("nodeclaim.garbagecollection", _garbage_collection(ports)),
            # Without a queue there is still what the cloud's own checks of instances find.
            singleton("interruption", _listener(ports)),
        ]
        if gates.reserved_capacity:
            self._singletons += [
                singleton(
                    "capacityreservation.capacitytype",
                    CapacityType(api=api, cloud=cloud, cluster=cluster),
                ),
                singleton(
                    "capacityreservation.expiration",
                    BlockExpiration(api, cluster, metrics, clock),
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
                self._nudge_everything()
        finally:
            self._is_acting = False
            await self._cloud.settle()

    def notify(self, kind: Kind[Any], before: Any, after: Any) -> None:
        """Nudge whoever a change concerns; `before` or `after` is None for what is not there."""
        if kind == kinds.POD and after is not None:
            self._metrics.pod_changed(before, after)
        elif kind in CONDITIONED and after is not None:
            known = before.status.conditions if before is not None else ()
            self._metrics.conditions_changed(kind, known, after.status.conditions)
        if not self._is_acting:
            return
        concerned: dict[Kind[Any], Callable[[Any, Any], None]] = {
            kinds.POD: self._pod_changed,
            kinds.NODE: self._node_changed,
            kinds.NODE_CLAIM: self._claim_changed,
            kinds.NODE_POOL: self._pool_changed,
            kinds.EC2_NODE_CLASS: self._class_changed,
            kinds.VOLUME_ATTACHMENT: self._attachment_changed,
            kinds.NODE_OVERLAY: self._overlay_changed,
            kinds.CAPACITY_BUFFER: self._buffer_changed,
            kinds.POD_TEMPLATE: self._template_changed,
            **{kind: partial(self._scalable_changed, kind) for kind in SCALABLES.values()},
            kinds.RESOURCE_SLICE: self._slice_changed,
        }
        if kind in concerned:
            concerned[kind](before, after)

    def _nudge_everything(self) -> None:
        for pool in self._cluster.list(kinds.NODE_POOL):
            self._pools.nudge(pool.metadata.name)
            self._static.nudge(pool.metadata.name)
        for node_class in self._cluster.list(kinds.EC2_NODE_CLASS):
            self._classes.nudge(node_class.metadata.name)
        for claim in self._cluster.list(kinds.NODE_CLAIM):
            self._claim_changed(None, claim)
        for node in self._cluster.list(kinds.NODE):
            self._nodes.nudge(node.metadata.name)
            self._repair.nudge(node.metadata.name)
        self._overlays.nudge(ALL)
        for buffer in self._cluster.list(kinds.CAPACITY_BUFFER):
            self._buffers.nudge(key_of(buffer))
        for pod in self._cluster.pending_pods():
            self._batch_window.nudge(pod.metadata.uid)

    def _pod_changed(self, before: Pod | None, after: Pod | None) -> None:
        if after is not None and self._cluster.begins_to_wait(before, after):
            self._batch_window.nudge(after.metadata.uid)
        if node_name := node_concerned(before, after):
            self._pod_events.nudge(node_name)
        if node_name := node_forgotten(before, after):
            self._nominations.nudge(node_name)
        pod = after or before
        if pod is not None and pod.spec.node_name:
            node = self._cluster.get(kinds.NODE, pod.spec.node_name)
            if node is not None and node.metadata.is_deleting:
                self._nodes.nudge(node.metadata.name)

    def _node_changed(self, before: Node | None, after: Node | None) -> None:
        node = after or before
        if node is None:
            return
        for loop in (self._nodes, self._repair):
            loop.nudge(node.metadata.name)
        claim = self._cluster.claim_of(node)
        if claim is not None:
            self._claims.nudge(claim.metadata.name)
        is_leaving = after is None or after.metadata.is_deleting
        was_leaving = before is None or before.metadata.is_deleting
        if is_leaving and not was_leaving:
            # Its pods will need a place: another round, though none of them is new.
            self._batch_window.nudge(node.metadata.uid)

    def _claim_changed(self, before: NodeClaim | None, after: NodeClaim | None) -> None:
        claim = after or before
        if claim is None:
            return
        for loop in (self._claims, self._consolidatable, self._expiration):
            loop.nudge(claim.metadata.name)
        for loop in (self._pools, self._static):
            loop.nudge(claim.metadata.labels.get(labels.NODEPOOL, ""))
        if claim.status.node_name:
            self._nodes.nudge(claim.status.node_name)
            self._tagging.nudge(claim.metadata.name)
        if _is_comparable(before) != _is_comparable(after):
            self._consistency.nudge(claim.metadata.name)
        if after is None:
            self._classes.nudge(claim.spec.node_class_ref.name)
        self._disruption_queue.nudge()
        if _made_from(before) != _made_from(after):
            self._drift.nudge(claim.metadata.name)
        if any(
            _holds(after, kind) and not _holds(before, kind) for kind in (CONSOLIDATABLE, DRIFTED)
        ):
            self._disruption.nudge()

    def _pool_changed(self, before: NodePool | None, after: NodePool | None) -> None:
        pool = after or before
        if pool is None:
            return
        self._pools.nudge(pool.metadata.name)
        if before is None or after is None or _wanted(before) != _wanted(after):
            for claim in self._cluster.claims_of(pool.metadata.name):
                self._drift.nudge(claim.metadata.name)
        if before is not None and after is not None and _offers(before) == _offers(after):
            return
        for claim in self._cluster.list(kinds.NODE_CLAIM):
            if claim.metadata.labels.get(labels.NODEPOOL) == pool.metadata.name:
                self._consolidatable.nudge(claim.metadata.name)
        self._static.nudge(pool.metadata.name)
        self._overlays.nudge(ALL)
        # What could not be placed before may have a place now.
        self._batch_window.nudge(pool.metadata.uid)

    def _class_changed(self, before: Any, after: Any) -> None:
        name = (after or before).metadata.name
        self._classes.nudge(name)
        self._overlays.nudge(ALL)
        for pool in self._cluster.list(kinds.NODE_POOL):
            if pool.spec.template.spec.node_class_ref.name == name:
                self._pools.nudge(pool.metadata.name)
        for claim in self._cluster.list(kinds.NODE_CLAIM):
            if claim.spec.node_class_ref.name == name:
                self._drift.nudge(claim.metadata.name)

    def _overlay_changed(self, before: Any, after: Any) -> None:
        overlay = after or before
        if before is None or after is None or not _is_same_wish(before, after):
            self._overlays.nudge(ALL)
        # Whether it is in force stands in its conditions: prices may be others now.
        self._batch_window.nudge(overlay.metadata.uid)

    def _buffer_changed(self, before: Any, after: Any) -> None:
        buffer = after or before
        if before is None or after is None or not _is_same_wish(before, after):
            self._buffers.nudge(key_of(buffer))
        # Its status says for how many pods there must be room now.
        self._batch_window.nudge(buffer.metadata.uid)

    def _template_changed(self, before: Any, after: Any) -> None:
        template = (after or before).metadata
        for buffer in self._cluster.list(kinds.CAPACITY_BUFFER):
            reference = buffer.spec.pod_template_ref
            if buffer.metadata.namespace == template.namespace and (
                reference is not None and reference.name == template.name
            ):
                self._buffers.nudge(key_of(buffer))

    def _scalable_changed(self, kind: Kind[Any], before: Any, after: Any) -> None:
        if before is not None and after is not None and _is_same_wish(before, after):
            return
        scaled = (after or before).metadata
        for buffer in self._cluster.list(kinds.CAPACITY_BUFFER):
            reference = buffer.spec.scalable_ref
            if buffer.metadata.namespace == scaled.namespace and (
                reference is not None
                and (reference.kind, reference.name) == (kind.name, scaled.name)
            ):
                self._buffers.nudge(key_of(buffer))

    def _slice_changed(self, before: Any, after: Any) -> None:
        # A node may have waited for these devices to be ready for pods.
        node = self._cluster.get(kinds.NODE, (after or before).spec.node_name)
        claim = self._cluster.claim_of(node) if node is not None else None
        if claim is not None:
            self._claims.nudge(claim.metadata.name)

    def _attachment_changed(self, before: Any, after: Any) -> None:
        self._nodes.nudge((after or before).spec.node_name)


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


def _listener(ports: ReconcilerPorts) -> Listener:
    return Listener(
        api=ports.api,
        cloud=ports.cloud,
        cluster=ports.cluster,
        recorder=ports.recorder,
        metrics=ports.metrics,
        clock=ports.clock,
    )


def _is_same_wish(before: Any, after: Any) -> bool:
    """Whether only what the controller writes of an object has changed."""
    return bool(before.metadata.generation == after.metadata.generation)


def _holds(claim: NodeClaim | None, condition: str) -> bool:
    return claim is not None and conditions.is_true(claim.status.conditions, condition)


def _is_comparable(claim: NodeClaim | None) -> tuple[bool, bool]:
    """Return what decides with what a claim's node is to be compared."""
    return _holds(claim, INITIALIZED), claim is not None and claim.metadata.is_deleting


def _made_from(claim: NodeClaim | None) -> tuple[object, ...]:
    """Return what decides whether a claim has drifted, of what stands on itself."""
    own = claim.metadata if claim is not None else ObjectMeta()
    return claim is None, own.labels, own.annotations, _holds(claim, LAUNCHED)


def _wanted(pool: NodePool) -> tuple[int, Mapping[str, str]]:
    """Return what decides whether nodes of a pool have drifted."""
    return pool.metadata.generation, pool.metadata.annotations


def _offers(pool: NodePool) -> tuple[int, bool]:
    """Return what decides whether a pool can make nodes, and which."""
    return pool.metadata.generation, conditions.is_true(pool.status.conditions, "Ready")
