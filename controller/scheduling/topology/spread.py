"""Assignment of pods to topology domains.

A `DomainOption` is one combination of domains (a zone; a zone and a capacity type; …) with the
number of pods that it can take. Pods are assigned one at a time to the option with the fewest
counted pods that all rules admit, which keeps spreads even.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from controller.scheduling.topology import rules as topology
from controller.scheduling.topology.groups import TopologyTally, TopologyType

Pins = tuple[tuple[str, str], ...]
"""Label keys with the values that topology chose, sorted by key."""


@dataclass(slots=True)
class DomainOption:
    """A combination of domains: how many pods its existing nodes hold, and the price of new nodes.

    `fitting` is the number of pods that existing nodes hold. `launchable` says whether a new node
    can be launched there, and `price` is a pod's share of the cheapest one's price. `taken` counts
    the pods assigned.
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
        """Whether one more pod can go there, on an existing or a new node."""
        return self.launchable or self.is_free


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The rules that bind a pod in its choice of domains: tallies of groups not by hostname.

    * `owned`: the groups that the pod states, each with whether it counts the pod itself, and with
      the domains that it compares.
    * `counting`: the groups that count the pod.
    * `shunned`: the anti-affinity groups whose owners repel the pod.
    * `sought`: the affinity groups whose owners look for the pod, so that its domain must be known.
    """

    owned: tuple[tuple[TopologyTally, bool, tuple[str, ...]], ...]
    counting: tuple[TopologyTally, ...]
    shunned: tuple[TopologyTally, ...]
    sought: tuple[TopologyTally, ...]

    @property
    def spreads(self) -> bool:
        """Whether the pod states a topology spread."""
        return any(tally.group.type is TopologyType.SPREAD for tally, _, _ in self.owned)

    @property
    def keys(self) -> tuple[str, ...]:
        """The topology keys whose domains must be chosen, sorted."""
        owned = (tally for tally, _, _ in self.owned)
        return tuple(sorted({tally.group.key for tally in (*owned, *self.shunned, *self.sought)}))


def assign(count: int, options: Sequence[DomainOption], rules: Rules) -> int:
    """Assign up to `count` pods to options; return how many were assigned.

    The options' `taken` and the tallies are updated in place.
    """
    sent = 0
    while sent < count:
        option = _best(options, rules)
        if option is None:
            break
        batch = _batch(count - sent, option, rules)
        option.taken += batch
        record(rules, option.pins, batch)
        sent += batch
    return sent


def record(rules: Rules, pins: Pins, count: int) -> None:
    """Add `count` pods in the domains `pins` to the tallies; a negative count removes them."""
    for key, domain in pins:
        for tally in rules.counting:
            if tally.group.key == key:
                tally.counts[domain] += count
        for tally, _, _ in rules.owned:
            if tally.group.key == key:
                tally.owners[domain] += count


def admits(pins: Pins, rules: Rules, *, leaving: Pins = ()) -> bool:
    """Whether one more pod may go to these domains.

    If the pod comes from other domains, `leaving` names those, and the pod is not counted there.
    """
    away = Away(leaving, 1) if leaving else NONE_AWAY
    least = {
        tally.group.index: _least(tally, own, among, away) for tally, own, among in rules.owned
    }
    return _admitted(pins, rules, least, away)


def misplaced(pins: Pins, rules: Rules, most: int) -> int:
    """Return how many of `most` pods in these domains must leave to meet their own rules again.

    The pods leave one at a time; the result is the smallest such number, or `most`.
    """
    return next((gone for gone in range(most) if not _is_broken(pins, rules, gone)), most)


def _is_broken(pins: Pins, rules: Rules, gone: int) -> bool:
    """Whether pods in these domains break a rule that they state after `gone` of them left."""
    domains, away = dict(pins), Away(pins, gone)
    return any(
        topology.excess(
            tally.group,
            _count(tally, domains[tally.group.key], own, away),
            owners=tally.owners[domains[tally.group.key]] - gone,
            own=own,
            least=_least(tally, own, universe, away),
        )
        > 0
        for tally, own, universe in rules.owned
        if tally.group.key in domains
    )


def strain(everyone: Iterable[Rules]) -> float:
    """Return the number of pods that break rules of placed pods, summed over the rules."""
    broken = 0.0
    for tally, own, universe in {spread for rules in everyone for spread in rules.owned}:
        least = _least(tally, own, universe, NONE_AWAY)
        for domain, owners in tally.owners.items():
            if owners > 0:
                count = tally.counts[domain]
                broken += topology.excess(tally.group, count, owners=owners, own=own, least=least)
    return broken


@dataclass(frozen=True, slots=True)
class Away:
    """Pods that the tallies still count in some domains, but that are evaluated as having left."""

    pins: Pins
    number: int


NONE_AWAY = Away((), 0)


def _count(tally: TopologyTally, domain: str, own: bool, away: Away) -> int:
    """Return the count of a domain without the pods that are away, if the group counts those."""
    count = tally.counts[domain]
    if own and away.number and (tally.group.key, domain) in away.pins:
        return count - away.number
    return count


def _least(tally: TopologyTally, own: bool, universe: tuple[str, ...], away: Away) -> float:
    """Return the minimum count over the domains that a spread compares; 0 for the other rules."""
    if tally.group.type is not TopologyType.SPREAD:
        return 0
    if not away.number:
        return topology.minimum(tally.group, [tally.counts[domain] for domain in universe])
    counts = [_count(tally, domain, own, away) for domain in universe]
    return topology.minimum(tally.group, counts)


def _best(options: Sequence[DomainOption], rules: Rules) -> DomainOption | None:
    """Return the option for the next pod, or None if the rules admit none.

    The option with the fewest counted pods wins; then existing nodes before new ones, then the
    lowest price. If `_slack` is true, options whose existing nodes hold the pod come first.
    """
    least = {
        tally.group.index: _least(tally, own, among, NONE_AWAY) for tally, own, among in rules.owned
    }
    best: tuple[tuple[bool, int, bool, float, Pins], DomainOption] | None = None
    for option in options:
        if not option.is_open or not _admitted(option.pins, rules, least, NONE_AWAY):
            continue
        free = option.is_free
        population = _population(option, rules)
        rank = (not free and _slack(rules), population, not free, option.price, option.pins)
        if best is None or rank < best[0]:
            best = (rank, option)
    return best[1] if best is not None else None


def _slack(rules: Rules) -> bool:
    """Whether every spread allows a skew of more than 1, so existing capacity can be used first."""
    groups = (tally.group for tally, _, _ in rules.owned)
    return all(group.max_skew > 1 for group in groups if group.type is TopologyType.SPREAD)


def _population(option: DomainOption, rules: Rules) -> int:
    """Return the number of pods that the spreads counting the pod have in the option's domains."""
    domains = dict(option.pins)
    return sum(
        tally.counts[domains[tally.group.key]]
        for tally in rules.counting
        if tally.group.type is TopologyType.SPREAD and tally.group.key in domains
    )


def _batch(left: int, option: DomainOption, rules: Rules) -> int:
    """Return how many pods can be assigned to an option at once without checking the rules again.

    Pods that state only affinity cannot make the option inadmissible; others are assigned one by
    one.
    """
    if any(tally.group.type is not TopologyType.AFFINITY for tally, _, _ in rules.owned):
        return 1
    return min(left, option.fitting - option.taken) if option.is_free else left


def _admitted(pins: Pins, rules: Rules, least: dict[int, float], away: Away) -> bool:
    """Whether the rules admit one more pod in these domains. `least` is by group index."""
    domains = dict(pins)
    for tally, own, _ in rules.owned:
        group = tally.group
        count = _count(tally, domains[group.key], own, away)
        first = group.type is TopologyType.AFFINITY and tally.total <= away.number
        if not topology.admits(group, count, own=own, least=least[group.index], first=first):
            return False
    return all(_is_clear(tally, domains[tally.group.key], rules, away) for tally in rules.shunned)


def _is_clear(tally: TopologyTally, domain: str, rules: Rules, away: Away) -> bool:
    """Whether a domain has no owners of an anti-affinity that repels the pod.

    If the pod is itself such an owner and leaves the domain, it does not count.
    """
    owners = tally.owners[domain]
    if owners > 0 and away.number and (tally.group.key, domain) in away.pins:
        owners -= away.number * any(tally is owner for owner, _, _ in rules.owned)
    return owners <= 0
