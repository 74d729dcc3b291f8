"""No answer costs less than the lower bound, and little more if nodes are few and small."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.parity.worlds import mixed_world
from controller.apis import labels
from controller.offline.world import load
from controller.scheduling.arrays import Mask, Matrix
from controller.scheduling.packing.bound import ExistingCapacity, whole_bound
from controller.scheduling.packing.packer import pack
from controller.scheduling.packing.pricing import PriceModel
from controller.scheduling.packing.problem import NodeRules, PackingProblem
from controller.scheduling.scheduler import least_cost, never, schedule
from tests.builders import (
    by_hostname,
    make_daemonset,
    make_node,
    make_nodepool,
    make_offering,
    make_pod,
    make_pods,
    make_snapshot,
    make_type,
    make_types,
    needs,
    spread,
)

Counts = tuple[int, ...]


@st.composite
def problems(draw: st.DrawFn) -> tuple[PackingProblem, ExistingCapacity]:
    """Draw a few pods of three classes, three node types, a rule of each sort, a limit, and nodes
    that exist.
    """
    classes, node_types, resources = 3, 3, 2

    def amounts(rows: int, most: int, least: int = 0) -> Matrix:
        row = st.lists(st.integers(least, most), min_size=resources, max_size=resources)
        drawn = draw(st.lists(row, min_size=rows, max_size=rows))
        return np.array(drawn, dtype=np.float64).reshape(rows, resources)

    def mask(*shape: int) -> Mask:
        bits = st.lists(st.booleans(), min_size=int(np.prod(shape)), max_size=int(np.prod(shape)))
        return np.array(draw(bits), dtype=np.bool_).reshape(shape)

    sizes, capacity = amounts(classes, 5, least=1), amounts(node_types, 11, least=1)
    existing = amounts(draw(st.integers(0, 2)), 6)
    labelled = mask(classes, node_types) | mask(classes, node_types)
    prices = st.lists(st.integers(1, 9), min_size=node_types, max_size=node_types)
    stays = _fits(sizes, existing).any(axis=1)
    rules = NodeRules(
        owned=mask(2, classes),
        counted=mask(2, classes),
        limit=np.array([draw(st.integers(1, 2)), 1], dtype=np.float64),
        repels=np.array([False, True]),
    )
    problem = PackingProblem(
        demand=np.array(draw(st.lists(st.integers(0, 3), min_size=3, max_size=3))),
        sizes=sizes,
        penalty=np.full(classes, 100.0),
        prices=np.array(draw(prices), dtype=np.float64),
        capacity=capacity,
        allowed=labelled & _fits(sizes, capacity),
        labelled=labelled,
        rules=rules,
        consumption=np.array([[1.0], [0.0], [0.0]]),
        headroom=np.array([float(draw(st.integers(0, 2)))]),
    )
    return problem, ExistingCapacity(existing, np.asarray(stays))


def _fits(sizes: Matrix, capacity: Matrix) -> Mask:
    """Mark, classes × nodes, where one pod fits."""
    return np.asarray((capacity[None] >= sizes[:, None]).all(axis=2))


def least_by_trying(problem: PackingProblem, existing: ExistingCapacity) -> float:
    """Return what the cheapest nodes for the demand cost, by trying all; infinite without any."""

    @cache
    def rest(left: Counts, headroom: int) -> float:
        if not any(left):
            return 0.0
        best = np.inf
        for node_type in range(len(problem.prices)):
            drawn = int(problem.consumption[node_type, 0])
            if drawn <= headroom:
                for pods in _fillings(
                    problem, problem.capacity[node_type], problem.allowed[:, node_type], left
                ):
                    cost = float(problem.prices[node_type]) + rest(
                        _less(left, pods), headroom - drawn
                    )
                    best = min(best, cost)
        return best

    def with_nodes(left: Counts, place: int) -> float:
        if place == len(existing.remaining):
            return rest(left, int(problem.headroom[0]))
        best = with_nodes(left, place + 1)
        for pods in _fillings(problem, existing.remaining[place], existing.allowed, left):
            best = min(best, with_nodes(_less(left, pods), place + 1))
        return best

    return with_nodes(tuple(problem.demand.tolist()), 0)


def dearest_that_fits(problem: PackingProblem, existing: ExistingCapacity) -> float:
    """Return the most that any of the pods for which there is a place cost, placed best."""
    fewer = product(*(range(count + 1) for count in problem.demand.tolist()))
    costs = (
        least_by_trying(replace(problem, demand=np.array(demand)), existing) for demand in fewer
    )
    return max(cost for cost in costs if np.isfinite(cost))


def _fillings(
    problem: PackingProblem, capacity: Matrix, hosts: Mask, left: Counts
) -> Iterator[Counts]:
    """Yield every number of pods of each class, of those left, that fits one node."""
    for pods in product(*(range(count + 1) for count in left)):
        used, counts = [c for c, count in enumerate(pods) if count], np.array(pods)
        fits = (counts @ problem.sizes <= capacity).all() and hosts[used].all()
        if used and fits and _within_rules(problem.rules, counts):
            yield pods


def _less(left: Counts, pods: Counts) -> Counts:
    return tuple(a - b for a, b in zip(left, pods, strict=True))


def _within_rules(rules: NodeRules, pods: Matrix) -> bool:
    for owned, counted, limit, repels in zip(
        rules.owned, rules.counted, rules.limit, rules.repels, strict=True
    ):
        owners, others = pods[owned & counted].sum(), pods[counted & ~owned].sum()
        if repels and (owners > 1 or (pods[owned].sum() and owners + others > 1)):
            return False
        if not repels and owners > limit:
            return False
    return True


@settings(max_examples=150, deadline=None)
@given(problems())
def test_no_set_of_nodes_costs_less_than_the_bound(
    drawn: tuple[PackingProblem, ExistingCapacity],
) -> None:
    problem, existing = drawn

    assert whole_bound(problem, existing, expired=never) <= least_by_trying(problem, existing)


@settings(max_examples=50, deadline=None)
@given(problems())
def test_at_the_timeout_there_is_still_a_bound(
    drawn: tuple[PackingProblem, ExistingCapacity],
) -> None:
    problem, existing = drawn

    hurried = whole_bound(problem, existing, expired=lambda: True)

    assert 0.0 <= hurried <= dearest_that_fits(problem, existing)
    if np.isfinite(least_by_trying(problem, existing)):
        assert hurried <= whole_bound(problem, existing, expired=never)


@settings(max_examples=40, deadline=None)
@given(problems())
def test_jointly_unschedulable_pods_do_not_raise_the_bound(
    drawn: tuple[PackingProblem, ExistingCapacity],
) -> None:
    problem, existing = drawn

    bound = whole_bound(problem, existing, expired=never)

    assert bound <= dearest_that_fits(problem, existing)


@settings(max_examples=150, deadline=None)
@given(problems())
def test_no_other_nodes_cost_less_than_an_answer_that_is_called_cheapest(
    drawn: tuple[PackingProblem, ExistingCapacity],
) -> None:
    problem = replace(drawn[0], demand=drawn[0].demand * drawn[0].allowed.any(axis=1))

    packing = pack(problem, refinements=0, expired=never)

    no_nodes = ExistingCapacity(np.zeros((0, 2)), np.zeros(3, dtype=np.bool_))
    assert not packing.is_cheapest or packing.cost == least_by_trying(problem, no_nodes)


@pytest.mark.parametrize("sidecars", [0, 3])
def test_the_cheapest_node_for_the_largest_pod_is_the_answer_if_it_holds_all(
    sidecars: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(PriceModel, "__init__")  # A linear program would fail.
    snapshot = make_snapshot(make_nodepool(), types=make_types(2, 4, 8, 16))
    small = [make_pod(f"small-{number}", cpu="100m") for number in range(sidecars)]

    results = schedule([make_pod(cpu="3"), *small], snapshot=snapshot)

    (node,) = results.new_nodes
    assert node.requests["cpu"] == 3000 + 100 * sidecars
    assert results.lower_bound == results.cost


def test_pods_with_the_same_host_port_do_not_share_the_cheapest_node() -> None:
    snapshot = make_snapshot(make_nodepool(), types=make_types(2, 4, 8, 16))
    pods = make_pods(2, cpu="100m", host_ports=[8080])

    results = schedule(pods, snapshot=snapshot)

    assert len(results.new_nodes) == 2


def test_the_bound_counts_whole_pods() -> None:
    pods = make_pods(6, cpu="4")
    types = [make_type("m-8", cpu="7900m", memory="64Gi", price=1.0)]
    snapshot = make_snapshot(make_nodepool(), types=types)

    assert schedule(pods, snapshot=snapshot).lower_bound < 3.1, "two fit in fractions"
    assert least_cost(pods, snapshot=snapshot) == pytest.approx(6.0)


def test_the_quick_bound_considers_types_that_packing_excludes() -> None:
    pods = make_pods(1040, cpu="100m", memory="1Mi")
    # Of many, packing looks at the one that gives most for its price in each range of prices.
    dear = [
        make_type(f"dear-{n}", cpu=f"{n}", memory=f"{4 * n}Gi", price=0.2 * n)
        for n in range(12, 60)
    ]
    more_memory = make_type("more-memory", cpu="10", memory="40Gi", price=1.0)
    more_cpu = make_type("more-cpu", cpu="10400m", memory="36Gi", price=1.0)
    snapshot = make_snapshot(make_nodepool(), types=[*dear, more_memory, more_cpu])

    assert schedule(pods, snapshot=snapshot).lower_bound <= 10 * 1.0


def test_the_bound_counts_one_node_for_each_pod_with_anti_affinity() -> None:
    together = make_pods(
        5, cpu="100m", labels={"app": "a"}, anti_affinity=[by_hostname({"app": "a"})]
    )
    snapshot = make_snapshot(make_nodepool(), types=make_types(2, 64))

    results = schedule(together, snapshot=snapshot)

    assert least_cost(together, snapshot=snapshot) == pytest.approx(results.cost)


def test_capacity_of_existing_nodes_costs_nothing() -> None:
    pods = make_pods(3, cpu="1")
    snapshot = make_snapshot(
        make_nodepool(), types=make_types(4), nodes=[make_node("a", cpu="3"), make_node("b")]
    )

    assert least_cost(pods, snapshot=snapshot) == 0.0


def test_the_bound_allows_an_even_spread_over_existing_nodes() -> None:
    pods = make_pods(
        6, cpu="100m", labels={"app": "a"}, spreads=[spread({"app": "a"}, labels.HOSTNAME)]
    )
    snapshot = make_snapshot(make_nodepool(), types=make_types(4), nodes=[make_node("a")])

    assert least_cost(pods, snapshot=snapshot) == 0.0


def test_the_bound_does_not_split_a_pod_over_two_nodes() -> None:
    snapshot = make_snapshot(
        make_nodepool(),
        types=[make_type("m-4", cpu="2", price=1.0)],
        nodes=[make_node("a", cpu="3"), make_node("b", cpu="3")],
    )

    assert least_cost(make_pods(3, cpu="2"), snapshot=snapshot) == pytest.approx(1.0)


def test_preferences_and_domains_do_not_raise_the_bound() -> None:
    offerings = [
        make_offering("zone-a", labels.ON_DEMAND, 1.0),
        make_offering("zone-b", labels.ON_DEMAND, 3.0),
    ]
    snapshot = make_snapshot(make_nodepool(), types=[make_type("m-4", offerings=offerings)])
    pods = make_pods(
        4,
        cpu="2",
        labels={"app": "a"},
        spreads=[spread({"app": "a"})],
        preferred_nodes=[(1, [needs(labels.ZONE, "In", "zone-b")])],
    )

    assert schedule(pods, snapshot=snapshot).cost == pytest.approx(4.0)
    assert least_cost(pods, snapshot=snapshot) == pytest.approx(2.0)


def test_the_bound_considers_the_limits_of_cheap_pools() -> None:
    cheap = make_nodepool("cheap", requirements=[needs("size", "In", "s")], limits={"nodes": "1"})
    types = {
        "cheap": [make_type("m-s", cpu="1", price=1.0, requirements=[needs("size", "In", "s")])],
        "dear": [make_type("m-d", cpu="1", price=5.0)],
    }
    snapshot = make_snapshot(cheap, make_nodepool("dear"), types=types)

    assert least_cost(make_pods(3, cpu="1"), snapshot=snapshot) == pytest.approx(11.0)


def test_unschedulable_pods_do_not_raise_the_bound() -> None:
    snapshot = make_snapshot(make_nodepool(), types=make_types(4))

    assert least_cost([], snapshot=snapshot) == 0.0
    assert least_cost([make_pod(cpu="99")], snapshot=snapshot) == 0.0


@settings(max_examples=10)
@given(st.integers(0, 10_000), st.integers(1, 120))
def test_no_answer_costs_less_than_its_bound(seed: int, count: int) -> None:
    read = load(mixed_world(count, seed))
    results = schedule(read.pods, snapshot=read.snapshot)
    placed = [pod for pod in read.pods if pod.key not in results.unschedulable]

    assert 0 < least_cost(placed, snapshot=read.snapshot) <= results.cost


def test_the_bound_counts_what_daemons_request_on_every_node() -> None:
    whole = [make_type("four", cpu="4", memory="400Gi", price=1.0, overhead={})]
    pods = make_pods(8, cpu="1")
    alone = make_snapshot(make_nodepool(), types=whole)
    beside = make_snapshot(make_nodepool(), types=whole, daemon_sets=(make_daemonset(cpu="2"),))

    assert least_cost(pods, snapshot=alone) == pytest.approx(2.0)
    assert least_cost(pods, snapshot=beside) == pytest.approx(4.0)
    assert schedule(pods, snapshot=beside).lower_bound == pytest.approx(4.0)
