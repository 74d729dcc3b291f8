"""Volumes restrict where pods may run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from controller.apis import labels
from controller.apis.kubernetes.pods import Pod
from controller.apis.kubernetes.workloads import (
    CSINode,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
)
from tests.builders import make_node, make_nodepool, make_pod, make_snapshot, spread
from tests.expectations import (
    expect_nodes,
    expect_skew,
    expect_unschedulable,
    schedule_on,
    values_of,
)

WEB = {"app": "web"}


def _claim(name: str, **spec: Any) -> PersistentVolumeClaim:
    metadata = {"name": name, "namespace": "default"}
    return msgspec.convert({"metadata": metadata, "spec": spec}, PersistentVolumeClaim)


def _volume(name: str, *zones: str, **more: Any) -> PersistentVolume:
    terms = [
        {"matchExpressions": [{"key": labels.ZONE, "operator": "In", "values": [zone]}]}
        for zone in zones
    ]
    spec = {
        "csi": {"driver": "ebs.csi.aws.com"},
        "nodeAffinity": {"required": {"nodeSelectorTerms": terms}},
        **more,
    }
    return msgspec.convert({"metadata": {"name": name}, "spec": spec}, PersistentVolume)


def _class(name: str, *zones: str, mode: str = "WaitForFirstConsumer") -> StorageClass:
    topologies = [
        {"matchLabelExpressions": [{"key": "topology.ebs.csi.aws.com/zone", "values": [zone]}]}
        for zone in zones
    ]
    return msgspec.convert(
        {
            "metadata": {"name": name},
            "provisioner": "ebs.csi.aws.com",
            "volumeBindingMode": mode,
            "allowedTopologies": topologies,
        },
        StorageClass,
    )


def test_a_pod_uses_the_zone_of_its_bound_volume() -> None:
    snapshot = make_snapshot(
        make_nodepool(),
        persistent_volumes=(_volume("v", "zone-b"),),
        persistent_volume_claims=(_claim("data", volumeName="v"),),
    )

    results = schedule_on(snapshot, [make_pod(claims=["data"])])

    assert values_of(results.new_nodes[0], labels.ZONE) == ["zone-b"]


def test_a_pod_excluded_from_the_zone_of_its_volume_reports_it() -> None:
    snapshot = make_snapshot(
        make_nodepool(),
        persistent_volumes=(_volume("v", "zone-b"),),
        persistent_volume_claims=(_claim("data", volumeName="v"),),
    )
    torn = make_pod("torn", claims=["data"], node_selector={labels.ZONE: "zone-a"})

    results = schedule_on(snapshot, [torn, make_pod("web")])

    assert len(results.new_nodes) == 1
    expect_unschedulable(
        results,
        torn,
        f"the pod's volumes require {labels.ZONE} In [zone-b]: "
        "no NodePool launches such nodes for the pod",
    )


def test_a_volume_in_a_zone_without_subnets_names_the_zone() -> None:
    snapshot = make_snapshot(
        make_nodepool(),
        persistent_volumes=(_volume("v", "zone-d"),),
        persistent_volume_claims=(_claim("data", volumeName="v"),),
    )
    pod = make_pod(claims=["data"])

    expect_unschedulable(schedule_on(snapshot, [pod]), pod, f"require {labels.ZONE} In [zone-d]")


def test_a_storageclass_limits_the_zones() -> None:
    snapshot = make_snapshot(
        make_nodepool(),
        storage_classes=(_class("gp3", "zone-c", "nowhere"),),
        persistent_volume_claims=(_claim("data", storageClassName="gp3"),),
    )

    results = schedule_on(snapshot, [make_pod(claims=["data"])])

    assert values_of(results.new_nodes[0], labels.ZONE) == ["zone-c"]


@pytest.mark.parametrize(("zones", "number"), [(("zone-a",), 2), (("zone-a", "zone-b"), 1)])
def test_a_spread_counts_zones_without_the_pods_volumes_only_if_nodes_are_there(
    zones: Sequence[str], number: int
) -> None:
    snapshot = make_snapshot(
        make_nodepool(),
        nodes=[make_node(f"n-{zone}", zone=zone, cpu="1m") for zone in zones],
        persistent_volumes=tuple(_volume(f"v{n}", "zone-a") for n in range(2)),
        persistent_volume_claims=tuple(_claim(f"d{n}", volumeName=f"v{n}") for n in range(2)),
    )
    pods = [make_pod(labels=WEB, claims=[f"d{n}"], spreads=[spread(WEB)]) for n in range(2)]

    results = schedule_on(snapshot, pods)

    placed = [pod for pod in pods if pod.key not in results.unschedulable]
    expect_skew(results, labels.ZONE, placed, number)


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({}, "PersistentVolumeClaim data not found"),
        ({"persistent_volume_claims": (_claim("data"),)}, "no StorageClass"),
        (
            {"persistent_volume_claims": (_claim("data", storageClassName="x"),)},
            "StorageClass x",
        ),
        (
            {
                "persistent_volume_claims": (_claim("data", storageClassName="now"),),
                "storage_classes": (_class("now", mode="Immediate"),),
            },
            "is not bound yet",
        ),
        (
            {"persistent_volume_claims": (_claim("data", volumeName="v"),)},
            "PersistentVolume v of PersistentVolumeClaim",
        ),
    ],
    ids=["no claim", "no class named", "class missing", "immediate", "volume missing"],
)
def test_an_unusable_persistentvolumeclaim_is_named(parts: dict[str, Any], words: str) -> None:
    pod = make_pod(claims=["data"])

    expect_unschedulable(
        schedule_on(make_snapshot(make_nodepool(), **parts), [pod]), pod, "data", words
    )


def test_many_volumes_of_a_class_with_several_topologies_are_reachable_from_one_zone() -> None:
    topologies = [
        {"matchLabelExpressions": [{"key": labels.ZONE, "values": [f"zone-{zone}"]}]}
        for zone in "abc"
    ]
    wire = {
        "metadata": {"name": "ebs"},
        "provisioner": "ebs.csi.aws.com",
        "volumeBindingMode": "WaitForFirstConsumer",
        "allowedTopologies": topologies,
    }
    # A list of all combinations of their topologies would have 3**20 items.
    names = [f"data-{number}" for number in range(20)]
    snapshot = make_snapshot(
        make_nodepool(),
        storage_classes=(msgspec.convert(wire, StorageClass),),
        persistent_volume_claims=tuple(_claim(name, storageClassName="ebs") for name in names),
    )

    expect_nodes(schedule_on(snapshot, [make_pod(claims=names)]), 1)


def test_a_node_without_drivers_takes_pods() -> None:
    csi = msgspec.convert({"metadata": {"name": "a"}, "spec": {"drivers": None}}, CSINode)
    snapshot = make_snapshot(nodes=[make_node("a")], csi_nodes=(csi,))

    expect_nodes(schedule_on(snapshot, [make_pod()]), 0)


def test_a_node_has_at_most_the_volumes_that_its_driver_attaches() -> None:
    csi = msgspec.convert(
        {
            "metadata": {"name": "a"},
            "spec": {"drivers": [{"name": "ebs.csi.aws.com", "allocatable": {"count": 2}}]},
        },
        CSINode,
    )
    snapshot = make_snapshot(
        make_nodepool(),
        nodes=[make_node("a")],
        csi_nodes=(csi,),
        persistent_volumes=tuple(_volume(f"v{n}", "zone-a") for n in range(3)),
        persistent_volume_claims=tuple(_claim(f"d{n}", volumeName=f"v{n}") for n in range(3)),
        pods=(make_pod(node="a", cpu="100m", claims=["d0"]),),
    )

    results = schedule_on(snapshot, [make_pod(cpu="100m", claims=[f"d{n}"]) for n in (1, 2)])

    assert len(results.existing_nodes["a"]) == 1
    expect_nodes(results, 1)


def _ephemeral(name: str, storage_class: str | None, **options: Any) -> Pod:
    template = {"spec": {"storageClassName": storage_class}}
    volume = {"name": "own", "ephemeral": {"volumeClaimTemplate": template}}
    return make_pod(name, spec={"volumes": [volume]}, **options)


def test_an_ephemeral_volume_is_created_in_a_zone_of_its_storageclass() -> None:
    snapshot = make_snapshot(make_nodepool(), storage_classes=(_class("some", "zone-c"),))

    results = schedule_on(snapshot, [_ephemeral("web", "some")])

    assert values_of(results.new_nodes[0], labels.ZONE) == ["zone-c"]


@pytest.mark.parametrize("mode", ["Immediate", "WaitForFirstConsumer"])
def test_an_existing_ephemeral_volume_determines_the_zone(mode: str) -> None:
    snapshot = make_snapshot(
        make_nodepool(),
        storage_classes=(_class("some", mode=mode),),
        persistent_volumes=(_volume("v", "zone-b"),),
        persistent_volume_claims=(_claim("web-0-own", storageClassName="some", volumeName="v"),),
    )

    results = schedule_on(snapshot, [_ephemeral("web-0", "some")])

    assert values_of(results.new_nodes[0], labels.ZONE) == ["zone-b"]


def test_the_claim_of_an_ephemeral_volume_names_the_default_storageclass() -> None:
    snapshot = make_snapshot(
        make_nodepool(),
        storage_classes=(_class("default", "zone-c"),),
        persistent_volume_claims=(_claim("web-own", storageClassName="default"),),
    )

    results = schedule_on(snapshot, [_ephemeral("web", None)])

    assert values_of(results.new_nodes[0], labels.ZONE) == ["zone-c"]


def test_an_immediately_bound_ephemeral_volume_is_awaited() -> None:
    snapshot = make_snapshot(make_nodepool(), storage_classes=(_class("some", mode="Immediate"),))
    pod = _ephemeral("web", "some")

    expect_unschedulable(
        schedule_on(snapshot, [pod]), pod, "ephemeral volume own", "is not bound yet"
    )


@pytest.mark.parametrize("mode", ["Immediate", "WaitForFirstConsumer"])
def test_ephemeral_volumes_count_towards_the_attach_limit(mode: str) -> None:
    csi = {
        "metadata": {"name": "a"},
        "spec": {"drivers": [{"name": "ebs.csi.aws.com", "allocatable": {"count": 2}}]},
    }
    snapshot = make_snapshot(
        make_nodepool(),
        nodes=[make_node("a")],
        storage_classes=(_class("some", mode=mode), _class("late")),
        csi_nodes=(msgspec.convert(csi, CSINode),),
        persistent_volumes=(_volume("v", "zone-a"),),
        persistent_volume_claims=(_claim("runs-own", storageClassName="some", volumeName="v"),),
        pods=(_ephemeral("runs", "some", node="a", cpu="100m"),),
    )

    results = schedule_on(snapshot, [_ephemeral(f"p{n}", "late", cpu="100m") for n in range(2)])

    assert len(results.existing_nodes["a"]) == 1
    expect_nodes(results, 1)


@pytest.mark.parametrize(("count", "placed"), [(0, 0), (None, 1)], ids=["none", "no limit"])
def test_an_attach_limit_of_zero_is_not_unlimited(count: int | None, placed: int) -> None:
    driver = {"name": "ebs.csi.aws.com", "allocatable": {"count": count}}
    csi = msgspec.convert({"metadata": {"name": "a"}, "spec": {"drivers": [driver]}}, CSINode)
    snapshot = make_snapshot(
        make_nodepool(),
        nodes=[make_node("a")],
        csi_nodes=(csi,),
        persistent_volumes=(_volume("v", "zone-a"),),
        persistent_volume_claims=(_claim("d", volumeName="v"),),
    )

    results = schedule_on(snapshot, [make_pod(cpu="100m", claims=["d"])])

    assert len(results.existing_nodes.get("a", ())) == placed


def test_a_malformed_volume_of_a_running_pod_prevents_no_launches() -> None:
    many = {"key": "example.com/slots", "operator": "Gt", "values": ["many"]}
    terms = [{"matchExpressions": [many]}]
    odd = _volume("pv", nodeAffinity={"required": {"nodeSelectorTerms": terms}})
    driver = {"name": "ebs.csi.aws.com", "nodeID": "a", "allocatable": {"count": 1}}
    csi = {"metadata": {"name": "a"}, "spec": {"drivers": [driver]}}
    snapshot = make_snapshot(
        make_nodepool(),
        nodes=[make_node("a", cpu="1")],
        pods=(make_pod(node="a", claims=["data"]),),
        persistent_volume_claims=(_claim("data", volumeName="pv", storageClassName="ebs"),),
        persistent_volumes=(odd,),
        csi_nodes=(msgspec.convert(csi, CSINode),),
    )

    expect_nodes(schedule_on(snapshot, [make_pod()]), 1)
