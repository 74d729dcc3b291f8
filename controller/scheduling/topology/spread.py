"""Which domain each pod goes to, where topology has a say.

An `DomainOption` is one combination of domains (a zone; a zone and a capacity type; …)
with what it can take. Pods go one after the other to the emptiest option that every
rule admits, which is what keeps spreads level.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from controller.scheduling.topology.groups import TopologyGroup, TopologyKind, TopologyTally

Pins = tuple[tuple[str, str], ...]
"""Labels with the values that topology chose, sorted by label."""


@dataclass(slots=True)
class DomainOption:
    """A combination of domains: room on nodes that exist, and the price of new ones."""

    pins: Pins
    room: int
    launchable: bool
    price: float
    taken: int = 0

    @property
    def is_free(self) -> bool:
        """Whether one more pod finds room on nodes that exist."""
        return self.taken < self.room

    @property
    def is_open(self) -> bool:
        """Whether one more pod can go there at all."""
        return self.launchable or self.is_free


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What binds a pod in its choice of domains: the tallies of groups not per node.

    `owned`: of groups the pod states, each with whether it counts the pod itself and its
    universe of domains; `counting`: of groups that count the pod; `shunned`: of groups
    whose owners repel it, `sought`: of groups whose owners look for it, so that where it
    lies must be known.
    """

    owned: tuple[tuple[TopologyTally, bool, tuple[str, ...]], ...]
    counting: tuple[TopologyTally, ...]
    shunned: tuple[TopologyTally, ...]
    sought: tuple[TopologyTally, ...]

    @property
    def spreads(self) -> bool:
        """Whether the pod states a spread."""
        return any(tally.group.kind is TopologyKind.SPREAD for tally, _, _ in self.owned)

    @property
    def keys(self) -> tuple[str, ...]:
        """The labels whose domains must be chosen, sorted."""
        owned = (tally for tally, _, _ in self.owned)
        return tuple(sorted({tally.group.key for tally in (*owned, *self.shunned, *self.sought)}))


def assign(count: int, options: Sequence[DomainOption], rules: Rules) -> int:
    """Send up to `count` pods to options, and record them; return how many went.

    Options are told how many they took; tallies count the pods at once.
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
    """Count pods that went to (or, negative, left) the domains in `pins`."""
    for key, domain in pins:
        for tally in rules.counting:
            if tally.group.key == key:
                tally.counts[domain] += count
        for tally, _, _ in rules.owned:
            if tally.group.key == key:
                tally.owners[domain] += count


def admits(pins: Pins, rules: Rules, *, leaving: Pins = ()) -> bool:
    """Whether one more pod may go to these domains; if it comes from others, it is `leaving`
    those.
    """
    away = Away(leaving, 1) if leaving else NOBODY
    least = {
        tally.group.index: _least(tally, own, among, away) for tally, own, among in rules.owned
    }
    return _admitted(pins, rules, least, away)


def misplaced(pins: Pins, rules: Rules, most: int) -> int:
    """Return how many of so many pods in these domains must go, one by one, until the others
    break no rule of their own about them.
    """
    return next((gone for gone in range(most) if not _is_broken(pins, rules, gone)), most)


def _is_broken(pins: Pins, rules: Rules, gone: int) -> bool:
    """Whether pods in these domains break a rule of their own, once so many of them have gone."""
    domains, away = dict(pins), Away(pins, gone)
    return any(
        _excess(
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


def strain(everyone: Iterable[Rules]) -> int:
    """Return by how many pods the rules of those that were placed are broken, in sum."""
    broken = 0
    for tally, own, universe in {spread for rules in everyone for spread in rules.owned}:
        least = _least(tally, own, universe, NOBODY)
        for domain, owners in tally.owners.items():
            if owners > 0:
                count = tally.counts[domain]
                excess = _excess(tally.group, count, owners=owners, own=own, least=least)
                broken += min(excess, owners)
    return broken


@dataclass(frozen=True, slots=True)
class Away:
    """Pods that are counted in some domains still, and thought away."""

    pins: Pins
    number: int


NOBODY = Away((), 0)


def _count(tally: TopologyTally, domain: str, own: bool, away: Away) -> int:
    """Return the count of a domain without those who are away, if the group counts them."""
    count = tally.counts[domain]
    if own and away.number and (tally.group.key, domain) in away.pins:
        return count - away.number
    return count


def _least(tally: TopologyTally, own: bool, universe: tuple[str, ...], away: Away) -> int:
    group = tally.group
    if group.kind is not TopologyKind.SPREAD or len(universe) < max(group.min_domains, 1):
        return 0
    if not away.number:
        return min(tally.counts[domain] for domain in universe)
    return min(_count(tally, domain, own, away) for domain in universe)


def _excess(group: TopologyGroup, count: int, *, owners: int, own: bool, least: int) -> int:
    """Return how many of the owners in a domain should not be there, however they got there."""
    if group.kind is TopologyKind.SPREAD:
        return max(count - least - group.max_skew, 0)
    if group.kind is TopologyKind.ANTI_AFFINITY:
        return max(count - own, 0)
    return 0 if count > 0 else owners


def _best(options: Sequence[DomainOption], rules: Rules) -> DomainOption | None:
    least = {
        tally.group.index: _least(tally, own, among, NOBODY) for tally, own, among in rules.owned
    }
    best: tuple[tuple[bool, int, bool, float, Pins], DomainOption] | None = None
    for option in options:
        if not option.is_open or not _admitted(option.pins, rules, least, NOBODY):
            continue
        free = option.is_free
        population = _population(option, rules)
        rank = (not free and _slack(rules), population, not free, option.price, option.pins)
        if best is None or rank < best[0]:
            best = (rank, option)
    return best[1] if best is not None else None


def _slack(rules: Rules) -> bool:
    """Whether skew leaves a choice, so that room that is paid for can come first."""
    groups = (tally.group for tally, _, _ in rules.owned)
    return all(group.max_skew > 1 for group in groups if group.kind is TopologyKind.SPREAD)


def _population(option: DomainOption, rules: Rules) -> int:
    domains = dict(option.pins)
    return sum(
        tally.counts[domains[tally.group.key]]
        for tally in rules.counting
        if tally.group.kind is TopologyKind.SPREAD and tally.group.key in domains
    )


def _batch(left: int, option: DomainOption, rules: Rules) -> int:
    """Return how many may follow at once without a look at the rules in between."""
    if any(tally.group.kind is not TopologyKind.AFFINITY for tally, _, _ in rules.owned):
        return 1
    return min(left, option.room - option.taken) if option.is_free else left


def _admitted(pins: Pins, rules: Rules, least: dict[int, int], away: Away) -> bool:
    domains = dict(pins)
    for tally, own, _ in rules.owned:
        group = tally.group
        if group.kind is TopologyKind.AFFINITY and own and tally.total <= away.number:
            continue
        count = _count(tally, domains[group.key], own, away)
        if not group.admits(count, own=own, least=least[group.index]):
            return False
    return all(_is_clear(tally, domains[tally.group.key], rules, away) for tally in rules.shunned)


def _is_clear(tally: TopologyTally, domain: str, rules: Rules, away: Away) -> bool:
    """Whether none of those who repel such a pod is in a domain; it may be leaving it itself."""
    owners = tally.owners[domain]
    if owners > 0 and away.number and (tally.group.key, domain) in away.pins:
        owners -= away.number * any(tally is owner for owner, _, _ in rules.owned)
    return owners <= 0
