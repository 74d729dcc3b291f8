"""How many further pods a topology rule admits, against counting pod by pod as kube-scheduler."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.apis import labels
from controller.constraints.hostports import HostPort
from controller.scheduling.topology.groups import TopologyGroup, TopologyTally, TopologyType
from controller.scheduling.topology.rules import (
    ENDLESS,
    PodsWithRules,
    admits,
    excess,
    further,
    minimum,
    on_one_node,
)
from controller.scheduling.topology.spread import Rules, violations

MANY = 50
"""More pods than any rule of these tests limits a domain to."""

AFFINITY, ANTI_AFFINITY, SPREAD = (
    TopologyType.AFFINITY,
    TopologyType.ANTI_AFFINITY,
    TopologyType.SPREAD,
)

types = st.sampled_from(TopologyType)
counts_of_domains = st.lists(st.integers(0, 6), min_size=1, max_size=5)


def make_group(
    type_: TopologyType, *, max_skew: int = 1, min_domains: int = 0, key: str = labels.ZONE
) -> TopologyGroup:
    return TopologyGroup(
        index=0,
        type=type_,
        key=key,
        namespaces=frozenset(),
        selector=None,
        max_skew=max_skew if type_ is SPREAD else 1,
        min_domains=min_domains,
    )


def is_admitted_by_kube_scheduler(
    group: TopologyGroup, counts: list[int], domain: int, *, own: bool, least: int
) -> bool:
    """Repeat the filters PodTopologySpread and InterPodAffinity for one pod and one domain."""
    if group.type is SPREAD:
        skew = counts[domain] + (1 if own else 0) - least
        return skew <= group.max_skew
    if group.type is ANTI_AFFINITY:
        return counts[domain] == 0
    return counts[domain] > 0 or (own and sum(counts) == 0)


def global_minimum(group: TopologyGroup, counts: list[int]) -> int:
    if group.type is not SPREAD or len(counts) < group.min_domains:
        return 0
    return min(counts)


def placed_one_by_one(
    group: TopologyGroup, counts: list[int], domain: int, *, own: bool, least: int
) -> int:
    """Place pods in a domain until one is refused, at the minimum count of the start."""
    counts, placed = list(counts), 0
    while placed < MANY and is_admitted_by_kube_scheduler(
        group, counts, domain, own=own, least=least
    ):
        placed += 1
        counts[domain] += own
    return placed


@given(types, counts_of_domains, st.integers(1, 4), st.integers(0, 6), st.booleans())
def test_each_domain_admits_as_many_pods_as_kube_scheduler_would_place_there(
    type_: TopologyType, counts: list[int], max_skew: int, min_domains: int, own: bool
) -> None:
    group = make_group(type_, max_skew=max_skew, min_domains=min_domains)
    least, first = minimum(group, counts) if type_ is SPREAD else 0, not any(counts)

    more = further(group, np.array(counts, dtype=float), own=own, least=least, first=first)

    assert least == global_minimum(group, counts)
    for domain, number in enumerate(more.tolist()):
        expected = placed_one_by_one(
            group, counts, domain, own=own, least=global_minimum(group, counts)
        )
        assert number == (ENDLESS if expected == MANY else expected)
        count = counts[domain]
        assert admits(group, count, own=own, least=least, first=first) == (expected > 0)


@given(types, st.integers(0, 6), st.integers(1, 4), st.integers(0, 3), st.data())
def test_owners_exceed_a_rule_until_enough_of_them_left(
    type_: TopologyType, others: int, max_skew: int, least: int, data: st.DataObject
) -> None:
    owners, own = data.draw(st.integers(1, 6)), data.draw(st.booleans())
    group = make_group(type_, max_skew=max_skew)
    count = others + owners * own

    broken = excess(group, count, owners=owners, own=own, least=least)

    def is_at_peace(staying: int) -> bool:
        """Whether each of the staying owners would be admitted as the last to come."""
        counted = others + staying * own
        before = [counted - own, 0] if not (type_ is AFFINITY and own) else [counted, 0]
        return is_admitted_by_kube_scheduler(group, before, 0, own=own, least=least)

    assert (broken == 0) == is_at_peace(owners)
    assert 0 <= broken <= owners
    if own and type_ is not AFFINITY and broken < owners:
        assert is_at_peace(owners - int(broken))
        assert not broken or not is_at_peace(owners - int(broken) + 1)


def test_a_spread_has_a_minimum_of_zero_without_enough_domains() -> None:
    assert minimum(make_group(SPREAD, min_domains=3), [2, 5]) == 0
    assert minimum(make_group(SPREAD, min_domains=2), [2, 5]) == 2
    assert minimum(make_group(SPREAD), []) == 0


@dataclass(frozen=True)
class Pods:
    """Equal pods for `on_one_node`."""

    owned: tuple[TopologyGroup, ...] = ()
    counted: tuple[TopologyGroup, ...] = ()
    ports: tuple[HostPort, ...] = ()


HTTP = (HostPort("0.0.0.0", 80, "TCP"),)
GROUPS = tuple(
    make_group(type_, max_skew=skew, key=key)
    for type_, skew, key in (
        (SPREAD, 1, labels.HOSTNAME),
        (SPREAD, 3, labels.HOSTNAME),
        (ANTI_AFFINITY, 1, labels.HOSTNAME),
        (ANTI_AFFINITY, 1, labels.ZONE),
        (SPREAD, 2, labels.ZONE),
    )
)
some_groups = st.lists(st.sampled_from(GROUPS), unique=True, max_size=3).map(tuple)
some_pods = st.builds(Pods, some_groups, some_groups, st.sampled_from(((), HTTP)))


def fit_one_by_one(pods: Pods, beside: list[tuple[Pods, int]]) -> int:
    """Bind the pods to one node until a filter for the node refuses one."""
    node = [other for other, number in beside for _ in range(number)]
    placed = 0
    while placed < MANY:
        for group in pods.owned:
            count = sum(group in other.counted for other in node)
            own = group in pods.counted
            if group.key == labels.HOSTNAME and not is_admitted_by_kube_scheduler(
                group, [count], 0, own=own, least=0
            ):
                return placed
        repelled = any(
            group.type is ANTI_AFFINITY and group.key == labels.HOSTNAME and group in pods.counted
            for other in node
            for group in other.owned
        )
        if repelled or any(pods.ports and other.ports for other in node):
            return placed
        node.append(pods)
        placed += 1
    return ENDLESS


@given(some_pods, st.lists(st.tuples(some_pods, st.integers(1, 3)), max_size=2))
def test_one_node_admits_as_many_pods_as_its_filters_allow(
    pods: Pods, beside: list[tuple[Pods, int]]
) -> None:
    others: list[tuple[PodsWithRules, int]] = list(beside)

    assert on_one_node(pods, others) == fit_one_by_one(pods, beside)


@pytest.mark.parametrize(
    ("counts", "owners", "settled", "number"),
    [
        ({"a": 2}, {"a": 2}, {}, 0),  # the first pod needs no other
        ({"a": 2, "c": 1}, {"a": 2, "c": 1}, {}, 1),
        ({"a": 2, "c": 1}, {"a": 2}, {}, 0),  # the pod in c may come later
        ({"a": 2, "c": 1}, {"a": 2}, {"c": 1}, 2),
        ({"a": 2, "c": 3}, {"a": 1, "c": 1}, {"c": 1}, 0),
        ({"a": 2, "c": 3}, {"a": 2, "c": 3}, {"a": 1, "c": 2}, 0),
    ],
)
def test_pods_with_affinity_to_pods_like_themselves_need_another_one_in_their_domain(
    counts: dict[str, int], owners: dict[str, int], settled: dict[str, int], number: int
) -> None:
    tally = TopologyTally(make_group(AFFINITY), Counter(counts), Counter(owners))
    rules = Rules(owned=((tally, True, ()),), counting=(tally,), repelling=(), attracting=())

    assert violations([rules], {tally: settled}) == number


@pytest.mark.parametrize("type_", [SPREAD, ANTI_AFFINITY])
def test_a_domain_admits_any_number_of_uncounted_pods(type_: TopologyType) -> None:
    assert further(make_group(type_), np.zeros(2), own=False).tolist() == [ENDLESS, ENDLESS]
