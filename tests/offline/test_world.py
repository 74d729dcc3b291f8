"""A recorded world is read completely, or rejected with the object and the field."""

from __future__ import annotations

from typing import Any

import pytest

from controller.offline.wirevalues import WorldError
from controller.offline.world import load, types_file

POD = {"metadata": {"name": "web", "namespace": "default"}, "spec": {}}
TYPE = {"name": "t", "capacity": {"cpu": "2"}, "offerings": []}
CLASS = {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "n"}
POOL: dict[str, Any] = {
    "metadata": {"name": "default"},
    "spec": {"template": {"spec": {"nodeClassRef": CLASS}}},
}


@pytest.mark.parametrize(
    ("world", "words"),
    [
        ({"instanceTypes": []}, "pods: required"),
        ({"pods": []}, "instanceTypes: required"),
        ({"pods": [], "instanceTypes": [], "nods": []}, "nods: unknown key"),
        ({"pods": {}, "instanceTypes": []}, "pods: {}: expected a list"),
        (
            {"pods": [POD, {**POD, "spec": {"containers": 3}}], "instanceTypes": []},
            r"pods\[1\] default/web: spec.containers: Expected `array`",
        ),
        (
            {"pods": [], "instanceTypes": [{**TYPE, "capacity": {"cpu": "two"}}]},
            r"instanceTypes\[0\] t: capacity.cpu: 'two' is not a quantity",
        ),
        ({"pods": [], "instanceTypes": {"path": "x"}}, "instanceTypes: expected a list or"),
        ({"pods": [], "instanceTypes": [], "settings": []}, "settings: expected an object"),
        (
            {
                "pods": [],
                "instanceTypes": [
                    {**TYPE, "requirements": [{"key": "k", "operator": "Near", "values": []}]}
                ],
            },
            r"requirements\[0\]: k: operator 'Near'",
        ),
    ],
)
def test_a_malformed_world_is_named(world: dict[str, Any], words: str) -> None:
    with pytest.raises(WorldError, match=words):
        load(world)


def new_node(name: str, pool: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": {"karpenter.sh/nodepool": pool}},
        "spec": {
            "providerID": f"aws:///zone-a/{name}",
            "taints": [{"key": "karpenter.sh/unregistered", "effect": "NoExecute"}],
        },
    }


def new_claim(name: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": {"karpenter.sh/nodepool": "default"}},
        "spec": {"nodeClassRef": CLASS, "requirements": []},
    }


def test_a_node_that_is_seen_before_its_nodeclaim_has_the_provider_id_counts_once() -> None:
    known = {**new_claim("known"), "status": {"providerID": "aws:///zone-a/joined"}}
    names = {"joined": "default", "seen": "default", "orphan": "other"}
    world = load(
        {
            "pods": [],
            "instanceTypes": [],
            "nodes": [new_node(name, pool) for name, pool in names.items()],
            "nodeClaims": [known, new_claim("launching"), new_claim("planned")],
        }
    )

    found = {node.name for node in world.snapshot.nodes}
    assert found == {"joined", "orphan", "launching", "planned"}


OF_DAEMONSET = {"apiVersion": "apps/v1", "kind": "DaemonSet"}


def test_unbound_pods_are_pending_unless_finished_or_of_daemonsets() -> None:
    bound = {"metadata": {"name": "bound"}, "spec": {"nodeName": "n"}}
    done = {"metadata": {"name": "done"}, "spec": {}, "status": {"phase": "Failed"}}
    daemon = {"metadata": {"name": "d", "ownerReferences": [OF_DAEMONSET]}, "spec": {}}

    world = load({"pods": [POD, bound, done, daemon], "instanceTypes": []})

    assert [pod.metadata.name for pod in world.pods] == ["web"]
    assert [pod.metadata.name for pod in world.snapshot.pods] == ["bound"]


def test_a_priority_class_gives_pods_their_priority() -> None:
    named = {**POD, "spec": {"priorityClassName": "high"}}
    classes = [
        {"metadata": {"name": "high"}, "value": 1000},
        {"metadata": {"name": "low"}, "value": 7, "globalDefault": True},
    ]

    world = load({"pods": [named, POD], "instanceTypes": [], "priorityClasses": classes})

    assert [pod.spec.priority for pod in world.pods] == [1000, 7]


def test_pools_that_are_not_ready_are_excluded() -> None:
    static = {**POOL, "metadata": {"name": "static"}, "spec": {**POOL["spec"], "replicas": 2}}
    unready = {
        **POOL,
        "metadata": {"name": "unready"},
        "status": {"conditions": [{"type": "Ready", "status": "False"}]},
    }
    neighbours = {"group": "eks.amazonaws.com", "kind": "NodeClass", "name": "n"}
    foreign = {
        "metadata": {"name": "foreign"},
        "spec": {"template": {"spec": {"nodeClassRef": neighbours}}},
    }
    pools = [POOL, static, unready, foreign]

    world = load({"pods": [], "instanceTypes": [TYPE], "nodePools": pools})

    assert [pool.metadata.name for pool in world.snapshot.node_pools] == ["default"]
    assert [instance_type.name for instance_type in world.snapshot.instance_types["default"]] == [
        "t"
    ]


def test_types_may_come_from_a_kwok_file() -> None:
    terms = [
        {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot"]},
        {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["a"]},
    ]
    rows = [
        {
            "name": "m5.large",
            "architecture": "amd64",
            "operatingSystems": ["linux"],
            "resources": {"cpu": "2", "memory": "8Gi"},
            "offerings": [{"Price": 0.05, "Available": False, "Requirements": terms}],
        }
    ]
    world = {"pods": [], "instanceTypes": {"file": "types.json"}, "nodePools": [POOL]}

    assert types_file(world) == "types.json"
    instance_type = load(world, types=rows).snapshot.instance_types["default"][0]

    assert instance_type.offerings[0].available
    assert instance_type.offerings[0].capacity_type == "spot"
    assert instance_type.allocatable["cpu"] == 1900
    assert instance_type.capacity["pods"] == 110_000
