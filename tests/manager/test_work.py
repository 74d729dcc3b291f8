"""The cost of an event, a node or a pass does not grow with the cluster.

The tests use two in-memory clusters, one ten times as large as the other. They count steps of the
controller, not time. Every new reconciler must be listed here, with the objects that it reads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import pytest

from controller.apis import kinds
from controller.apis.karpenter.capacitybuffer import CapacityBuffer, CapacityBufferSpec
from controller.apis.karpenter.nodeclaim import INITIALIZED
from controller.apis.kubernetes.conditions import Condition
from controller.apis.kubernetes.meta import ObjectMeta
from controller.apis.kubernetes.pods import Pod
from controller.disruption.commands import Confirmation, Decision
from controller.disruption.problem import DisruptionProblem
from controller.reconcilers.nodeoverlay.evaluation import ALL
from controller.scheduling.results import Results
from controller.scheduling.settings import Settings
from controller.state.snapshot import Snapshot
from tests.builders import changed, make_nodepool, make_pod
from tests.manager import largecontroller
from tests.manager.largecontroller import NOW, PODS_PER_NODE, LargeController
from tests.work import counted

SIZES = (100, 1_000)
"""Nodes; each has twenty pods."""

WARM_UP = 20
"""Number of nodes of a cluster that the loops process first, so that work done once per process is
not counted."""

STEADY, LEAVING, OPENING, OPENING_LATER = range(4)
"""Nodes that are at the API server as well, by number."""

LOOPS: Mapping[str, Sequence[str]] = {
    "nodepool.readiness": ("pool-0", "static"),
    "nodeclass": ("default",),
    "nodeclaim.lifecycle": (f"claim-{STEADY}", f"claim-{LEAVING}", f"claim-{OPENING}"),
    "nodeclaim.disruption": (f"claim-{STEADY}",),
    "nodeclaim.drift": (f"claim-{STEADY}",),
    "nodeclaim.reboot": (f"claim-{STEADY}",),
    "nodeclaim.expiration": (f"claim-{STEADY}",),
    "nodeclaim.consistency": (f"claim-{STEADY}", f"claim-{LEAVING}"),
    "nodeclaim.tagging": (f"claim-{STEADY}",),
    "nodeclaim.podevents": (f"node-{STEADY}",),
    "node.termination": (f"node-{STEADY}", f"node-{LEAVING}"),
    "pod.nomination": (f"node-{OPENING}",),
    "pod.resize": (f"node-{STEADY}",),
    "node.health": (f"node-{STEADY}",),
    "nodeoverlay.controller": (ALL,),
    "capacitybuffer": ("default/buffer",),
    "static.provisioning": ("pool-0", "static"),
}
"""The keys that each loop reconciles, in this order."""

ROUNDS: Mapping[str, float] = {
    "provisioner": 20,
    "disruption": 60,
    "disruption.queue": 0,
    "disruption.history": 0,
    "nodeclaim.garbagecollection": 45,
    "interruption": 0,
    "interruption.instancestatus": 0,
    "capacityreservation.capacitytype": 20,
    "capacityreservation.expiration": 20,
}
"""How many steps a round of each singleton may take on the event loop for each node and its twenty
pods. It may read each node some times, and no pod that has not changed: what reads pods is done
elsewhere."""


class Elsewhere:
    """An engine that runs in a thread and finds nothing to disrupt."""

    scheduling = Settings()

    async def in_thread(self, function: Callable[..., Any], *arguments: object) -> Any:
        return await asyncio.to_thread(function, *arguments)

    async def decide(self, problem: DisruptionProblem) -> Decision:
        return Decision()

    async def confirm(self, problem: DisruptionProblem, decision: Decision) -> Confirmation:
        return Confirmation()


async def no_nodes(pods: Sequence[Pod], snapshot: Snapshot) -> Results:
    return Results()


def prepared(nodes: int) -> LargeController:
    """A cluster in which one node drains and two open."""
    large = LargeController(nodes)
    buffer = CapacityBuffer(
        metadata=ObjectMeta(name="buffer", namespace="default"), spec=CapacityBufferSpec()
    )
    large.at_server(kinds.CAPACITY_BUFFER, buffer)
    large.at_server(kinds.NODE_POOL, make_nodepool("static", spec={"replicas": 0}))
    for number in (STEADY, LEAVING, OPENING, OPENING_LATER):
        claim, node = largecontroller.claim(number), largecontroller.node(number)
        if number == LEAVING:
            claim, node = largecontroller.leaving(claim), largecontroller.leaving(node)
            pods = [largecontroller.pod(number, place) for place in range(PODS_PER_NODE)]
            large.at_server(kinds.POD, *pods)
        if number in (OPENING, OPENING_LATER):
            node = largecontroller.held(node)
            known = [c for c in claim.status.conditions if c.type != INITIALIZED]
            claim = changed(claim, status={"conditions": known})
        large.at_server(kinds.NODE_CLAIM, claim)
        large.at_server(kinds.NODE, node)
    large.act()
    return large


async def settle(large: LargeController) -> None:
    """Write the hash of each NodeClaim, as each new version of the controller does once."""
    for loop in large.loops:
        if loop.name in ("nodepool.readiness", "nodeclass"):
            for key in LOOPS[loop.name]:
                await loop.reconciler.reconcile(key)


@pytest.fixture(scope="module")
def made() -> list[LargeController]:
    return [prepared(nodes) for nodes in (WARM_UP, *SIZES)]


@pytest.fixture
async def clusters(made: list[LargeController]) -> list[LargeController]:
    for large in made:
        await settle(large)
    return made


def test_every_reconciler_is_counted_here() -> None:
    none = LargeController(0)
    assert {loop.name for loop in none.loops} == LOOPS.keys()
    assert {singleton.name for singleton in none.singletons} == ROUNDS.keys()


@pytest.mark.parametrize("name", LOOPS)
async def test_the_cost_of_a_reconciliation_is_independent_of_cluster_size(
    clusters: list[LargeController], name: str
) -> None:
    costs = []
    for large in clusters:
        loop = next(loop for loop in large.loops if loop.name == name)
        cost = []
        for key in LOOPS[name]:
            for _ in range(3):  # the first look, a second one, and one at the end of a deadline
                with counted() as work:
                    await loop.reconciler.reconcile(key)
                cost.append(work.steps)
                large.now += timedelta(seconds=20)
        large.now = NOW
        costs.append(cost)

    assert costs[1] == costs[2]
    assert all(costs[1])


def pod_bound(large: LargeController) -> None:
    large.fill(kinds.POD, make_pod("new"))
    pod = make_pod("new")
    large.fill(kinds.POD, changed(pod, spec={"node_name": f"node-{STEADY}"}))


def pod_waits_and_goes(large: LargeController) -> None:
    large.fill(kinds.POD, make_pod("another"))
    large.end(kinds.POD, make_pod("another"))


def node_ready_again(large: LargeController) -> None:
    node = largecontroller.node(9)
    for status in ("False", "True"):
        ready = [Condition(type="Ready", status=status, reason="Kubelet")]
        large.fill(kinds.NODE, changed(node, status={"conditions": ready}))


def claim_changed(large: LargeController) -> None:
    claim = largecontroller.claim(9)
    large.fill(kinds.NODE_CLAIM, largecontroller.leaving(claim), claim)


def node_comes_and_goes(large: LargeController) -> None:
    claim, node = largecontroller.claim(999_999), largecontroller.node(999_999)
    large.fill(kinds.NODE_CLAIM, claim)
    large.fill(kinds.NODE, node)
    large.end(kinds.NODE, node)
    large.end(kinds.NODE_CLAIM, claim)


def volume_attached(large: LargeController) -> None:
    large.fill(kinds.VOLUME_ATTACHMENT, largecontroller.attachment(LEAVING))
    large.end(kinds.VOLUME_ATTACHMENT, largecontroller.attachment(999_999))


@pytest.mark.parametrize(
    "happens",
    [
        pod_bound,
        pod_waits_and_goes,
        node_ready_again,
        claim_changed,
        node_comes_and_goes,
        volume_attached,
    ],
)
async def test_the_cost_of_an_event_is_independent_of_cluster_size(
    clusters: list[LargeController], happens: Callable[[LargeController], None]
) -> None:
    costs = []
    for large in clusters:
        with counted() as work:
            happens(large)
        costs.append(work.steps)

    assert costs[1] == costs[2] > 0


@pytest.mark.virtual_clock
@pytest.mark.parametrize("name", ROUNDS)
async def test_a_round_reads_no_unchanged_pod(clusters: list[LargeController], name: str) -> None:
    costs = []
    for large in clusters:
        singleton = next(s for s in large.singletons if s.name == name)
        rounds: Any = singleton.rounds
        for port, double in (("solve", no_nodes), ("engine", Elsewhere())):
            if hasattr(rounds, port):
                setattr(rounds, port, double)
        for _ in range(2):  # the first one reads what has changed
            if hasattr(rounds, "batch_window"):
                rounds.batch_window.nudge("pod")
            with counted() as work:
                await rounds.run_once()
        costs.append(work.steps)

    assert (costs[2] - costs[1]) / (SIZES[1] - SIZES[0]) <= ROUNDS[name]


async def test_opening_nodes_reads_only_pending_pods(
    clusters: list[LargeController],
) -> None:
    costs = []
    for large in clusters:
        waiting = [make_pod(f"waits-{number}") for number in range(20)]
        large.fill(kinds.POD, *waiting)
        with counted() as work:
            ordered = large.cluster.in_queue_order(waiting)
        costs.append(work.steps)
        assert [pod.metadata.name for pod in ordered] == [pod.metadata.name for pod in waiting]
        for pod in waiting:
            large.end(kinds.POD, pod)

    assert costs[1] == costs[2]
