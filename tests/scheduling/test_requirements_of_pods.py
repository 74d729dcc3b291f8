"""Which NodePools and instance types a pod's selectors, affinities and tolerations allow."""

from __future__ import annotations

import pytest

from controller.apis import labels
from controller.apis.kubernetes.nodes import Node
from controller.apis.kubernetes.taints import Requirement
from controller.state.nodes import StateNode
from tests.builders import (
    make_daemonset,
    make_node,
    make_nodeclaim,
    make_nodepool,
    make_offering,
    make_pod,
    make_pods,
    make_snapshot,
    make_type,
    make_types,
    needs,
    taint,
    tolerate,
)
from tests.expectations import (
    expect_nodes,
    expect_scheduled,
    expect_unschedulable,
    node_of,
    schedule_on,
    values_of,
)


def test_a_pod_gets_the_cheapest_type_that_holds_it() -> None:
    pod = make_pod(cpu="3")

    results = schedule_on(make_nodepool(), [pod], types=make_types(2, 4, 8))

    expect_nodes(results, 1)
    assert results.new_nodes[0].instance_types[0] == "m-4"


def test_price_is_compared_over_all_offerings() -> None:
    types = (
        make_type("dear", offerings=[make_offering("zone-a", labels.ON_DEMAND, 0.2)]),
        make_type(
            "cheap-in-b",
            offerings=[
                make_offering("zone-a", labels.ON_DEMAND, 0.3),
                make_offering("zone-b", labels.ON_DEMAND, 0.1),
            ],
        ),
    )

    results = schedule_on(make_nodepool(), [make_pod()], types=types)

    assert results.new_nodes[0].instance_types[0] == "cheap-in-b"
    assert results.cost == pytest.approx(0.1)


def test_an_offering_without_capacity_is_not_bought() -> None:
    types = (
        make_type("gone", offerings=[make_offering("zone-a", "spot", 0.01, available=False)]),
        make_type("here", offerings=[make_offering("zone-a", "spot", 0.05)]),
    )

    results = schedule_on(make_nodepool(), [make_pod()], types=types)

    assert results.new_nodes[0].instance_types == ("here",)


def test_a_node_selector_narrows_the_zone_of_the_claim() -> None:
    pod = make_pod(node_selector={labels.ZONE: "zone-b"})

    results = schedule_on(make_nodepool(), [pod])

    assert values_of(results.new_nodes[0], labels.ZONE) == ["zone-b"]


def test_a_claim_leaves_the_zone_open_when_no_pod_needs_one() -> None:
    results = schedule_on(make_nodepool(), [make_pod()])

    assert values_of(results.new_nodes[0], labels.ZONE) == []


def test_a_deprecated_label_means_the_current_one() -> None:
    pod = make_pod(node_selector={"failure-domain.beta.kubernetes.io/zone": "zone-c"})

    results = schedule_on(make_nodepool(), [pod])

    assert values_of(results.new_nodes[0], labels.ZONE) == ["zone-c"]


@pytest.mark.parametrize(
    ("term", "allowed"),
    [
        (needs("size", "Gt", "4"), {"m-8", "m-16"}),
        (needs("size", "Gte", "4"), {"m-4", "m-8", "m-16"}),
        (needs("size", "Lt", "4"), {"m-2"}),
        (needs("size", "Lte", "4"), {"m-2", "m-4"}),
        (needs("size", "NotIn", "2", "4"), {"m-8", "m-16"}),
        (needs("size", "In", "8"), {"m-8"}),
        (needs("size", "Exists"), {"m-2", "m-4", "m-8", "m-16"}),
    ],
    ids=lambda term: term.operator if isinstance(term, Requirement) else "",
)
def test_every_operator_narrows_the_types(term: Requirement, allowed: set[str]) -> None:
    types = [
        make_type(f"m-{size}", cpu=str(size), requirements=[needs("size", "In", str(size))])
        for size in (2, 4, 8, 16)
    ]

    results = schedule_on(
        make_nodepool(), [make_pod(cpu="100m", node_affinity=[[term]])], types=types
    )

    expect_scheduled(results)
    assert set(results.new_nodes[0].instance_types) == allowed


def test_one_of_several_affinity_terms_is_enough_and_the_claim_promises_it() -> None:
    pod = make_pod(
        node_affinity=[[needs(labels.ZONE, "In", "nowhere")], [needs(labels.ZONE, "In", "zone-b")]]
    )

    results = schedule_on(make_nodepool(), [pod])

    assert values_of(results.new_nodes[0], labels.ZONE) == ["zone-b"]


def test_an_unset_label_makes_the_pod_unschedulable() -> None:
    pod = make_pod(node_selector={"team": "red"})

    expect_unschedulable(schedule_on(make_nodepool(), [pod]), pod, "default", "team In [red]")


def test_a_label_of_the_pool_satisfies_the_pod() -> None:
    pod = make_pod(node_selector={"team": "red"})

    expect_nodes(schedule_on(make_nodepool(labels={"team": "red"}), [pod]), 1)


@pytest.mark.parametrize("key", labels.LIFECYCLE)
def test_pods_may_select_the_labels_that_joiner_sets_while_a_node_starts(key: str) -> None:
    pod = make_pod(node_selector={key: "true"})

    results = schedule_on(make_nodepool(), [pod])

    expect_nodes(results, 1)
    # Registration and initialization set the label, not the launch.
    assert key not in results.new_nodes[0].labels
    assert key not in {term.key for term in results.new_nodes[0].requirements}


@pytest.mark.parametrize("key", labels.LIFECYCLE)
@pytest.mark.parametrize("node", [None, make_node("a")], ids=["in flight", "joined"])
def test_a_node_that_starts_takes_pods_that_select_its_later_labels(
    key: str, node: Node | None
) -> None:
    pod = make_pod(node_selector={key: "true"})
    status = {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "10"}}
    starting = StateNode(claim=make_nodeclaim("a", status=status), node=node)

    results = schedule_on(make_snapshot(make_nodepool(), nodes=[starting]), [pod])

    assert results.existing_nodes == {"a": (pod.key,)}


@pytest.mark.parametrize("key", labels.LIFECYCLE)
def test_daemonsets_that_select_the_labels_of_started_nodes_use_capacity(key: str) -> None:
    agents = make_daemonset(cpu="1", node_selector={key: "true"})
    snapshot = make_snapshot(make_nodepool(), types=make_types(4), daemon_sets=(agents,))

    expect_nodes(schedule_on(snapshot, make_pods(4, cpu="1")), 2)


@pytest.mark.parametrize(
    ("requirement", "is_met"),
    [
        (needs(labels.HOSTNAME, "Exists"), True),
        (needs(labels.HOSTNAME, "NotIn", "a"), True),
        (needs(labels.HOSTNAME, "In", "a"), False),
        (needs(labels.HOSTNAME, "DoesNotExist"), False),
    ],
    ids=lambda value: getattr(value, "operator", ""),
)
def test_every_new_node_has_a_hostname_of_its_own(requirement: Requirement, is_met: bool) -> None:
    results = schedule_on(make_nodepool(), [make_pod(node_affinity=[[requirement]])])

    assert len(results.new_nodes) == is_met
    for node in results.new_nodes:
        assert labels.HOSTNAME not in node.labels
        assert labels.HOSTNAME not in {term.key for term in node.requirements}


def test_a_pool_that_contradicts_itself_launches_nothing_and_says_why() -> None:
    pod = make_pod()
    pool = make_nodepool(labels={"team": "red"}, requirements=[needs("team", "In", "blue")])

    results = schedule_on(pool, [pod])

    expect_unschedulable(results, pod, "team In [blue]", "label team=red")


def test_pods_choose_the_value_of_a_label_that_the_pool_requires_to_exist() -> None:
    pods = [make_pod(node_selector={"team": team}) for team in ("red", "blue", "red")]

    results = schedule_on(make_nodepool(requirements=[needs("team", "Exists")]), pods)

    expect_nodes(results, 2)
    assert values_of(node_of(results, pods[0]), "team") == ["red"]
    assert node_of(results, pods[0]).labels["team"] == "red"
    assert values_of(node_of(results, pods[1]), "team") == ["blue"]


def test_one_node_never_has_two_operating_systems() -> None:
    both = [make_type("any", cpu="16", requirements=[needs("flavour", "In", "x", "y")])]
    pods = [make_pod(node_selector={"flavour": flavour}) for flavour in ("x", "y")]

    expect_nodes(schedule_on(make_nodepool(), pods, types=both), 2)


def test_a_type_without_an_attribute_does_not_match_it() -> None:
    plain = make_type(
        "plain", requirements=[needs(f"{labels.AWS_GROUP}/instance-gpu-name", "DoesNotExist")]
    )
    pod = make_pod(node_affinity=[[needs(f"{labels.AWS_GROUP}/instance-gpu-name", "Exists")]])

    expect_unschedulable(schedule_on(make_nodepool(), [pod], types=[plain]), pod, "gpu-name")


def test_only_pods_that_tolerate_the_taint_launch_nodes_of_the_pool() -> None:
    stranger, friend = make_pod(), make_pod(tolerations=[tolerate("team", "red")])
    pool = make_nodepool(taints=[taint("team", "red")])

    results = schedule_on(pool, [stranger, friend])

    expect_unschedulable(results, stranger, "taint team=red:NoSchedule")
    assert node_of(results, friend).pods == (friend.key,)


def test_a_soft_taint_is_avoided_if_possible() -> None:
    soft = make_nodepool("soft", taints=[taint("slow", effect="PreferNoSchedule")], weight=10)
    hard = make_nodepool("hard")

    both = schedule_on(make_snapshot(soft, hard, types=make_types()), [make_pod()])
    alone = schedule_on(soft, [make_pod()])

    assert both.new_nodes[0].node_pool == "hard"
    assert alone.new_nodes[0].node_pool == "soft"


def test_startup_taints_exclude_no_pod() -> None:
    expect_nodes(schedule_on(make_nodepool(startup_taints=[taint("cni")]), [make_pod()]), 1)


def test_the_pool_of_higher_weight_is_used_even_if_it_costs_more() -> None:
    heavy = make_nodepool(
        "heavy", weight=50, requirements=[needs(labels.CAPACITY_TYPE, "In", "on-demand")]
    )
    light = make_nodepool("light", requirements=[needs(labels.CAPACITY_TYPE, "In", "spot")])
    types = make_types(capacity_types=("spot", "on-demand"))

    results = schedule_on(make_snapshot(heavy, light, types=types), make_pods(3))

    assert {node.node_pool for node in results.new_nodes} == {"heavy"}


def test_among_equal_weights_the_price_decides() -> None:
    one = make_nodepool("od", requirements=[needs(labels.CAPACITY_TYPE, "In", "on-demand")])
    other = make_nodepool("spot", requirements=[needs(labels.CAPACITY_TYPE, "In", "spot")])
    types = make_types(capacity_types=("spot", "on-demand"))

    results = schedule_on(make_snapshot(one, other, types=types), make_pods(3))

    assert {node.node_pool for node in results.new_nodes} == {"spot"}


def test_spot_and_on_demand_both_stay_on_the_claim_when_both_are_allowed() -> None:
    types = make_types(capacity_types=("spot", "on-demand"))

    results = schedule_on(make_nodepool(), [make_pod()], types=types)

    assert values_of(results.new_nodes[0], labels.CAPACITY_TYPE) == []


def test_on_demand_is_named_when_it_is_cheaper_than_spot() -> None:
    odd = make_type(
        "odd",
        offerings=[make_offering("zone-a", "spot", 0.3), make_offering("zone-a", "on-demand", 0.2)],
    )

    results = schedule_on(make_nodepool(), [make_pod()], types=[odd])

    assert values_of(results.new_nodes[0], labels.CAPACITY_TYPE) == ["on-demand"]


def test_min_values_keeps_so_many_types_on_the_claim() -> None:
    pool = make_nodepool(requirements=[needs(labels.INSTANCE_TYPE, "Exists", min_values=3)])

    results = schedule_on(pool, make_pods(9, cpu="3"), types=make_types(2, 4, 8, 16))

    expect_scheduled(results)
    assert all(len(node.instance_types) >= 3 for node in results.new_nodes)


def test_unsatisfiable_min_values_make_pods_unschedulable() -> None:
    pool = make_nodepool(requirements=[needs(labels.INSTANCE_TYPE, "Exists", min_values=9)])
    pod = make_pod()

    expect_unschedulable(schedule_on(pool, [pod]), pod, "minValues")


def test_a_claim_has_at_most_six_hundred_types_cheapest_first() -> None:
    types = [make_type(f"t-{n:04d}", price=0.1 + n * 1e-5) for n in range(700)]

    node = schedule_on(make_nodepool(), [make_pod()], types=types).new_nodes[0]

    assert len(node.instance_types) == 600
    assert node.instance_types[0] == "t-0000"
    assert list(node.instance_types) == sorted(node.instance_types)


def test_without_a_pool_every_pod_reports_it() -> None:
    pod = make_pod()

    expect_unschedulable(schedule_on(make_snapshot(), [pod]), pod, "no NodePool")


def test_causes_count_what_fails_for_the_most_types() -> None:
    pod = make_pod(memory="40Gi", node_selector={labels.ZONE: "zone-a"})
    small = [make_type(f"s-{n}", memory="8Gi") for n in range(3)]
    gone = make_type(
        "g", memory="64Gi", offerings=[make_offering("zone-a", "spot", 1, available=False)]
    )

    results = schedule_on(make_nodepool(), [pod], types=[*small, gone])

    expect_unschedulable(
        results,
        pod,
        "4 instance types: 3 too small for memory 40Gi",
        "1 without capacity in zone-a",
    )


def test_a_pod_with_resourceclaims_is_ignored_by_default() -> None:
    claims = [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}]
    claiming, plain = make_pod(spec={"resourceClaims": claims}), make_pod()

    results = schedule_on(make_nodepool(), [claiming, plain], types=make_types(2))

    expect_unschedulable(
        results,
        claiming,
        "the pod has resource claims, which Joiner ignores: set IGNORE_DRA_REQUESTS=false",
    )
    assert set(results.unschedulable) == {claiming.key}, "the other is placed"
