"""Errors of a NodePool that only the controller can detect."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from controller.apis import labels
from controller.apis.karpenter.nodeoverlay import NodeOverlay
from controller.apis.karpenter.nodepool import NodePool
from controller.apis.karpenter.validation import is_restricted, overlay_problems, problems
from tests.apis.test_rules import NODE_OVERLAY, NODE_POOL, requires, taint, with_field

REQUIREMENTS = "template.spec.requirements"
TENANCY = "karpenter.k8s.aws/instance-tenancy"


def problems_with(path: str, value: Any) -> list[str]:
    return problems(msgspec.convert(with_field(NODE_POOL, path, value), NodePool))


@pytest.mark.parametrize(
    ("path", "value", "why"),
    [
        ("template.metadata.labels", {"a b": "c"}, "label 'a b': is not a qualified name"),
        ("template.metadata.labels", {"A/b": "c"}, "DNS subdomain"),
        ("template.metadata.labels", {"a": "b c"}, "value 'b c' is not a label value"),
        ("template.metadata.labels", {labels.NODEPOOL: "x"}, "set by the controller"),
        ("template.metadata.labels", {"karpenter.sh/x": "x"}, "managed by the controller"),
        ("template.metadata.labels", {labels.HOSTNAME: "x"}, "managed by the controller"),
        ("template.spec.taints", taint(key=""), "is not a qualified name"),
        ("template.spec.taints", taint(value="a b"), "value 'a b'"),
        ("template.spec.taints", taint(effect="Sometimes"), "effect 'Sometimes' is not one of"),
        ("template.spec.taints", taint() * 2, "given twice"),
        (REQUIREMENTS, requires("a", "Near", "b"), "operator must be one of"),
        (REQUIREMENTS, requires("a", "In", "b" * 64), "is not a label value"),
        (REQUIREMENTS, requires("a", "NotIn", "-b"), "is not a label value"),
        (REQUIREMENTS, requires("a", "In"), "at least one value"),
        (REQUIREMENTS, requires("a", "In", "b", minValues=2), "minValues is 2"),
        (REQUIREMENTS, requires("a", "Gt", "1.5"), "whole number"),
        (REQUIREMENTS, requires("a", "Lt", "1" + 20 * "0"), "less than 2"),
        (REQUIREMENTS, requires("a", "Lte", "1", "2"), "exactly one value"),
        (REQUIREMENTS, requires(labels.NODEPOOL), "set by the controller"),
        (REQUIREMENTS, requires("sub.karpenter.k8s.aws/x"), "managed by the controller"),
        (REQUIREMENTS, requires(labels.CAPACITY_TYPE, "In", "cheap"), "on-demand, reserved, spot"),
        (REQUIREMENTS, requires(labels.CAPACITY_TYPE, "In", "spot", "x", minValues=2), "only"),
        (REQUIREMENTS, requires(TENANCY, "In", "host"), "dedicated, default"),
        ("template.spec.expireAfter", "0s", "deletes each node as soon as it is created"),
        ("template.spec.expireAfter", "0h0m0s", "allowed are a longer time"),
        ("template.spec.expireAfter", "1d", "'1d'"),
        ("template.spec.nodeClassRef.name", "c" * 64, "nodeClassRef.name: 64 characters"),
    ],
)
def test_an_invalid_pool_reports_its_problem(path: str, value: Any, why: str) -> None:
    problems = problems_with(path, value)

    assert len(problems) == 1
    assert why in problems[0]


@pytest.mark.parametrize(
    "requirement",
    [
        requires(labels.CAPACITY_TYPE, "In", "spot", "something-new"),
        requires(labels.CAPACITY_TYPE, "NotIn", "cheap"),
        requires("beta.kubernetes.io/arch", "In", "arm64"),
        requires("kubernetes.io/whatever", "Exists"),
        requires("karpenter.k8s.aws/instance-cpu", "Gt", "3"),
    ],
)
def test_a_valid_pool_reports_no_problems(requirement: list[dict[str, Any]]) -> None:
    assert problems_with(REQUIREMENTS, requirement) == []


def test_a_pool_that_launches_nothing_may_expire_its_nodes_at_once() -> None:
    wire = with_field(NODE_POOL, "template.spec.expireAfter", "0s")
    wire = with_field(wire, "limits", {"cpu": "0"})

    assert problems(msgspec.convert(wire, NodePool)) == []


@pytest.mark.parametrize(("length", "valid"), [(63, True), (64, False), (253, False)])
def test_the_name_of_a_pool_fits_into_the_label_of_its_nodes(length: int, valid: bool) -> None:
    metadata = {**NODE_POOL["metadata"], "name": "a" * length}

    faults = problems(msgspec.convert({**NODE_POOL, "metadata": metadata}, NodePool))

    assert faults == [] if valid else "metadata.name: " in faults[0]


def test_one_taint_may_have_two_effects() -> None:
    both = taint(effect="NoSchedule") + taint(effect="NoExecute")

    assert problems_with("template.spec.taints", both) == []


def test_a_taint_may_be_both_a_startup_taint_and_a_taint() -> None:
    wire = with_field(NODE_POOL, "template.spec.taints", taint())
    wire = with_field(wire, "template.spec.startupTaints", taint())

    assert "given twice" in problems(msgspec.convert(wire, NodePool))[0]


def test_an_overlay_may_select_one_pool() -> None:
    overlay = with_field(NODE_OVERLAY, "requirements", requires(labels.NODEPOOL, "In", "pool"))
    bad = with_field(NODE_OVERLAY, "requirements", requires(labels.HOSTNAME))

    assert overlay_problems(msgspec.convert(overlay, NodeOverlay)) == []
    assert overlay_problems(msgspec.convert(bad, NodeOverlay)) != []


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("price", "9" * 400, "is not in $ per hour up to 1,000,000, such as 0.25"),
        ("price", "NaN", "is not in $ per hour"),
        ("priceAdjustment", "10", "such as 0.25, +0.1 or -10%"),
        ("priceAdjustment", "+" + "9" * 400 + "%", "is not in $ per hour"),
        ("capacity", {"example.com/a": "1e1.5"}, "capacity: example.com/a: '1e1.5' is not a"),
        ("capacity", {"example.com/a": "-1"}, "capacity: example.com/a: '-1' is negative"),
    ],
)
def test_an_overlay_with_an_invalid_number_reports_it(field: str, value: Any, why: str) -> None:
    overlay = with_field(NODE_OVERLAY, field, value)

    (problem,) = overlay_problems(msgspec.convert(overlay, NodeOverlay))

    assert why in problem


@pytest.mark.parametrize("written", ["1e1.5", "-1", "much"])
def test_an_invalid_limit_makes_its_pool_invalid(written: str) -> None:
    (problem,) = problems_with("limits", {"cpu": written})

    assert f"limits: cpu: {written!r} is" in problem


def test_only_labels_of_karpenters_domains_and_the_hostname_are_restricted() -> None:
    assert is_restricted("karpenter.sh/initialized")
    assert is_restricted(labels.HOSTNAME)
    assert not is_restricted(labels.EC2NODECLASS)
    assert not is_restricted("topology.kubernetes.io/zone")
    assert not is_restricted("mykarpenter.sh/x")
