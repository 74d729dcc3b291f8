"""The simulator: no pod is lost or counted twice, and runs are deterministic."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from bench.parity import engines
from bench.trace import market
from bench.trace.cluster import Cluster
from bench.trace.sides import Joiner, Karpenter, Move, Placement
from bench.trace.simulator import (
    BATCH_IDLE,
    NODE_END,
    NODE_START,
    POD_END,
    VALIDATION,
    Measured,
    Simulator,
    TraceEvent,
)
from bench.trace.traces import HOUR, MINUTE, TRACES
from bench.trace.workloads import Member, Workload
from controller.apis import labels
from controller.apis.kubernetes.taints import Requirement
from controller.disruption.commands import Reason
from controller.scheduling.results import NewNode

SMALL = 0.015
"""A scale at which a trace is over in seconds."""


def make_cluster() -> Cluster:
    return Cluster(types=market.types(0), pools=[market.pool(labels.ON_DEMAND)])


def one_node(cluster: Cluster, kind: str, pods: Sequence[str] = ()) -> NewNode:
    zone = next(o.zone for t in cluster.offer() if t.name == kind for o in t.offerings)
    return NewNode(
        "general",
        (kind,),
        (
            Requirement(key=labels.CAPACITY_TYPE, operator="In", values=[labels.ON_DEMAND]),
            Requirement(key=labels.ZONE, operator="In", values=[zone]),
        ),
        0.0,
        tuple(pods),
        {},
    )


@dataclass
class Scripted:
    """A side that buys one node of a type for every batch, and moves the given nodes."""

    kind: str = "m5.4xlarge"
    moves: Mapping[float, Sequence[Move]] = field(default_factory=dict)
    name: str = "scripted"
    nominates: bool = True
    largest_first: bool = False
    repeat_seconds: float = 10.0
    fades: float = math.inf
    costs: Mapping[str, int] = field(default_factory=dict)

    @property
    def writes_deletion_costs(self) -> bool:
        return bool(self.costs)

    def deletion_costs(self, cluster: Cluster) -> Mapping[str, int]:
        return {name: cost for name, cost in self.costs.items() if name in cluster.nodes}

    def place(
        self, cluster: Cluster, waiting: Sequence[Member], placed: Mapping[str, str]
    ) -> Placement:
        pods = [one.key for one in waiting if one.key not in placed]
        return Placement([one_node(cluster, self.kind, pods)])

    def disrupt(self, cluster: Cluster) -> Sequence[Move]:
        return self.moves.get(cluster.now, ())

    def confirm(self, cluster: Cluster, moves: Sequence[Move]) -> Sequence[Move]:
        return moves


class Restless(Joiner):
    """A side that has a node go every ten minutes, without any reason."""

    def disrupt(self, cluster: Cluster) -> Sequence[Move]:
        open_ = sorted(one.name for one in cluster.nodes.values() if one.open)
        return (
            [Move(Reason.UNDERUTILIZED, (open_[int(cluster.now) % len(open_)],))] if open_ else []
        )

    def confirm(self, cluster: Cluster, moves: Sequence[Move]) -> Sequence[Move]:
        return moves


def deployed(workload: Workload, when: float = 0.0) -> TraceEvent:
    def action(simulator: Simulator) -> None:
        simulator.add(workload)
        simulator.scale(workload.name, workload.replicas)

    return TraceEvent(when, action)


def at(when: float, action: Callable[[Simulator], None]) -> TraceEvent:
    return TraceEvent(when, action)


def assert_conserved(cluster: Cluster) -> None:
    """Every pod is in one place, and nodes have what they give to pods, no more."""
    waiting = Counter(one.key for one in cluster.waiting.values())
    running = Counter(one.key for one in cluster.running_pods())
    everywhere = waiting + running
    assert max(everywhere.values(), default=1) == 1
    for workload in cluster.workloads.values():
        assert all(everywhere[one.key] == 1 for one in workload.pods.values())
    for node in cluster.nodes.values():
        taken = [one.workload.size for one in node.pods.values()]
        assert node.cpu == node.allocatable.cpu - sum(size.cpu for size in taken) >= 0
        assert node.memory == node.allocatable.memory - sum(size.memory for size in taken) >= 0


@pytest.mark.long
@pytest.mark.parametrize("name", ["rolling", "spot", "batch"])
def test_every_pod_is_always_on_at_most_one_node(name: str) -> None:
    trace = next(one for one in TRACES if one.name == name)
    simulator = Simulator(trace.cluster(3), Restless(), length=1.5 * HOUR)

    simulator.run(trace.events_of(3, SMALL), lambda _: assert_conserved(simulator.cluster))

    for workload in simulator.cluster.workloads.values():
        assert len(workload.pods) >= workload.replicas


@pytest.mark.long
def test_the_same_seed_gives_the_same_run() -> None:
    trace = next(one for one in TRACES if one.name == "spot")

    def run(seed: int) -> Measured:
        simulator = Simulator(trace.cluster(seed), Restless(), length=HOUR)
        return simulator.run(trace.events_of(seed, SMALL))

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_an_instance_is_paid_from_launch_to_termination() -> None:
    cluster = make_cluster()
    web = Workload("web", cpu=1000, memory=1024, replicas=2, unavailable=None)
    gone = Move(Reason.DRIFTED, ("node-00001",))
    simulator = Simulator(cluster, Scripted(moves={HOUR: [gone]}), length=2 * HOUR)

    found = simulator.run([deployed(web)])

    price = next(one.price for one in cluster.nodes.values())
    ordered = BATCH_IDLE
    ended = HOUR + POD_END + NODE_END
    again = HOUR + BATCH_IDLE
    hours = (ended - ordered + 2 * HOUR - again) / 3600
    assert found.node_hours == pytest.approx(hours)
    assert found.cost == pytest.approx(price * hours)
    assert found.evictions == 2
    # Both pods waited for the first node, and the two pods that replaced them for the second.
    assert found.pending_seconds == pytest.approx(4 * (BATCH_IDLE + NODE_START))
    assert found.longest_pending == BATCH_IDLE + NODE_START


def test_a_replacement_is_ready_before_pods_are_evicted() -> None:
    cluster = make_cluster()
    web = Workload("web", cpu=1000, memory=1024, replicas=2)
    replacement = one_node(cluster, "m5.xlarge", ["default/web-1", "default/web-2"])
    move = Move(Reason.UNDERUTILIZED, ("node-00001",), (replacement,))
    simulator = Simulator(cluster, Scripted(moves={HOUR: [move]}), length=2 * HOUR)
    serving: list[int] = []

    found = simulator.run(
        [deployed(web), at(HOUR, lambda _: serving.append(web.ready))],
        lambda now: serving.append(web.ready) if now > HOUR else None,
    )

    assert found.evictions == 2
    assert min(serving) == 1  # one at a time, as its disruption budget has it
    assert [one.market[0] for one in cluster.nodes.values()] == ["m5.xlarge"]
    assert found.pending_seconds == pytest.approx(2 * (BATCH_IDLE + NODE_START))


def test_a_rollout_evicts_no_pod_and_stays_available() -> None:
    web = Workload("web", cpu=500, memory=512, replicas=8)
    simulator = Simulator(make_cluster(), Scripted("m5.8xlarge"), length=2 * HOUR)
    serving: list[int] = []

    found = simulator.run(
        [deployed(web), at(HOUR, lambda one: one.roll("web"))],
        lambda now: serving.append(web.ready) if now >= HOUR else None,
    )

    assert {one.version for one in web.pods.values()} == {1}
    assert len(web.pods) == 8
    assert min(serving) == 8
    assert found.evictions == 0
    assert found.pods == 16


def test_jobs_complete_and_evicted_jobs_restart() -> None:
    job = Workload("job", cpu=1000, memory=1024, run_for=30 * MINUTE, unavailable=None)
    gone = Move(Reason.DRIFTED, ("node-00001",))
    simulator = Simulator(make_cluster(), Scripted(moves={1200.0: [gone]}), length=2 * HOUR)
    left: dict[float, int] = {}

    simulator.run(
        [at(0, lambda one: one.submit(job, 3))],
        lambda now: left.update({now: len(job.pods)}),
    )

    ended = next(now for now, pods in left.items() if now > 0 and not pods)
    assert ended == pytest.approx(1200 + BATCH_IDLE + NODE_START + 30 * MINUTE)


def test_a_reclaimed_spot_pool_terminates_its_instances_and_has_no_capacity() -> None:
    cluster = Cluster(types=market.types(0), pools=[market.pool(labels.SPOT)])
    web = Workload("web", cpu=1000, memory=1024, replicas=4)
    simulator = Simulator(cluster, Joiner(), length=2 * HOUR)
    taken: list[tuple[str, str, str]] = []

    def reclaim(one: Simulator) -> None:
        taken.extend(node.market for node in one.cluster.nodes.values())
        for sold in set(taken):
            one.interrupt(sold)

    found = simulator.run([deployed(web), at(HOUR, reclaim)])

    assert found.interrupted == 4
    assert found.evictions == 0
    assert len(web.pods) == 4
    assert not cluster.waiting
    assert not {one.market for one in cluster.nodes.values()} & set(taken)


def test_the_delay_between_load_and_cost_is_measured() -> None:
    web = Workload("web", cpu=925, memory=3700, replicas=34)
    other = Workload("other", cpu=925, memory=3700, replicas=34)
    gone = Move(Reason.EMPTY, ("node-00002",))
    side = Scripted("m7g.8xlarge", moves={HOUR + MINUTE: [gone]})
    simulator = Simulator(make_cluster(), side, length=2 * HOUR)

    def shrink(one: Simulator) -> None:
        one.scale("other", 0)
        one.fall(2 * HOUR)

    found = simulator.run([deployed(web), deployed(other, 10 * MINUTE), at(HOUR, shrink)])

    assert found.falls == (MINUTE + VALIDATION + NODE_END,)


@dataclass
class Gathering(Scripted):
    """A side that buys one node, and lets later pods wait for it."""

    def place(
        self, cluster: Cluster, waiting: Sequence[Member], placed: Mapping[str, str]
    ) -> Placement:
        pods = [one.key for one in waiting if one.key not in placed]
        there = next(iter(cluster.nodes), None)
        if there is not None:
            return Placement(existing={there: pods})
        return Placement([one_node(cluster, self.kind, pods)])


def test_pods_planned_on_a_launching_node_are_nominated_for_it() -> None:
    first, late = (
        Workload(name, cpu=1000, memory=1024, replicas=1, unavailable=None)
        for name in ("first", "late")
    )
    simulator = Simulator(make_cluster(), Gathering(), length=MINUTE)

    simulator.run([deployed(first), deployed(late, 20.0)])

    assert [pod.nominated for pod in simulator.cluster.waiting.values()] == ["node-00001"] * 2


def test_pods_with_a_spread_bind_to_the_nodes_launched_for_them() -> None:
    """Pods of one Deployment used the capacity of another's; later pods waited for another node."""
    trace = next(one for one in TRACES if one.name == "rolling")
    simulator = Simulator(trace.cluster(0), Joiner(), length=5 * MINUTE)

    found = simulator.run(trace.events_of(0, 0.05))

    assert any(workload.spread for workload in simulator.cluster.workloads.values())
    assert found.longest_pending == BATCH_IDLE + NODE_START


def test_the_cost_of_a_fresh_placement_is_computed() -> None:
    cluster = make_cluster()
    web = Workload("web", cpu=1000, memory=1024, replicas=1, unavailable=None)
    simulator = Simulator(cluster, Scripted(), length=HOUR)
    simulator.add_repacked_cost(6 * MINUTE)

    found = simulator.run([deployed(web)])

    cheapest = min(o.price for kind in cluster.offer() for o in kind.offerings
                   if o.capacity_type == labels.ON_DEMAND)  # fmt: skip
    assert found.repacked_cost == pytest.approx(cheapest)
    assert found.cost > found.repacked_cost


def test_a_steady_cluster_sees_no_eviction_in_24_hours() -> None:
    """Reconcile every hour, although nothing changes."""
    trace = next(one for one in TRACES if one.name == "image")
    deploy = trace.events_of(0, 0.03)[:1]
    simulator = Simulator(
        trace.cluster(0), Joiner(fades=math.inf, repeat_seconds=HOUR), length=24 * HOUR
    )

    found = simulator.run(deploy)

    assert found.passes > 24
    assert found.evictions == 0


@pytest.mark.parametrize(
    ("costs", "emptied"), [({}, set()), ({"node-00001": -1, "node-00002": -2}, {"node-00002"})]
)
def test_deployments_scale_down_first_on_the_nodes_with_the_lowest_deletion_cost(
    costs: Mapping[str, int], emptied: set[str]
) -> None:
    cluster = make_cluster()
    web = Workload("web", cpu=1000, memory=1024, replicas=2)
    simulator = Simulator(cluster, Scripted("m5.xlarge", costs=costs), length=HOUR)

    simulator.run(
        [
            deployed(web),
            at(10 * MINUTE, lambda one: one.scale("web", 5)),
            at(20 * MINUTE, lambda one: one.scale("web", 3)),
        ]
    )

    assert {one.name for one in cluster.nodes.values() if not one.pods} == emptied


@pytest.mark.needs("karpenter")
def test_karpenters_code_decides_for_karpenters_side() -> None:
    web = Workload("web", cpu=925, memory=3800, replicas=40)
    with engines.dialogue() as process:
        simulator = Simulator(make_cluster(), Karpenter(process), length=3 * HOUR)
        found = simulator.run([deployed(web), at(HOUR, lambda one: one.scale("web", 4))])

    assert_conserved(simulator.cluster)
    assert not simulator.cluster.waiting
    assert found.commands > 0
    assert simulator.cluster.rate < 0.5
