"""Topology spread, affinity and anti-affinity: the domains of pods."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from controller.apis import labels
from controller.cloudprovider.instancetypes import Offering
from controller.scheduling.results import Results
from controller.scheduling.settings import Settings
from controller.state.nodes import StateNode
from tests.builders import (
    by_hostname,
    make_launched,
    make_namespace,
    make_node,
    make_nodepool,
    make_offering,
    make_pod,
    make_pods,
    make_snapshot,
    make_type,
    make_types,
    near,
    needs,
    spread,
    taint,
    tolerate,
)
from tests.expectations import (
    expect_nodes,
    expect_on_existing,
    expect_scheduled,
    expect_skew,
    expect_unschedulable,
    node_of,
    schedule_on,
    values_of,
)

WEB = {"app": "web"}
DB = {"app": "db"}
TERMINATING: dict[str, Any] = {"deletionTimestamp": datetime(2026, 11, 28, tzinfo=UTC)}


def test_pods_spread_evenly_over_zones() -> None:
    pods = make_pods(7, labels=WEB, spreads=[spread(WEB)])

    expect_skew(schedule_on(make_nodepool(), pods), labels.ZONE, pods, 2, 2, 3)


def test_running_pods_count_in_a_spread() -> None:
    running = tuple(make_pods(2, labels=WEB, node="a", cpu="2"))
    snapshot = make_snapshot(make_nodepool(), nodes=[make_node("a", zone="zone-a")], pods=running)
    pods = make_pods(4, labels=WEB, spreads=[spread(WEB)])

    expect_skew(schedule_on(snapshot, pods), labels.ZONE, pods, 2, 2)


def test_pods_nominated_for_a_claim_in_flight_count_in_its_zone() -> None:
    coming = [StateNode(claim=make_launched("coming", zone="zone-a"))]
    promised = tuple(make_pods(2, labels=WEB, node="coming", cpu="2", spreads=[spread(WEB)]))
    snapshot = make_snapshot(make_nodepool(), nodes=coming, pods=promised)
    pods = make_pods(4, labels=WEB, spreads=[spread(WEB)])

    expect_skew(schedule_on(snapshot, pods), labels.ZONE, pods, 2, 2)


def test_a_pod_nominated_for_a_claim_in_flight_repels_others_from_it() -> None:
    coming = [StateNode(claim=make_launched("coming"))]
    alone = make_pod(labels=WEB, node="coming", anti_affinity=[by_hostname(WEB)])
    snapshot = make_snapshot(make_nodepool(), nodes=coming, pods=(alone,))

    expect_nodes(schedule_on(snapshot, [make_pod(labels=WEB)]), 1)


@pytest.mark.parametrize("ending", [{"phase": "Succeeded"}, TERMINATING])
def test_terminating_and_finished_pods_do_not_count_in_a_spread(ending: dict[str, Any]) -> None:
    ended = make_pod(labels=WEB, node="a", **ending)
    snapshot = make_snapshot(make_nodepool(), nodes=[make_node("a", cpu="1m")], pods=(ended,))
    pods = make_pods(3, labels=WEB, spreads=[spread(WEB)])

    expect_skew(schedule_on(snapshot, pods), labels.ZONE, pods, 1, 1, 1)


def test_a_spread_compares_only_zones_that_the_pod_may_use() -> None:
    pods = make_pods(
        6,
        labels=WEB,
        spreads=[spread(WEB)],
        node_affinity=[[needs(labels.ZONE, "In", "zone-a", "zone-b")]],
    )

    expect_skew(schedule_on(make_nodepool(), pods), labels.ZONE, pods, 3, 3)


def test_with_nodeaffinitypolicy_ignore_every_zone_counts() -> None:
    """The pods are allowed in one zone only, and the other zones have no matching pods."""
    only_a = [[needs(labels.ZONE, "In", "zone-a")]]
    nodes = [make_node(f"n-{zone}", zone=zone, cpu="1m") for zone in ("zone-a", "zone-b")]

    def left_over(**policy: str) -> int:
        spreads = [spread(WEB, max_skew=2, **policy)]
        pods = make_pods(5, labels=WEB, spreads=spreads, node_affinity=only_a)
        return len(schedule_on(make_snapshot(make_nodepool(), nodes=nodes), pods).unschedulable)

    assert left_over() == left_over(nodeAffinityPolicy="Honor") == 0
    assert left_over(nodeAffinityPolicy="Ignore") == 3


def test_a_full_zone_limits_the_skew_of_the_others() -> None:
    full = make_node("full", zone="zone-x", cpu="1m")
    pods = make_pods(6, labels=WEB, spreads=[spread(WEB)])

    results = schedule_on(make_snapshot(make_nodepool(), nodes=[full]), pods)

    assert sum(len(node.pods) for node in results.new_nodes) == 3
    assert len(results.unschedulable) == 3


def test_a_tainted_zone_counts_unless_taints_are_honored() -> None:
    barred = make_node("barred", zone="zone-x", taints=[taint("own")])
    snapshot = make_snapshot(make_nodepool(), nodes=[barred])
    strict = make_pods(6, labels=WEB, spreads=[spread(WEB)])
    honoring = make_pods(6, labels=WEB, spreads=[spread(WEB, nodeTaintsPolicy="Honor")])

    assert len(schedule_on(snapshot, strict).unschedulable) == 3
    expect_scheduled(schedule_on(snapshot, honoring))


@pytest.mark.parametrize("policy", ["Honor", "Ignore"])
def test_a_zone_that_only_a_tainted_pool_offers_does_not_limit_the_skew(policy: str) -> None:
    snapshot = make_snapshot(
        make_nodepool("open", requirements=[needs(labels.ZONE, "In", "zone-a", "zone-b")]),
        make_nodepool("own", taints=[taint("own")]),
    )
    pods = make_pods(6, labels=WEB, spreads=[spread(WEB, nodeTaintsPolicy=policy)])

    expect_skew(schedule_on(snapshot, pods), labels.ZONE, pods, 3, 3)


def test_a_tainted_zone_counts_once_another_pod_launches_a_node_there() -> None:
    snapshot = make_snapshot(
        make_nodepool("open", requirements=[needs(labels.ZONE, "In", "zone-a", "zone-b")]),
        make_nodepool(
            "own", taints=[taint("own")], requirements=[needs(labels.ZONE, "In", "zone-c")]
        ),
    )
    owner = make_pod(tolerations=[tolerate("own")], node_selector={labels.ZONE: "zone-c"})
    pods = make_pods(6, labels=WEB, spreads=[spread(WEB)])
    honoring = make_pods(6, labels=DB, spreads=[spread(DB, nodeTaintsPolicy="Honor")])

    results = schedule_on(snapshot, [owner, *pods, *honoring])

    assert len([pod for pod in pods if pod.key in results.unschedulable]) == 4
    expect_skew(results, labels.ZONE, honoring, 3, 3)


def test_an_unreachable_zone_counts_only_if_another_pod_launches_a_node_there() -> None:
    within = [[needs(labels.ZONE, "In", "zone-a", "zone-b")]]
    rule = spread(WEB, nodeAffinityPolicy="Ignore")
    pods = make_pods(6, labels=WEB, node_affinity=within, spreads=[rule])
    other = make_pod(node_selector={labels.ZONE: "zone-c"})

    alone = schedule_on(make_nodepool(), pods)
    beside = schedule_on(make_nodepool(), [*pods, other])

    expect_skew(alone, labels.ZONE, pods, 3, 3)
    assert len(beside.unschedulable) == 4


def test_nodes_without_the_spread_label_are_not_a_domain_of_it() -> None:
    """A pool leaves its nodes' rack open; those made for others are on the racks that count."""
    snapshot = make_snapshot(
        make_nodepool("low", requirements=[needs("rack", "In", "1", "2")]),
        make_nodepool("high", requirements=[needs("rack", "Gt", "5")]),
        types=[make_type("small", cpu="2", memory="8Gi")],
    )
    others = make_pods(2, node_affinity=[[needs("rack", "Gt", "5")]], cpu="1500m")
    web = make_pods(6, labels=WEB, spreads=[spread(WEB, "rack")])

    results = schedule_on(snapshot, [*others, *web])

    expect_skew(results, "rack", web, 2, 2, 2)
    racks = {value for pod in web for value in values_of(node_of(results, pod), "rack")}
    for pod in others:
        (rack,) = values_of(node_of(results, pod), "rack")
        assert rack in racks


def test_no_node_is_launched_in_a_zone_that_only_counts_in_the_spread() -> None:
    within = [[needs(labels.ZONE, "In", "zone-a", "zone-b")]]
    rule = spread(WEB, nodeAffinityPolicy="Ignore")
    pods = make_pods(6, labels=WEB, node_affinity=within, spreads=[rule])
    others = make_pods(4, cpu="3")

    results = schedule_on(
        make_nodepool(), [*others, *pods], types=[make_type("four", cpu="4", memory="16Gi")]
    )

    expect_scheduled(results)
    expect_skew(results, labels.ZONE, pods, 3, 3)
    assert results.lower_bound <= results.cost


def test_a_zone_with_a_launching_node_counts() -> None:
    within = [[needs(labels.ZONE, "In", "zone-a", "zone-b")]]
    rule = spread(WEB, nodeAffinityPolicy="Ignore")
    pods = make_pods(6, labels=WEB, node_affinity=within, spreads=[rule])
    coming = StateNode(claim=make_launched("coming", cpu="1m", zone="zone-c"))

    results = schedule_on(make_snapshot(make_nodepool(), nodes=[coming]), pods)

    assert len(results.unschedulable) == 4


def test_a_spread_holds_if_limits_leave_pods_pending() -> None:
    bare = make_type("two", cpu="2", memory="8Gi", zones=["zone-a", "zone-b"])
    node = make_node("a", zone="zone-a", cpu="3", memory="32Gi")
    pods = make_pods(6, labels=WEB, cpu="1500m", spreads=[spread(WEB)])
    pool = make_nodepool(limits={"cpu": "2"})

    results = schedule_on(make_snapshot(pool, types=[bare], nodes=[node]), pods)

    assert len(results.existing_nodes["a"]) == 2
    assert len(results.new_nodes) == 1


def test_pods_are_removed_from_nodes_if_limits_break_their_spread() -> None:
    bare = make_type("two", cpu="2", memory="8Gi", zones=["zone-b"])
    nodes = [
        make_node("a", zone="zone-a", cpu="8", memory="32Gi"),
        make_node("b", zone="zone-b", cpu="1m"),
    ]
    pods = make_pods(6, labels=WEB, cpu="1500m", spreads=[spread(WEB)])
    pool = make_nodepool(limits={"cpu": "3"})

    results = schedule_on(make_snapshot(pool, types=[bare], nodes=nodes), pods)

    assert len(results.existing_nodes["a"]) == 2
    assert [len(node.pods) for node in results.new_nodes] == [1]
    assert len(results.unschedulable) == 3


def test_pods_with_affinity_to_a_pending_pod_stay_pending() -> None:
    small = make_type("small", cpu="2", memory="8Gi")
    pool = make_nodepool(limits={"cpu": "2"})
    sought = make_pod(labels=WEB, cpu="1500m", priority=-1)
    fan = make_pod(cpu="1500m", affinity=[near(WEB)])

    results = schedule_on(make_snapshot(pool, types=[small]), [sought, fan])

    expect_unschedulable(results, fan)


def test_an_existing_node_is_used_before_a_new_one_in_an_equally_empty_zone() -> None:
    snapshot = make_snapshot(make_nodepool(), nodes=[make_node("a", zone="zone-x")])
    (pod,) = make_pods(1, labels=WEB, spreads=[spread(WEB)])

    expect_on_existing(schedule_on(snapshot, [pod]), "a", [pod])


def test_targets_of_affinity_fill_a_node_only_up_to_its_capacity() -> None:
    cheap = make_type("cheap", offerings=[make_offering("zone-c", labels.ON_DEMAND, 0.1)])
    dear = make_type("dear", offerings=[make_offering("zone-a", labels.ON_DEMAND, 0.2)])
    snapshot = make_snapshot(make_nodepool(), types=[cheap, dear], nodes=[make_node("a", cpu="3")])
    sought = make_pods(2, labels=WEB, cpu="2")
    fan = make_pod(cpu="500m", affinity=[near(WEB)])

    results = schedule_on(snapshot, [*sought, fan])

    expect_nodes(results, 1)
    assert results.new_nodes[0].price == pytest.approx(0.1)


def test_mindomains_keeps_pods_pending_while_there_are_too_few_domains() -> None:
    pods = make_pods(6, labels=WEB, spreads=[spread(WEB, minDomains=5)])

    results = schedule_on(make_nodepool(), pods)

    assert sum(len(node.pods) for node in results.new_nodes) == 3
    expect_unschedulable(
        results, next(p for p in pods if p.key in results.unschedulable), "topology spread"
    )


def test_pods_spread_over_hostnames_get_one_node_each() -> None:
    pods = make_pods(4, labels=WEB, cpu="100m", spreads=[spread(WEB, labels.HOSTNAME)])

    expect_nodes(schedule_on(make_nodepool(), pods), 4)


def test_a_larger_maxskew_over_hostnames_lets_more_pods_share() -> None:
    pods = make_pods(4, labels=WEB, cpu="100m", spreads=[spread(WEB, labels.HOSTNAME, max_skew=2)])

    expect_nodes(schedule_on(make_nodepool(), pods), 2)


def test_pods_spread_over_capacity_types() -> None:
    types = make_types(capacity_types=("spot", "on-demand"))
    pods = make_pods(4, labels=WEB, spreads=[spread(WEB, labels.CAPACITY_TYPE)])

    expect_skew(schedule_on(make_nodepool(), pods, types=types), labels.CAPACITY_TYPE, pods, 2, 2)


def test_pods_spread_over_any_label() -> None:
    racks = [make_type(f"rack-{n}", requirements=[needs("rack", "In", str(n))]) for n in range(3)]
    pods = make_pods(6, labels=WEB, spreads=[spread(WEB, "rack")])

    expect_skew(schedule_on(make_nodepool(), pods, types=racks), "rack", pods, 2, 2, 2)


def test_pods_spread_over_zones_and_hostnames_at_once() -> None:
    pods = make_pods(6, labels=WEB, cpu="100m", spreads=[spread(WEB), spread(WEB, labels.HOSTNAME)])

    results = schedule_on(make_nodepool(), pods)

    expect_nodes(results, 6)
    expect_skew(results, labels.ZONE, pods, 2, 2, 2)


def test_each_revision_spreads_separately() -> None:
    pods = [
        make_pod(
            labels=WEB | {"pod-template-hash": revision},
            spreads=[spread(WEB, matchLabelKeys=["pod-template-hash"])],
        )
        for revision in ("one", "two")
        for _ in range(3)
    ]

    results = schedule_on(make_nodepool(), pods)

    expect_skew(results, labels.ZONE, pods[:3], 1, 1, 1)
    expect_skew(results, labels.ZONE, pods[3:], 1, 1, 1)


def test_schedule_anyway_spreads_only_if_possible() -> None:
    pods = make_pods(6, labels=WEB, spreads=[spread(WEB, when="ScheduleAnyway")])
    full = make_snapshot(make_nodepool(), nodes=[make_node("full", zone="zone-x", cpu="1m")])

    expect_skew(schedule_on(make_nodepool(), pods), labels.ZONE, pods, 2, 2, 2)
    expect_scheduled(schedule_on(full, pods))


def test_preferences_can_be_ignored() -> None:
    pods = make_pods(3, labels=WEB, cpu="100m", preferred_anti_affinity=[(1, by_hostname(WEB))])

    expect_nodes(schedule_on(make_nodepool(), pods), 3)
    ignoring = Settings(preference_policy="Ignore")
    expect_nodes(schedule_on(make_nodepool(), pods, settings=ignoring), 1)


def test_the_satisfiable_node_preference_with_the_highest_weight_is_met() -> None:
    pod = make_pod(
        preferred_nodes=[
            (1, [needs(labels.ZONE, "In", "zone-c")]),
            (50, [needs(labels.ZONE, "In", "nowhere")]),
        ]
    )

    results = schedule_on(make_nodepool(), [pod])

    assert values_of(results.new_nodes[0], labels.ZONE) == ["zone-c"]


def test_pods_with_hostname_anti_affinity_get_one_node_each() -> None:
    pods = make_pods(3, labels=WEB, anti_affinity=[by_hostname(WEB)])

    expect_nodes(schedule_on(make_nodepool(), pods), 3)


def test_pods_with_zone_anti_affinity_are_one_per_zone() -> None:
    pods = make_pods(4, labels=WEB, anti_affinity=[near(WEB)])

    results = schedule_on(make_nodepool(), pods)

    assert len(results.new_nodes) == 3
    expect_unschedulable(
        results, next(p for p in pods if p.key in results.unschedulable), "anti-affinity"
    )


def test_a_pod_with_anti_affinity_to_others_never_shares_their_node() -> None:
    shy = make_pod(labels=DB, cpu="100m", anti_affinity=[by_hostname(WEB)])
    web = make_pod(labels=WEB, cpu="100m")

    expect_nodes(schedule_on(make_nodepool(), [shy, web]), 2)


def test_a_zone_of_matched_pods_excludes_pods_with_anti_affinity_to_them() -> None:
    web = make_pods(2, labels=WEB, node_selector={labels.ZONE: "zone-a"})
    shy = make_pods(2, labels=DB, anti_affinity=[near(WEB)])

    results = schedule_on(make_nodepool(), [*web, *shy])

    expect_scheduled(results)
    assert {values_of(node_of(results, pod), labels.ZONE)[0] for pod in shy} & {"zone-a"} == set()


def test_anti_affinity_of_running_pods_applies_to_new_ones() -> None:
    guard = make_pod(labels=DB, node="a", anti_affinity=[by_hostname(WEB)])
    snapshot = make_snapshot(make_nodepool(), nodes=[make_node("a")], pods=(guard,))

    expect_nodes(schedule_on(snapshot, [make_pod(labels=WEB)]), 1)


RACK = "example.com/rack"


def test_anti_affinity_over_a_label_that_no_node_has_excludes_no_pod() -> None:
    # As in kube-scheduler: otherwise one such pod would keep every NodePool from launching nodes.
    guard = make_pod(labels=DB, node="a", anti_affinity=[near(WEB, key=RACK)])
    snapshot = make_snapshot(make_nodepool(), nodes=[make_node("a", cpu="1")], pods=(guard,))

    expect_nodes(schedule_on(snapshot, [make_pod(labels=WEB)]), 1)
    expect_nodes(schedule_on(snapshot, [make_pod(anti_affinity=[near(DB, key=RACK)])]), 1)


def test_pods_that_repel_each_other_may_share_a_node_without_the_label() -> None:
    pods = make_pods(3, labels=WEB, cpu="100m", anti_affinity=[near(WEB, key=RACK)])

    expect_nodes(schedule_on(make_nodepool(), pods), 1)
    there = make_snapshot(make_nodepool(), nodes=[make_node("a")])
    expect_on_existing(schedule_on(there, pods), "a", pods)


def test_anti_affinity_over_the_label_of_one_nodepool_leaves_the_others_open() -> None:
    racks = make_nodepool("racks", labels={RACK: "r1"}, weight=10)
    guard = make_pod(labels=DB, node="a", anti_affinity=[near(WEB, key=RACK)])
    on_rack = make_node("a", cpu="1", labels={RACK: "r1"})
    snapshot = make_snapshot(racks, make_nodepool("plain"), nodes=[on_rack], pods=(guard,))
    pods = make_pods(2, labels=WEB, cpu="100m")

    results = schedule_on(snapshot, pods)

    expect_nodes(results, 1)
    assert results.new_nodes[0].node_pool == "plain"


def test_affinity_of_other_pods_over_a_label_that_no_node_has_excludes_no_pod() -> None:
    friend = make_pod(affinity=[near(WEB, key=RACK)])
    web = make_pod(labels=WEB)

    results = schedule_on(make_nodepool(), [friend, web])

    assert len(results.new_nodes) == 1
    assert list(results.unschedulable) == [friend.key]


def test_pods_go_to_nodes_with_the_label_over_which_other_pods_follow_them() -> None:
    racks = make_nodepool("racks", labels={RACK: "r1"})
    friend = make_pod(affinity=[near(WEB, key=RACK)])
    web = make_pod(labels=WEB)

    results = schedule_on(make_snapshot(make_nodepool("plain"), racks), [friend, web])

    expect_scheduled(results)


def test_pods_with_zone_affinity_use_the_zone_of_their_targets() -> None:
    target = make_pod(labels=DB, node="b")
    snapshot = make_snapshot(
        make_nodepool(), nodes=[make_node("b", zone="zone-b", cpu="1")], pods=(target,)
    )
    pods = make_pods(3, affinity=[near(DB)])

    results = schedule_on(snapshot, pods)

    expect_skew(results, labels.ZONE, pods, 3)
    assert values_of(results.new_nodes[0], labels.ZONE) == ["zone-b"]


def test_pods_with_affinity_to_themselves_share_one_zone() -> None:
    pods = make_pods(9, labels=WEB, affinity=[near(WEB)])

    expect_skew(schedule_on(make_nodepool(), pods), labels.ZONE, pods, 9)


def test_pods_with_affinity_to_themselves_use_the_cheapest_zone_that_holds_them() -> None:
    types = [
        make_type(
            "t",
            offerings=[
                make_offering("zone-a", "spot", 0.5),
                make_offering("zone-b", "spot", 0.1),
                make_offering("zone-c", "spot", 0.05, available=False),
            ],
        )
    ]
    pods = make_pods(3, labels=WEB, affinity=[near(WEB)])

    results = schedule_on(make_nodepool(), pods, types=types)

    assert values_of(results.new_nodes[0], labels.ZONE) == ["zone-b"]


def test_targets_of_pods_on_existing_nodes_stay_in_their_zone() -> None:
    """A pod's share of a node is cheaper in zone-b, and a node for one pod in zone-a."""
    small = make_type("small", cpu="4", price=0.12, zones=["zone-a"])
    large = make_type("large", cpu="16", memory="64Gi", price=0.2, zones=["zone-b"])
    target = make_pod(labels=WEB, spreads=[spread(WEB)], cpu="3")
    follower = make_pod(affinity=[near(WEB)])
    nodes = [make_node("b", zone="zone-b", cpu="2")]

    results = schedule_on(
        make_snapshot(make_nodepool(), types=[small, large], nodes=nodes), [target, follower]
    )

    expect_scheduled(results)
    zones = {*values_of(node_of(results, target), labels.ZONE)}
    assert zones == ({"zone-b"} if results.existing_nodes else {"zone-a"})


def test_pods_with_affinity_join_targets_of_the_same_batch() -> None:
    db = make_pods(2, labels=DB)
    web = make_pods(3, labels=WEB, cpu="3", affinity=[near(DB)])

    results = schedule_on(make_nodepool(), [*web, *db])

    expect_scheduled(results)
    zones = {values_of(node_of(results, pod), labels.ZONE)[0] for pod in web}
    assert zones <= {values_of(node_of(results, pod), labels.ZONE)[0] for pod in db}


def test_one_pod_must_match_all_required_affinity_terms() -> None:
    """kube-scheduler's InterPodAffinity counts only pods that match every term."""
    near_both = [near({"color": "red"}), near(WEB)]
    pod = make_pod("near-both", affinity=near_both)

    def schedule_beside(*running: dict[str, str]) -> Results:
        nodes = [make_node("a", zone="zone-a")]
        pods = [make_pod(labels=values, node="a") for values in running]
        return schedule_on(make_snapshot(make_nodepool(), nodes=nodes, pods=pods), [pod])

    expect_unschedulable(
        schedule_beside({"color": "red"}, WEB),
        pod,
        "no pod matches all terms of the pod affinity over topology.kubernetes.io/zone",
    )
    expect_on_existing(schedule_beside({"color": "red", **WEB}), "a", [pod])


def test_a_pod_starts_an_affinity_only_if_it_matches_all_its_terms() -> None:
    both = [near(WEB), near({"tier": "front"}, labels.HOSTNAME)]
    incomplete = make_pod(labels=WEB, affinity=both)
    complete = make_pod(labels={**WEB, "tier": "front"}, affinity=both)

    expect_unschedulable(schedule_on(make_nodepool(), [incomplete]), incomplete, "all terms")
    expect_nodes(schedule_on(make_nodepool(), [complete]), 1)


@pytest.mark.parametrize("key", [labels.ZONE, labels.HOSTNAME])
def test_affinity_and_anti_affinity_count_terminating_pods(key: str) -> None:
    """Only spreads leave out terminating pods, as in kube-scheduler."""
    nodes = [make_node("a", zone="zone-a"), make_node("b", zone="zone-b")]
    ending = make_pod(labels=WEB, node="a", anti_affinity=[near(DB, key)], **TERMINATING)
    snapshot = make_snapshot(nodes=nodes, pods=[ending])
    beside = make_pod(affinity=[near(WEB, key)])
    apart = make_pod(anti_affinity=[near(WEB, key)])
    repelled = make_pod(labels=DB)

    results = schedule_on(snapshot, [beside, apart, repelled])

    expect_on_existing(results, "a", [beside])
    expect_on_existing(results, "b", [apart, repelled])


def test_a_pod_with_affinity_to_a_missing_pod_stays_pending() -> None:
    pod = make_pod(affinity=[near(DB)])

    expect_unschedulable(
        schedule_on(make_nodepool(), [pod]), pod, "no pod matches the pod affinity"
    )


def test_pods_with_hostname_affinity_to_themselves_share_one_node() -> None:
    pods = make_pods(5, labels=WEB, cpu="1", affinity=[by_hostname(WEB)])

    expect_nodes(schedule_on(make_nodepool(), pods), 1)


def test_pods_that_do_not_fit_on_the_node_of_their_affinity_stay_pending() -> None:
    pods = make_pods(5, labels=WEB, cpu="1", affinity=[by_hostname(WEB)])

    results = schedule_on(make_nodepool(), pods, types=make_types(2, 4))

    assert [len(node.pods) for node in results.new_nodes] == [4]
    assert len(results.unschedulable) == 1


def test_pods_with_hostname_affinity_share_the_node_of_targets_in_the_batch() -> None:
    hosts = make_pods(3, labels=DB, cpu="1", anti_affinity=[by_hostname(DB)])
    riders = make_pods(7, labels=WEB, cpu="500m", affinity=[by_hostname(DB)])

    results = schedule_on(make_nodepool(), [*riders, *hosts])

    expect_nodes(results, 3)
    for node in results.new_nodes:
        assert sum(pod.key in node.pods for pod in hosts) == 1


ONE_A_NODE = {
    "anti-affinity": {"anti_affinity": [by_hostname(WEB)]},
    "spread": {"spreads": [spread(WEB, labels.HOSTNAME)]},
    "host port": {"host_ports": [80]},
}
"""Constraints by which each node holds one such pod."""


@pytest.mark.parametrize("alone", ONE_A_NODE.values(), ids=ONE_A_NODE)
def test_pods_with_affinity_satisfy_their_own_constraints(
    alone: dict[str, Any],
) -> None:
    hosts = make_pods(2, labels=DB, cpu="1", anti_affinity=[by_hostname(DB)])
    riders = make_pods(3, labels=WEB, cpu="500m", affinity=[by_hostname(DB)], **alone)

    results = schedule_on(make_nodepool(), [*riders, *hosts])

    assert [len(node.pods) for node in results.new_nodes] == [2, 2]
    assert len(results.unschedulable) == 1


@pytest.mark.parametrize("alone", ONE_A_NODE.values(), ids=ONE_A_NODE)
def test_pods_with_contradicting_affinities_get_one_node(alone: dict[str, Any]) -> None:
    pods = make_pods(3, labels=WEB, affinity=[by_hostname(WEB)], **alone)
    snapshot = make_snapshot(make_nodepool(), nodes=[make_node("a", cpu="32")])

    launched, existing = schedule_on(make_nodepool(), pods), schedule_on(snapshot, pods)

    assert [len(node.pods) for node in launched.new_nodes] == [1]
    assert [len(keys) for keys in existing.existing_nodes.values()] == [1]
    assert not existing.new_nodes


def test_pods_with_affinity_to_themselves_do_not_start_on_a_second_node() -> None:
    snapshot = make_snapshot(make_nodepool(), nodes=[make_node("a", cpu="2")])
    larger = make_pod(labels=WEB, cpu="1800m", affinity=[by_hostname(WEB)])
    smaller = make_pod(labels=WEB, cpu="500m", affinity=[by_hostname(WEB)])

    results = schedule_on(snapshot, [larger, smaller])

    expect_on_existing(results, "a", [larger])
    expect_unschedulable(results, smaller, "no capacity beside the pods that match")


def test_affinity_does_not_override_a_host_port_conflict() -> None:
    host = make_pod(labels=DB, host_ports=[80])
    rider = make_pod(affinity=[by_hostname(DB)], host_ports=[80])

    expect_unschedulable(schedule_on(make_nodepool(), [host, rider]), rider)


def test_a_spread_over_nodes_counts_pods_placed_by_affinity() -> None:
    hosts = make_pods(4, labels=DB, cpu="100m")
    skew = [spread(WEB, labels.HOSTNAME, max_skew=2)]
    riders = make_pods(8, labels=WEB, cpu="100m", affinity=[by_hostname(DB)], spreads=skew)

    results = schedule_on(make_nodepool(), [*hosts, *riders])

    expect_scheduled(results)
    for node in results.new_nodes:
        assert sum(pod.key in node.pods for pod in riders) <= 2


def test_pods_with_hostname_affinity_join_a_running_pod() -> None:
    target = make_pod(labels=DB, node="b")
    snapshot = make_snapshot(
        make_nodepool(), nodes=[make_node("a"), make_node("b")], pods=(target,)
    )
    pods = make_pods(2, affinity=[by_hostname(DB)])

    expect_on_existing(schedule_on(snapshot, pods), "b", pods)


@pytest.mark.parametrize(
    ("term", "repelled"),
    [
        ({}, False),
        ({"namespaces": ["other"]}, True),
        ({"namespaceSelector": {"matchLabels": {"team": "red"}}}, True),
        ({"namespaceSelector": {"matchLabels": {"team": "blue"}}}, False),
        ({"namespaceSelector": {}}, True),
    ],
    ids=["own namespace", "named", "selected", "not selected", "every namespace"],
)
def test_terms_apply_to_the_namespaces_they_name(term: dict[str, object], repelled: bool) -> None:
    shy = make_pod(cpu="100m", anti_affinity=[{**by_hostname(WEB), **term}])
    other = make_pod(cpu="100m", labels=WEB, namespace="other")
    snapshot = make_snapshot(
        make_nodepool(),
        namespaces=(make_namespace("other", {"team": "red"}), make_namespace("default")),
    )

    expect_nodes(schedule_on(snapshot, [shy, other]), 2 if repelled else 1)


def test_with_mismatchlabelkeys_only_different_revisions_repel_each_other() -> None:
    pods = [
        make_pod(
            cpu="100m",
            labels=WEB | {"tenant": tenant},
            anti_affinity=[{**by_hostname(WEB), "mismatchLabelKeys": ["tenant"]}],
        )
        for tenant in ("a", "a", "b")
    ]

    results = schedule_on(make_nodepool(), pods)

    expect_nodes(results, 2)
    assert node_of(results, pods[0]) is node_of(results, pods[1])


def test_zone_and_hostname_spreads_count_the_same_pods() -> None:
    """They are bound zone by zone, before pods with constraints on other pods."""
    one_zone = make_types(8, zones=["zone-a"])
    web = make_pods(6, labels=WEB, cpu="100m", spreads=[spread(WEB)])
    minds = make_pod(labels=DB, cpu="100m", spreads=[spread(WEB, labels.HOSTNAME)])

    results = schedule_on(make_nodepool(), [*web, minds], types=one_zone)

    expect_scheduled(results)
    beside = set(node_of(results, minds).pods) & {pod.key for pod in web}
    assert len(beside) <= 1


def test_pods_are_spread_over_the_partitions_of_a_placement_group() -> None:
    key = labels.PLACEMENT_GROUP_PARTITION
    here = make_offering("zone-a", labels.ON_DEMAND, 0.2)
    parts = [
        Offering({**here.requirements, key: partition}, here.price) for partition in ("1", "2", "3")
    ]
    pods = make_pods(6, cpu="1", labels=WEB, spreads=[spread(WEB, key)])

    results = schedule_on(make_nodepool(), pods, types=[make_type("m", cpu="4", offerings=parts)])

    expect_scheduled(results)
    expect_skew(results, key, pods, 2, 2, 2)


def test_a_spread_with_an_empty_selector_counts_no_pods() -> None:
    """Unlike in an affinity, where an empty selector counts all pods."""
    constraint = {**spread({}), "labelSelector": {}}
    nodes = [make_node("a", zone="zone-a"), make_node("b", zone="zone-b", taints=[taint("closed")])]
    running = tuple(make_pods(2, labels=WEB, node="a"))
    pods = make_pods(2, labels=WEB, spreads=[constraint])

    results = schedule_on(make_snapshot(nodes=nodes, pods=running), pods)

    expect_on_existing(results, "a", pods)


def test_the_first_pod_of_an_affinity_by_hostname_uses_a_node_if_none_can_be_launched() -> None:
    pod = make_pod(labels=WEB, affinity=[by_hostname(WEB)])

    results = schedule_on(make_snapshot(nodes=[make_node("a")]), [pod])

    expect_on_existing(results, "a", [pod])


@pytest.mark.parametrize("first", [True, False])
def test_pods_that_share_a_node_keep_their_rules_about_zones(first: bool) -> None:
    nodes = [make_node("a", zone="zone-a"), make_node("b", zone="zone-b")]
    loud = make_pod(labels={"app": "loud"}, node="a")
    beside = [] if first else [make_pod(labels=WEB, node="a"), make_pod(labels=WEB, node="b")]
    pod = make_pod(labels=WEB, affinity=[by_hostname(WEB)], anti_affinity=[near({"app": "loud"})])

    results = schedule_on(make_snapshot(nodes=nodes, pods=(loud, *beside)), [pod])

    expect_on_existing(results, "b", [pod])


def test_companions_of_new_nodes_keep_their_rules_about_zones() -> None:
    """Each database has its own zone, and the web servers want theirs apart from each other."""
    hosts = make_pods(3, labels=DB, cpu="1", anti_affinity=[near(DB)])
    riders = make_pods(
        3, labels=WEB, cpu="500m", affinity=[by_hostname(DB)], anti_affinity=[near(WEB)]
    )

    results = schedule_on(make_nodepool(), [*hosts, *riders])

    expect_scheduled(results)
    expect_skew(results, labels.ZONE, riders, 1, 1, 1)


def test_a_solve_ends_if_other_pods_exceed_a_spread_by_hostname() -> None:
    """kube-scheduler compares when it binds the pod with the spread, and not after that."""
    nodes = [make_node("a"), make_node("b", taints=[taint("closed")])]
    even = make_pod(labels=WEB, spreads=[spread(WEB, labels.HOSTNAME, max_skew=2)])
    pods = [even, *make_pods(2, labels=WEB)]

    results = schedule_on(make_snapshot(nodes=nodes), pods)

    expect_on_existing(results, "a", pods)
