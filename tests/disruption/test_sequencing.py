"""The commands of one pass keep every rule when executed one after the other."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pytest

from bench.parity.worlds import HOSTNAME, instance_type, node_pool, offering, pod, requirement
from controller.offline.disrupt import course_content, evaluate, new_course, problem_of
from controller.offline.world import load
from tests.disruption.clusters import node_and_claim
from tests.oracle.disruption import played
from tests.seeds import seeds

NOW = datetime(2026, 11, 1, 12, tzinfo=UTC)
ZONES = ("a", "b", "c")
ZONE, CAPACITY_TYPE = "topology.kubernetes.io/zone", "karpenter.sh/capacity-type"

World = dict[str, Any]


def exchanging(seed: int) -> World:
    """Return a cluster of nodes that are too large, in zones of different prices, whose pods are
    spread over zones: plans exchange zones between pods.
    """
    chance = random.Random(f"swap-{seed}")
    factor = {zone: chance.choice((0.7, 1.0, 1.0, 1.3)) for zone in ZONES}
    types = [
        instance_type(
            name,
            cpu=cpu,
            memory_gib=4 * cpu,
            pods=50,
            offerings=[offering(zone, "on-demand", 0.05 * cpu * factor[zone]) for zone in ZONES],
        )
        for name, cpu in (("s", 2), ("m", 4), ("l", 8), ("x", 16))
    ]
    disruption = {
        "consolidationPolicy": "WhenEmptyOrUnderutilized",
        "consolidateAfter": "0s",
        "budgets": [{"nodes": "100%"}],
    }
    bought = requirement(CAPACITY_TYPE, "on-demand")
    pools = [node_pool("general", requirements=[bought], disruption=disruption)]
    cluster: World = {
        "nodes": [], "nodeClaims": [], "pods": [], "nodePools": pools, "instanceTypes": types
    }  # fmt: skip
    zones = [
        chance.choice(ZONES) if chance.random() < 0.5 else ZONES[number % 3]
        for number in range(chance.randint(5, 14))
    ]
    apps = [
        (f"g{number}", chance.choice((300, 700, 1500, 1900)), chance.random() < 0.8)
        for number in range(chance.randint(1, 3))
    ]
    count = {app: dict.fromkeys(ZONES, 0) for app, _, _ in apps}
    for number, zone in enumerate(zones):
        kind, name = chance.choice(types[1:]), f"n{number}"
        labels = {term["key"]: term["values"][0] for term in kind["requirements"]} | {
            ZONE: zone,
            CAPACITY_TYPE: "on-demand",
            "karpenter.sh/nodepool": "general",
            HOSTNAME: name,
        }
        node, claim = node_and_claim(name, "general", labels, kind)
        cluster["nodes"].append(node)
        cluster["nodeClaims"].append(claim)
        for app, cpu, is_spread in apps:
            there = count[app]
            for _ in range(chance.choice((0, 0, 1, 1, 1, 2))):
                if is_spread and there[zone] + 1 - min(there.values()) > 1:
                    continue
                there[zone] += 1
                key = f"{app}-{len(cluster['pods']) + 1}"
                cluster["pods"].append(running(key, app, cpu, name, is_spread=is_spread))
    return cluster


def running(name: str, app: str, cpu: int, node: str, *, is_spread: bool) -> Any:
    spread = {
        "maxSkew": 1,
        "topologyKey": ZONE,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": app}},
    }
    more: World = {"topologySpreadConstraints": [spread]} if is_spread else {}
    made = pod(name, cpu=cpu, memory=256, labels={"app": app}, **more)
    made["spec"]["nodeName"] = node
    made["status"] = {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"}
    return made


@pytest.mark.parametrize("with_eviction_cost", [False, True])
@pytest.mark.parametrize("seed", seeds([8, 22], of=[0, 8, 22, 23, 27]))
def test_every_command_is_valid_after_the_commands_before_it(
    seed: int, *, with_eviction_cost: bool
) -> None:
    cluster = exchanging(seed)
    course = new_course(problem_of(load(cluster), now=NOW, with_eviction_cost=with_eviction_cost))
    ends = [0]
    while evaluate(course, 60.0):
        ends.append(len(course.commands))
    commands = course_content(course)["commands"]

    assert len(commands) > 1
    _, together = played(
        cluster, cluster["instanceTypes"], [commands[a:b] for a, b in pairwise(ends)], NOW
    )
    _, in_turn = played(cluster, cluster["instanceTypes"], [[each] for each in commands], NOW)
    assert (together, in_turn) == ([], [])
