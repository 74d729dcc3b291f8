"""Running clusters after their Deployments shrank: worlds for disruption, generated from seeds.

The pods of a mixed world run on the nodes that were launched for them. Then a share of each
Deployment's pods is deleted. The result is what consolidation finds in practice: half-empty nodes,
launched for pods that no longer exist. The same seed gives the same cluster.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any

from bench.parity.worlds import (
    ARCH,
    CAPACITY_TYPE,
    HOSTNAME,
    Object,
    World,
    mixed_types,
    mixed_world,
    node_pool,
    pod,
    requirement,
)
from controller.offline.world import load
from controller.scheduling.scheduler import schedule
from controller.scheduling.settings import from_names
from tests.oracle.replay import Replay

INSTANCE_TYPE = "node.kubernetes.io/instance-type"
MOMENT = "2026-01-01T00:00:00Z"
SETTLED = ("Launched", "Registered", "Initialized", "Ready", "Consolidatable")


def constrained(nodes: int, seed: int) -> World:
    """Return a cluster of about `nodes` nodes after its Deployments shrank by 40 to 70 %.

    It has what real clusters have: running daemons; pods and nodes with do-not-disrupt annotations;
    PodDisruptionBudgets and NodePool budgets; and NodePools that consolidate late, only empty
    nodes, or only for some reasons.
    """
    # The text of a seed never changes, so that published figures can be repeated.
    chance = random.Random(f"lived-in-{seed}")
    world = mixed_world(nodes * PODS_PER_NODE, seed)
    world["nodePools"] += [reliable(chance.randint(1, 100))]
    for waiting in world["pods"]:
        if waiting["metadata"]["labels"]["app"].endswith("7"):
            waiting["spec"] |= {"nodeSelector": {"tier": "reliable"}}
            waiting["spec"].pop("affinity", None)
    cluster = shrunk(running(world), seed, (0.4, 0.7))
    for pool in cluster["nodePools"]:
        pool["spec"]["disruption"] = {
            "consolidationPolicy": chance.choice(POLICIES),
            "consolidateAfter": chance.choice(("0s", "30s", "5m")),
            "budgets": chance.choice(BUDGETS),
        }
    _guard(cluster, chance)
    cluster["pods"] += [daemon(node["metadata"]["name"]) for node in cluster["nodes"]]
    if chance.random() < 0.3:
        for claim in chance.sample(cluster["nodeClaims"], max(1, len(cluster["nodeClaims"]) // 10)):
            claim["status"]["conditions"] += conditions(("Drifted",))
    return cluster


def _guard(world: World, chance: random.Random) -> None:
    """Add PodDisruptionBudgets to some groups, and do-not-disrupt to some pods and nodes."""
    groups: dict[str, list[Object]] = {}
    for member in world["pods"]:
        groups.setdefault(member["metadata"]["labels"]["app"], []).append(member)
    world["podDisruptionBudgets"] = [
        disruption_budget(app, chance.choice((0, 1, 1, 2, 5)))
        for app in sorted(groups)
        if chance.random() < 0.2
    ]
    for app in sorted(groups):
        if chance.random() < 0.05:
            kept = chance.choice(("true", "1h", "100000h"))
            for member in groups[app]:
                member["metadata"]["annotations"] = {"karpenter.sh/do-not-disrupt": kept}
    for node in world["nodes"]:
        if chance.random() < 0.02:
            node["metadata"]["annotations"] = {"karpenter.sh/do-not-disrupt": "true"}


def changing(nodes: int, seed: int) -> World:
    """Return a `constrained` cluster that is about to change.

    Some pods are pending, one node is still starting, and another is being deleted. A cluster of
    one node has only the pending pods.
    """
    chance = random.Random(f"restless-{seed}")
    world = constrained(nodes, seed)
    world["pods"] += [
        pod(f"waits-{n}", cpu=chance.choice((250, 1000)), memory=512) for n in range(4)
    ]
    if len(world["nodes"]) < 2:
        return world
    starting, leaving = chance.sample(range(len(world["nodes"])), 2)
    node, claim = world["nodes"][starting], world["nodeClaims"][starting]
    del node["metadata"]["labels"]["karpenter.sh/initialized"]
    claim["status"]["conditions"] = conditions(("Launched", "Registered"))
    name = node["metadata"]["name"]
    world["pods"] = [other for other in world["pods"] if other["spec"].get("nodeName") != name]
    node, claim = world["nodes"][leaving], world["nodeClaims"][leaving]
    claim["metadata"] |= {"deletionTimestamp": MOMENT, "finalizers": ["karpenter.sh/termination"]}
    node["spec"]["taints"].append({"key": "karpenter.sh/disrupted", "effect": "NoSchedule"})
    return world


PODS_PER_NODE = 9
"""Approximate number of pods of a mixed world per node that is launched for them."""

POLICIES = (*("WhenEmptyOrUnderutilized",) * 6, "WhenEmpty", "Balanced")

BUDGETS: tuple[list[Object], ...] = (
    [{"nodes": "100%"}],
    [{"nodes": "10%"}],
    [{"nodes": "3"}],
    [{"nodes": "100%", "reasons": ["Empty"]}, {"nodes": "20%"}],
    [{"nodes": "0", "schedule": "0 9 * * *", "duration": "8h"}, {"nodes": "50%"}],
    [{"nodes": "1", "schedule": "@daily", "duration": "1h"}, {"nodes": "50%"}],
)


def reliable(weight: int) -> Object:
    """Return a NodePool of on-demand instances, for pods that select it."""
    terms = [requirement(ARCH, "amd64"), requirement(CAPACITY_TYPE, "on-demand")]
    dear = {"key": "tier", "value": "reliable", "effect": "PreferNoSchedule"}
    return node_pool(
        "reliable", labels={"tier": "reliable"}, requirements=terms, taints=[dear], weight=weight
    )


def disruption_budget(app: str, allowed: int) -> Object:
    """Return a PodDisruptionBudget for the pods of a group."""
    return {
        "metadata": {"name": app, "namespace": "default"},
        "spec": {"selector": {"matchLabels": {"app": app}}, "maxUnavailable": allowed},
        "status": {"disruptionsAllowed": allowed},
    }


def daemon(node: str) -> Object:
    """Return the pod of the mixed worlds' DaemonSet on a node."""
    agent = pod(f"agent-{node}", cpu=100, memory=200, labels={"app": "agent"}, node=node)
    agent["metadata"] |= {
        "namespace": "kube-system",
        "ownerReferences": [
            {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "agent", "uid": "agent"}
        ],
    }
    agent["spec"]["tolerations"] = [{"operator": "Exists"}]
    return agent


def with_unlimited_budgets(world: World) -> World:
    """Return the world with NodePools that let all nodes be disrupted at once."""
    for pool in world["nodePools"]:
        pool["spec"]["disruption"] = {"consolidateAfter": "0s", "budgets": [{"nodes": "100%"}]}
    return world


def filled(nodes: int, share: tuple[float, float], seed: int = 1) -> World:
    """Return a cluster of exactly `nodes` nodes with ten pods each, built without any engine.

    The pods of a node request a share of it between the two bounds of `share`. Half of the nodes
    are spot, of many instance types. The others are on-demand, all of one type that their pods
    require. If the shares are near 1, no saving is possible: the pods of a node fit on no other
    node, spot nodes are not replaced by spot nodes, and no instance type is cheaper than the only
    one allowed.
    """
    chance = random.Random(seed)
    types = mixed_types(chance)
    fixed = next(instance_type for instance_type in types if instance_type["name"] == FIXED_TYPE)
    small = [
        instance_type
        for instance_type in types
        if int(instance_type["capacity"]["cpu"]) in (4, 8, 16)
    ]
    both = requirement(ARCH, "amd64", "arm64")
    world: World = {
        "pods": [],
        "nodes": [],
        "nodeClaims": [],
        "nodePools": [
            node_pool("spot", requirements=[both, requirement(CAPACITY_TYPE, "spot")], weight=50),
            node_pool(
                "fixed",
                requirements=[
                    requirement(CAPACITY_TYPE, "on-demand"),
                    requirement(INSTANCE_TYPE, FIXED_TYPE),
                ],
            ),
        ],
        "instanceTypes": types,
    }
    for number in range(nodes):
        pool, capacity_type = ("spot", "spot") if number % 2 else ("fixed", "on-demand")
        kind = chance.choice(small) if number % 2 else fixed
        places = [offering["requirements"] for offering in kind["offerings"]]
        place = chance.choice(
            [
                requirements
                for requirements in places
                if requirements[CAPACITY_TYPE] == capacity_type
            ]
        )
        name = f"node-{number:05d}"
        labels = {term["key"]: term["values"][0] for term in kind["requirements"]} | place
        labels |= {HOSTNAME: name, "karpenter.sh/nodepool": pool}
        node, claim = node_and_claim(name, pool, labels, kind)
        world["nodes"].append(node)
        world["nodeClaims"].append(claim)
        weights = [chance.uniform(1, 3) for _ in range(10)]
        millicores = int(kind["capacity"]["cpu"]) * 1000 - 100
        wanted = chance.uniform(*share) * millicores / sum(weights)
        for place_in_node, weight in enumerate(weights):
            replica = pod(
                f"p-{number}-{place_in_node}",
                cpu=int(wanted * weight),
                memory=int(wanted * weight),
                labels={"app": f"g{chance.randrange(nodes // 10)}"},
                nodeSelector={CAPACITY_TYPE: capacity_type},
            )
            world["pods"].append(_bound(replica, name))
    return with_unlimited_budgets(world)


FIXED_TYPE = "m5.2xlarge"


def underused(pods: int, seed: int, *, shrink: tuple[float, float] = (0.4, 0.7)) -> World:
    """Return a cluster that ran `pods` mixed pods, after each group lost a share of them."""
    return shrunk(running(mixed_world(pods, seed)), seed, shrink)


def running(world: World) -> World:
    """Return the world with every pod on the cheapest node that was planned for it."""
    read = load(world)
    results = schedule(read.pods, snapshot=read.snapshot, settings=from_names(read.settings))
    answer: dict[str, Any] = {
        "newNodes": [
            {
                "nodePool": node.node_pool,
                "instanceTypes": list(node.instance_types),
                "requirements": [
                    {"key": r.key, "operator": r.operator, "values": list(r.values)}
                    for r in node.requirements
                ],
                "price": node.price,
                "pods": list(node.pods),
            }
            for node in results.new_nodes
        ],
        "existingNodes": {},
        "unschedulable": {key: list(why) for key, why in results.unschedulable.items()},
        "cost": results.cost,
    }
    replay = Replay(world, answer, world["instanceTypes"])
    pods = {f"{p['metadata']['namespace']}/{p['metadata']['name']}": p for p in world["pods"]}
    types = {instance_type["name"]: instance_type for instance_type in world["instanceTypes"]}
    cluster: World = {**world, "pods": [], "nodes": [], "nodeClaims": []}
    for number, (node_info, new) in enumerate(
        zip(replay.new_nodes(), answer["newNodes"], strict=True)
    ):
        name = f"node-{number:05d}"
        kind = types[node_info.labels["node.kubernetes.io/instance-type"]]
        labels = {
            **{k: v for k, v in node_info.labels.items() if "beta.kubernetes.io" not in k},
            HOSTNAME: name,
            "karpenter.sh/nodepool": new["nodePool"],
        }
        node, claim = node_and_claim(name, new["nodePool"], labels, kind, node_info.taints)
        cluster["nodes"].append(node)
        cluster["nodeClaims"].append(claim)
        cluster["pods"] += [_bound(pods[key], name) for key in new["pods"]]
    return cluster


def shrunk(world: World, seed: int, shrink: tuple[float, float]) -> World:
    """Return the world without a random share of each group of pods."""
    chance = random.Random(f"shrink-{seed}")
    groups: dict[str, list[Object]] = {}
    for member in world["pods"]:
        groups.setdefault(member["metadata"]["labels"].get("app", ""), []).append(member)
    left: list[Object] = []
    for name in sorted(groups):
        alike = groups[name]
        keep = max(1, round(len(alike) * (1 - chance.uniform(*shrink))))
        left += chance.sample(alike, keep)
    return {**world, "pods": sorted(left, key=lambda member: str(member["metadata"]["name"]))}


def node_and_claim(
    name: str, pool: str, labels: dict[str, str], kind: Object, taints: Sequence[Any] = ()
) -> tuple[Object, Object]:
    """Return an initialized node of an instance type, and its NodeClaim."""
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
        "spec": {"providerID": provider_id, "taints": [dict(taint) for taint in taints]},
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
            "taints": [dict(taint) for taint in taints],
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
    """Return conditions that have been true for a long time."""
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
