"""Which domain each pod goes to, where topology has a say.

An `DomainOption` is one combination of domains (a zone; a zone and a capacity type; …)
with what it can take. Pods go one after the other to the emptiest option that every
rule admits, which is what keeps spreads level.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from controller.scheduling.topology.groups import TopologyGroup, TopologyKind

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
    """What binds a pod in its choice of domains: groups not per node.

    `owned`: groups the pod states, each with whether it counts the pod itself and its
    universe of domains; `counting`: groups that count the pod; `shunned`: groups whose
    owners repel it, `sought`: groups whose owners look for it, so that where it lies
    must be known.
    """

    owned: tuple[tuple[TopologyGroup, bool, tuple[str, ...]], ...]
    counting: tuple[TopologyGroup, ...]
    shunned: tuple[TopologyGroup, ...]
    sought: tuple[TopologyGroup, ...]

    @property
    def spreads(self) -> bool:
        """Whether the pod states a spread."""
        return any(group.kind is TopologyKind.SPREAD for group, _, _ in self.owned)

    @property
    def keys(self) -> tuple[str, ...]:
        """The labels whose domains must be chosen, sorted."""
        owned = {group.key for group, _, _ in self.owned}
        return tuple(sorted(owned | {one.key for one in (*self.shunned, *self.sought)}))


def assign(count: int, options: Sequence[DomainOption], rules: Rules) -> int:
    """Send up to `count` pods to options, and record them; return how many went.

    Options are told how many they took; groups count the pods at once.
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
        for group in rules.counting:
            if group.key == key:
                group.counts[domain] += count
        for group, _, _ in rules.owned:
            if group.key == key:
                group.owners[domain] += count


def admits(pins: Pins, rules: Rules) -> bool:
    """Whether one more pod may go to these domains."""
    least = {group.index: _least(group, universe) for group, _, universe in rules.owned}
    return _admitted(pins, rules, least)


def strain(everyone: Iterable[Rules]) -> int:
    """Return by how many pods the rules of those that were placed are broken, in sum."""
    broken = 0
    for group, own, universe in {one for rules in everyone for one in rules.owned}:
        least = _least(group, universe)
        for domain, owners in group.owners.items():
            if owners > 0:
                broken += min(_excess(group, domain, own=own, least=least), owners)
    return broken


def is_misplaced(pins: Pins, rules: Rules) -> bool:
    """Whether a pod in these domains breaks a rule of its own about them."""
    domains = dict(pins)
    return any(
        _excess(group, domains[group.key], own=own, least=_least(group, universe)) > 0
        for group, own, universe in rules.owned
        if group.key in domains
    )


def _excess(group: TopologyGroup, domain: str, *, own: bool, least: int) -> int:
    """Return how many owners in a domain should not be there, however they got there."""
    count = group.counts[domain]
    if group.kind is TopologyKind.SPREAD:
        return max(count - least - group.max_skew, 0)
    if group.kind is TopologyKind.ANTI_AFFINITY:
        return max(count - own, 0)
    return 0 if count > 0 else group.owners[domain]


def _best(options: Sequence[DomainOption], rules: Rules) -> DomainOption | None:
    least = {group.index: _least(group, universe) for group, _, universe in rules.owned}
    best: tuple[tuple[bool, int, bool, float, Pins], DomainOption] | None = None
    for option in options:
        if not option.is_open or not _admitted(option.pins, rules, least):
            continue
        free = option.is_free
        population = _population(option, rules)
        rank = (not free and _slack(rules), population, not free, option.price, option.pins)
        if best is None or rank < best[0]:
            best = (rank, option)
    return best[1] if best is not None else None


def _slack(rules: Rules) -> bool:
    """Whether skew leaves a choice, so that room that is paid for can come first."""
    return all(
        group.max_skew > 1 for group, _, _ in rules.owned if group.kind is TopologyKind.SPREAD
    )


def _population(option: DomainOption, rules: Rules) -> int:
    domains = dict(option.pins)
    spreads = [
        one for one in rules.counting if one.kind is TopologyKind.SPREAD and one.key in domains
    ]
    return sum(group.counts[domains[group.key]] for group in spreads)


def _batch(left: int, option: DomainOption, rules: Rules) -> int:
    """Return how many may follow at once without a look at the rules in between."""
    if any(one.kind is not TopologyKind.AFFINITY for one, _, _ in rules.owned):
        return 1
    return min(left, option.room - option.taken) if option.is_free else left


def _least(group: TopologyGroup, universe: tuple[str, ...]) -> int:
    if group.kind is not TopologyKind.SPREAD or len(universe) < max(group.min_domains, 1):
        return 0
    return min(group.counts[domain] for domain in universe)


def _admitted(pins: Pins, rules: Rules, least: dict[int, int]) -> bool:
    domains = dict(pins)
    for group, own, _ in rules.owned:
        domain = domains[group.key]
        if group.kind is TopologyKind.AFFINITY and own and not group.total:
            continue
        if not group.admits(domain, own=own, least=least[group.index]):
            return False
    return all(group.owners[domains[group.key]] <= 0 for group in rules.shunned)
