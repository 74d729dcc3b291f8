"""Volumes keep pods off nodes as kube-scheduler's volume plugins do, on existing and new nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from controller.apis import labels
from controller.apis.kubernetes.pods import Pod
from controller.apis.kubernetes.workloads import (
    CSIDriver,
    CSINode,
    CSIStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    VolumeAttachment,
)
from controller.scheduling.results import Results
from controller.state.nodes import StateNode
from tests.builders import (
    by_hostname,
    make_launched,
    make_node,
    make_nodepool,
    make_pod,
    make_snapshot,
    make_type,
    near,
    needs,
)
from tests.expectations import (
    expect_nodes,
    expect_on_existing,
    expect_scheduled,
    expect_unschedulable,
    node_of,
    schedule_on,
    values_of,
)

EBS = "ebs.csi.aws.com"
NODE_DISK = {"path": "/mnt/disk"}


def claim(name: str, volume: str = "", **spec: Any) -> PersistentVolumeClaim:
    """Return a claim; it is bound if it names a volume."""
    status = {"phase": "Bound" if volume else "Pending"}
    own = {"storageClassName": "ebs", "accessModes": ["ReadWriteOnce"], "volumeName": volume}
    metadata = {"name": name, "namespace": "default", **spec.pop("metadata", {})}
    return msgspec.convert(
        {"metadata": metadata, "spec": {**own, **spec}, "status": status}, PersistentVolumeClaim
    )


def disk(
    name: str,
    *,
    on: Mapping[str, str] | None = None,
    carrying: Mapping[str, str] | None = None,
    phase: str = "Bound",
    **spec: Any,
) -> PersistentVolume:
    """Return an EBS volume for nodes with the labels `on`; `carrying` are labels of its own."""
    terms = [{"key": k, "operator": "In", "values": [v]} for k, v in (on or {}).items()]
    affinity = {"required": {"nodeSelectorTerms": [{"matchExpressions": terms}]}} if on else None
    own: dict[str, Any] = {
        "csi": {"driver": EBS, "volumeHandle": f"vol-{name}"},
        "storageClassName": "ebs",
        "accessModes": ["ReadWriteOnce"],
        "nodeAffinity": affinity,
    }
    wire = {
        "metadata": {"name": name, "labels": dict(carrying or {})},
        "spec": {**own, **spec},
        "status": {"phase": phase},
    }
    return msgspec.convert(wire, PersistentVolume)


def storage_class(name: str = "ebs", provisioner: str = EBS, **fields: Any) -> StorageClass:
    """Return a StorageClass that waits for the first pod."""
    wire = {"volumeBindingMode": "WaitForFirstConsumer", "provisioner": provisioner, **fields}
    return msgspec.convert({"metadata": {"name": name}, **wire}, StorageClass)


def solve(waiting: list[Pod], **world: Any) -> Results:
    """Return the results of a solve with a NodePool for all zones."""
    return schedule_on(make_snapshot(make_nodepool(), **world), waiting)


def available(name: str, zone: str, phase: str = "Available", **spec: Any) -> PersistentVolume:
    """Return a volume of the StorageClass `static` in a zone, which no claim has."""
    own = {"storageClassName": "static", "capacity": {"storage": "10Gi"}}
    return disk(name, on={labels.ZONE: zone}, phase=phase, **{**own, **spec})


STATIC = storage_class("static", "kubernetes.io/no-provisioner")


@pytest.mark.parametrize("key", [labels.ZONE, "failure-domain.beta.kubernetes.io/zone"])
def test_a_zone_label_of_a_volume_restricts_its_nodes(key: str) -> None:
    pod = make_pod(claims=["data"])

    results = solve(
        [pod],
        persistent_volumes=(disk("v", carrying={key: "zone-b__zone-c"}),),
        persistent_volume_claims=(claim("data", "v"),),
    )

    assert values_of(node_of(results, pod), labels.ZONE) == ["zone-b", "zone-c"]


def test_a_node_with_neither_zone_nor_region_takes_a_volume_with_a_zone_label() -> None:
    bare = make_node("bare")
    bare.metadata.labels.pop(labels.ZONE)
    pod = make_pod(claims=["data"])

    results = solve(
        [pod],
        nodes=[bare],
        persistent_volumes=(disk("v", carrying={labels.ZONE: "zone-b"}),),
        persistent_volume_claims=(claim("data", "v"),),
    )

    expect_on_existing(results, "bare", [pod])


def test_volumes_in_two_zones_keep_a_pod_off_nodes_without_a_zone() -> None:
    bare = make_node("bare")
    bare.metadata.labels.pop(labels.ZONE)
    pod = make_pod(claims=["one", "two"])

    results = solve(
        [pod],
        nodes=[bare],
        persistent_volumes=(
            disk("left", on={"topology.ebs.csi.aws.com/zone": "zone-a"}),
            disk("right", carrying={labels.ZONE: "zone-b"}),
        ),
        persistent_volume_claims=(claim("one", "left"), claim("two", "right")),
    )

    expect_unschedulable(
        results,
        pod,
        f"PersistentVolume left of PersistentVolumeClaim one requires {labels.ZONE} In [zone-a]",
        f"PersistentVolume right of PersistentVolumeClaim two requires {labels.ZONE} In [zone-b]",
    )


def test_a_claim_without_a_provisioner_gets_nodes_that_attach_an_available_volume() -> None:
    pod = make_pod(claims=["data"])
    request: dict[str, Any] = {"resources": {"requests": {"storage": "5Gi"}}}

    results = solve(
        [pod],
        storage_classes=(STATIC,),
        persistent_volumes=(
            available("small", "zone-a", capacity={"storage": "1Gi"}),
            available("raw", "zone-a", volumeMode="Block"),
            available("many", "zone-a", accessModes=["ReadWriteMany"]),
            available("other", "zone-a", storageClassName="other"),
            available("given", "zone-a", claimRef={"namespace": "default", "name": "another"}),
            disk("bound", on={labels.ZONE: "zone-a"}, storageClassName="static"),
            available("failed", "zone-a", phase="Failed"),
            available("right", "zone-c"),
        ),
        persistent_volume_claims=(claim("data", storageClassName="static", **request),),
    )

    assert values_of(node_of(results, pod), labels.ZONE) == ["zone-c"]


def test_a_claim_without_a_provisioner_and_without_a_volume_is_named() -> None:
    pod = make_pod(claims=["data"])
    wanted: dict[str, Any] = {"selector": {"matchLabels": {"tier": "fast"}}}

    results = solve(
        [pod],
        storage_classes=(STATIC,),
        persistent_volumes=(available("slow", "zone-a"),),
        persistent_volume_claims=(claim("data", storageClassName="static", **wanted),),
    )

    expect_unschedulable(results, pod, "no PersistentVolume is left", "data", "static")


def test_claims_do_not_share_a_volume_without_a_provisioner() -> None:
    pods = [make_pod(claims=[f"d{n}"]) for n in range(3)]

    results = solve(
        pods,
        storage_classes=(STATIC,),
        persistent_volumes=(available("a", "zone-a"), available("c", "zone-c")),
        persistent_volume_claims=tuple(claim(f"d{n}", storageClassName="static") for n in range(3)),
    )

    assert len(results.unschedulable) == 1
    zones = {tuple(values_of(node, labels.ZONE)) for node in results.new_nodes}
    assert zones == {("zone-a",), ("zone-c",)}


def test_disks_of_many_nodes_are_assigned_quickly() -> None:
    nodes = [make_node(f"n{n}", cpu="8") for n in range(60)]
    volumes = [
        available(f"{node.metadata.name}-{n}", "zone-a", csi=None, local=NODE_DISK)
        for node in nodes
        for n in range(2)
    ]
    for volume in volumes:
        term = volume.spec.node_affinity.required.node_selector_terms[0]  # type: ignore[union-attr]
        host = volume.metadata.name.partition("-")[0]
        term.match_expressions[:] = [needs(labels.HOSTNAME, "In", host)]
    pods = [make_pod(claims=[f"c{n}", f"d{n}"]) for n in range(60)]

    # Without sharing between equal claims, each pod would compare 60 × 60 alternatives.
    results = solve(
        pods,
        nodes=nodes,
        storage_classes=(STATIC,),
        persistent_volumes=tuple(volumes),
        persistent_volume_claims=tuple(
            claim(f"{name}{n}", storageClassName="static") for name in "cd" for n in range(60)
        ),
    )

    expect_nodes(results, 0)
    assert {len(keys) for keys in results.existing_nodes.values()} == {1}


def test_pods_that_share_an_unbound_claim_of_a_nodes_disk_run_on_that_node() -> None:
    nodes = [make_node("n1", cpu="2"), make_node("n2", cpu="2")]
    for node in nodes:
        node.metadata.labels.pop(labels.ZONE)
    local: dict[str, Any] = {"storageClassName": "static", "csi": None, "local": NODE_DISK}
    volumes = [
        disk(f"v-{name}", on={labels.HOSTNAME: name}, phase="Available", **local)
        for name in ("n1", "n2")
    ]

    results = solve(
        [make_pod(claims=["data"]) for _ in range(3)],
        nodes=nodes,
        storage_classes=(STATIC,),
        persistent_volumes=tuple(volumes),
        persistent_volume_claims=(claim("data", storageClassName="static"),),
    )

    assert [len(keys) for keys in results.existing_nodes.values()] == [2]
    assert len(results.unschedulable) == 1


def test_two_claims_of_a_pod_get_two_volumes_that_one_node_attaches() -> None:
    pod = make_pod(claims=["one", "two"])
    volumes = [available("a", "zone-a"), available("b-1", "zone-b"), available("b-2", "zone-b")]
    claims = tuple(claim(name, storageClassName="static") for name in ("one", "two"))
    world = {"storage_classes": (STATIC,), "persistent_volume_claims": claims}

    results = solve([pod], persistent_volumes=tuple(volumes), **world)
    assert values_of(node_of(results, pod), labels.ZONE) == ["zone-b"]

    results = solve([pod], persistent_volumes=tuple(volumes[:2]), **world)
    expect_unschedulable(results, pod, "PersistentVolume", "two")


def test_an_available_volume_is_used_outside_the_zones_where_new_ones_are_created() -> None:
    elsewhere = [{"matchLabelExpressions": [{"key": labels.ZONE, "values": ["zone-a"]}]}]
    pod = make_pod(claims=["data"], node_selector={labels.ZONE: "zone-c"})

    results = solve(
        [pod],
        storage_classes=(storage_class(allowedTopologies=elsewhere),),
        persistent_volumes=(available("v", "zone-c", storageClassName="ebs"),),
        persistent_volume_claims=(claim("data"),),
    )

    expect_nodes(results, 1)


@pytest.mark.parametrize("placed", ["n1", ""], ids=["its node is there", "its node is gone"])
def test_a_volume_on_a_nodes_disk_binds_its_pods_to_that_node(placed: str) -> None:
    pod = make_pod(claims=["data"])
    volume = disk("v", on={labels.HOSTNAME: placed or "gone"}, csi=None, local=NODE_DISK)

    results = solve(
        [pod],
        nodes=[make_node("n0"), make_node("n1")],
        persistent_volumes=(volume,),
        persistent_volume_claims=(claim("data", "v"),),
    )

    if placed:
        expect_on_existing(results, placed, [pod])
    else:
        expect_unschedulable(results, pod, f"{labels.HOSTNAME} In [gone]")


def test_a_pod_that_must_leave_the_node_of_its_volume_gets_another_node() -> None:
    pod = make_pod(claims=["data"], node="n1")
    volume = disk("v", on={labels.HOSTNAME: "n1"}, csi=None, local=NODE_DISK)

    results = solve(
        [pod], persistent_volumes=(volume,), persistent_volume_claims=(claim("data", "v"),)
    )

    expect_nodes(results, 1)


def test_one_pod_at_a_time_uses_a_readwriteoncepod_claim() -> None:
    old, new = make_pod(claims=["data"], node="n1"), make_pod(claims=["data"])
    world = {
        "persistent_volumes": (disk("v"),),
        "persistent_volume_claims": (claim("data", "v", accessModes=["ReadWriteOncePod"]),),
    }

    results = solve([new], nodes=[make_node("n1")], pods=(old,), **world)
    expect_unschedulable(results, new, "ReadWriteOncePod", f"pod {old.key} uses it")

    second = make_pod(claims=["data"])
    results = solve([new, second], **world)
    assert len(results.unschedulable) == 1

    moved = solve([old], **world)
    expect_nodes(moved, 1)


def test_pods_that_share_an_unbound_claim_run_in_one_zone() -> None:
    app = {"app": "x"}
    pods = [make_pod(labels=app, claims=["data"], anti_affinity=[near(app)]) for _ in range(2)]
    world = {"storage_classes": (storage_class(),), "persistent_volume_claims": (claim("data"),)}

    results = solve(pods, **world)

    assert len(results.new_nodes) == 1
    (left,) = (pod for pod in pods if pod.key in results.unschedulable)
    expect_unschedulable(results, left, "PersistentVolumeClaim data", "one zone")

    apart = [make_pod(labels=app, claims=["data"], anti_affinity=[by_hostname(app)]) for _ in "ab"]
    results = solve(apart, **world)
    expect_nodes(results, 2)
    assert len({tuple(values_of(node, labels.ZONE)) for node in results.new_nodes}) == 1


def test_a_pod_follows_a_nominated_pod_that_shares_its_unbound_claim() -> None:
    coming = StateNode(claim=make_launched("coming", labels={labels.ZONE: "zone-c"}))
    first = make_pod(cpu="100m", claims=["data"], node="coming")
    second = make_pod(claims=["data"], cpu="8")

    results = solve(
        [second],
        nodes=[coming],
        pods=(first,),
        storage_classes=(storage_class(),),
        persistent_volume_claims=(claim("data"),),
    )

    assert values_of(node_of(results, second), labels.ZONE) == ["zone-c"]


def test_pods_that_share_an_unbound_claim_of_a_driver_without_zones_run_anywhere() -> None:
    app = {"app": "x"}
    pods = [make_pod(labels=app, claims=["data"], anti_affinity=[near(app)]) for _ in range(2)]

    results = solve(
        pods,
        storage_classes=(storage_class("efs", "efs.csi.aws.com"),),
        persistent_volume_claims=(claim("data", storageClassName="efs"),),
    )

    expect_nodes(results, 2)


def test_a_new_node_attaches_at_most_the_volumes_of_its_type() -> None:
    pods = [make_pod(cpu="100m", memory="100Mi", claims=[f"d{n}"]) for n in range(10)]

    results = schedule_on(
        make_snapshot(
            make_nodepool(),
            types=[make_type("small", attachable_volumes=4)],
            storage_classes=(storage_class(),),
            persistent_volume_claims=tuple(claim(f"d{n}") for n in range(10)),
        ),
        pods,
    )

    expect_scheduled(results)
    assert sorted(len(node.pods) for node in results.new_nodes) == [2, 4, 4]
    assert all("attachable" not in name for node in results.new_nodes for name in node.requests)


def test_a_pod_with_more_volumes_than_any_type_attaches_is_told_so() -> None:
    pod = make_pod(claims=[f"d{n}" for n in range(5)])

    results = schedule_on(
        make_snapshot(
            make_nodepool(),
            types=[make_type("small", attachable_volumes=4)],
            storage_classes=(storage_class(),),
            persistent_volume_claims=tuple(claim(f"d{n}") for n in range(5)),
        ),
        [pod],
    )

    expect_unschedulable(results, pod, "fewer than 5 EBS attachments")


def test_a_node_that_starts_attaches_at_most_the_volumes_of_its_type() -> None:
    small = make_type("small", attachable_volumes=1)
    carried = {labels.INSTANCE_TYPE: "small"}
    starting = StateNode(claim=make_launched("starting", labels=carried))
    pods = [make_pod(cpu="100m", memory="100Mi", claims=[f"d{n}"]) for n in range(2)]

    results = schedule_on(
        make_snapshot(
            make_nodepool(),
            types=[small],
            nodes=[starting],
            storage_classes=(storage_class(),),
            persistent_volume_claims=tuple(claim(f"d{n}") for n in range(2)),
        ),
        pods,
    )

    assert len(results.existing_nodes["starting"]) == len(results.new_nodes) == 1


def _storage(on: Mapping[str, str], size: str) -> CSIStorageCapacity:
    """Return what a driver has left for the StorageClass `ebs` on nodes with these labels."""
    wire = {
        "metadata": {"name": "-".join(on.values()), "namespace": "kube-system"},
        "storageClassName": "ebs",
        "nodeTopology": {"matchLabels": dict(on)},
        "capacity": size,
    }
    return msgspec.convert(wire, CSIStorageCapacity)


def _solve_with_storage(*capacities: CSIStorageCapacity, is_tracked: bool = True) -> Results:
    """Return where a pod with a claim of 5 GiB goes, beside the nodes n1 and n2."""
    driver = {"metadata": {"name": EBS}, "spec": {"storageCapacity": is_tracked}}
    return solve(
        [make_pod("web", claims=["data"])],
        nodes=[make_node("n1"), make_node("n2")],
        storage_classes=(storage_class(),),
        csi_drivers=(msgspec.convert(driver, CSIDriver),),
        csi_storage_capacities=capacities,
        persistent_volume_claims=(claim("data", resources={"requests": {"storage": "5Gi"}}),),
    )


def test_a_volume_is_created_where_its_driver_has_published_enough_storage() -> None:
    small, large = _storage({"node": "n1"}, "1Gi"), _storage({labels.HOSTNAME: "n2"}, "9Gi")

    assert list(_solve_with_storage(small, large).existing_nodes) == ["n2"]
    assert list(_solve_with_storage(small, large, is_tracked=False).existing_nodes) == ["n1"]


def test_a_new_node_has_storage_unless_that_of_its_zone_is_published() -> None:
    full = [_storage({labels.ZONE: f"zone-{zone}"}, "1Gi") for zone in "ab"]

    (new,) = _solve_with_storage(_storage({labels.HOSTNAME: "n1"}, "1Gi"), *full).new_nodes

    terms = [term for term in new.requirements if term.key == labels.ZONE]
    assert [(term.operator, term.values) for term in terms] == [("NotIn", ["zone-a", "zone-b"])]


def _limited(count: int) -> CSINode:
    drivers = [{"name": EBS, "nodeID": "n1", "allocatable": {"count": count}}]
    return msgspec.convert({"metadata": {"name": "n1"}, "spec": {"drivers": drivers}}, CSINode)


def test_a_volume_that_is_still_attached_counts_towards_the_limit() -> None:
    attachment = {
        "metadata": {"name": "a"},
        "spec": {"attacher": EBS, "nodeName": "n1", "source": {"persistentVolumeName": "old"}},
    }
    pod = make_pod(cpu="100m", claims=["data"])
    world: dict[str, Any] = {
        "nodes": [make_node("n1")],
        "csi_nodes": (_limited(1),),
        "volume_attachments": (msgspec.convert(attachment, VolumeAttachment),),
        "storage_classes": (storage_class(),),
    }

    results = solve(
        [pod],
        persistent_volumes=(disk("old"),),
        persistent_volume_claims=(claim("data"),),
        **world,
    )
    expect_nodes(results, 1)

    moved = make_pod(cpu="100m", claims=["data"], node="n1")
    results = solve(
        [moved],
        persistent_volumes=(disk("old"),),
        persistent_volume_claims=(claim("data", "old"),),
        **world,
    )
    expect_on_existing(results, "n1", [moved])


def test_a_volume_that_a_node_has_attached_is_no_further_one_above_the_limit() -> None:
    running = [make_pod(cpu="100m", claims=[f"d{n}"], node="n1") for n in range(2)]
    pod = make_pod(cpu="100m", claims=["d0"])

    results = solve(
        [pod],
        nodes=[make_node("n1")],
        pods=tuple(running),
        csi_nodes=(_limited(1),),
        persistent_volumes=tuple(disk(f"v{n}") for n in range(2)),
        persistent_volume_claims=tuple(claim(f"d{n}", f"v{n}") for n in range(2)),
    )

    expect_on_existing(results, "n1", [pod])


def test_volumes_of_ended_pods_are_not_attached() -> None:
    ended = make_pod(cpu="100m", claims=["old"], node="n1", phase="Succeeded")
    pod = make_pod(cpu="100m", claims=["data"])

    results = solve(
        [pod],
        nodes=[make_node("n1")],
        pods=(ended,),
        csi_nodes=(_limited(1),),
        persistent_volumes=(disk("v"), disk("w")),
        persistent_volume_claims=(claim("data", "v"), claim("old", "w")),
    )

    expect_on_existing(results, "n1", [pod])


def test_in_tree_volumes_count_towards_the_limit_of_the_ebs_driver() -> None:
    inline = {"volumes": [{"name": "v", "awsElasticBlockStore": {"volumeID": "vol-1"}}]}
    source: dict[str, Any] = {
        "awsElasticBlockStore": {"volumeID": "aws://zone-a/vol-2"},
        "csi": None,
    }
    pods = [make_pod(cpu="100m", claims=["data"]), make_pod(cpu="100m", spec=inline)]

    results = solve(
        pods,
        nodes=[make_node("n1")],
        csi_nodes=(_limited(1),),
        persistent_volumes=(disk("v", **source),),
        persistent_volume_claims=(claim("data", "v"),),
    )

    assert len(results.existing_nodes["n1"]) == len(results.new_nodes) == 1


def test_pods_whose_specs_name_one_ebs_volume_run_on_different_nodes() -> None:
    spec = {"volumes": [{"name": "v", "awsElasticBlockStore": {"volumeID": "vol-1"}}]}
    running = make_pod(cpu="100m", spec=spec, node="n1")
    pods = [make_pod(cpu="100m", spec=spec) for _ in range(2)]

    results = solve(pods, nodes=[make_node("n1")], pods=(running,))

    expect_nodes(results, 2)


def test_a_volume_being_deleted_is_still_attached() -> None:
    going = {"metadata": {"name": "v", "deletionTimestamp": "2026-01-01T00:00:00Z"}}
    volume = msgspec.convert({**msgspec.to_builtins(disk("v")), **going}, PersistentVolume)
    pod = make_pod(claims=["data"])

    results = solve(
        [pod], persistent_volumes=(volume,), persistent_volume_claims=(claim("data", "v"),)
    )

    expect_nodes(results, 1)


def test_an_ephemeral_volume_waits_for_a_claim_that_is_being_deleted() -> None:
    template = {"spec": {"storageClassName": "ebs"}}
    volume = {"name": "own", "ephemeral": {"volumeClaimTemplate": template}}
    pod = make_pod("web", spec={"volumes": [volume]})
    going = {"deletionTimestamp": "2026-01-01T00:00:00Z"}

    results = solve(
        [pod],
        storage_classes=(storage_class(),),
        persistent_volume_claims=(claim("web-own", metadata=going),),
    )

    expect_unschedulable(results, pod, "web-own is being deleted")


def test_a_claim_waits_for_the_volume_that_it_names() -> None:
    wanted = msgspec.structs.replace(
        claim("data", "v"), status=msgspec.structs.replace(claim("data").status, phase="Pending")
    )
    pod = make_pod(claims=["data"])

    results = solve([pod], persistent_volumes=(disk("v"),), persistent_volume_claims=(wanted,))

    expect_unschedulable(results, pod, "PersistentVolumeClaim data is not bound yet")


def test_a_claim_whose_node_is_selected_keeps_its_pod_on_that_node() -> None:
    selected = {"annotations": {"volume.kubernetes.io/selected-node": "n2"}}
    pod = make_pod(claims=["data"])

    results = solve(
        [pod],
        nodes=[make_node("n1"), make_node("n2")],
        storage_classes=(storage_class(),),
        persistent_volume_claims=(claim("data", metadata=selected),),
    )

    expect_on_existing(results, "n2", [pod])
