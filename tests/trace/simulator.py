"""The discrete-event simulator: one trace, one side, one clock that leaps from event to event.

Times are seconds since the beginning of the trace. What takes time in life takes the times below
on both sides alike; the thinking of either side takes none. Looks for nodes that could go come
every ten seconds while something changes, and not at all while nothing does.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count

from controller.apis.pods import Pod
from controller.disruption.commands import Reason
from controller.reconcilers.provisioning.nomination import told_together
from controller.scheduling.results import NewNode
from controller.scheduling.scheduler import least_cost, schedule
from controller.state.snapshot import Snapshot
from tests.trace.binding import bind
from tests.trace.cluster import Cluster, Machine, Market
from tests.trace.sides import Move, Side
from tests.trace.workloads import Member, Workload

NODE_START = 60.0
"""From the order of a machine to its node being initialized."""

POD_START = 15.0
"""From being bound to serving."""

POD_END = 10.0
"""From eviction, or scaling down, to being gone."""

MACHINE_END = 5.0
"""From the last pod's end to that of the bill."""

DRAIN_RETRY = 5.0
"""How soon an eviction that a budget refused is tried again."""

BATCH_IDLE, BATCH_LONGEST = 1.0, 10.0
"""The batch window, as both sides have it by default."""

BINDING = 2.0
"""How long a pod may take to be bound where it is expected and there is room."""

NOMINATION = 20.0
"""How long a node is left alone for pods that were sent there."""

LOOK = 10.0
"""How often is looked for nodes that could go."""

VALIDATION = 15.0
"""How long a command waits to be confirmed."""

NOTICE = 120.0
"""From the notice of a spot interruption to the machine's end."""

MARKET_CLOSED = 1800.0
"""How long a market that was interrupted sells nothing."""

UNPLACED_RETRY = 60.0
"""How soon pods that found no place are asked about again."""

NEAR = 1.05
"""How near to the bound the cost has to come after the load fell."""

Action = Callable[["Simulator"], None]


@dataclass(frozen=True, slots=True)
class Happening:
    """Something a trace has happen at a time."""

    at: float
    action: Action


@dataclass(slots=True)
class Fall:
    """The load fell: what the pods that are left need cost, and how long it took to come near."""

    at: float
    bound: float
    until: float
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """What a side made of a trace: $, node-hours, pod-seconds, and pods that had to move."""

    cost: float
    node_hours: float
    evictions: int
    """Pods evicted by decision; those of a deployment's own rollout do not count."""

    interrupted: int
    """Pods evicted because their machine was taken."""

    pending_seconds: float
    longest_pending: float
    falls: tuple[float | None, ...]
    """Seconds until the cost was within 5 % of the bound after each fall of the load."""

    pods: int
    machines: int
    looks: int
    commands: int
    afresh: float
    """$ if the pods had been placed afresh all the time, at no charge; 0 when nobody asked."""


@dataclass(slots=True)
class _Underway:
    """A move being carried out."""

    move: Move
    leaving: list[Machine]
    heirs: list[Machine] = field(default_factory=list)


class Simulator:
    """Plays one trace with one side."""

    def __init__(self, cluster: Cluster, side: Side, *, length: float) -> None:
        self.cluster, self.side, self.length = cluster, side, length
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._placed: dict[str, str] = {}
        """Where a pod that has no node yet, or must leave its own, is expected."""

        self._batch: tuple[float, float] | None = None
        self._asked: set[str] = set()
        self._underway: list[_Underway] = []
        self._opened: list[Machine] = []
        self._unbound = False
        self._numbers = count(1)
        self._looked: tuple[int, int] | None = None
        self._changed = 0.0
        self._revision = 0
        self._next_look = 0.0
        self._validating = False
        self._falls: list[Fall] = []
        self._evictions = self._interrupted = self._pods = self._looks = self._commands = 0
        self._pending = self._longest = self._afresh = 0.0

    def run(
        self, happenings: Iterable[Happening], say: Callable[[float], None] = lambda _: None
    ) -> Measured:
        """Play the trace to its end."""
        for one in happenings:
            self.at(one.at, partial(one.action, self))
        self._look_at(LOOK)
        while self._agenda and self._agenda[0][0] <= self.length:
            now = self.cluster.now = self._agenda[0][0]
            while self._agenda and self._agenda[0][0] == now:
                heapq.heappop(self._agenda)[2]()
            self._after_events()
            say(now)
        self.cluster.now = self.length
        for member in self.cluster.waiting.values():
            self._waited(self.length - member.created)
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
            machines=self.cluster.made,
            looks=self._looks,
            commands=self._commands,
            afresh=self._afresh,
        )

    def ask_afresh(self, every: float) -> None:
        """Find out every so many seconds what the pods there are would cost if all were placed
        anew, which moving them one by one hardly brings about.
        """

        def ask() -> None:
            pods, empty = self._pods_alone()
            self._afresh += schedule(pods, snapshot=empty).cost * every / 3600
            self.ask_afresh(every)

        self.after(every, ask)

    def at(self, when: float, what: Callable[[], None]) -> None:
        """Have something done at a time, after what is to be done then already."""
        heapq.heappush(self._agenda, (when, next(self._order), what))

    def after(self, seconds: float, what: Callable[[], None]) -> None:
        """Have something done in so many seconds."""
        self.at(self.cluster.now + seconds, what)

    def _after_events(self) -> None:
        """What the cluster does of itself once something has happened."""
        now, cluster = self.cluster.now, self.cluster
        while self._unbound:
            self._unbound = False
            for member in bind(cluster):
                self._has_come(member)
            opened, self._opened = self._opened, []
            for machine in opened:
                self._forget_lost(machine)
            if opened:
                self._advance_all()
        self._ask_for_places()
        if cluster.revision != self._revision:
            self._revision, self._changed = cluster.revision, now
            if self._next_look > _next_tick(now) and not self._validating:
                self._look_at(_next_tick(now))
        for fall in self._falls:
            if fall.seconds is None and now <= fall.until and cluster.rate <= NEAR * fall.bound:
                fall.seconds = now - fall.at

    # What a trace may have happen.

    def add(self, workload: Workload) -> None:
        """Deploy a workload, without pods yet."""
        self.cluster.workloads[workload.name] = workload

    def scale(self, name: str, replicas: int) -> None:
        """Have a Deployment so many pods."""
        workload = self.cluster.workloads[name]
        workload.replicas = replicas
        self._reconcile(workload)

    def roll(self, name: str) -> None:
        """Roll a new version of a Deployment out: a quarter more pods, none fewer, in turns."""
        workload = self.cluster.workloads[name]
        workload.version += 1
        self._reconcile(workload)

    def submit(self, workload: Workload, pods: int) -> None:
        """Start so many pods that run to their end."""
        self.add(workload)
        workload.replicas = pods
        for _ in range(pods):
            self._born(workload)

    def give(self, new: NewNode) -> None:
        """Have a machine be up at once, with those pods that find room on it."""
        self.cluster.open(self.cluster.launch(new))
        for member in bind(self.cluster):
            self._has_come(member)

    def drift(self) -> None:
        """Release a new image: every machine that is there is of the old one."""
        self.cluster.image += 1
        for machine in self.cluster.machines.values():
            machine.drifted = self.cluster.now
        self.cluster.revision += 1

    def interrupt(self, market: Market) -> None:
        """Take all spot machines of a market away, after a notice."""
        self.cluster.closed.add(market)
        self.cluster.revision += 1

        def reopen() -> None:
            self.cluster.closed.discard(market)
            self.cluster.revision += 1

        self.after(MARKET_CLOSED, reopen)
        for machine in list(self.cluster.machines.values()):
            if machine.market == market and not machine.interrupted:
                self._interrupt(machine)

    def fall(self, until: float) -> None:
        """Note that the load fell just now, and stays as it is until a time."""
        self._falls.append(Fall(self.cluster.now, self._bound(), until))

    def _bound(self) -> float:
        """Return what no cluster of these pods costs less than, in $/h."""
        pods, empty = self._pods_alone()
        return least_cost(pods, snapshot=empty) if pods else 0.0

    def _pods_alone(self) -> tuple[list[Pod], Snapshot]:
        """Return the pods that are to stay as if all waited, and the cluster without any node."""
        snapshot = self.cluster.snapshot()
        empty = Snapshot(
            node_pools=snapshot.node_pools,
            instance_types=snapshot.instance_types,
            daemon_sets=snapshot.daemon_sets,
        )
        pods = [
            member.waiting()
            for workload in self.cluster.workloads.values()
            for member in workload.pods.values()
        ]
        return pods, empty

    # Pods.

    def _reconcile(self, workload: Workload) -> None:
        """Take a Deployment a step towards what it should be, as its controller would."""
        if workload.run_for is not None:
            return
        fresh = [one for one in workload.pods.values() if one.version == workload.version]
        stale = [one for one in workload.pods.values() if one.version != workload.version]
        if len(fresh) > workload.replicas:
            for member in self._superfluous(fresh)[: len(fresh) - workload.replicas]:
                self._ends(member)
        spare = workload.ready - workload.replicas
        for member in self._superfluous(stale):
            if not member.ready or spare > 0:
                spare -= member.ready
                self._ends(member)
        surge = math.ceil(workload.replicas / 4) if stale else 0
        room = workload.replicas + surge - len(workload.pods)
        for _ in range(min(workload.replicas - len(fresh), room)):
            self._born(workload)

    def _superfluous(self, members: Sequence[Member]) -> list[Member]:
        """Return pods in the order in which their controller lets them go: those without a node
        first, then those that share their node with most of their like, the youngest first.
        """
        together: dict[str, int] = {}
        for one in members:
            together[one.node] = together.get(one.node, 0) + 1
        return sorted(
            members, key=lambda one: (bool(one.node), -together[one.node], -one.created, one.name)
        )

    def _born(self, workload: Workload) -> None:
        member = Member.born(workload, next(self._numbers), self.cluster.now)
        workload.pods[member.name] = member
        self.cluster.waiting[member.key] = member
        self.cluster.revision += 1
        self._pods += 1
        self._unbound = True

    def _has_come(self, member: Member) -> None:
        """A pod has been bound: it serves in a while, and perhaps ends some time."""
        self._waited(self.cluster.now - member.created)
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

    def _waited(self, seconds: float) -> None:
        self._pending += seconds
        self._longest = max(self._longest, seconds)

    def _completes(self, member: Member) -> None:
        if not member.leaving:
            member.workload.replicas -= 1
            self._ends(member, at_once=True)

    def _ends(self, member: Member, *, at_once: bool = False) -> None:
        """Have a pod go for good."""
        waited = not member.node
        self.cluster.leave(member)
        self._placed.pop(member.key, None)
        self._asked.discard(member.key)
        if waited:
            self._waited(self.cluster.now - member.created)
        elif at_once:
            self._gone(member)
        else:
            self.after(POD_END, lambda: self._gone(member))

    def _gone(self, member: Member) -> None:
        machine = self.cluster.machines.get(member.node)
        if machine is None or member.key not in machine.pods:
            return  # its machine was taken first
        self.cluster.vanish(member)
        self._unbound = True
        if machine.draining and not machine.pods:
            self.after(MACHINE_END, lambda: self._end(machine))

    def _evict(self, member: Member) -> None:
        """Have a pod go, and its controller start another in its place."""
        self._ends(member)
        self._born(member.workload)

    # Places for pods.

    def _ask_for_places(self) -> None:
        """Keep the batch window: it opens with a pod without a place and closes when no other
        follows.
        """
        now = self.cluster.now
        fresh = [key for key in self._homeless() if key not in self._asked]
        if not fresh:
            return
        self._asked.update(fresh)
        opened = self._batch[0] if self._batch is not None else now
        closes = min(opened + BATCH_LONGEST, now + BATCH_IDLE)
        self._batch = opened, closes
        self.at(closes, self._batch_closes)

    def _homeless(self) -> list[str]:
        return [key for key in self._moving() if key not in self._placed]

    def _moving(self) -> dict[str, Member]:
        """Return the pods that wait, and those on machines on their way out that may be evicted
        now.
        """
        found = dict(self.cluster.waiting)
        for machine in self.cluster.machines.values():
            if machine.leaving:
                for key, member in machine.pods.items():
                    if not member.leaving and self._may_go(member):
                        found[key] = member
        return found

    def _may_go(self, member: Member) -> bool:
        return not member.workload.protected and member.workload.allowed_disruptions() != 0

    def _batch_closes(self) -> None:
        if self._batch is None or self._batch[1] > self.cluster.now:
            return
        self._batch = None
        moving = self._moving()
        if not any(key not in self._placed for key in moving):
            return
        placement = self.side.place(self.cluster, list(moving.values()), self._placed_of(moving))
        for name, keys in placement.existing.items():
            there = self.cluster.machines[name]
            self._expect(keys, there)
            if there.up:
                self._unbound = True
                self.after(BINDING, partial(self._forget_lost, there))
            else:
                self._nominate(keys, there)
        for new in placement.new_nodes:
            machine = self._launch(new)
            if machine is not None:
                self._expect(new.pods, machine)
                self._nominate(new.pods, machine)
        left = [key for key in moving if key not in self._placed]
        if left:
            self.after(UNPLACED_RETRY, lambda: self._asked.difference_update(left))

    def _placed_of(self, moving: Iterable[str]) -> dict[str, str]:
        return {key: self._placed[key] for key in moving if key in self._placed}

    def _launch(self, new: NewNode, replaces: Iterable[str] = ()) -> Machine | None:
        try:
            machine = self.cluster.launch(new, replaces)
        except ValueError:
            return None  # what it may be is sold out by now
        self.after(NODE_START, lambda: self._opens(machine))
        return machine

    def _expect(self, keys: Iterable[str], machine: Machine) -> None:
        for key in keys:
            self._placed[key] = machine.name
        machine.nominated_until = self.cluster.now + NOMINATION
        self.cluster.revision += 1
        self.at(machine.nominated_until, self._nomination_ends)

    def _nomination_ends(self) -> None:
        self.cluster.revision += 1

    def _nominate(self, keys: Iterable[str], machine: Machine) -> None:
        """Write the plan on the pods, where the side does so and a spread does not forbid it."""
        if not self.side.nominates:
            return
        waiting = self.cluster.waiting
        coming = {**machine.promised, **{key: waiting[key] for key in keys if key in waiting}}
        for pod in told_together(member.seen for member in coming.values()):
            self.cluster.nominate(coming[pod.key], machine)

    def _opens(self, machine: Machine) -> None:
        if machine.ended is not None:
            return
        self.cluster.open(machine)
        self._unbound = True
        self._opened.append(machine)

    def _forget_lost(self, machine: Machine) -> None:
        """Take from pods that wait still their places on a machine that is up: the scheduler has
        decided otherwise.
        """
        lost = [key for key, name in self._placed.items() if name == machine.name]
        for key in lost:
            if key in self.cluster.waiting:
                del self._placed[key]
                self._asked.discard(key)

    # Machines on their way out.

    def _look_at(self, when: float) -> None:
        self._next_look = when
        self.at(when, lambda: self._look(when))

    def _look(self, due: float) -> None:
        if due != self._next_look or self._validating:
            return
        cluster = self.cluster
        quiet = sum(at <= cluster.now for at in self._quiet_times())
        seen = cluster.revision, quiet
        if self._looked == seen and cluster.now - self._changed > self.side.fades:
            self._look_at(self._next_quiet())
            return
        self._looked = seen
        self._looks += 1
        moves = self.side.look(cluster)
        certain = [one for one in moves if one.reason is Reason.DRIFTED]
        doubtful = [one for one in moves if one.reason is not Reason.DRIFTED]
        if doubtful:
            self._validating = True
            self.after(VALIDATION, lambda: self._validated(doubtful))
        if certain:
            self._begin_all(certain)
        elif not doubtful:
            self._look_at(
                min(_next_tick(cluster.now + self.side.relook - LOOK), self._next_quiet())
            )

    def _validated(self, moves: Sequence[Move]) -> None:
        self._validating = False
        self._begin_all(self.side.confirm(self.cluster, moves))

    def _begin_all(self, moves: Sequence[Move]) -> None:
        begun = [self._begin(one) for one in moves]
        # After an action the next look comes at once, after none at the next turn.
        self._looked = None
        self._look_at(self.cluster.now + (1.0 if any(begun) else LOOK))

    def _quiet_times(self) -> list[float]:
        """Return when each machine that is up will have been quiet for as long as its pool asks."""
        cluster = self.cluster
        found = [one.quiet_at(cluster.waits[one.pool]) for one in cluster.machines.values()]
        return [at for at in found if at is not None]

    def _next_quiet(self) -> float:
        """Return the turn at which the next machine has been quiet for long enough."""
        coming = [at for at in self._quiet_times() if at > self.cluster.now]
        return math.ceil(min(coming) / LOOK) * LOOK if coming else math.inf

    def _begin(self, move: Move) -> bool:
        machines = [self.cluster.machines.get(name) for name in move.nodes]
        leaving = [one for one in machines if one is not None and one.open]
        if len(leaving) < len(move.nodes):
            return False
        heirs = [self._launch(new, move.nodes) for new in move.replacements]
        bought = [one for one in heirs if one is not None]
        if len(bought) < len(heirs):
            for one in bought:
                self._drain(one)
            return False
        self._commands += 1
        for one in leaving:
            one.leaving = True
        self.cluster.revision += 1
        underway = _Underway(move, leaving, bought)
        self._underway.append(underway)
        for new, heir in zip(move.replacements, bought, strict=True):
            self._expect(new.pods, heir)
        for name, keys in move.existing.items():
            if name in self.cluster.machines:
                self._expect(keys, self.cluster.machines[name])
        self._advance(underway)
        return True

    def _advance_all(self) -> None:
        for one in list(self._underway):
            self._advance(one)

    def _advance(self, underway: _Underway) -> None:
        """Drain the old once the new are up; let the old stay when one of the new is taken."""
        if any(one.ended is not None or one.interrupted for one in underway.heirs):
            for one in underway.leaving:
                if not one.draining:
                    one.leaving = False
            self._underway.remove(underway)
            self.cluster.revision += 1
            self._unbound = True
        elif all(one.up for one in underway.heirs):
            self._underway.remove(underway)
            for one in underway.leaving:
                self._drain(one)

    def _drain(self, machine: Machine) -> None:
        if machine.draining or machine.ended is not None:
            return
        machine.leaving = machine.draining = True
        self.cluster.revision += 1
        self._drain_on(machine)

    def _drain_on(self, machine: Machine) -> None:
        """Evict whom the pods' budgets let go now, and come back for the others."""
        if machine.ended is not None:
            return
        if not machine.pods:
            self.after(MACHINE_END, lambda: self._end(machine))
            return
        members = list(machine.pods.values())
        if self.side.largest_first:
            members.sort(key=lambda one: _share(one, machine), reverse=True)
        for member in members:
            if not member.leaving and member.workload.allowed_disruptions() != 0:
                self._count_eviction(machine)
                self._evict(member)
        if any(not member.leaving for member in machine.pods.values()):
            self.after(DRAIN_RETRY, lambda: self._drain_on(machine))

    def _count_eviction(self, machine: Machine) -> None:
        if machine.interrupted:
            self._interrupted += 1
        else:
            self._evictions += 1

    def _interrupt(self, machine: Machine) -> None:
        machine.interrupted = True
        self.after(NOTICE, lambda: self._taken(machine))
        self._drain(machine)
        self._advance_all()

    def _taken(self, machine: Machine) -> None:
        """End a machine whose notice is over, with whoever is on it still."""
        if machine.ended is not None:
            return
        for member in list(machine.pods.values()):
            if not member.leaving:
                self._interrupted += 1
                self._evict(member)
            self._gone(member)
        self._end(machine)

    def _end(self, machine: Machine) -> None:
        if machine.ended is not None:
            return
        self.cluster.end(machine)
        lost = [key for key, name in self._placed.items() if name == machine.name]
        for key in lost:
            del self._placed[key]
            self._asked.discard(key)
        self._unbound = True


def _share(member: Member, machine: Machine) -> float:
    """Return how much of a machine a pod takes, of the resource of which it takes most."""
    size, room = member.workload.size, machine.room
    return max(size.cpu / room.cpu, size.memory / room.memory)


def _next_tick(now: float) -> float:
    """Return the first turn of the disruption loop after a time."""
    return (math.floor(now / LOOK + 1e-9) + 1) * LOOK
