"""Running clusters after their deployments shrank: worlds to disrupt, made from seeds.

The pods of a mixed world are placed on the nodes they were bought for, then a share of each
deployment goes. What is left is what consolidation finds on a Monday: nodes half empty, bought
for pods that are gone. The same seed is the same cluster.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any

from controller.offline.world import load
from controller.scheduling.scheduler import schedule
from controller.scheduling.settings import from_names
from tests.oracle.replay import Replay
from tests.parity.worlds import HOSTNAME, Object, World, mixed

MOMENT = "2026-01-01T00:00:00Z"
SETTLED = ("Launched", "Registered", "Initialized", "Ready", "Consolidatable")


def underused(pods: int, seed: int, *, shrink: tuple[float, float] = (0.4, 0.7)) -> World:
    """Return a cluster that ran so many mixed pods, of which each group has lost its share."""
    return shrunk(running(mixed(pods, seed)), seed, shrink)


def running(world: World) -> World:
    """Return the world with every pod on the cheapest node that was to be made for it."""
    read = load(world)
    results = schedule(read.pods, snapshot=read.snapshot, settings=from_names(read.settings))
    answer: dict[str, Any] = {
        "newNodes": [
            {
                "nodePool": one.node_pool,
                "instanceTypes": list(one.instance_types),
                "requirements": [
                    {"key": r.key, "operator": r.operator, "values": list(r.values)}
                    for r in one.requirements
                ],
                "price": one.price,
                "pods": list(one.pods),
            }
            for one in results.new_nodes
        ],
        "existingNodes": {},
        "unschedulable": {key: list(why) for key, why in results.unschedulable.items()},
        "cost": results.cost,
    }
    replay = Replay(world, answer, world["instanceTypes"])
    pods = {f"{p['metadata']['namespace']}/{p['metadata']['name']}": p for p in world["pods"]}
    types = {one["name"]: one for one in world["instanceTypes"]}
    found: World = {**world, "pods": [], "nodes": [], "nodeClaims": []}
    for number, (machine, new) in enumerate(
        zip(replay.machines(), answer["newNodes"], strict=True)
    ):
        name = f"node-{number:05d}"
        kind = types[machine.labels["node.kubernetes.io/instance-type"]]
        labels = {
            **{k: v for k, v in machine.labels.items() if "beta.kubernetes.io" not in k},
            HOSTNAME: name,
            "karpenter.sh/nodepool": new["nodePool"],
        }
        node, claim = node_and_claim(name, new["nodePool"], labels, kind, machine.taints)
        found["nodes"].append(node)
        found["nodeClaims"].append(claim)
        found["pods"] += [_bound(pods[key], name) for key in new["pods"]]
    return found


def shrunk(world: World, seed: int, shrink: tuple[float, float]) -> World:
    """Return the world without a share of each group of pods, chosen at random."""
    chance = random.Random(f"shrink-{seed}")
    groups: dict[str, list[Object]] = {}
    for pod in world["pods"]:
        groups.setdefault(pod["metadata"]["labels"].get("app", ""), []).append(pod)
    left: list[Object] = []
    for name in sorted(groups):
        alike = groups[name]
        keep = max(1, round(len(alike) * (1 - chance.uniform(*shrink))))
        left += chance.sample(alike, keep)
    return {**world, "pods": sorted(left, key=lambda pod: str(pod["metadata"]["name"]))}


def node_and_claim(
    name: str, pool: str, labels: dict[str, str], kind: Object, taints: Sequence[Any] = ()
) -> tuple[Object, Object]:
    """Return an initialized node of a type and its claim."""
    provider_id = f"aws:///zone/{name}"
    capacity = dict(kind["capacity"])
    cpu, memory = int(capacity["cpu"]) * 1000, int(capacity["memory"][:-2])
    allocatable = {**capacity, "cpu": f"{cpu - 100}m", "memory": f"{memory - 10}Mi"}
    held = {**labels, "karpenter.sh/registered": "true", "karpenter.sh/initialized": "true"}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "uid": f"uid-{name}",
            "labels": held,
            "creationTimestamp": MOMENT,
        },
        "spec": {"providerID": provider_id, "taints": [dict(one) for one in taints]},
        "status": {"capacity": capacity, "allocatable": allocatable, "conditions": [ready]},
    }
    claim = {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodeClaim",
        "metadata": {
            "name": f"{pool}-{name}",
            "uid": f"uid-{pool}-{name}",
            "labels": dict(labels),
            "creationTimestamp": MOMENT,
        },
        "spec": {
            "nodeClassRef": {
                "group": "karpenter.k8s.aws",
                "kind": "EC2NodeClass",
                "name": "default",
            },
            "requirements": [],
            "taints": [dict(one) for one in taints],
        },
        "status": {
            "providerID": provider_id,
            "nodeName": name,
            "capacity": capacity,
            "allocatable": allocatable,
            "conditions": conditions(SETTLED),
        },
    }
    return node, claim


def conditions(types: Iterable[str]) -> list[Object]:
    """Return conditions that have been true for long."""
    return [
        {"type": t, "status": "True", "reason": t, "message": "", "lastTransitionTime": MOMENT}
        for t in types
    ]


def _bound(pod: Object, node: str) -> Object:
    return {
        **pod,
        "spec": {**pod["spec"], "nodeName": node},
        "status": {"phase": "Running", "startTime": MOMENT},
    }
