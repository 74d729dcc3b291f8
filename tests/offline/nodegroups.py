"""The example clusters of docs/how-to/advise.md.

`python -m tests.offline.nodegroups` prints a cluster of three EKS node groups without Karpenter or
Joiner as a recorded world; with `--karpenter`, a cluster that Karpenter runs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import msgspec

from bench.parity.worlds import (
    CAPACITY_TYPE,
    HOSTNAME,
    ZONE,
    Object,
    World,
    instance_type,
    node_pool,
    offering,
    pod,
    required_term,
    requirement,
)
from controller.apis.karpenter import hashes
from controller.apis.karpenter.nodepool import NodePool

ZONES = ("us-west-2a", "us-west-2b", "us-west-2c")
NODE_GROUP = "eks.amazonaws.com/nodegroup"
CATEGORY = "karpenter.k8s.aws/instance-category"
GENERATION = "karpenter.k8s.aws/instance-generation"
FAMILY = "karpenter.k8s.aws/instance-family"

FAMILIES = (
    ("c5", 2, 0.0425, "amd64"),
    ("m5", 4, 0.048, "amd64"),
    ("r5", 8, 0.063, "amd64"),
    ("c6g", 2, 0.034, "arm64"),
    ("m6g", 4, 0.0385, "arm64"),
    ("r6g", 8, 0.0504, "arm64"),
)
"""Family, GiB per CPU, $/h per CPU, architecture. Prices are those of us-west-2, rounded."""

SIZES = (("large", 2), ("xlarge", 4), ("2xlarge", 8), ("4xlarge", 16))
SPOT = 0.45
"""The price of a spot instance, as a share of the on-demand price."""


def cluster(*pools: Object) -> World:
    """Return the cluster; its NodePools are those given, none by default."""
    nodes = {
        "general": list(_nodes("general", "m5.2xlarge", 8)),
        "search": list(_nodes("search", "r5.2xlarge", 3, team="search")),
        "batch": list(_nodes("batch", "c5.4xlarge", 2, capacity_type="spot")),
    }
    return {
        "pods": [
            *_spread(_deployment("shop", "web", 24, cpu=500, memory=1024), nodes["general"]),
            *_spread(_deployment("shop", "cart", 12, cpu=250, memory=2048), nodes["general"]),
            *_spread(
                _deployment("shop", "payments", 4, cpu=1000, memory=2048), nodes["general"][:4]
            ),
            *_spread(
                _deployment(
                    "shop",
                    "proxy",
                    8,
                    cpu=100,
                    memory=128,
                    affinity={"podAntiAffinity": required_term({"app": "proxy"}, HOSTNAME)},
                ),
                nodes["general"],
            ),
            *_spread(
                _deployment(
                    "search", "index", 8, cpu=1000, memory=8192, nodeSelector={"team": "search"}
                ),
                nodes["search"],
            ),
            *_spread(
                _deployment(
                    "reports",
                    "worker",
                    9,
                    cpu=1500,
                    memory=2048,
                    nodeSelector={NODE_GROUP: "batch"},
                ),
                nodes["batch"],
            ),
            *_spread(_protected("reports", "monthly"), nodes["general"][5:]),
        ],
        "nodes": [node for group in nodes.values() for node in group],
        "nodePools": list(pools),
        "podDisruptionBudgets": [_budget("shop", "payments", 0), _budget("shop", "web", 4)],
        "instanceTypes": list(_types()),
    }


def first_pool() -> Object:
    """Return a NodePool as a careful team writes its first: on-demand and amd64 only."""
    pool = node_pool(
        requirements=[
            requirement("kubernetes.io/arch", "amd64"),
            requirement(CAPACITY_TYPE, "on-demand"),
            requirement(CATEGORY, "c", "m"),
        ],
        limits={"cpu": "200"},
        disruption={"consolidationPolicy": "WhenEmptyOrUnderutilized", "consolidateAfter": "1m"},
    )
    template = pool["spec"]["template"]
    del template["metadata"], template["spec"]["taints"]
    return pool


def run_by_karpenter() -> World:
    """Return the pods of namespace shop on eight nodes that Karpenter launched for NodePool
    default.
    """
    pool = first_pool()
    stamp = {
        "karpenter.sh/nodepool-hash": hashes.node_pool_hash(msgspec.convert(pool, NodePool)),
        "karpenter.sh/nodepool-hash-version": hashes.NODE_POOL_VERSION,
    }
    pool["metadata"]["annotations"] = stamp
    whole = cluster(pool)
    nodes = [node for node in whole["nodes"] if node["metadata"]["name"].startswith("general")]
    claims = []
    for node in nodes:
        labels = {
            key: value
            for key, value in node["metadata"]["labels"].items()
            if not key.startswith("eks.amazonaws.com/")
        }
        labels |= {"karpenter.sh/nodepool": "default", CAPACITY_TYPE: "on-demand"}
        born = {"karpenter.sh/registered": "true", "karpenter.sh/initialized": "true"}
        node["metadata"]["labels"] = labels | born
        claims.append(
            {
                "metadata": {
                    "name": f"default-{node['metadata']['name']}",
                    "labels": labels,
                    "annotations": stamp,
                },
                "spec": {"nodeClassRef": pool["spec"]["template"]["spec"]["nodeClassRef"]},
                "status": {
                    **node["status"],
                    "nodeName": node["metadata"]["name"],
                    "providerID": node["spec"]["providerID"],
                    "conditions": [
                        {"type": kind, "status": "True"}
                        for kind in ("Launched", "Registered", "Initialized", "Ready")
                    ],
                },
            }
        )
    pods = [pod for pod in whole["pods"] if pod["metadata"]["namespace"] == "shop"]
    return {**whole, "nodes": nodes, "nodeClaims": claims, "pods": pods}


def _types() -> Iterator[Object]:
    for family, memory, price, arch in FAMILIES:
        for size, cpu in SIZES:
            yield instance_type(
                f"{family}.{size}",
                cpu=cpu,
                memory_gib=memory * cpu,
                pods=29 if cpu == 2 else 58,
                arch=arch,
                offerings=[
                    offering(zone, capacity_type, price * cpu * share)
                    for zone in ZONES
                    for capacity_type, share in (("on-demand", 1.0), ("spot", SPOT))
                ],
                **{FAMILY: family, CATEGORY: family[0], GENERATION: family[1]},
            )


def _nodes(
    group: str, kind: str, number: int, *, capacity_type: str = "on-demand", **more: str
) -> Iterator[Object]:
    types = {each["name"]: each for each in _types()}
    for index in range(number):
        name = f"{group}-{index}"
        labels = {
            requirement["key"]: requirement["values"][0]
            for requirement in types[kind]["requirements"]
        }
        labels |= {
            HOSTNAME: name,
            ZONE: ZONES[index % len(ZONES)],
            NODE_GROUP: group,
            "eks.amazonaws.com/capacityType": capacity_type.upper().replace("-", "_"),
            **more,
        }
        size = types[kind]["capacity"]
        yield {
            "metadata": {"name": name, "uid": name, "labels": labels},
            "spec": {"providerID": f"aws:///{labels[ZONE]}/{name}"},
            "status": {
                "capacity": size,
                "allocatable": size,
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }


def _deployment(
    namespace: str, app: str, replicas: int, *, cpu: int, memory: int, **spec: Any
) -> list[Object]:
    made = []
    for number in range(replicas):
        member = pod(
            f"{app}-7d9f8c6b5-{number:05d}", cpu=cpu, memory=memory, labels={"app": app}, **spec
        )
        member["metadata"] |= {
            "namespace": namespace,
            "labels": {"app": app, "pod-template-hash": "7d9f8c6b5"},
            "ownerReferences": [
                {
                    "apiVersion": "apps/v1",
                    "kind": "ReplicaSet",
                    "name": f"{app}-7d9f8c6b5",
                    "uid": f"{namespace}-{app}",
                    "controller": True,
                }
            ],
        }
        made.append(member)
    return made


def _protected(namespace: str, app: str) -> list[Object]:
    made = _deployment(namespace, app, 1, cpu=500, memory=1024)
    made[0]["metadata"]["annotations"] = {"karpenter.sh/do-not-disrupt": "true"}
    return made


def _spread(pods: list[Object], nodes: list[Object]) -> Iterator[Object]:
    """Yield the pods, one after the other on the next of the nodes."""
    for index, member in enumerate(pods):
        member["spec"]["nodeName"] = nodes[index % len(nodes)]["metadata"]["name"]
        yield {**member, "status": {"phase": "Running", "startTime": "2026-11-01T00:00:00Z"}}


def _budget(namespace: str, app: str, allowed: int) -> Object:
    return {
        "metadata": {"name": app, "namespace": namespace},
        "spec": {"selector": {"matchLabels": {"app": app}}, "maxUnavailable": allowed},
        "status": {"disruptionsAllowed": allowed, "expectedPods": 4},
    }


if __name__ == "__main__":
    pools = [first_pool()] if "--with-pool" in sys.argv else []
    json.dump(run_by_karpenter() if "--karpenter" in sys.argv else cluster(*pools), sys.stdout)
