"""Provisioning in rounds: a batch of pods, one scheduling run, the NodeClaims that it needs."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Protocol

from controller.apis import labels
from controller.apis.karpenter.nodeclaim import NodeClaim
from controller.apis.kinds import EC2_NODE_CLASS, NODE_CLAIM, NODE_POOL, RESOURCE_CLAIM
from controller.apis.kubernetes.pods import Pod
from controller.apiserver.errors import ApiError
from controller.reconcilers.clock import first_past
from controller.reconcilers.newnodes.plan import PlacementPlan
from controller.reconcilers.newnodes.registrationbackoff import RegistrationBackoff
from controller.reconcilers.newnodes.supply import (
    TOO_FEW_VALUES,
    lacks_values,
    ready_pools,
    supply,
    unavailability,
)
from controller.reconcilers.newnodes.writer import ClaimWriter
from controller.reconcilers.ports import Ports, PortUser
from controller.reconcilers.provisioning.arrivals import Arrivals
from controller.reconcilers.provisioning.assignment import assign_pods
from controller.reconcilers.provisioning.batchwindow import BatchWindow, ExpectedPods
from controller.reconcilers.provisioning.buffers import report_fills
from controller.reconcilers.provisioning.gangrelease import GangRelease
from controller.reconcilers.provisioning.headstart import HeadStart, SolveInput
from controller.reconcilers.provisioning.nomination import MOST_NAMED
from controller.reconcilers.provisioning.unplaced import Unplaced
from controller.scheduling.buffers import Fill, hosts, split_fills
from controller.scheduling.dra.claims import missing_claim
from controller.scheduling.results import NewNode, PoolCause, Results
from controller.scheduling.settings import STRICT
from controller.state.pendingpods import MAX_UNTRIED_AGE
from controller.state.snapshot import Snapshot, with_promised_capacity
from controller.telemetry.logs import ChangeMonitor

UNSYNCED = timedelta(seconds=1)
PERIOD = timedelta(seconds=10)
"""How often pending pods are scheduled again: prices, capacity and limits change."""

BINDING_PERIOD = timedelta(seconds=1)
"""How often pending pods are scheduled again while pods are about to be bound: a pod that is not
bound by then needs another node."""

LAUNCH_WAIT = timedelta(seconds=30)
"""How long a round waits for launches whose result it needs: a stuck launch must not delay other
pods for longer."""

NOMINATED_FOR = timedelta(minutes=1)
"""How long after each round a node stays nominated for its planned pods, so that it is not
disrupted. The nomination ends when the last of them is bound."""

CONCURRENT_WRITES = 16

PODS_PER_LINE = 100
"""The maximum number of pods that a line of the log names; further pods are in further lines."""

log = logging.getLogger(__name__)


class Solve(Protocol):
    """Runs the scheduling engine, in this process or another."""

    def __call__(self, pods: Sequence[Pod], snapshot: Snapshot) -> Awaitable[Results]:
        """Schedule the pods in the snapshot's cluster."""


@dataclass(frozen=True, slots=True)
class Inherited:
    """UIDs of an earlier leader's unlaunched NodeClaims, and when this process became leader."""

    claims: frozenset[str]
    since: datetime


@dataclass(slots=True, kw_only=True)
class Provisioner(PortUser, ExpectedPods):
    """Schedules pending pods, and creates a NodeClaim for every node that they need.

    `nomination` is how long a node is nominated for its pods, so that it is not disrupted.
    """

    ports: Ports
    solve: Solve
    batch_window: BatchWindow
    nomination: timedelta
    registration_backoff: RegistrationBackoff
    min_values_policy: str = STRICT
    plan: PlacementPlan = field(default_factory=PlacementPlan)
    _changes: ChangeMonitor = field(default_factory=ChangeMonitor)
    _causes: dict[str, str] = field(default_factory=dict)
    """Why a pod got no node in the previous round, by its UID."""

    _inherited: Inherited | None = None
    _read: tuple[object, ...] = ()
    _head_start: HeadStart = field(init=False)

    def __post_init__(self) -> None:
        self._head_start = HeadStart(self._solve)

    async def run_once(self) -> timedelta:
        """Wait for a batch, schedule it, create its NodeClaims; returns when to run again."""
        try:
            await self._wait()
            if self._has_to_wait():
                self.batch_window.nudge("unsynced")
                return UNSYNCED
            await self._round()
        except asyncio.CancelledError:
            self._head_start.stop()
            raise
        return timedelta(0)

    async def _wait(self) -> None:
        try:
            patience = BINDING_PERIOD if self.plan.awaits_binding else PERIOD
            await self.batch_window.wait(patience, self)
        except TimeoutError:
            # No new pod: pending pods are scheduled again.
            log.debug(
                "no new pods; scheduling pending pods again",
                extra={"waiting": len(self.cluster.pending_pods())},
            )

    # Calls of the batch window.

    def expects_more(self) -> bool:
        """Whether kube-scheduler is about to find more pods unschedulable."""
        return self.cluster.has_undecided_pods(self.clock())

    async def all_arrived(self, seen: AbstractSet[str]) -> bool:
        """Whether the owners of the seen pods have created all of their pods."""
        return await Arrivals(self.ports).are_complete(seen)

    def prepare(self) -> None:
        """Start scheduling the pods that exist: often no other pod follows."""
        if not self._has_to_wait():
            self._head_start.begin(self._solve_input)

    # Rounds.

    def _has_to_wait(self) -> bool:
        return not self.cluster.synced or self._awaits_launch()

    def _awaits_launch(self) -> bool:
        """Whether an unlaunched NodeClaim exists whose size must be known first.

        The size of a node is known only after its launch. Until then, its NodePool's limits count
        the largest instance type that it may get. For an earlier leader's NodeClaim, this process
        must find the planned pods among the pending ones, or it would launch the node twice.
        """
        now = self.clock()
        unlaunched = [
            claim
            for claim in self.cluster.list(NODE_CLAIM)
            if not claim.status.provider_id and not claim.metadata.is_deleting
        ]
        inherited = self._inherited or Inherited(
            frozenset(claim.metadata.uid for claim in unlaunched), now
        )
        inherited = self._inherited = replace(inherited, since=first_past(now, inherited.since))
        limited = {
            p.metadata.name
            for p in self.cluster.list(NODE_POOL)
            if p.spec.limits and p.spec.replicas is None
        }
        oldest = now - LAUNCH_WAIT
        return any(
            inherited.since > oldest
            if claim.metadata.uid in inherited.claims
            else claim.metadata.labels.get(labels.NODEPOOL) in limited
            and (claim.metadata.creation_timestamp or oldest) > oldest
            for claim in unlaunched
        )

    async def _solve_input(self) -> SolveInput | None:
        """Return the input of this round's scheduling run, or None if no pod is pending."""
        waiting = [*self.cluster.pending_pods(), *self.cluster.reschedulable_pods(self.clock())]
        undecided = self.cluster.undecided_pods()
        pods, placed = self.plan.split(
            waiting,
            self.cluster.state_node,
            self.clock(),
            undecided=undecided,
            clearing=self._nodes_to_be_freed(waiting),
        )
        self._nominate_planned((*waiting, *undecided), placed)
        virtual = self.cluster.buffer_pods()
        if not pods and not virtual:
            return None
        await asyncio.sleep(0)  # in a large cluster, both halves take a while
        pools = self.registration_backoff.admit(ready_pools(self.cluster.list(NODE_POOL)))
        supplied = await supply(self.cloud, self.cluster, pools)
        snapshot = self.cluster.snapshot(supplied.types, pools, now=self.clock())
        return SolveInput(
            pods=pods,
            virtual=virtual,
            placed=placed,
            pools=pools,
            supplied=supplied,
            snapshot=with_placed_pods(
                with_promised_capacity(snapshot), placed, running=self._uids_of_bound(placed)
            ),
            revision=self.cluster.revision,
        )

    def _uids_of_bound(self, pods: Iterable[Pod]) -> frozenset[str]:
        """Return the UIDs of those pods that are bound to a node now."""
        known = ((pod.metadata.uid, self.cluster.pod(pod.key)) for pod in pods)
        return frozenset(uid for uid, pod in known if pod is not None and pod.spec.node_name)

    def _nominate_planned(self, pods: Iterable[Pod], placed: Sequence[Pod]) -> None:
        """Nominate nodes for their planned pods, so that they are not disrupted."""
        where = {pod.metadata.uid: pod.spec.node_name for pod in placed}
        expected: dict[str, list[Pod]] = {}
        for pod in pods:
            if (name := where.get(pod.metadata.uid)) is not None:
                expected.setdefault(name, []).append(pod)
        for name, coming in expected.items():
            self.cluster.nominate(name, coming, self.clock() + NOMINATED_FOR)

    async def _solve(self, solve_input: SolveInput) -> Results:
        with self.metrics.scheduling():
            return await self.solve([*solve_input.pods, *solve_input.virtual], solve_input.snapshot)

    async def _round(self) -> None:
        solve_input = await self._solve_input()
        unclaimed = self._pods_without_claims()
        if solve_input is None:
            if unclaimed:
                await self._report_unplaced(unclaimed)
            await self._report_fills({}, ())
            if not self.plan.awaits_binding:  # the next batch can wait, these pods cannot
                await self._read_ahead()
            return
        pods, virtual = solve_input.pods, solve_input.virtual
        await self._report_problems(solve_input)
        solved = await self._head_start.results(solve_input)
        results, fills = split_fills(solved, virtual)
        self.metrics.record_solve(results)
        log.log(
            # Buffers and unschedulable pods are scheduled again every few seconds.
            logging.INFO if results.new_nodes or results.existing_nodes else logging.DEBUG,
            "computed new nodes for pods",
            extra=log_fields(pods, results),
        )
        results = dataclasses.replace(
            results,
            new_nodes=tuple(assign_pods(results.new_nodes, self.cluster.in_queue_order(pods))),
        )
        made = await self._act(results, {p.key: p for p in pods}, solve_input.snapshot, unclaimed)
        await self._report_fills(fills, hosts(solved, made, virtual))

    async def _report_problems(self, solve_input: SolveInput) -> None:
        supplied = solve_input.supplied
        for pool in solve_input.pools:
            name = pool.metadata.name
            problem = supplied.problems.get(name, "")
            types = supplied.types.get(name, ())
            if types and not problem:
                problem = unavailability(pool, types)
            if not problem and self.min_values_policy == STRICT:
                problem = TOO_FEW_VALUES if lacks_values(pool, types) else ""
            if problem:
                await self.recorder.publish(pool, "Warning", "NoCompatibleInstanceTypes", problem)

    async def _read_ahead(self) -> None:
        """Have the engine read the instance types, half of its work, while no pod is pending."""
        pools = ready_pools(self.cluster.list(NODE_POOL))
        types = (await supply(self.cloud, self.cluster, pools)).types
        offer = (types, [pool.spec for pool in pools])
        if types and offer != self._read:
            await self.solve((), self.cluster.snapshot(types, pools, now=self.clock()))
            self._read = offer

    async def _report_fills(self, fills: Mapping[str, Fill], hosting: Iterable[str]) -> None:
        self.cluster.keep_for_buffers(hosting)
        await report_fills(self.ports, fills)

    def _nodes_to_be_freed(self, waiting: Sequence[Pod]) -> frozenset[str]:
        """Return the nodes nominated for pending pods on which other pods are terminating."""
        promised = {p.status.nominated_node_name for p in waiting} - {""}
        return frozenset(
            name
            for name in promised
            if any(pod.metadata.is_deleting for pod in self.cluster.pods_on(name))
        )

    async def _act(
        self,
        results: Results,
        pods: dict[str, Pod],
        snapshot: Snapshot,
        unclaimed: Sequence[tuple[Pod, str]],
    ) -> list[str]:
        """Carry out the results; returns the name of each new node's NodeClaim.

        The name is empty if the NodeClaim was not created. `unclaimed` are the pods of
        `_pods_without_claims`.
        """
        writer = ClaimWriter(self.ports, self.plan)
        for name, keys in results.existing_nodes.items():
            writer.expect(name, _existing_pods(pods, keys), self.nomination)
        outcomes = await self._create(results.new_nodes, pods, snapshot, writer)
        claims = [None if isinstance(each, ApiError) else each for each in outcomes]
        # After all create requests, so that hundreds of events do not delay a launch.
        for node, claim in zip(results.new_nodes, claims, strict=True):
            if claim is not None:
                await asyncio.gather(
                    *(
                        self._publish_nomination(pod, claim)
                        for pod in _existing_pods(pods, node.pods)
                    )
                )
        await self._report_unplaced([*self._unplaced_pods(results, outcomes, pods), *unclaimed])
        await GangRelease(self.ports, self.plan).release(results.refused_gangs)
        return [claim.metadata.name if claim is not None else "" for claim in claims]

    async def _create(
        self,
        nodes: Sequence[NewNode],
        pods: Mapping[str, Pod],
        snapshot: Snapshot,
        writer: ClaimWriter,
    ) -> list[NodeClaim | ApiError | None]:
        """Create the nodes' NodeClaims concurrently; None for one that a limit does not admit.

        The most important are created first: if EC2 launches too few instances, they get one.
        """
        types, pools = snapshot.instance_types, {p.metadata.name: p for p in snapshot.node_pools}
        writes = asyncio.Semaphore(CONCURRENT_WRITES)

        async def create(node: NewNode, is_admitted: bool) -> NodeClaim | None:
            if not is_admitted:
                return None
            async with writes:
                name = node.node_pool
                claim = await writer.create(node, pools[name], types[name], reason="provisioned")
                if claim is not None:
                    writer.expect(
                        claim.metadata.name, _existing_pods(pods, node.pods), self.nomination
                    )
                return claim

        claims: list[NodeClaim | ApiError | None] = []
        admitted = writer.within_limits(nodes, types)
        order = sorted(range(len(nodes)), key=lambda n: _importance(nodes[n], pods), reverse=True)
        writes_of = {n: asyncio.ensure_future(create(nodes[n], admitted[n])) for n in order}
        created = (writes_of[n] for n in range(len(nodes)))
        outcomes = await asyncio.gather(*created, return_exceptions=True)
        for node, outcome in zip(nodes, outcomes, strict=True):
            if isinstance(outcome, ApiError):
                if self._changes.has_changed(f"{node.node_pool}: {outcome}"):
                    fields = {
                        "NodePool": node.node_pool,
                        "Pods": ", ".join(node.pods[:MOST_NAMED]),
                    }
                    log.error("cannot create nodeclaim: %s", outcome, extra=fields)
            elif isinstance(outcome, BaseException):
                raise outcome
            claims.append(outcome)
        return claims

    async def _publish_nomination(self, pod: Pod, claim: NodeClaim) -> None:
        await self.recorder.publish(
            pod, "Normal", "Nominated", f"Pod should schedule on: nodeclaim/{claim.metadata.name}"
        )

    def _pods_without_claims(self) -> list[tuple[Pod, str]]:
        """Return the untried pods with a ResourceClaim that does not exist, each with the reason.

        kube-scheduler does not try such a pod: it publishes no event and sets no condition. A pod
        younger than `MAX_UNTRIED_AGE` is left out, because its claim may be about to be created.
        """
        if RESOURCE_CLAIM not in self.cluster.mirrored:
            return []
        latest = self.clock() - MAX_UNTRIED_AGE
        claiming = [
            pod
            for pod in self.cluster.undecided_pods()
            if pod.spec.resource_claims and (pod.metadata.creation_timestamp or latest) <= latest
        ]
        if not claiming:
            return []
        existing = {claim.metadata.key for claim in self.cluster.list(RESOURCE_CLAIM)}
        return [(pod, why) for pod in claiming if (why := missing_claim(pod, existing))]

    def _unplaced_pods(
        self,
        results: Results,
        outcomes: Sequence[NodeClaim | ApiError | None],
        pods: Mapping[str, Pod],
    ) -> list[tuple[Pod, str]]:
        """Return the pods without a node, each with the reason."""
        words = Unplaced(self.cluster.list(NODE_POOL), self.cluster.list(EC2_NODE_CLASS))
        unplaced = [
            (pods[key], words.message(pods[key].spec, causes))
            for key, causes in results.unschedulable.items()
            if key in pods
        ]
        for node, outcome in zip(results.new_nodes, outcomes, strict=True):
            if isinstance(outcome, ApiError):
                why = PoolCause.of(node.node_pool, f"error creating NodeClaim: {outcome}")
                unplaced += [(pod, why) for pod in _existing_pods(pods, node.pods)]
        return unplaced

    async def _report_unplaced(self, unplaced: Sequence[tuple[Pod, str]]) -> None:
        """Publish an event for each pod without a node, and log each new reason."""
        before, self._causes = self._causes, {pod.metadata.uid: why for pod, why in unplaced}
        changed: dict[str, list[str]] = {}
        for pod, why in unplaced:
            if before.get(pod.metadata.uid) != why:
                changed.setdefault(why, []).append(pod.key)
            await self.recorder.publish(
                pod, "Warning", "FailedScheduling", f"Failed to schedule pod, {why}"
            )
        for why, keys in changed.items():
            for start in range(0, len(keys), PODS_PER_LINE):
                named = keys[start : start + PODS_PER_LINE]
                fields = {"pods": len(named), "Pods": ", ".join(named)}
                log.info("could not schedule pods: %s", why, extra=fields)


def log_fields(pods: Sequence[Pod], results: Results) -> dict[str, object]:
    """Return the log fields of a scheduling run."""
    return {
        "pods": len(pods),
        "Pods": ", ".join(pod.key for pod in pods[:MOST_NAMED]),
        "nodeclaims": len(results.new_nodes),
        "unschedulable": len(results.unschedulable),
        "cost": round(results.cost, 4),
        "lower-bound": round(results.lower_bound, 4),
    }


def _importance(node: NewNode, pods: Mapping[str, Pod]) -> tuple[int, int]:
    """Return the highest priority of a node's pods, and their number."""
    priorities = [pod.spec.priority or 0 for pod in _existing_pods(pods, node.pods)]
    return max(priorities, default=0), len(node.pods)


def _existing_pods(pods: Mapping[str, Pod], keys: Iterable[str]) -> list[Pod]:
    """Return the pods of these keys that still exist."""
    return [pods[key] for key in keys if key in pods]


def with_placed_pods(
    snapshot: Snapshot, placed: Sequence[Pod], *, running: AbstractSet[str]
) -> Snapshot:
    """Return the snapshot in which planned pods count as bound to their planned nodes.

    `running` are the UIDs of the planned pods that are bound to a node in the snapshot. Usually
    there are none, and the pods of the snapshot need not be read.
    """
    pods: Sequence[Pod] = snapshot.pods
    if running:
        pods = [pod for pod in pods if pod.metadata.uid not in running]
    return dataclasses.replace(snapshot, pods=(*pods, *placed)) if placed else snapshot
