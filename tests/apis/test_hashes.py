"""Static drift: which changes of a NodePool or EC2NodeClass change its hash."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from controller.apis.karpenter import hashes
from controller.apis.karpenter.ec2nodeclass import EC2NodeClass
from controller.apis.karpenter.nodepool import NodePool
from tests.apis.test_rules import EC2_NODE_CLASS, NODE_POOL, requires, taint, with_field


def pool_hash(*changes: tuple[str, Any]) -> str:
    wire = NODE_POOL
    for path, value in changes:
        wire = with_field(wire, path, value)
    return hashes.node_pool_hash(msgspec.convert(wire, NodePool))


def class_hash(*changes: tuple[str, Any], ca_bundle: str = "ca") -> str:
    wire = EC2_NODE_CLASS
    for path, value in changes:
        wire = with_field(wire, path, value)
    return hashes.node_class_hash(msgspec.convert(wire, EC2NodeClass), ca_bundle=ca_bundle)


def test_hashes_equal_those_that_karpenter_writes() -> None:
    # Karpenter 1.15's own numbers for these; `tests/parity/test_hashes.py` asks it about more.
    assert pool_hash() == "6821555240594823858"
    assert class_hash() == "476107222237687172"


def test_the_hash_of_a_nodeclass_equals_that_of_karpenters_suite() -> None:
    volume = {
        "deleteOnTermination": False,
        "encrypted": False,
        "iops": 0,
        "kmsKeyID": "fakeKMSKeyID",
        "snapshotID": "fakeSnapshot",
        "throughput": 0,
        "volumeSize": "2G",
        "volumeType": "standard",
    }
    wire = {
        "metadata": {},
        "spec": {
            "role": "role-1",
            "tags": {"keyTag-1": "valueTag-1", "keyTag-2": "valueTag-2"},
            "context": "fake-context",
            "detailedMonitoring": False,
            "associatePublicIPAddress": False,
            "metadataOptions": {"httpEndpoint": "disabled", "httpTokens": "optional"},
            "blockDeviceMappings": [
                {"deviceName": "map-device-1", "ebs": volume},
                {"deviceName": "map-device-2"},
            ],
            "userData": "userdata-test-1",
        },
    }

    hashed = hashes.node_class_hash(msgspec.convert(wire, EC2NodeClass), ca_bundle="test-ca-bundle")

    assert hashed == "11148166120438674859"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("template.metadata.labels", {"a": "b"}),
        ("template.metadata.annotations", {"a": "b"}),
        ("template.spec.taints", taint()),
        ("template.spec.startupTaints", taint()),
        ("template.spec.nodeClassRef.name", "other"),
        ("template.spec.terminationGracePeriod", "1h"),
        ("template.spec.expireAfter", "1h"),
    ],
)
def test_a_change_of_the_nodepool_template_changes_the_hash(path: str, value: Any) -> None:
    assert pool_hash((path, value)) != pool_hash()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("template.spec.requirements", requires("a", "In", "b")),
        ("template.spec.expireAfter", "720h"),
        ("disruption.consolidateAfter", "1h"),
        ("limits", {"cpu": "1"}),
        ("weight", 5),
    ],
)
def test_a_change_outside_the_template_or_without_meaning_keeps_the_hash(
    path: str, value: Any
) -> None:
    assert pool_hash((path, value)) == pool_hash()


@pytest.mark.parametrize("path", ["template.spec.taints", "template.spec.startupTaints"])
def test_an_empty_list_and_a_missing_list_have_different_hashes_as_in_karpenter(path: str) -> None:
    assert pool_hash((path, [])) != pool_hash()


def test_the_order_of_taints_does_not_change_the_hash() -> None:
    first, second = taint(key="a"), taint(key="b")

    assert pool_hash(("template.spec.taints", first + second)) == pool_hash(
        ("template.spec.taints", second + first)
    )
    assert pool_hash(("template.spec.taints", first)) != pool_hash(
        ("template.spec.startupTaints", first)
    )


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("role", "other"),
        ("userData", "#!/bin/sh"),
        ("tags", {"a": "b"}),
        ("kubelet", {"maxPods": 10}),
        ("amiSelectorTerms", [{"alias": "bottlerocket@latest"}]),
        ("amiFamily", "Custom"),
        ("metadataOptions", {"httpTokens": "optional"}),
        ("enclaveOptions", {"enabled": True}),
        ("enclaveOptions", {"enabled": False}),  # a change to Karpenter, though nothing changes
        ("associatePublicIPAddress", True),
        ("blockDeviceMappings", [{"deviceName": "/dev/xvda", "ebs": {"volumeSize": "9Gi"}}]),
    ],
)
def test_a_change_of_launch_settings_changes_the_hash(path: str, value: Any) -> None:
    assert class_hash((path, value)) != class_hash()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("subnetSelectorTerms", [{"id": "subnet-1"}]),
        ("securityGroupSelectorTerms", [{"id": "sg-1"}]),
        ("amiSelectorTerms", [{"alias": "al2023@v20250610"}]),
        ("amiFamily", "AL2023"),
        ("capacityReservationSelectorTerms", [{"id": "cr-1"}]),
        ("ipPrefixCount", 3),
        ("metadataOptions", {"httpTokens": "required"}),
        ("kubelet", {}),
    ],
)
def test_selector_terms_do_not_change_the_hash(path: str, value: Any) -> None:
    assert class_hash((path, value)) == class_hash()


def test_a_new_cluster_ca_changes_the_hash() -> None:
    assert class_hash(ca_bundle="new") != class_hash(ca_bundle="old")


def test_the_order_of_kubelet_keys_does_not_change_the_hash() -> None:
    first, second = {"maxPods": 1, "podsPerCore": 2}, {"podsPerCore": 2, "maxPods": 1}

    assert class_hash(("kubelet", first)) == class_hash(("kubelet", second))
