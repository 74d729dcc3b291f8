"""Forecasts: which nodes outside Joiner are replaced, and a recorded history under Joiner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from controller.apis import labels
from controller.disruption.advice.adoption import outside, simulate_drain, translate_labels
from controller.disruption.advice.advising import Question, advise
from controller.disruption.advice.nodepools import (
    allow_values,
    labelled_copy_edit,
    limits_of,
    with_edit,
    without_requirement,
)
from controller.disruption.advice.replay import at_next_recording
from controller.disruption.problem import DisruptionProblem
from controller.scheduling.catalog import offerings
from controller.state.nodes import StateNode
from tests.builders import (
    by_hostname,
    make_node,
    make_nodepool,
    make_pod,
    make_snapshot,
    make_types,
    needs,
    spread,
    taint,
)

NOW = datetime(2026, 11, 24, tzinfo=UTC)
TYPES = make_types(2, 4, 8, capacity_types=(labels.ON_DEMAND, labels.SPOT))
WEB = {"app": "web"}
GROUP = {"eks.amazonaws.com/nodegroup": "workers"}


def worker(name: str, *, size: int = 8, node_labels: Mapping[str, str] | None = None) -> StateNode:
    own = {labels.INSTANCE_TYPE: f"m-{size}", **GROUP, **(node_labels or {})}
    memory = f"{4 * size}Gi"
    return StateNode(node=make_node(name, cpu=str(size), memory=memory, labels=own))


def problem(*nodes: StateNode, pods: int = 1, **requirements: str) -> DisruptionProblem:
    """Return a cluster with this number of pods of 1 CPU on each node, and one NodePool."""
    terms = [needs(key, "In", value) for key, value in requirements.items()]
    pool = make_nodepool(requirements=terms)
    running = tuple(
        make_pod(f"{state.name}-{number}", node=state.name, owner="ReplicaSet")
        for state in nodes
        for number in range(pods)
    )
    snapshot = make_snapshot(pool, types=TYPES, nodes=nodes, pods=running)
    return translate_labels(
        DisruptionProblem(snapshot=snapshot, node_pools={"default": pool}, now=NOW)
    )


def test_nodes_of_node_groups_have_a_capacity_type_and_a_price() -> None:
    spot = worker("spot", node_labels={"eks.amazonaws.com/capacityType": "SPOT"})

    known = problem(worker("plain"), spot)

    assert [state.labels[labels.CAPACITY_TYPE] for state in known.snapshot.nodes] == [
        labels.ON_DEMAND,
        labels.SPOT,
    ]
    assert outside(known) == {"plain", "spot"}


def test_forecasts_encode_instance_types_once(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded = []
    join = offerings._join_blocks

    def counted(*parts: Any) -> offerings.Catalog:
        encoded.append(parts)
        return join(*parts)

    monkeypatch.setattr(offerings, "_join_blocks", counted)
    question = Question(problem=problem(worker("a"), worker("b")), leaving=frozenset({"a", "b"}))

    question.forecast()
    question.forecast([lambda changed: replace(changed, pending=(make_pod(),))])

    assert len(encoded) == 1


def test_limits_are_raised_so_that_nodes_use_four_fifths_of_them() -> None:
    nodes = [worker(name, node_labels={labels.NODEPOOL: "default"}) for name in ("a", "b", "c")]
    pool = make_nodepool(limits={"cpu": "8", "memory": "1Ti", "nodes": "2"})

    assert limits_of(pool, nodes) == {"cpu": "30", "memory": "1Ti", "nodes": "4"}


def test_nodes_that_run_the_system_are_excluded() -> None:
    critical = StateNode(
        node=make_node(
            "system",
            labels={labels.INSTANCE_TYPE: "m-4"},
            taints=[taint("CriticalAddonsOnly", "true")],
        )
    )
    fargate = worker("fargate", node_labels={"eks.amazonaws.com/compute-type": "fargate"})
    unknown = worker("unknown", size=77)
    kept = worker("kept", node_labels={"team": "system"})

    cluster = problem(worker("plain"), critical, fargate, unknown, kept)

    assert outside(cluster, {"team": "system"}) == {"plain"}


def test_drained_nodes_are_replaced_by_what_their_pods_need() -> None:
    before = problem(worker("a"), worker("b"))

    after = simulate_drain(before, {"a", "b"})

    (node,) = after.problem.snapshot.nodes
    assert node.managed
    assert {pod.spec.node_name for pod in after.problem.snapshot.pods} == {node.name}
    assert (after.moved, after.staying) == (2, {})


def test_a_node_stays_if_no_node_pool_can_run_one_of_its_pods() -> None:
    before = problem(worker("a"), worker("b"))
    picky = make_pod("picky", node="b", node_selector=GROUP)
    before = replace(before, snapshot=replace(before.snapshot, pods=(*before.snapshot.pods, picky)))

    after = simulate_drain(before, {"a", "b"})

    assert after.staying.keys() == {"b"}
    assert 'Pod "default/picky" would be unschedulable' in after.staying["b"]
    (left,) = [state.node for state in after.problem.snapshot.nodes if state.name == "b"]
    assert left is not None
    assert left.spec.unschedulable


def test_a_copy_of_a_node_pool_with_the_missing_label_takes_the_pods() -> None:
    before = problem(worker("a"))
    picky = make_pod("picky", node="a", node_selector=GROUP)
    before = replace(before, snapshot=replace(before.snapshot, pods=(*before.snapshot.pods, picky)))
    (key,) = GROUP

    changed = with_edit(before, labelled_copy_edit("default", key, "workers"))

    assert changed.node_pools.keys() == {"default", "workers"}
    assert simulate_drain(changed, {"a"}).staying == {}


def test_a_forecast_ends_when_no_command_saves() -> None:
    before = problem(*(worker(f"node-{number}") for number in range(4)))
    question = Question(problem=before, leaving=outside(before))

    steady = question.forecast()
    again = Question(problem=steady.problem).forecast()

    assert steady.cost < 4 * TYPES[2].offerings[0].price
    assert again.cost == steady.cost
    assert again.evictions == 0


def test_two_rules_that_each_keep_pods_apart_are_one_obstacle() -> None:
    nodes = [worker(f"node-{number}", size=2) for number in range(8)]
    known = problem(*nodes)
    apart = [
        make_pod(
            f"web-{number}",
            node=state.name,
            owner="ReplicaSet",
            labels=WEB,
            anti_affinity=[by_hostname(WEB)],
            spreads=[spread(WEB, labels.HOSTNAME)],
        )
        for number, state in enumerate(nodes)
    ]
    # The spread counts this node, which never has a pod, so no other has two.
    barred = StateNode(node=make_node("barred", taints=[taint("own")]))
    snapshot = replace(known.snapshot, pods=tuple(apart), nodes=(*known.snapshot.nodes, barred))
    question = Question(problem=replace(known, snapshot=snapshot), leaving=outside(known))

    advice = advise(question, steady=question.forecast(), most=40, expired=lambda: False)

    saving = {found.obstacle.kind for found in advice.findings if found.saving > 0}
    assert "AntiAffinityAndSpread" in saving
    assert not saving & {"AntiAffinity", "TopologySpread"}


def test_a_requirement_is_widened_by_the_values_that_are_used() -> None:
    pool = make_nodepool(
        requirements=[
            needs(labels.CAPACITY_TYPE, "In", labels.ON_DEMAND),
            needs(labels.INSTANCE_TYPE, "NotIn", "m-2", "m-4"),
        ]
    )

    wide = allow_values(
        allow_values(pool, labels.CAPACITY_TYPE, ["spot"]), labels.INSTANCE_TYPE, ["m-2"]
    )
    free = without_requirement(pool, labels.INSTANCE_TYPE)

    assert [list(term.values) for term in wide.spec.template.spec.requirements] == [
        ["on-demand", "spot"],
        ["m-4"],
    ]
    # Burstable instance types stay out.
    assert [term.values for term in free.spec.template.spec.requirements] == [
        ["on-demand"],
        ["t"],
    ]


def test_pods_keep_their_nodes_from_one_recorded_world_to_the_next() -> None:
    first = problem(worker("a"), worker("b"), pods=2)
    before = Question(problem=first, leaving=outside(first)).forecast()
    home = {pod.key: pod.spec.node_name for pod in before.problem.snapshot.pods}
    # Node a and one of its pods are gone, and another pod is new.
    second = problem(worker("b"), worker("c"), pods=2)

    after = at_next_recording(before, second, outside(second))

    place = {pod.key: pod.spec.node_name for pod in after.snapshot.pods}
    assert place.keys() == {pod.key for pod in second.snapshot.pods}
    assert all(place[key] == home[key] for key in place.keys() & home.keys())
    assert {"a", "b", "c"}.isdisjoint(place.values())
    assert {state.name for state in after.snapshot.nodes} >= set(place.values())


def test_pending_pods_get_their_nodes_in_a_forecast() -> None:
    waiting = make_pod("waiting", cpu="1")
    idle = problem(worker("a"))
    asked = replace(idle, pending=(waiting,))

    forecast = Question(problem=asked, leaving=outside(asked)).forecast()

    placed = {pod.key for pod in forecast.problem.snapshot.pods}
    assert waiting.key in placed
    assert forecast.problem.pending == ()
