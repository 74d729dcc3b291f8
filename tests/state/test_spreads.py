"""Default topology spread constraints: which pods get them, and which pods they count."""

from __future__ import annotations

from typing import Any

import pytest

from bench.parity import worlds
from controller.apis import kinds, labels
from controller.apis.kubernetes.meta import LabelSelector, LabelSelectorRequirement, ObjectMeta
from controller.apis.kubernetes.pods import Pod
from controller.apis.kubernetes.schedulerconfig import default_constraints
from controller.apis.kubernetes.workloads import (
    ReplicaSet,
    ReplicationController,
    ReplicationControllerSpec,
    ScalableSpec,
    Service,
    ServiceSpec,
    StatefulSet,
    StatefulSetSpec,
)
from controller.apiserver.port import Change
from controller.manager.watches import mirrored_kinds
from controller.offline.world import load
from controller.options import Options
from controller.state.cluster import Cluster
from controller.state.spreads import DefaultSpreads, Selectors, with_default_spreads
from tests.builders import make_nodepool, make_pod, spread
from tests.expectations import expect_skew, schedule_on

ZONAL = {"maxSkew": 1, "topologyKey": labels.ZONE, "whenUnsatisfiable": "DoNotSchedule"}
CONFIG = {"podTopologySpread": {"defaultConstraints": [ZONAL]}}
CONSTRAINTS = default_constraints(CONFIG)


def owned(name: str, kind: str, owner: str, *, is_controller: bool = True, **own: str) -> Pod:
    reference = {"kind": kind, "name": owner, "uid": "u", "controller": is_controller}
    return make_pod(name, labels=own, owner_references=[reference])


def service(namespace: str = "default", **selector: str) -> Service:
    return Service(
        metadata=ObjectMeta(name="-".join(selector), namespace=namespace),
        spec=ServiceSpec(selector=selector),
    )


def replica_set(name: str, *expressions: LabelSelectorRequirement, **selector: str) -> ReplicaSet:
    label_selector = LabelSelector(match_labels=selector, match_expressions=list(expressions))
    return ReplicaSet(
        metadata=ObjectMeta(name=name, namespace="default"),
        spec=ScalableSpec(selector=label_selector),
    )


def test_default_spreads_use_the_selectors_of_a_pods_services() -> None:
    selectors = Selectors(
        services=[
            service(app="web"),
            service(tier="front"),
            service(app="db"),
            service("x", app="web"),
        ]
    )

    selected = selectors.of(make_pod(labels={"app": "web", "tier": "front", "env": "test"}))

    assert selected == LabelSelector(match_labels={"app": "web", "tier": "front"})


def test_a_pod_that_nothing_selects_gets_no_default_spread() -> None:
    selectors = Selectors(
        services=[service(app="web"), service()], workloads=[replica_set("r", a="b")]
    )

    assert selectors.of(make_pod(labels={"app": "db"})) is None
    assert selectors.of(owned("p", "ReplicaSet", "r", is_controller=False, a="b")) is None
    assert selectors.of(owned("p", "Job", "r", a="b")) is None


def test_the_workload_that_owns_a_pod_adds_its_own_selector() -> None:
    canary = LabelSelectorRequirement(key="track", operator="In", values=["stable", "canary"])
    stateful = LabelSelector(match_labels={"db": "one"})
    selectors = Selectors(
        services=[service(app="web")],
        replication_controllers=[
            ReplicationController(
                metadata=ObjectMeta(name="old", namespace="default"),
                spec=ReplicationControllerSpec(selector={"old": "yes"}),
            )
        ],
        workloads=[
            replica_set("web-1", canary, hash="1"),
            StatefulSet(
                metadata=ObjectMeta(name="db", namespace="default"),
                spec=StatefulSetSpec(selector=stateful),
            ),
        ],
    )

    assert selectors.of(owned("a", "ReplicaSet", "web-1", app="web", hash="1")) == LabelSelector(
        match_labels={"app": "web", "hash": "1"}, match_expressions=[canary]
    )
    assert selectors.of(owned("b", "StatefulSet", "db", db="one")) == stateful
    assert selectors.of(owned("c", "ReplicationController", "old")) == LabelSelector(
        match_labels={"old": "yes"}
    )


def test_only_pods_that_state_no_constraint_themselves_get_the_defaults() -> None:
    own = make_pod(labels={"app": "web"}, spreads=[spread({"app": "web"}, labels.HOSTNAME)])
    bare, stranger = make_pod(labels={"app": "web"}), make_pod(labels={"app": "db"})

    completed = with_default_spreads(
        [own, bare, stranger], CONSTRAINTS, Selectors(services=[service(app="web")])
    )

    assert [len(pod.spec.topology_spread_constraints) for pod in completed] == [1, 1, 0]
    assert completed[0] is own
    (given,) = completed[1].spec.topology_spread_constraints
    assert (given.topology_key, given.max_skew) == (labels.ZONE, 1)
    assert given.label_selector == LabelSelector(match_labels={"app": "web"})


def test_pods_under_the_defaults_are_spread_by_the_engine() -> None:
    pods = [make_pod(labels={"app": "web"}) for _ in range(6)]

    spread_pods = with_default_spreads(pods, CONSTRAINTS, Selectors(services=[service(app="web")]))
    results = schedule_on(make_nodepool(), spread_pods)

    expect_skew(results, labels.ZONE, pods, 2, 2, 2)


def test_services_and_workloads_are_watched_only_with_default_spreads() -> None:
    options = Options(cluster_name="c")
    selecting = {kinds.SERVICE, kinds.REPLICATION_CONTROLLER, kinds.REPLICA_SET, kinds.STATEFUL_SET}
    plain = Cluster(mirrored_kinds(options))
    pods = [make_pod(labels={"app": "web"})]

    assert not selecting & set(plain.mirrored)
    assert DefaultSpreads((), plain).apply(pods) == pods

    cluster = Cluster(mirrored_kinds(Options(cluster_name="c", scheduler_config="{}")))
    cluster.apply(kinds.SERVICE, Change("ADDED", service(app="web")))

    assert selecting <= set(cluster.mirrored)
    (completed,) = DefaultSpreads(CONSTRAINTS, cluster).apply(pods)
    assert completed.spec.topology_spread_constraints


def test_a_recorded_world_may_have_defaults() -> None:
    def world(**more: Any) -> Any:
        return load(
            {
                "pods": [worlds.pod("web", cpu=1, memory=1, labels={"app": "web"})],
                "services": [
                    {
                        "metadata": {"name": "web", "namespace": "default"},
                        "spec": {"selector": {"app": "web"}},
                    }
                ],
                "instanceTypes": [],
                **more,
            }
        ).pods[0]

    assert not world().spec.topology_spread_constraints
    assert world(settings={"SCHEDULER_CONFIG": CONFIG}).spec.topology_spread_constraints


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"labelSelector": {}}, "labelSelector"),
        ({"matchLabelKeys": ["a"]}, "matchLabelKeys"),
        ({"maxSkew": 0}, "maxSkew"),
        ({"whenUnsatisfiable": "Perhaps"}, "whenUnsatisfiable"),
        ({"topologyKey": ""}, "topologyKey"),
        ({"minDomains": 0}, "minDomains"),
        ({"nodeTaintsPolicy": "Sometimes"}, "nodeTaintsPolicy"),
    ],
)
def test_default_constraints_that_kube_scheduler_refuses_are_refused(
    changes: dict[str, Any], why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        default_constraints({"podTopologySpread": {"defaultConstraints": [{**ZONAL, **changes}]}})


def test_the_same_constraint_twice_is_refused() -> None:
    twice = {"podTopologySpread": {"defaultConstraints": [ZONAL, {**ZONAL, "maxSkew": 2}]}}

    with pytest.raises(ValueError, match="twice"):
        default_constraints(twice)
    with pytest.raises(ValueError, match="unknown"):
        default_constraints({"profiles": []})
    assert default_constraints(None) == ()
