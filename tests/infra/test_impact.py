"""What a preview reports about running nodes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import boto3
import msgspec
import pytest
from botocore.exceptions import ClientError

from controller.apis import labels
from controller.apis.karpenter import hashes
from controller.apis.karpenter.ec2nodeclass import EC2NodeClass
from controller.apis.karpenter.nodepool import NodePool
from infra.clusterapi import ClusterLocation
from infra.guards.impact import (
    Effect,
    Node,
    Plan,
    Price,
    Prices,
    effects,
    expected_impact,
    nodes_of,
)
from infra.nodepools import default_manifests, replace_placeholders

STACK = "organization/joiner/dev"
CA = "Q0E="
HERE = ClusterLocation("joiner", "us-west-2")
KNOWN = {"CLUSTER_NAME": "joiner", "INSTANCE_PROFILE": "KarpenterNodeRole-joiner"}

Wire = dict[str, Any]


def manifests() -> tuple[Wire, Wire]:
    node_class, pool = replace_placeholders(default_manifests(), KNOWN)
    return node_class, pool


def plan(*wires: Wire, has_controller: bool = True) -> Plan:
    return Plan(
        manifests=wires, stack=STACK, certificate_authority=CA, has_controller=has_controller
    )


def node(pool: str = "default") -> Node:
    """A node made from the manifests as they are."""
    of_class, of_pool = manifests()
    made_from = {
        labels.NODEPOOL_HASH: hashes.node_pool_hash(msgspec.convert(of_pool, NodePool)),
        labels.NODEPOOL_HASH_VERSION: hashes.NODE_POOL_VERSION,
        labels.NODECLASS_HASH: hashes.node_class_hash(
            msgspec.convert(of_class, EC2NodeClass), ca_bundle=CA
        ),
        labels.NODECLASS_HASH_VERSION: hashes.NODE_CLASS_VERSION,
    }
    return Node(
        pool=pool,
        node_class="default",
        instance_type="m5.large",
        capacity_type="spot",
        zone="us-west-2a",
        annotations=made_from,
    )


def owned(name: str, stack: str = STACK) -> Wire:
    return {"metadata": {"name": name, "annotations": {"joiner.dev/stack": stack}}}


def said(nodes: list[Node], planned: Plan, *pools: Wire) -> list[str]:
    return [effect.text for effect in effects(nodes, pools, planned, lambda node: 0.25)]


def warned(nodes: list[Node], planned: Plan, *pools: Wire) -> list[bool]:
    return [effect.terminates for effect in effects(nodes, pools, planned, lambda node: 0.25)]


def test_an_update_reports_no_disrupted_nodes_and_a_destroy_all_of_them() -> None:
    nodes, same = [node(), node()], plan(*manifests())

    assert said(nodes, same, owned("default")) == [
        "this change disrupts no node: 2 nodes ($0.50 an hour) keep running"
    ]
    assert said(nodes, replace(same, is_destroyed=True), owned("default")) == [
        "pulumi destroy would drain and terminate 2 nodes ($0.50 an hour)"
    ]


def test_a_changed_template_reports_the_nodes_that_drift() -> None:
    node_class, pool = manifests()
    pool["spec"]["template"]["metadata"] = {"labels": {"team": "b"}}
    node_class["spec"]["tags"] = {"team": "b"}

    printed = said([node()], plan(node_class, pool), owned("default"))

    assert printed == [
        f"{kind} default changes: 1 node ($0.25 an hour) would drift and be replaced within "
        "the disruption budgets of the NodePool"
        for kind in ("EC2NodeClass", "NodePool")
    ]


def test_a_change_outside_the_template_reports_no_drift() -> None:
    node_class, pool = manifests()
    pool["spec"]["limits"] = {"cpu": "1"}

    assert len(said([node()], plan(node_class, pool), owned("default"))) == 1


def test_a_removed_pool_reports_the_nodes_that_terminate() -> None:
    printed = said([node("old"), node()], plan(*manifests()), owned("old"), owned("default"))

    (line,) = printed
    assert line == "NodePool old would be deleted with 1 node ($0.25 an hour)"


def test_what_terminates_nodes_is_a_warning() -> None:
    node_class, pool = manifests()
    drifting = plan(node_class, pool | {"spec": {**pool["spec"], "weight": 3}})
    drifting.manifests[1]["spec"]["template"]["metadata"] = {"labels": {"team": "b"}}
    same = plan(*manifests())

    assert warned([node()], same, owned("default")) == [False]
    assert warned([node("old")], same, owned("old")) == [True]
    assert warned([node()], drifting, owned("default")) == [True]
    assert warned([node()], replace(same, is_destroyed=True)) == [True]


def test_pools_of_other_stacks_and_their_nodes_are_not_reported() -> None:
    theirs = owned("theirs", "organization/joiner/other")

    assert said([node("theirs")], plan(*manifests(), has_controller=False), theirs) == []
    assert len(said([node("theirs")], plan(*manifests()), theirs)) == 1


def test_a_node_without_a_price_is_reported_without_one() -> None:
    dear = replace(node(), instance_type="m5.24xlarge")

    def printed_at(nodes: list[Node], planned: Plan, price: Price) -> list[str]:
        return [effect.text for effect in effects(nodes, [], planned, price)]

    printed = printed_at([node(), node()], plan(*manifests()), lambda node: None)
    some = printed_at(
        [node(), dear], plan(), lambda n: 5.0 if n.instance_type != "m5.large" else None
    )

    assert printed == ["this change disrupts no node: 2 nodes (price unknown) keep running"]
    assert some == [
        "this change disrupts no node: 2 nodes ($5.00 an hour, and 1 of unknown price) keep running"
    ]


def test_nodeclaims_of_other_controllers_are_not_reported() -> None:
    claims = [
        {"metadata": {"name": name}, "spec": {"nodeClassRef": {"group": group, "kind": kind}}}
        for name, group, kind in (
            ("ours", "karpenter.k8s.aws", "EC2NodeClass"),
            ("of-auto-mode", "eks.amazonaws.com", "NodeClass"),
        )
    ]

    assert len(list(nodes_of(claims))) == 1


@pytest.mark.usefixtures("entries")
def test_a_silent_cluster_is_reported() -> None:
    assert expected_impact(HERE, plan()) == [
        Effect(
            "the effect of this change on nodes is unknown: no answer from joiner", terminates=False
        )
    ]


def test_without_permission_to_read_prices_none_are_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(service: str, **_: object) -> Any:
        raise ClientError({"Error": {"Code": "AccessDeniedException"}}, service)

    monkeypatch.setattr(boto3, "client", refused)
    prices = Prices(HERE)

    assert prices.of(node()) is None
    assert prices.of(replace(node(), capacity_type="on-demand")) is None
