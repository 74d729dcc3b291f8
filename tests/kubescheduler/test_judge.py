"""The judge: kube-scheduler's own plugins, run in memory on recorded worlds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from bench.kubescheduler.judge import (
    Addition,
    InvalidPodError,
    JudgeFailedError,
    KubeScheduler,
    Plan,
)
from bench.parity.worlds import HOSTNAME, ZONE, pod, required_term

WEB, DB = {"app": "web"}, {"app": "db"}


def node(name: str, *, zone: str = "a", **spec: Any) -> dict[str, Any]:
    size = {"cpu": "4", "memory": "8Gi", "pods": "10"}
    labels = {HOSTNAME: name, ZONE: zone}
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": spec,
        "status": {"allocatable": size},
    }


def small(name: str, labels: Mapping[str, str] = WEB, **spec: Any) -> Any:
    return pod(name, cpu=100, memory=100, labels=labels, **spec)


def spread(counting: Mapping[str, str], key: str) -> dict[str, Any]:
    constraint = {
        "maxSkew": 1,
        "topologyKey": key,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": dict(counting)},
    }
    return {"topologySpreadConstraints": [constraint]}


def test_each_refusal_names_the_plugin(judge: KubeScheduler) -> None:
    taint = {"key": "team", "value": "batch", "effect": "NoSchedule"}
    world = {
        "pods": [pod("large", cpu=3000, memory=100), pod("runs", cpu=2000, memory=100, node="n2")],
        "nodes": [node("n1"), node("n2"), node("n3", taints=[taint]), node("n4", zone="b")],
    }

    verdicts = judge.verdicts(world)["default/large"]

    assert verdicts["n1"] == verdicts["n4"] == ""
    assert verdicts["n2"] == "NodeResourcesFit: Insufficient cpu"
    assert verdicts["n3"].startswith("TaintToleration: ")


def test_ended_and_gated_pods_do_not_count(judge: KubeScheduler) -> None:
    ended = pod("ended", cpu=4000, memory=100, node="n1") | {"status": {"phase": "Succeeded"}}
    gated = small("gated", schedulingGates=[{"name": "later"}])
    world = {"pods": [ended, gated, small("web")], "nodes": [node("n1")]}

    assert judge.verdicts(world) == {"default/web": {"n1": ""}}


def test_a_plan_is_bound_pod_after_pod_whatever_their_names(judge: KubeScheduler) -> None:
    """The pod with the affinity comes first by its name, and must be bound last."""
    beside = {"podAffinity": required_term(WEB, HOSTNAME)}
    world = {"pods": [small("a", DB, affinity=beside), small("b")], "nodes": [node("n1")]}

    plan = {"default/a": "n1", "default/b": "n1"}

    assert judge.replay(world, Plan(plan)).refused == {}
    del plan["default/b"]
    (why,) = judge.replay(world, Plan(plan)).refused.values()
    assert why.startswith("InterPodAffinity: ")


def test_pods_with_a_spread_bind_before_pods_that_only_count(judge: KubeScheduler) -> None:
    webs = [small(f"a-{n}") for n in range(4)]
    world = {
        "pods": [*webs, small("minds", DB, **spread(WEB, HOSTNAME))],
        "nodes": [node("full"), node("empty")],
    }

    bind = {f"default/{name}": "full" for name in ("a-0", "a-1", "a-2", "a-3", "minds")}

    assert judge.replay(world, Plan(bind)).refused == {}


def test_a_pod_with_a_spread_waits_until_its_zones_are_even(judge: KubeScheduler) -> None:
    webs = [small(f"web-{n}", **spread(WEB, ZONE)) for n in range(6)]
    nodes = [node("full", zone="a"), node("empty", zone="b")]
    world = {"pods": [small("minds", DB, **spread(WEB, HOSTNAME)), *webs], "nodes": nodes}

    bind = {f"default/web-{n}": ("full", "empty")[n % 2] for n in range(6)}

    assert judge.replay(world, Plan(bind | {"default/minds": "full"})).refused == {}


def test_mutually_blocking_spreads_are_refused_in_any_order(judge: KubeScheduler) -> None:
    """The first database must come before a second web server, and the other way round."""
    webs = [small(f"web-{n}", **spread(DB, HOSTNAME)) for n in range(3)]
    dbs = [small(f"db-{n}", DB, **spread(WEB, HOSTNAME)) for n in range(3)]
    world = {"pods": [*webs, *dbs], "nodes": [node("full"), node("empty")]}

    bind = {f"default/{p['metadata']['name']}": "full" for p in world["pods"]}

    assert judge.replay(world, Plan(bind)).refused


def test_pods_that_are_left_are_judged_beside_each_node_alone(judge: KubeScheduler) -> None:
    world = {"pods": [small("web", nodeSelector={ZONE: "b"})], "nodes": [node("n1")]}
    agent = pod("agent", cpu=4000, memory=100, node="n3")
    alone = [
        Addition(nodes=[node("n2", zone="b")]),
        Addition(nodes=[node("n3", zone="b")], pods=[agent]),
    ]

    verdicts = judge.replay(world, Plan({}), alone).verdicts["default/web"]

    assert verdicts["n1"].startswith("NodeAffinity: ")
    assert verdicts["n2"] == ""
    assert verdicts["n3"].startswith("NodeResourcesFit: ")


def test_a_volume_that_two_pods_share_is_made_in_the_zone_of_the_first(
    judge: KubeScheduler,
) -> None:
    uses: dict[str, Any] = {
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    }
    claim = {
        "metadata": {"name": "data", "namespace": "default"},
        "spec": {"storageClassName": "gp3", "resources": {"requests": {"storage": "1Gi"}}},
    }
    storage_class = {
        "metadata": {"name": "gp3"},
        "provisioner": "ebs.csi.aws.com",
        "volumeBindingMode": "WaitForFirstConsumer",
    }
    world = {
        "pods": [small("a", **uses), small("b", **uses)],
        "nodes": [node("n1"), node("n2"), node("n3", zone="b")],
        "persistentVolumeClaims": [claim],
        "storageClasses": [storage_class],
    }

    assert judge.replay(world, Plan({"default/a": "n1", "default/b": "n2"})).refused == {}
    (why,) = judge.replay(world, Plan({"default/a": "n1", "default/b": "n3"})).refused.values()
    assert why.startswith("VolumeBinding: ")


def test_pods_are_stored_as_the_api_server_stores_them(judge: KubeScheduler) -> None:
    constraint = spread(WEB, ZONE)["topologySpreadConstraints"][0]
    authored = small("web", {**WEB, "version": "2"})
    authored["spec"]["topologySpreadConstraints"] = [constraint | {"matchLabelKeys": ["version"]}]

    (stored,) = judge.stored_pods([authored])

    (merged,) = stored["spec"]["topologySpreadConstraints"]
    expression = {"key": "version", "operator": "In", "values": ["2"]}
    assert merged["labelSelector"]["matchExpressions"] == [expression]
    authored["spec"]["topologySpreadConstraints"][0]["maxSkew"] = 0
    with pytest.raises(InvalidPodError, match=r"default/web: .*maxSkew"):
        judge.stored_pods([authored])


def test_an_error_is_that_of_one_world_alone(judge: KubeScheduler) -> None:
    with pytest.raises(JudgeFailedError):
        judge.verdicts({"pods": [{"spec": 1}]})
    assert judge.verdicts({"pods": [], "nodes": []}) == {}


def test_devices_of_a_claim_that_two_pods_share_are_those_of_the_first(
    judge: KubeScheduler,
) -> None:
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu"}}
    uses: dict[str, Any] = {"resourceClaims": [{"name": "gpu", "resourceClaimName": "shared"}]}
    slices = [
        {
            "metadata": {"name": name},
            "spec": {
                "driver": "gpu.example.com",
                "nodeName": name,
                "pool": {"name": name, "generation": 1, "resourceSliceCount": 1},
                "devices": [{"name": "gpu-0"}],
            },
        }
        for name in ("n1", "n2")
    ]
    world = {
        "pods": [small("a", **uses), small("b", **uses)],
        "nodes": [node("n1"), node("n2")],
        "deviceClasses": [{"metadata": {"name": "gpu"}, "spec": {}}],
        "resourceSlices": slices,
        "resourceClaims": [
            {
                "metadata": {"name": "shared", "namespace": "default"},
                "spec": {"devices": {"requests": [request]}},
            }
        ],
    }

    assert judge.replay(world, Plan({"default/a": "n1", "default/b": "n1"})).refused == {}
    assert judge.replay(world, Plan({"default/a": "n1", "default/b": "n2"})).refused
