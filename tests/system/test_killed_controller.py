"""A controller that is killed at any moment loses nothing and launches nothing twice.

A Deployment grows in waves. Every pod needs its own node, so the number of instances ever launched
is known. In each wave the leading process gets a SIGKILL at an observed state, not after a fixed
time.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import pytest

from testbed.cloud.control import InstanceView
from testbed.kube.client import KubeClient, Object
from tests.system.region import (
    DEPLOYMENTS,
    NODE_CLAIMS,
    NODES,
    PODS,
    Controllers,
    Region,
    deployment,
    eventually,
    holds,
)

pytestmark = pytest.mark.system

NAME = "lonely"
WAVE = 3
"""Number of pods, and thus of nodes, that each wave adds."""

CLAIM_TAG = "karpenter.sh/nodeclaim"
STEPS = ("Launched", "Registered", "Initialized")
SLOW_SECONDS = 25.0
"""Delay before CreateFleet's effect, or before its answer, in waves with such a delay."""


@dataclass(frozen=True, slots=True)
class Wave:
    """The state of one wave: its own pods, NodeClaims, nodes and instances."""

    pods: list[Object]
    claims: list[Object]
    nodes: list[Object]
    instances: list[InstanceView]

    def claims_that(self, kind: str) -> int:
        """Return the number of NodeClaims on which a condition is true."""
        return sum(holds(claim, kind) for claim in self.claims)

    @property
    def running(self) -> int:
        """Return the number of running pods."""
        return sum(holds(pod, "Ready") for pod in self.pods)

    @property
    def unanswered(self) -> int:
        """Return the number of instances whose NodeClaim does not have their provider ID yet."""
        known = {c["status"]["providerID"] for c in self.claims if c["status"].get("providerID")}
        return sum(not any(i.instance_id in each for each in known) for i in self.instances)

    def __str__(self) -> str:
        steps = {kind: self.claims_that(kind) for kind in STEPS}
        return (
            f"{len(self.pods)} pods, {self.running} running; {len(self.claims)} NodeClaims, "
            f"{steps}; {len(self.nodes)} nodes; {Counter(i.state for i in self.instances)}, "
            f"{sum(CLAIM_TAG in i.tags for i in self.instances)} tagged"
        )


@dataclass(frozen=True, slots=True)
class Moment:
    """The state in which to kill; `fleet` selects how CreateFleet behaves in this wave."""

    title: str
    has_come: Callable[[Wave], bool]
    is_fleet_late: bool = False
    is_answer_late: bool = False


MOMENTS = (
    Moment("pods wait and nothing is written", lambda w: len(w.pods) == WAVE),
    Moment("the first NodeClaim is written", lambda w: len(w.claims) >= 1),
    Moment(
        "all NodeClaims are written and their CreateFleet is under way",
        lambda w: len(w.claims) - w.claims_that("Launched") >= WAVE,
        is_fleet_late=True,
    ),
    Moment(
        "instances exist and are not recorded",
        lambda w: w.unanswered >= 2,
        is_answer_late=True,
    ),
    Moment(
        "the first instance is pending", lambda w: any(i.state == "pending" for i in w.instances)
    ),
    Moment("the first claim is launched", lambda w: w.claims_that("Launched") >= 1),
    Moment("every claim is launched", lambda w: w.claims_that("Launched") >= WAVE),
    Moment("the first node has joined", lambda w: len(w.nodes) >= 1),
    Moment("the first node is registered", lambda w: w.claims_that("Registered") >= 1),
    Moment("the first pod runs", lambda w: w.running >= 1),
)


@dataclass(slots=True)
class Growth:
    """A Deployment whose pods have anti-affinity to each other, and its nodes."""

    region: Region
    kube: KubeClient
    seen: str = "nothing"

    async def begin(self) -> None:
        """Create the Deployment with zero replicas."""
        apart = {
            "labelSelector": {"matchLabels": {"app": NAME}},
            "topologyKey": "kubernetes.io/hostname",
        }
        rule = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}}
        await self.kube.create(DEPLOYMENTS, deployment(NAME, 0, affinity=rule))

    async def grow(self, pods: int) -> None:
        """Set the total number of replicas."""
        await self.kube.patch(f"{DEPLOYMENTS}/{NAME}", {"spec": {"replicas": pods}})

    async def names(self) -> frozenset[str]:
        """Return the names of the existing pods and NodeClaims."""
        now = await self.look()
        return frozenset(o["metadata"]["name"] for o in (*now.pods, *now.claims))

    async def look(self, before: frozenset[str] = frozenset()) -> Wave:
        """Return the current state, without the objects in `before`."""
        (pods, _), (claims, _), (nodes, _), instances = await asyncio.gather(
            self.kube.list(PODS),
            self.kube.list(NODE_CLAIMS),
            self.kube.list(NODES),
            asyncio.to_thread(self.region.cloud.instances),
        )
        new = [c for c in claims if c["metadata"]["name"] not in before]
        own = [i for i in instances.instances if i.tags.get(CLAIM_TAG, "") not in before]
        ids = {i.instance_id for i in own}
        wave = Wave(
            pods=[p for p in pods if p["metadata"]["name"] not in before],
            claims=[{"status": {}, **claim} for claim in new],
            nodes=[n for n in nodes if n["spec"].get("providerID", "").rpartition("/")[2] in ids],
            instances=own,
        )
        self.seen = str(wave)
        return wave


@pytest.fixture
async def growth(region: Region, kube: KubeClient) -> AsyncIterator[Growth]:
    region.up()
    # A surplus instance must be visible at the end, however soon it was terminated.
    region.cloud.change_settings(terminated_visible=3600.0)
    yield Growth(region, kube)
    region.cloud.clear_faults()
    region.destroy()
    assert region.cloud.leftovers() == {}


async def test_ten_kills_during_a_scale_up_lose_nothing_and_leave_no_surplus_instance(
    region: Region, kube: KubeClient, growth: Growth
) -> None:
    controllers = Controllers(region, kube)
    await growth.begin()

    for number, moment in enumerate(MOMENTS, start=1):
        await controllers.leader()
        before = await growth.names()
        slow_down(region, moment)
        await growth.grow(number * WAVE)

        async def has_come(moment: Moment = moment, before: frozenset[str] = before) -> bool:
            return moment.has_come(await growth.look(before))

        await eventually(moment.title, has_come, otherwise=lambda: growth.seen)
        print(f"{number}. {moment.title}: {growth.seen}")
        await controllers.kill_leader()

    whole = await eventually(
        "every pod runs and every instance is tagged",
        lambda: stable_wave(growth),
        otherwise=lambda: growth.seen,
    )

    expect_one_instance_for_each_claim(whole)
    assert len(controllers.killed) == len(MOMENTS)


def slow_down(region: Region, moment: Moment) -> None:
    """Delay the wave's CreateFleet calls, before or after they take effect."""
    region.cloud.clear_faults()
    if moment.is_fleet_late or moment.is_answer_late:
        region.cloud.order_fault(
            action="CreateFleet", times=None, delay=SLOW_SECONDS, after=moment.is_answer_late
        )


async def stable_wave(growth: Growth) -> Wave | None:
    now = await growth.look()
    wanted = len(MOMENTS) * WAVE
    # Instances of a shared launch are tagged with their NodeClaims once these are registered.
    # The others, which a killed controller had launched, are terminated by garbage collection.
    tagged = sum(CLAIM_TAG in instance.tags for instance in now.instances)
    counts = now.running, now.claims_that("Initialized"), tagged, len(living(now))
    return now if set(counts) == {wanted} else None


def living(wave: Wave) -> list[InstanceView]:
    return [i for i in wave.instances if i.state not in ("shutting-down", "terminated")]


def expect_one_instance_for_each_claim(whole: Wave) -> None:
    wanted = len(MOMENTS) * WAVE
    claims = {c["metadata"]["name"]: c["status"]["providerID"] for c in whole.claims}
    launched = {i.tags.get(CLAIM_TAG, ""): i.instance_id for i in living(whole)}

    assert [i.state for i in living(whole)] == ["running"] * wanted
    assert launched.keys() == claims.keys()
    assert all(claims[name].endswith(instance) for name, instance in launched.items())
    assert sorted(n["spec"]["providerID"] for n in whole.nodes) == sorted(claims.values())
    assert len({p["spec"]["nodeName"] for p in whole.pods}) == wanted
