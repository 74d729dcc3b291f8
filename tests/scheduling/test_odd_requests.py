"""An unschedulable pod does not affect other pods, and every solve ends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.apis import labels
from controller.apis.kubernetes.pods import Pod
from controller.apis.kubernetes.workloads import LimitRange
from controller.scheduling.packing.greedy import fill
from controller.scheduling.packing.pricing import PriceModel
from tests.builders import (
    make_daemonset,
    make_node,
    make_nodepool,
    make_pod,
    make_pods,
    make_snapshot,
    make_types,
    needs,
    spread,
)
from tests.expectations import expect_nodes, expect_unschedulable, schedule_on, values_of
from tests.scheduling.test_columns import problem


def asking(name: str, **requests: Any) -> Pod:
    container = {"name": "main", "resources": {"requests": requests}}
    wire = {"metadata": {"name": name, "namespace": "default"}, "spec": {"containers": [container]}}
    return msgspec.convert(wire, Pod)


@pytest.mark.parametrize("cpu", ["-1", "-1n", "1x", "NaN", ""])
def test_an_invalid_request_refuses_only_its_own_pod(cpu: str) -> None:
    results = schedule_on(make_nodepool(), [asking("odd", cpu=cpu), make_pod(name="good")])

    (cause,) = results.unschedulable["default/odd"]
    assert f"asks for cpu: {cpu!r} is" in cause
    assert [key for node in results.new_nodes for key in node.pods] == ["default/good"]


@pytest.mark.parametrize("cpu", ["1e999", "9" * 400, "9223372036854775807"])
def test_a_pod_with_a_too_large_request_is_the_only_unschedulable_one(cpu: str) -> None:
    results = schedule_on(make_nodepool(), [asking("odd", cpu=cpu), make_pod(name="good")])

    assert list(results.unschedulable) == ["default/odd"]
    assert [key for node in results.new_nodes for key in node.pods] == ["default/good"]


# The API server accepts any label value as the bound of Gt and Lt.
NOT_A_NUMBER = needs("example.com/slots", "Gt", "many")


def test_a_malformed_node_affinity_refuses_only_its_own_pods() -> None:
    required = make_pod(name="required", node_affinity=[[NOT_A_NUMBER]])
    preferred = make_pod(name="preferred", preferred_nodes=[(1, [NOT_A_NUMBER])])

    results = schedule_on(make_nodepool(), [required, preferred, make_pod(name="good")])

    expect_unschedulable(results, required, "Gt needs exactly one integer, not ['many']")
    expect_unschedulable(results, preferred, "Gt needs exactly one integer, not ['many']")
    assert [key for node in results.new_nodes for key in node.pods] == ["default/good"]


def test_a_malformed_term_of_node_affinity_excludes_no_node_that_meets_another_term() -> None:
    pod = make_pod(node_affinity=[[NOT_A_NUMBER], [needs(labels.ZONE, "In", "zone-b")]])

    results = schedule_on(make_nodepool(), [pod])

    expect_nodes(results, 1)
    assert values_of(results.new_nodes[0], labels.ZONE) == ["zone-b"]


def named(operator: str, node: str) -> dict[str, Any]:
    return {"matchFields": [{"key": "metadata.name", "operator": operator, "values": [node]}]}


def with_term(name: str, **term: Any) -> Pod:
    required = {"nodeSelectorTerms": [term]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    return make_pod(name=name, cpu="1", spec={"affinity": affinity})


IN_ZONE = {"matchExpressions": [{"key": labels.ZONE, "operator": "Exists"}]}


@pytest.mark.parametrize("expressions", [{}, IN_ZONE], ids=["alone", "with-expressions"])
def test_a_pod_that_requires_a_node_by_name_gets_no_new_node(expressions: dict[str, Any]) -> None:
    pods = [with_term(name, **named("In", name), **expressions) for name in ("here", "gone")]
    snapshot = make_snapshot(make_nodepool(), nodes=[make_node("here")])

    results = schedule_on(snapshot, pods)

    assert not results.new_nodes
    assert results.existing_nodes == {"here": ("default/here",)}
    assert list(results.unschedulable) == ["default/gone"]


@pytest.mark.parametrize("expressions", [{}, IN_ZONE], ids=["alone", "with-expressions"])
def test_a_pod_that_excludes_a_node_by_name_gets_another(expressions: dict[str, Any]) -> None:
    pod = with_term("pod", **named("NotIn", "here"), **expressions)
    snapshot = make_snapshot(make_nodepool(), nodes=[make_node("here")])

    expect_nodes(schedule_on(snapshot, [pod]), 1)


def test_a_daemonset_with_a_malformed_node_affinity_runs_on_no_node() -> None:
    daemon = make_daemonset(cpu="1", node_affinity=[[NOT_A_NUMBER]])
    snapshot = make_snapshot(make_nodepool(), types=make_types(2), daemon_sets=(daemon,))

    expect_nodes(schedule_on(snapshot, make_pods(2, cpu="1")), 1)


def test_a_daemonset_that_fits_no_instance_type_does_not_stop_launches() -> None:
    mistaken = make_daemonset(cpu="1", memory="80000Gi")
    snapshot = make_snapshot(make_nodepool(), types=make_types(2, 4), daemon_sets=(mistaken,))

    results = schedule_on(snapshot, [make_pod(cpu="1500m")])

    # Its CPU request counts: it would run there after a correction of the memory.
    assert [node.instance_types for node in results.new_nodes] == [("m-4",)]


def test_a_daemonset_that_fits_no_instance_type_leaves_existing_nodes_usable() -> None:
    mistaken = make_daemonset(cpu="1", memory="80000Gi")
    snapshot = make_snapshot(
        make_nodepool(), types=make_types(2), nodes=[make_node("one")], daemon_sets=(mistaken,)
    )

    results = schedule_on(snapshot, [make_pod(cpu="1")])

    assert list(results.existing_nodes) == ["one"]


def test_a_negative_default_of_a_limit_range_does_not_stop_launches() -> None:
    limit_range = {
        "metadata": {"name": "odd", "namespace": "kube-system"},
        "spec": {"limits": [{"type": "Container", "defaultRequest": {"example.com/x": "-1"}}]},
    }
    snapshot = make_snapshot(
        make_nodepool(),
        daemon_sets=(make_daemonset(cpu="1"),),
        limit_ranges=(msgspec.convert(limit_range, LimitRange),),
    )

    expect_nodes(schedule_on(snapshot, [make_pod()]), 1)


def test_without_instance_types_daemonsets_still_take_capacity_of_existing_nodes() -> None:
    daemon = make_daemonset(cpu="3")
    snapshot = make_snapshot(nodes=[make_node("one", cpu="4")], daemon_sets=(daemon,))

    expect_unschedulable(schedule_on(snapshot, [pod := make_pod(cpu="2")]), pod)


def test_existing_nodes_are_used_if_nothing_can_be_launched() -> None:
    web = {"app": "web"}
    pods = [make_pod(name=f"web-{n}", labels=web, spreads=[spread(web)]) for n in range(2)]
    nodes = [make_node("one", zone="a"), make_node("two", zone="b")]

    results = schedule_on(make_snapshot(nodes=nodes), pods)

    assert sorted(results.existing_nodes) == ["one", "two"]


@given(
    sizes=st.lists(
        st.lists(
            st.sampled_from([-1e30, -5.0, -0.1, 0.0, 5.0, 1e30, np.inf, np.nan]),
            min_size=2,
            max_size=2,
        ),
        min_size=3,
        max_size=3,
    ),
    keen=st.sampled_from([0.0, 1.0, np.nan]),
)
@np.errstate(all="ignore")
def test_filling_ends_for_any_numbers(sizes: list[list[float]], keen: float) -> None:
    sane = problem([[6, 6], [5, 4], [5, 5]], [[10, 9], [20, 30]], [1])
    dual_prices = replace(PriceModel(sane).dual_prices(sane.demand, balance=0.0), values=np.ones(3))
    odd = replace(sane, sizes=np.array(sizes))
    nothing = np.zeros((2, 3), dtype=np.int64)

    filled = fill(odd, np.arange(2), nothing, odd.demand, dual_prices, keen)

    assert (filled >= 0).all()
    assert (filled <= odd.demand).all()
