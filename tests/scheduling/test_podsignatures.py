"""What distinguishes pods for placement, and how long parsed pods are cached."""

from __future__ import annotations

import sys
from typing import Any

import msgspec
import pytest

from controller.apis.kubernetes.pods import Pod, PodSpec
from controller.scheduling.pods.classes import PodSignatures
from tests.builders import make_pod

REQUESTS = {"requests": {"cpu": "2"}}
OTHER: dict[str, Any] = {
    "nodeSelector": {"tier": "db"},
    "affinity": {"podAntiAffinity": {}},
    "tolerations": [{"operator": "Exists"}],
    "topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
    ],
    "containers": [{"name": "main", "resources": REQUESTS}],
    "initContainers": [{"name": "first", "resources": REQUESTS}],
    "overhead": {"cpu": "100m"},
    "resources": REQUESTS,
    "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
    "priority": 7,
    "priorityClassName": "high",
    "preemptionPolicy": "Never",
    "schedulerName": "another",
    "hostNetwork": True,
    "resourceClaims": [{"name": "gpu", "resourceClaimName": "gpu"}],
    "terminationGracePeriodSeconds": 5,
    "schedulingGroup": {"podGroupName": "train"},
    "schedulingGates": [{"name": "example.com/quota"}],
}
"""Of each field of a spec another value than `make_pod` gives it, as it is on the wire."""


def changed(pod: Pod, part: str, **values: Any) -> Pod:
    wire = msgspec.to_builtins(pod)
    wire[part] = {**wire.get(part, {}), **values}
    return msgspec.convert(wire, Pod)


def test_pods_that_differ_only_in_name_age_and_node_share_a_signature() -> None:
    signatures = PodSignatures()
    here = make_pod("a", labels={"app": "web"}, node="here")
    there = changed(
        make_pod("b", labels={"app": "web"}, node="there"),
        "metadata",
        creationTimestamp="2026-11-01T00:00:00Z",
    )

    assert signatures.of(here) is signatures.of(there)
    assert not signatures.of(here).spec.node_name


def test_the_following_test_covers_every_field_of_a_pod_spec() -> None:
    wire = {field.encode_name for field in msgspec.structs.fields(PodSpec)}

    assert wire - {"nodeName"} == OTHER.keys()


@pytest.mark.parametrize(
    ("part", "values"),
    [
        *(pytest.param("spec", {name: value}, id=name) for name, value in OTHER.items()),
        pytest.param("metadata", {"namespace": "another"}, id="namespace"),
        pytest.param("metadata", {"labels": {"app": "db"}}, id="labels"),
        pytest.param(
            "status",
            {"containerStatuses": [{"name": "main", "allocatedResources": {"cpu": "8"}}]},
            id="resize in progress",
        ),
    ],
)
def test_a_difference_in_any_other_field_makes_another_signature(
    part: str, values: dict[str, Any]
) -> None:
    signatures, pod = PodSignatures(), make_pod("a")

    assert signatures.of(changed(pod, part, **values)) is not signatures.of(pod)


def test_a_resize_of_the_whole_pod_counts_before_any_container_has_a_status() -> None:
    signatures = PodSignatures()
    usual = changed(make_pod("a"), "spec", resources={"requests": {"cpu": "1"}})
    shrinking = changed(usual, "status", allocatedResources={"cpu": "4"})

    assert signatures.of(usual).requests["cpu"] == 1000
    assert signatures.of(shrinking).requests["cpu"] == 4000


def test_pod_signatures_that_differ_only_in_requests_have_the_same_nodes() -> None:
    signatures = PodSignatures()
    small, large = signatures.of(make_pod("a", cpu="1")), signatures.of(make_pod("b", cpu="2"))
    elsewhere = signatures.of(changed(make_pod("c", cpu="1"), "spec", nodeSelector={"tier": "db"}))

    assert small.placement_key == large.placement_key != elsewhere.placement_key
    assert small.requests["cpu"] * 2 == large.requests["cpu"]


def test_pods_with_host_ports_do_not_have_the_same_nodes_as_others() -> None:
    signatures, pod = PodSignatures(), make_pod("a")
    ports = [{"name": "main", "ports": [{"hostPort": 80}]}]
    taking = signatures.of(changed(pod, "spec", containers=ports))

    assert [port.port for port in taking.ports] == [80]
    assert taking.placement_key != signatures.of(pod).placement_key


def test_nothing_is_cached_for_deleted_pods() -> None:
    signatures, gone, stays = PodSignatures(), make_pod("gone", cpu="3"), make_pod("stays")
    held = sys.getrefcount(gone), sys.getrefcount(stays)
    signatures.of(gone)
    of_the_other = signatures.of(stays)

    signatures.keep([stays])

    assert sys.getrefcount(gone) == held[0]
    assert sys.getrefcount(stays) > held[1]
    assert signatures.of(stays) is of_the_other
    assert signatures.of(make_pod("new")) is of_the_other
