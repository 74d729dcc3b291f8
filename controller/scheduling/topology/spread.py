"""Assignment of pods to topology domains.

A `DomainOption` is one combination of domains (a zone; a zone and a capacity type; …) with the
number of pods that it can take. Pods are assigned one at a time to the option with the fewest
counted pods that all rules admit, which keeps spreads even.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from controller.scheduling.topology import rules as topology
from controller.scheduling.topology.groups import TopologyTally, TopologyType

Domain = str | None
"""A value of a topology key; None stands for the nodes without the label."""

Pins = tuple[tuple[str, Domain], ...]
"""Topology keys with the domains that topology chose, sorted by key."""


@dataclass(slots=True)
class DomainOption:
    """A combination of domains, with the capacity of its existing nodes and the price of new nodes.

    `fitting` is the number of pods that existing nodes hold. `launchable` says whether a new node
    can be launched there, and `price` is a pod's share of the price of the cheapest one, in $/h.
    `taken` is the number of pods assigned.
    """

    pins: Pins
    fitting: int
    launchable: bool
    price: float
    taken: int = 0

    @property
    def is_free(self) -> bool:
        """Whether the existing nodes hold one more pod."""
        return self.taken < self.fitting

    @property
    def is_open(self) -> bool:
        """Whether one more pod can be placed there, on an existing or a new node."""
        return self.launchable or self.is_free


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The topology rules that restrict a pod's domains, as tallies; rules by hostname are left out.

    * `owned`: the groups that the pod states, each with whether it counts the pod itself, and with
      the domains that it compares.
    * `counting`: the groups that count the pod.
    * `repelling`: the anti-affinity groups of other pods that count the pod.
    * `attracting`: the affinity groups of other pods that count the pod, so that its domain must be
      chosen.

    As in kube-scheduler, a node without the label meets every anti-affinity over it, and neither a
    spread nor an affinity.
    """

    owned: tuple[tuple[TopologyTally, bool, tuple[str, ...]], ...]
    counting: tuple[TopologyTally, ...]
    repelling: tuple[TopologyTally, ...]
    attracting: tuple[TopologyTally, ...]

    @property
    def spreads(self) -> bool:
        """Whether the pod states a topology spread."""
        return any(tally.group.type is TopologyType.SPREAD for tally, _, _ in self.owned)

    @property
    def keys(self) -> tuple[str, ...]:
        """The topology keys whose domains must be chosen, sorted."""
        owned = (tally for tally, _, _ in self.owned)
        return tuple(
            sorted({tally.group.key for tally in (*owned, *self.repelling, *self.attracting)})
        )

    @property
    def optional_keys(self) -> frozenset[str]:
        """The topology keys whose label a node of the pod may lack."""
        groups = (tally.group for tally, _, _ in self.owned)
        required = {group.key for group in groups if group.type is not TopologyType.ANTI_AFFINITY}
        return frozenset(self.keys) - required


Settled = Mapping[TopologyTally, Mapping[str, int]]
"""The counts of the pods that do not move: by tally, and then by domain."""


def assign(count: int, options: Sequence[DomainOption], rules: Rules) -> int:
    """Assign up to `count` pods to options; return how many were assigned.

    The options' `taken` and the tallies are updated in place.
    """
    assigned = 0
    while assigned < count:
        option = best_option(options, rules)
        if option is None:
            break
        batch = _batch(count - assigned, option, rules)
        option.taken += batch
        record(rules, option.pins, batch)
        assigned += batch
    return assigned


def record(rules: Rules, pins: Pins, count: int) -> None:
    """Add `count` pods in the domains `pins` to the tallies; a negative count removes them."""
    for key, domain in pins:
        if domain is None:
            continue
        for tally in rules.counting:
            if tally.group.key == key:
                tally.counts[domain] += count
        for tally, _, _ in rules.owned:
            if tally.group.key == key:
                tally.owners[domain] += count


def count_admitted(pins: Pins, rules: Rules, most: int) -> int:
    """Count pods in these domains as long as the rules admit one more; return how many, up to most.

    The tallies are updated in place.
    """
    counted = 0
    while counted < most and admits(pins, rules):
        batch = 1 if rules.keys else most
        record(rules, pins, batch)
        counted += batch
    return counted


def admits(pins: Pins, rules: Rules, *, leaving: Pins = ()) -> bool:
    """Whether the rules admit one more pod in these domains.

    If the pod leaves other domains for them, `leaving` are those domains, and the pod is not
    counted there.
    """
    leaving_pods = LeavingPods(leaving, 1) if leaving else NONE_LEAVING
    least = {
        tally.group.index: _least(tally, own, among, leaving_pods)
        for tally, own, among in rules.owned
    }
    return _is_admitted(pins, rules, least, leaving_pods)


def misplaced_count(pins: Pins, rules: Rules, most: int) -> int:
    """Return the number of pods that must leave these domains so that all meet their own rules.

    The result is the smallest such number, at most `most`.
    """
    return next((moved for moved in range(most) if not _is_broken(pins, rules, moved)), most)


def _is_broken(pins: Pins, rules: Rules, moved: int) -> bool:
    """Whether pods in these domains break a rule that they state, after `moved` pods left."""
    domains, leaving_pods = _known_domains(pins), LeavingPods(pins, moved)
    return any(
        topology.excess(
            tally.group,
            _count(tally, domains[tally.group.key], own, leaving_pods),
            owners=tally.owners[domains[tally.group.key]] - moved,
            own=own,
            least=_least(tally, own, universe, leaving_pods),
        )
        > 0
        for tally, own, universe in rules.owned
        if tally.group.key in domains
    )


def violations(all_rules: Iterable[Rules], settled: Settled) -> float:
    """Return the number of pods that violate a rule that they state, summed over all rules.

    `settled` are the counts of the pods that do not move.
    """
    every = {rule for rules in all_rules for rule in rules.owned}
    return sum(
        _without_support(tally, settled[tally])
        if own and tally.group.type is TopologyType.AFFINITY
        else _violations(tally, own, universe)
        for tally, own, universe in every
    )


def _without_support(tally: TopologyTally, settled: Mapping[str, int]) -> int:
    """Return the number of pods with affinity to pods like themselves that no other pod supports.

    In a domain with another counted pod, they can follow it. Only the first of them needs no other
    pod: kube-scheduler admits it in any domain if no pod is counted yet.
    """
    alone = [
        owners
        for domain, owners in tally.owners.items()
        if owners > 0 and not settled.get(domain, 0) and tally.counts[domain] <= owners
    ]
    return sum(alone) - (0 if any(settled.values()) else max(alone, default=0))


def is_broken(tally: TopologyTally, own: bool, universe: tuple[str, ...]) -> bool:
    """Whether pods violate a rule that they state, if it compares these domains."""
    return _violations(tally, own, universe) > 0


def _violations(tally: TopologyTally, own: bool, universe: tuple[str, ...]) -> float:
    """Return the number of pods that violate a rule that they state."""
    least = _least(tally, own, universe, NONE_LEAVING)
    return sum(
        topology.excess(tally.group, tally.counts[domain], owners=owners, own=own, least=least)
        for domain, owners in tally.owners.items()
        if owners > 0
    )


@dataclass(frozen=True, slots=True)
class LeavingPods:
    """A number of pods that leave some domains, although the tallies still count them there."""

    pins: Pins
    number: int


NONE_LEAVING = LeavingPods((), 0)


def _known_domains(pins: Pins) -> dict[str, str]:
    """Return the domain of each topology key of which the nodes have the label."""
    return {key: domain for key, domain in pins if domain is not None}


def _count(tally: TopologyTally, domain: str, own: bool, leaving_pods: LeavingPods) -> int:
    """Return the count of a domain without the leaving pods, if the group counts them."""
    count = tally.counts[domain]
    if own and leaving_pods.number and (tally.group.key, domain) in leaving_pods.pins:
        return count - leaving_pods.number
    return count


def _least(
    tally: TopologyTally, own: bool, universe: tuple[str, ...], leaving_pods: LeavingPods
) -> float:
    """Return the minimum count over the domains that a spread compares; 0 for the other rules."""
    if tally.group.type is not TopologyType.SPREAD:
        return 0
    if not leaving_pods.number:
        return topology.minimum(tally.group, [tally.counts[domain] for domain in universe])
    counts = [_count(tally, domain, own, leaving_pods) for domain in universe]
    return topology.minimum(tally.group, counts)


def best_option(options: Sequence[DomainOption], rules: Rules) -> DomainOption | None:
    """Return the option for the next pod, or None if the rules admit none.

    The option with the fewest counted pods wins; then existing nodes before new ones, then the
    lowest price. If `_allows_skew` is true, options whose existing nodes hold the pod come first.
    Nodes without the label of an affinity of other pods come last, because those pods could not
    follow.
    """
    least = {
        tally.group.index: _least(tally, own, among, NONE_LEAVING)
        for tally, own, among in rules.owned
    }
    attracting = {tally.group.key for tally in rules.attracting}
    best: tuple[tuple[bool, bool, int, bool, float, list[str]], DomainOption] | None = None
    for option in options:
        if not option.is_open or not _is_admitted(option.pins, rules, least, NONE_LEAVING):
            continue
        free = option.is_free
        population = _population(option, rules)
        rank = (
            any(domain is None and key in attracting for key, domain in option.pins),
            not free and _allows_skew(rules),
            population,
            not free,
            option.price,
            [domain or "" for _, domain in option.pins],
        )
        if best is None or rank < best[0]:
            best = (rank, option)
    return best[1] if best is not None else None


def _allows_skew(rules: Rules) -> bool:
    """Whether every spread allows a skew of more than 1, so existing capacity can be used first."""
    groups = (tally.group for tally, _, _ in rules.owned)
    return all(group.max_skew > 1 for group in groups if group.type is TopologyType.SPREAD)


def _population(option: DomainOption, rules: Rules) -> int:
    """Return the number of pods that the spreads counting the pod have in the option's domains."""
    domains = _known_domains(option.pins)
    return sum(
        tally.counts[domains[tally.group.key]]
        for tally in rules.counting
        if tally.group.type is TopologyType.SPREAD and tally.group.key in domains
    )


def _batch(left: int, option: DomainOption, rules: Rules) -> int:
    """Return the number of pods to assign to an option before the rules must be checked again.

    Pods that state only affinity cannot make the option inadmissible; others are assigned one by
    one.
    """
    if any(tally.group.type is not TopologyType.AFFINITY for tally, _, _ in rules.owned):
        return 1
    return min(left, option.fitting - option.taken) if option.is_free else left


def _is_admitted(
    pins: Pins, rules: Rules, least: dict[int, float], leaving_pods: LeavingPods
) -> bool:
    """Whether the rules admit one more pod in these domains. `least` is by group index."""
    domains = _known_domains(pins)
    for tally, own, _ in rules.owned:
        group = tally.group
        if group.key not in domains:
            if group.type is TopologyType.ANTI_AFFINITY:
                continue
            return False
        count = _count(tally, domains[group.key], own, leaving_pods)
        first = group.type is TopologyType.AFFINITY and tally.total <= leaving_pods.number
        if not topology.admits(group, count, own=own, least=least[group.index], first=first):
            return False
    return all(
        _is_clear(tally, domains[tally.group.key], rules, leaving_pods)
        for tally in rules.repelling
        if tally.group.key in domains
    )


def _is_clear(tally: TopologyTally, domain: str, rules: Rules, leaving_pods: LeavingPods) -> bool:
    """Whether a domain has no owners of an anti-affinity that repels the pod.

    Leaving pods that are such owners themselves do not count.
    """
    owners = tally.owners[domain]
    if owners > 0 and leaving_pods.number and (tally.group.key, domain) in leaving_pods.pins:
        owners -= leaving_pods.number * any(tally is owner for owner, _, _ in rules.owned)
    return owners <= 0
