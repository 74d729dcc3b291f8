"""Rounds of provisioning: a batch of pods, one solve, the NodeClaims it asks for."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Protocol

import msgspec

from controller.apis import labels
from controller.apis.kinds import EC2_NODE_CLASS, NODE_CLAIM, NODE_POOL, POD
from controller.apis.nodeclaim import NodeClaim
from controller.apis.pods import Pod
from controller.apiserver.errors import ApiError
from controller.apiserver.port import ApiServer
from controller.cloudprovider.provider import CloudProvider
from controller.reconcilers.clock import Clock, noted
from controller.reconcilers.newnodes.plan import PlacementPlan
from controller.reconcilers.newnodes.supply import ready_pools, supply
from controller.reconcilers.newnodes.trials import Trials
from controller.reconcilers.newnodes.writer import ClaimWriter
from controller.reconcilers.provisioning.arrivals import Arrivals
from controller.reconcilers.provisioning.assignment import assigned
from controller.reconcilers.provisioning.batchwindow import BatchWindow, Outlook
from controller.reconcilers.provisioning.buffers import report_fills
from controller.reconcilers.provisioning.headstart import HeadStart, Question
from controller.reconcilers.provisioning.unplaced import Unplaced
from controller.scheduling.buffers import Fill, apart, hosts
from controller.scheduling.results import NewNode, Results
from controller.state.cluster import Cluster
from controller.state.nodes import StateNode
from controller.state.snapshot import Snapshot
from controller.telemetry.events import Recorder
from controller.telemetry.metrics import Metrics

UNSYNCED = timedelta(seconds=1)
AGAIN = timedelta(seconds=10)
"""Pods that wait are looked at again this often: prices, capacity and limits change."""

SOON = timedelta(seconds=1)
"""The same while planned pods should be bound any moment: one that is not has lost its place."""

LAUNCH_PATIENCE = timedelta(seconds=30)
"""How long a round waits for launches it must know; a stuck one must not hold up the rest."""

KEPT_FOR = timedelta(minutes=1)
"""How long, after each round, a machine is kept for pods that have their places there. It ends
with the last of them; kube-scheduler may take minutes to bind them, and rounds some seconds.
"""

CONCURRENT_WRITES = 16

log = logging.getLogger(__name__)


class Solve(Protocol):
    """Asks the engine, in whatever process it lives."""

    def __call__(self, pods: Sequence[Pod], snapshot: Snapshot) -> Awaitable[Results]:
        """Place the pods in the world of the snapshot."""


@dataclass(frozen=True, slots=True)
class Inherited:
    """Claims that an earlier leader wrote and did not launch, by uid; and since when we lead."""

    claims: frozenset[str]
    since: datetime


@dataclass(slots=True, kw_only=True)
class Provisioner(Outlook):
    """Places pods that wait, and writes a NodeClaim for every node they need."""

    api: ApiServer
    cloud: CloudProvider
    cluster: Cluster
    recorder: Recorder
    metrics: Metrics
    clock: Clock
    solve: Solve
    batch_window: BatchWindow
    nomination: timedelta
    trials: Trials
    plan: PlacementPlan = field(default_factory=PlacementPlan)
    _inherited: Inherited | None = None
    _read: tuple[object, ...] = ()
    _head_start: HeadStart = field(init=False)

    def __post_init__(self) -> None:
        self._head_start = HeadStart(self._solve)

    async def run_once(self) -> timedelta:
        """Wait for a batch, place it, write what it needs; returns when to begin again."""
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
            patience = SOON if self.plan.is_being_met else AGAIN
            await self.batch_window.wait(patience, self)
        except TimeoutError:
            # Nothing new; those that still wait get another look.
            log.debug("no new pods", extra={"waiting": len(self.cluster.pending_pods())})

    # What the batch window asks.

    def more_to_come(self) -> bool:
        """Whether kube-scheduler is about to find no node for more pods."""
        return self.cluster.has_undecided_pods(self.clock())

    async def all_have_come(self, seen: AbstractSet[str]) -> bool:
        """Whether the owners of the pods that came have as many as they ask for."""
        return await Arrivals(self.api, self.cluster).are_complete(seen)

    def prepare(self) -> None:
        """Begin to place the pods that are there: often no other follows."""
        if not self._has_to_wait():
            self._head_start.begin(self._question)

    # Rounds.

    def _has_to_wait(self) -> bool:
        return not self.cluster.synced or self._awaits_launch()

    def _awaits_launch(self) -> bool:
        """Whether there is a claim whose size should be known first, and is not.

        A claim does not say how large its node will be before it is launched. Limits have
        to count the most that it may become, and leave less room than there is; and the pods of
        an earlier leader's claim have to be found among those that wait, or the node would be
        bought a second time.
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
        inherited = self._inherited = replace(inherited, since=noted(inherited.since, now))
        limited = {
            p.metadata.name
            for p in self.cluster.list(NODE_POOL)
            if p.spec.limits and p.spec.replicas is None
        }
        oldest = now - LAUNCH_PATIENCE
        return any(
            inherited.since > oldest
            if claim.metadata.uid in inherited.claims
            else claim.metadata.labels.get(labels.NODEPOOL) in limited
            and (claim.metadata.creation_timestamp or oldest) > oldest
            for claim in unlaunched
        )

    async def _question(self) -> Question | None:
        """Return what there is to ask; None when nobody waits."""
        waiting = [*self.cluster.pending_pods(), *self.cluster.reschedulable_pods(self.clock())]
        undecided = self.cluster.undecided_pods()
        pods, placed = self.plan.split(
            waiting,
            self.cluster.state_nodes(self.clock()),
            self.clock(),
            undecided=undecided,
            clearing=self._clearing(waiting),
        )
        self._keep_places((*waiting, *undecided), placed)
        virtual = self.cluster.buffer_pods()
        if not pods and not virtual:
            return None
        pools = self.trials.admitted(ready_pools(self.cluster.list(NODE_POOL)))
        supplied = await supply(self.cloud, self.cluster, pools)
        sold = [p for p in pools if p.metadata.name in supplied.types]
        snapshot = self.cluster.snapshot(supplied.types, sold, now=self.clock())
        return Question(
            pods=pods,
            virtual=virtual,
            placed=placed,
            pools=pools,
            supplied=supplied,
            snapshot=with_placed(with_promised(snapshot), placed),
            revision=self.cluster.revision,
        )

    def _keep_places(self, pods: Iterable[Pod], placed: Sequence[Pod]) -> None:
        """Keep disruption off the machines on which pods have their places."""
        where = {pod.metadata.uid: pod.spec.node_name for pod in placed}
        expected: dict[str, list[Pod]] = {}
        for pod in pods:
            if (name := where.get(pod.metadata.uid)) is not None:
                expected.setdefault(name, []).append(pod)
        for name, coming in expected.items():
            self.cluster.nominate(name, coming, self.clock() + KEPT_FOR)

    async def _solve(self, question: Question) -> Results:
        with self.metrics.scheduling():
            return await self.solve([*question.pods, *question.virtual], question.snapshot)

    async def _round(self) -> None:
        question = await self._question()
        if question is None:
            await self._report_fills({}, ())
            await self._read_ahead()
            return
        pods, virtual = question.pods, question.virtual
        await self._report_problems(question)
        answer = await self._head_start.answer(question)
        results, fills = apart(answer, virtual)
        self.metrics.solved(results)
        log.log(
            # Buffers are looked at all the time, which is no news while their room is there.
            logging.INFO if pods or results.new_nodes else logging.DEBUG,
            "computed new nodes for pods",
            extra={
                "pods": len(pods),
                "nodeclaims": len(results.new_nodes),
                "unschedulable": len(results.unschedulable),
                "cost": round(results.cost, 4),
                "lower-bound": round(results.lower_bound, 4),
            },
        )
        results = dataclasses.replace(
            results, new_nodes=tuple(assigned(results.new_nodes, self.cluster.queued(pods)))
        )
        made = await self._act(results, {p.key: p for p in pods}, question.snapshot)
        await self._report_fills(fills, hosts(answer, made, virtual))

    async def _report_problems(self, question: Question) -> None:
        for pool in question.pools:
            if problem := question.supplied.problems.get(pool.metadata.name):
                await self.recorder.publish(
                    NODE_POOL, pool, "Warning", "NoCompatibleInstanceTypes", problem
                )

    async def _read_ahead(self) -> None:
        """Have the engine read what can be bought while nobody waits: that is half of its work."""
        pools = ready_pools(self.cluster.list(NODE_POOL))
        types = (await supply(self.cloud, self.cluster, pools)).types
        sold = [p for p in pools if p.metadata.name in types]
        offer = (types, [pool.spec for pool in sold])
        if sold and offer != self._read:
            await self.solve((), self.cluster.snapshot(types, sold, now=self.clock()))
            self._read = offer

    async def _report_fills(self, fills: Mapping[str, Fill], hosting: Iterable[str]) -> None:
        self.cluster.keep_for_buffers(hosting)
        await report_fills(self.api, self.cluster, self.clock, fills)

    def _clearing(self, waiting: Sequence[Pod]) -> frozenset[str]:
        """Return the nodes that are promised to pods that wait, and that others are leaving."""
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
    ) -> list[str]:
        """Carry the answer out; return the claim made for each new node, empty without one."""
        writer = ClaimWriter(
            api=self.api,
            cluster=self.cluster,
            metrics=self.metrics,
            clock=self.clock,
            plan=self.plan,
        )
        for name, keys in results.existing_nodes.items():
            writer.expect(name, _among(pods, keys), self.nomination)
        claims = await self._create(results.new_nodes, pods, snapshot, writer)
        # Told once all is bought: hundreds of events must not stand in the way of a launch.
        for node, claim in zip(results.new_nodes, claims, strict=True):
            if claim is not None:
                await asyncio.gather(
                    *(self._nominated(pod, claim) for pod in _among(pods, node.pods))
                )
        await self._report_unplaced(results, pods)
        return [claim.metadata.name if claim is not None else "" for claim in claims]

    async def _create(
        self,
        nodes: Sequence[NewNode],
        pods: Mapping[str, Pod],
        snapshot: Snapshot,
        writer: ClaimWriter,
    ) -> list[NodeClaim | None]:
        """Make the nodes' claims, some at a time; None for one that limits or the API server
        refused.
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
                    writer.expect(claim.metadata.name, _among(pods, node.pods), self.nomination)
                return claim

        claims: list[NodeClaim | None] = []
        outcomes = await asyncio.gather(
            *map(create, nodes, writer.within_limits(nodes, types)), return_exceptions=True
        )
        for node, outcome in zip(nodes, outcomes, strict=True):
            if isinstance(outcome, ApiError):
                log.error("creating nodeclaim: %s", outcome, extra={"NodePool": node.node_pool})
                claims.append(None)
            elif isinstance(outcome, BaseException):
                raise outcome
            else:
                claims.append(outcome)
        return claims

    async def _nominated(self, pod: Pod, claim: NodeClaim) -> None:
        await self.recorder.publish(
            POD,
            pod,
            "Normal",
            "Nominated",
            f"Pod should schedule on: nodeclaim/{claim.metadata.name}",
        )

    async def _report_unplaced(self, results: Results, pods: dict[str, Pod]) -> None:
        unplaced = Unplaced(self.cluster.list(NODE_POOL), self.cluster.list(EC2_NODE_CLASS))
        for key, causes in results.unschedulable.items():
            pod = pods.get(key)
            if pod is not None:
                why = unplaced.message(pod.spec, causes)
                await self.recorder.publish(
                    POD, pod, "Warning", "FailedScheduling", f"Failed to schedule pod, {why}"
                )


def _among(pods: Mapping[str, Pod], keys: Iterable[str]) -> list[Pod]:
    """Return the pods of these keys that are still there."""
    return [pods[key] for key in keys if key in pods]


def with_promised(snapshot: Snapshot) -> Snapshot:
    """Count on machines that are not launched yet for all that their claims ask for.

    They will be no smaller. Where the scheduler has bound a claim's pod elsewhere, another one
    may come in its place, or would have a node bought; and an earlier leader's claims may wait
    for minutes for their turn to be launched.
    """
    return dataclasses.replace(snapshot, nodes=tuple(map(_promised, snapshot.nodes)))


def _promised(machine: StateNode) -> StateNode:
    claim = machine.claim
    if claim is None or machine.node is not None or machine.provider_id:
        return machine
    asked = claim.spec.resources.requests
    settled = {
        r.key: r.values[0]
        for r in claim.spec.requirements
        if r.operator == "In" and len(r.values) == 1
    }
    promised = msgspec.structs.replace(
        claim,
        metadata=msgspec.structs.replace(
            claim.metadata, labels={**settled, **claim.metadata.labels}
        ),
        status=msgspec.structs.replace(claim.status, allocatable=asked),
    )
    return dataclasses.replace(machine, claim=promised)


def with_placed(snapshot: Snapshot, placed: Sequence[Pod]) -> Snapshot:
    """Count pods that have a place but are not bound yet where they are expected."""
    keys = {p.metadata.uid for p in placed}
    bound = [p for p in snapshot.pods if p.metadata.uid not in keys]
    return dataclasses.replace(snapshot, pods=(*bound, *placed))
