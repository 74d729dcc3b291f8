"""A discrete-event simulator: one trace, one side, and a clock that jumps from event to event.

Times are seconds since the beginning of the trace. Operations take the times below, the same for
both sides; decisions take no time. Disruption passes run every ten seconds while something changes.
While nothing changes, they run every `Side.repeat_seconds`, until `Side.fades` seconds have passed.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count

from bench.trace.binding import bind
from bench.trace.cluster import Cluster, Market, Node
from bench.trace.sides import Move, Side
from bench.trace.workloads import Member, Workload
from controller.apis.kubernetes.pods import Pod
from controller.disruption.commands import Reason
from controller.reconcilers.provisioning.nomination import nominated_together
from controller.scheduling.results import NewNode
from controller.scheduling.scheduler import least_cost, schedule
from controller.state.snapshot import Snapshot

NODE_START = 60.0
"""From launching a node to an initialized node."""

POD_START = 15.0
"""From binding to the pod being ready."""

POD_END = 10.0
"""From eviction or scale-down to the pod's removal."""

NODE_END = 5.0
"""From the last pod's removal to the end of billing."""

DRAIN_RETRY = 5.0
"""Interval of retrying an eviction that a PodDisruptionBudget refused."""

BATCH_IDLE, BATCH_LONGEST = 1.0, 10.0
"""The batch window's idle and maximum durations: the default of both sides."""

BINDING = 2.0
"""Seconds within which kube-scheduler should bind a pod to its planned node if it fits."""

NOMINATION = 20.0
"""How long a node is protected from disruption for the pods nominated for it."""

PASS_SECONDS = 10.0
"""Interval of disruption passes."""

VALIDATION = 15.0
"""Delay between a command and its validation."""

NOTICE = 120.0
"""From the notice of a spot interruption to the instance's termination."""

MARKET_CLOSED = 1800.0
"""How long an interrupted offering stays unavailable."""

DELETION_COSTS = 60.0
"""Interval in which a side that writes the pods' deletion costs writes them."""

UNPLACED_RETRY = 60.0
"""Interval of retrying pods that could not be placed."""

NEAR = 1.05
"""Ratio of cost to the bound that counts as converged after the load fell."""

Action = Callable[["Simulator"], None]


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """An event of a trace, with its time."""

    at: float
    action: Action


@dataclass(slots=True)
class Fall:
    """A drop of the load, after which the load stays constant until the time `until`.

    `bound` is a lower bound of the remaining pods' cost in $/h. `seconds` is the time from the drop
    until the cost was at most `NEAR` times the bound; None if it never was.
    """

    at: float
    bound: float
    until: float
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """Results of a side on a trace: $, node-hours, pod-seconds and evicted pods."""

    cost: float
    node_hours: float
    evictions: int
    """Pods evicted by a disruption decision.

    Pods replaced by a Deployment's rollout do not count.
    """

    interrupted: int
    """Pods evicted because their instance was interrupted."""

    pending_seconds: float
    longest_pending: float
    falls: tuple[float | None, ...]
    """Seconds after each drop of the load until the cost was within 5 % of the bound."""

    pods: int
    nodes: int
    passes: int
    commands: int
    repacked_cost: float
    """Cost in $ as `Simulator.add_repacked_cost` computes it; 0 if it was not called."""


@dataclass(slots=True)
class _InFlightCommand:
    """A disruption command in progress."""

    leaving: list[Node]
    replacements: list[Node] = field(default_factory=list)


class Simulator:
    """Simulates one trace with one side."""

    def __init__(
        self, cluster: Cluster, side: Side, *, length: float, protected: float = 0.0
    ) -> None:
        """Start without any scheduled event.

        `length` is in seconds. `protected` is the share of Deployments whose pods have
        do-not-disrupt.
        """
        self._protected, self._added = protected, 0
        self.cluster, self.side, self.length = cluster, side, length
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._placed: dict[str, str] = {}
        """The planned node of each pod that is pending or must move, by pod key."""

        self._batch: tuple[float, float] | None = None
        self._asked: set[str] = set()
        self._in_flight: list[_InFlightCommand] = []
        self._opened: list[Node] = []
        self._unbound = False
        self._numbers = count(1)
        self._state_at_pass: tuple[int, int] | None = None
        self._changed = 0.0
        self._revision = 0
        self._next_pass = 0.0
        self._validating = False
        self._falls: list[Fall] = []
        self._evictions = self._interrupted = self._pods = self._passes = self._commands = 0
        self._pending = self._longest = self._repacked_cost = 0.0

    def run(
        self, events: Iterable[TraceEvent], say: Callable[[float], None] = lambda _: None
    ) -> Measured:
        """Simulate the trace to its end and return the measurements."""
        for one in events:
            self.at(one.at, partial(one.action, self))
        self._plan_pass(PASS_SECONDS)
        if self.side.writes_deletion_costs:
            self.after(DELETION_COSTS, self._write_deletion_costs)
        while self._agenda and self._agenda[0][0] <= self.length:
            now = self.cluster.now = self._agenda[0][0]
            while self._agenda and self._agenda[0][0] == now:
                heapq.heappop(self._agenda)[2]()
            self._after_events()
            say(now)
        self.cluster.now = self.length
        for member in self.cluster.waiting.values():
            self._record_wait(self.length - member.created)
        cost, hours = self.cluster.totals()
        return Measured(
            cost=cost,
            node_hours=hours,
            evictions=self._evictions,
            interrupted=self._interrupted,
            pending_seconds=self._pending,
            longest_pending=self._longest,
            falls=tuple(one.seconds for one in self._falls),
            pods=self._pods,
            nodes=self.cluster.made,
            passes=self._passes,
            commands=self._commands,
            repacked_cost=self._repacked_cost,
        )

    def add_repacked_cost(self, every: float) -> None:
        """Every `every` seconds, have Joiner's engine schedule all pods on an empty cluster.

        The costs in $ are added up. They include no evictions, so a controller that moves pods one
        by one can hardly reach them.
        """

        def ask() -> None:
            pods, empty = self._pods_alone()
            self._repacked_cost += schedule(pods, snapshot=empty).cost * every / 3600
            self.add_repacked_cost(every)

        self.after(every, ask)

    def at(self, when: float, what: Callable[[], None]) -> None:
        """Schedule a callback for the time `when`, after those already scheduled for that time."""
        heapq.heappush(self._agenda, (when, next(self._order), what))

    def after(self, seconds: float, what: Callable[[], None]) -> None:
        """Schedule a callback in `seconds`."""
        self.at(self.cluster.now + seconds, what)

    def _after_events(self) -> None:
        """Run what follows every event: binding, batching and disruption."""
        now, cluster = self.cluster.now, self.cluster
        while self._unbound:
            self._unbound = False
            for member in bind(cluster):
                self._has_come(member)
            opened, self._opened = self._opened, []
            for node in opened:
                self._forget_lost(node)
            if opened:
                self._advance_all()
        self._keep_batch_window()
        if cluster.revision != self._revision:
            self._revision, self._changed = cluster.revision, now
            if self._next_pass > _next_tick(now) and not self._validating:
                self._plan_pass(_next_tick(now))
        for fall in self._falls:
            if fall.seconds is None and now <= fall.until and cluster.rate <= NEAR * fall.bound:
                fall.seconds = now - fall.at

    # Events of a trace.

    def add(self, workload: Workload) -> None:
        """Create a workload without pods.

        The pods of a share of the Deployments (`protected`) get the annotation do-not-disrupt.
        These Deployments are the same for both sides.
        """
        if workload.run_for is None:
            self._added += 1
            of_all = self._added * self._protected
            workload.protected |= int(of_all) > int(of_all - self._protected)
        self.cluster.workloads[workload.name] = workload

    def scale(self, name: str, replicas: int) -> None:
        """Set the number of replicas of a Deployment."""
        workload = self.cluster.workloads[name]
        workload.replicas = replicas
        self._reconcile(workload)

    def roll(self, name: str) -> None:
        """Roll out a new version of a Deployment, with max surge 25 % and max unavailable 0."""
        workload = self.cluster.workloads[name]
        workload.version += 1
        self._reconcile(workload)

    def submit(self, workload: Workload, pods: int) -> None:
        """Start `pods` pods that run to completion."""
        self.add(workload)
        workload.replicas = pods
        for _ in range(pods):
            self._create_pod(workload)

    def give(self, new: NewNode) -> None:
        """Launch the node `new`, which accepts pods at once, and bind the pending pods that fit."""
        self.cluster.open(self.cluster.launch(new))
        for member in bind(self.cluster):
            self._has_come(member)

    def drift(self) -> None:
        """Release a new AMI: every existing node runs the old one and has drifted."""
        self.cluster.image += 1
        for node in self.cluster.nodes.values():
            node.drifted = self.cluster.now
        self.cluster.revision += 1

    def interrupt(self, market: Market) -> None:
        """Interrupt all spot nodes of an offering, after a notice."""
        self.cluster.closed.add(market)
        self.cluster.revision += 1

        def reopen() -> None:
            self.cluster.closed.discard(market)
            self.cluster.revision += 1

        self.after(MARKET_CLOSED, reopen)
        for node in list(self.cluster.nodes.values()):
            if node.market == market and not node.interrupted:
                self._interrupt(node)

    def fall(self, until: float) -> None:
        """Record that the load has just dropped and stays constant until the time `until`."""
        self._falls.append(Fall(self.cluster.now, self._bound(), until))

    def _bound(self) -> float:
        """Return a lower bound of the cost of any cluster for the current pods, in $/h."""
        pods, empty = self._pods_alone()
        return least_cost(pods, snapshot=empty) if pods else 0.0

    def _pods_alone(self) -> tuple[list[Pod], Snapshot]:
        """Return the pods that stay, all pending, and a snapshot of the cluster without nodes."""
        snapshot = self.cluster.snapshot()
        empty = Snapshot(
            node_pools=snapshot.node_pools,
            instance_types=snapshot.instance_types,
            daemon_sets=snapshot.daemon_sets,
        )
        pods = [
            member.as_pending()
            for workload in self.cluster.workloads.values()
            for member in workload.pods.values()
        ]
        return pods, empty

    # Pods.

    def _reconcile(self, workload: Workload) -> None:
        """Move a Deployment one step towards its desired state, as its controller would."""
        if workload.run_for is not None:
            return
        fresh = [one for one in workload.pods.values() if one.version == workload.version]
        stale = [one for one in workload.pods.values() if one.version != workload.version]
        if len(fresh) > workload.replicas:
            for member in self._in_deletion_order(fresh)[: len(fresh) - workload.replicas]:
                self._ends(member)
        spare = workload.ready - workload.replicas
        for member in self._in_deletion_order(stale):
            if not member.ready or spare > 0:
                spare -= member.ready
                self._ends(member)
        surge = math.ceil(workload.replicas / 4) if stale else 0
        more = workload.replicas + surge - len(workload.pods)
        for _ in range(min(workload.replicas - len(fresh), more)):
            self._create_pod(workload)

    def _in_deletion_order(self, members: Sequence[Member]) -> list[Member]:
        """Return pods in the order in which their controller deletes them.

        Pods without a node come first, then pods with the lowest deletion cost, then pods that
        share their node with most pods of the workload, then the youngest.
        """
        together: dict[str, int] = {}
        for one in members:
            together[one.node] = together.get(one.node, 0) + 1
        return sorted(
            members,
            key=lambda one: (
                bool(one.node),
                one.deletion_cost,
                -together[one.node],
                -one.created,
                one.name,
            ),
        )

    def _create_pod(self, workload: Workload) -> None:
        member = Member.create(workload, next(self._numbers), self.cluster.now)
        workload.pods[member.name] = member
        self.cluster.waiting[member.key] = member
        self.cluster.revision += 1
        self._pods += 1
        self._unbound = True

    def _has_come(self, member: Member) -> None:
        """Schedule what follows a binding.

        The pod becomes ready, and completes if it is a Job's.
        """
        self._record_wait(self.cluster.now - member.created)
        self._placed.pop(member.key, None)
        self._asked.discard(member.key)

        def serves() -> None:
            if not member.leaving:
                member.ready = True
                if any(o.version != member.workload.version for o in member.workload.pods.values()):
                    self._reconcile(member.workload)

        self.after(POD_START, serves)
        if member.workload.run_for is not None:
            self.after(member.workload.run_for, lambda: self._completes(member))

    def _record_wait(self, seconds: float) -> None:
        self._pending += seconds
        self._longest = max(self._longest, seconds)

    def _completes(self, member: Member) -> None:
        if not member.leaving:
            member.workload.replicas -= 1
            self._ends(member, at_once=True)

    def _ends(self, member: Member, *, at_once: bool = False) -> None:
        """Remove a pod for good."""
        waited = not member.node
        self.cluster.leave(member)
        self._placed.pop(member.key, None)
        self._asked.discard(member.key)
        if waited:
            self._record_wait(self.cluster.now - member.created)
        elif at_once:
            self._forget(member)
        else:
            self.after(POD_END, lambda: self._forget(member))

    def _forget(self, member: Member) -> None:
        node = self.cluster.nodes.get(member.node)
        if node is None or member.key not in node.pods:
            return  # its node was interrupted first
        self.cluster.vanish(member)
        self._unbound = True
        if node.draining and not node.pods:
            self.after(NODE_END, lambda: self._end(node))

    def _evict(self, member: Member) -> None:
        """Evict a pod; its controller starts a replacement."""
        self._ends(member)
        self._create_pod(member.workload)

    # Planning of nodes for pods.

    def _keep_batch_window(self) -> None:
        """Keep the batch window.

        It opens with a pod without a plan and closes when no other follows.
        """
        now = self.cluster.now
        fresh = [key for key in self._pods_to_place() if key not in self._asked]
        if not fresh:
            return
        self._asked.update(fresh)
        opened = self._batch[0] if self._batch is not None else now
        closes = min(opened + BATCH_LONGEST, now + BATCH_IDLE)
        self._batch = opened, closes
        self.at(closes, self._batch_closes)

    def _pods_to_place(self) -> list[str]:
        return [key for key in self._moving_pods() if key not in self._placed]

    def _moving_pods(self) -> dict[str, Member]:
        """Return the pending pods, and the pods on leaving nodes that may be evicted now."""
        found = dict(self.cluster.waiting)
        for node in self.cluster.nodes.values():
            if node.leaving:
                for key, member in node.pods.items():
                    if not member.leaving and self._may_go(member):
                        found[key] = member
        return found

    def _may_go(self, member: Member) -> bool:
        return not member.workload.protected and member.workload.allowed_disruptions() != 0

    def _batch_closes(self) -> None:
        if self._batch is None or self._batch[1] > self.cluster.now:
            return
        self._batch = None
        moving = self._moving_pods()
        if not any(key not in self._placed for key in moving):
            return
        placement = self.side.place(self.cluster, list(moving.values()), self._placed_of(moving))
        for name, keys in placement.existing.items():
            there = self.cluster.nodes[name]
            self._expect(keys, there)
            if there.up:
                self._unbound = True
                self.after(BINDING, partial(self._forget_lost, there))
            else:
                self._nominate(keys, there)
        for new in placement.new_nodes:
            node = self._launch(new)
            if node is not None:
                self._expect(new.pods, node)
                self._nominate(new.pods, node)
        left = [key for key in moving if key not in self._placed]
        if left:
            self.after(UNPLACED_RETRY, lambda: self._asked.difference_update(left))

    def _placed_of(self, moving: Iterable[str]) -> dict[str, str]:
        return {key: self._placed[key] for key in moving if key in self._placed}

    def _launch(self, new: NewNode, replaces: Iterable[str] = ()) -> Node | None:
        try:
            node = self.cluster.launch(new, replaces)
        except ValueError:
            return None  # every offering that it allows is unavailable now
        self.after(NODE_START, lambda: self._opens(node))
        return node

    def _expect(self, keys: Iterable[str], node: Node) -> None:
        for key in keys:
            self._placed[key] = node.name
        node.nominated_until = self.cluster.now + NOMINATION
        self.cluster.revision += 1
        self.at(node.nominated_until, self._nomination_ends)

    def _nomination_ends(self) -> None:
        self.cluster.revision += 1

    def _nominate(self, keys: Iterable[str], node: Node) -> None:
        """Nominate pods for their node, unless the side or a topology spread forbids it."""
        if not self.side.nominates:
            return
        waiting = self.cluster.waiting
        coming = {**node.promised, **{key: waiting[key] for key in keys if key in waiting}}
        for pod in nominated_together(member.seen for member in coming.values()):
            self.cluster.nominate(coming[pod.key], node)

    def _opens(self, node: Node) -> None:
        if node.ended is not None:
            return
        self.cluster.open(node)
        self._unbound = True
        self._opened.append(node)

    def _forget_lost(self, node: Node) -> None:
        """Drop the plan of pods that are still pending although their node is up.

        The scheduler has decided otherwise.
        """
        lost = [key for key, name in self._placed.items() if name == node.name]
        for key in lost:
            if key in self.cluster.waiting:
                del self._placed[key]
                self._asked.discard(key)

    # Nodes that are disrupted.

    def _write_deletion_costs(self) -> None:
        """Write the deletion cost of each node's pods, as far as ReplicaSets control them."""
        for name, cost in self.side.deletion_costs(self.cluster).items():
            for member in self.cluster.nodes[name].pods.values():
                if member.workload.run_for is None:
                    member.deletion_cost = cost
        self.after(DELETION_COSTS, self._write_deletion_costs)

    def _plan_pass(self, when: float) -> None:
        self._next_pass = when
        self.at(when, lambda: self._run_pass(when))

    def _run_pass(self, due: float) -> None:
        if due != self._next_pass or self._validating:
            return
        cluster = self.cluster
        quiet = sum(at <= cluster.now for at in self._quiet_times())
        seen = cluster.revision, quiet
        if self._state_at_pass == seen and cluster.now - self._changed > self.side.fades:
            self._plan_pass(self._next_quiet())
            return
        self._state_at_pass = seen
        self._passes += 1
        moves = self.side.disrupt(cluster)
        certain = [one for one in moves if one.reason is Reason.DRIFTED]
        doubtful = [one for one in moves if one.reason is not Reason.DRIFTED]
        if doubtful:
            self._validating = True
            self.after(VALIDATION, lambda: self._begin_confirmed(doubtful))
        if certain:
            self._begin_all(certain)
        elif not doubtful:
            self._plan_pass(
                min(
                    _next_tick(cluster.now + self.side.repeat_seconds - PASS_SECONDS),
                    self._next_quiet(),
                )
            )

    def _begin_confirmed(self, moves: Sequence[Move]) -> None:
        self._validating = False
        self._begin_all(self.side.confirm(self.cluster, moves))

    def _begin_all(self, moves: Sequence[Move]) -> None:
        started = [self._begin(one) for one in moves]
        # After an action the next pass comes at once, after none at the next tick.
        self._state_at_pass = None
        self._plan_pass(self.cluster.now + (1.0 if any(started) else PASS_SECONDS))

    def _quiet_times(self) -> list[float]:
        """Return when each node that is up becomes consolidatable."""
        cluster = self.cluster
        found = [one.quiet_at(cluster.waits[one.pool]) for one in cluster.nodes.values()]
        return [at for at in found if at is not None]

    def _next_quiet(self) -> float:
        """Return the tick at which the next node becomes consolidatable."""
        coming = [at for at in self._quiet_times() if at > self.cluster.now]
        return math.ceil(min(coming) / PASS_SECONDS) * PASS_SECONDS if coming else math.inf

    def _begin(self, move: Move) -> bool:
        nodes = [self.cluster.nodes.get(name) for name in move.nodes]
        leaving = [one for one in nodes if one is not None and one.open]
        if len(leaving) < len(move.nodes):
            return False
        replacements = [self._launch(new, move.nodes) for new in move.replacements]
        bought = [one for one in replacements if one is not None]
        if len(bought) < len(replacements):
            for one in bought:
                self._drain(one)
            return False
        self._commands += 1
        for one in leaving:
            one.leaving = True
        self.cluster.revision += 1
        in_flight = _InFlightCommand(leaving, bought)
        self._in_flight.append(in_flight)
        for new, replacement in zip(move.replacements, bought, strict=True):
            self._expect(new.pods, replacement)
        for name, keys in move.existing.items():
            if name in self.cluster.nodes:
                self._expect(keys, self.cluster.nodes[name])
        self._advance(in_flight)
        return True

    def _advance_all(self) -> None:
        for one in list(self._in_flight):
            self._advance(one)

    def _advance(self, in_flight: _InFlightCommand) -> None:
        """Drain the old nodes once the replacements are up.

        If a replacement was interrupted, the old nodes stay.
        """
        if any(one.ended is not None or one.interrupted for one in in_flight.replacements):
            for one in in_flight.leaving:
                if not one.draining:
                    one.leaving = False
            self._in_flight.remove(in_flight)
            self.cluster.revision += 1
            self._unbound = True
        elif all(one.up for one in in_flight.replacements):
            self._in_flight.remove(in_flight)
            for one in in_flight.leaving:
                self._drain(one)

    def _drain(self, node: Node) -> None:
        if node.draining or node.ended is not None:
            return
        node.leaving = node.draining = True
        self.cluster.revision += 1
        self._drain_on(node)

    def _drain_on(self, node: Node) -> None:
        """Evict the pods that their budgets allow now, and retry the others later."""
        if node.ended is not None:
            return
        if not node.pods:
            self.after(NODE_END, lambda: self._end(node))
            return
        members = list(node.pods.values())
        if self.side.largest_first:
            members.sort(key=lambda one: _share(one, node), reverse=True)
        for member in members:
            if not member.leaving and member.workload.allowed_disruptions() != 0:
                self._count_eviction(node)
                self._evict(member)
        if any(not member.leaving for member in node.pods.values()):
            self.after(DRAIN_RETRY, lambda: self._drain_on(node))

    def _count_eviction(self, node: Node) -> None:
        if node.interrupted:
            self._interrupted += 1
        else:
            self._evictions += 1

    def _interrupt(self, node: Node) -> None:
        node.interrupted = True
        self.after(NOTICE, lambda: self._terminate_interrupted(node))
        self._drain(node)
        self._advance_all()

    def _terminate_interrupted(self, node: Node) -> None:
        """Terminate an interrupted node whose notice has elapsed, with the pods still on it."""
        if node.ended is not None:
            return
        for member in list(node.pods.values()):
            if not member.leaving:
                self._interrupted += 1
                self._evict(member)
            self._forget(member)
        self._end(node)

    def _end(self, node: Node) -> None:
        if node.ended is not None:
            return
        self.cluster.end(node)
        lost = [key for key, name in self._placed.items() if name == node.name]
        for key in lost:
            del self._placed[key]
            self._asked.discard(key)
        self._unbound = True


def _share(member: Member, node: Node) -> float:
    """Return the share of a node that a pod takes, of the resource it takes most of."""
    size, allocatable = member.workload.size, node.allocatable
    return max(size.cpu / allocatable.cpu, size.memory / allocatable.memory)


def _next_tick(now: float) -> float:
    """Return the first tick of the disruption loop after a time."""
    return (math.floor(now / PASS_SECONDS + 1e-9) + 1) * PASS_SECONDS
