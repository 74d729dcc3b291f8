"""The topology domains that are open to pending pods, and the tallies that count pods in them."""

from __future__ import annotations

from collections.abc import Iterable, Set

import numpy as np

from controller.scheduling.arrays import Indices, Mask
from controller.scheduling.catalog.launchoptions import LaunchOptions
from controller.scheduling.nodes.existing import ExistingNodes
from controller.scheduling.pods.groups import Eligibility, PendingGroup
from controller.scheduling.topology.groups import (
    Tallies,
    TopologyGroup,
    TopologyTally,
    TopologyType,
)
from controller.scheduling.topology.spread import (
    Domain,
    DomainOption,
    Pins,
    Rules,
    admits,
    is_broken,
)


class Domains:
    """The topology domains of existing nodes and of nodes that can be launched."""

    def __init__(
        self,
        nodes: ExistingNodes,
        launch_options: LaunchOptions,
        tallies: Tallies,
        cautious: Set[int] = frozenset(),
    ) -> None:
        """Start with the domains of existing nodes and of new nodes for each pod.

        The topology groups with the indices `cautious` also count every domain in which a node can
        be launched for any other pod.
        """
        self._nodes, self._launch_options, self._tallies = nodes, launch_options, tallies
        self._cautious = cautious
        self._opening: Mask | None = None
        self._affordable: Mask | None = None
        self._rules: dict[tuple[Eligibility, bytes], Rules] = {}
        self._stating: dict[tuple[Eligibility, bytes], PendingGroup] = {}
        self._where: dict[tuple[str, ...], list[tuple[Domain, ...]]] = {}

    def restrict(self, opening: Mask, affordable: Mask) -> None:
        """Restrict the domains of new nodes to the domains of the variants in `opening`.

        `affordable` (node types) marks the node types that limits still admit. Cached rules are
        discarded, because the domains that they compare may differ.
        """
        self._opening, self._affordable = opening, affordable
        self._rules.clear()

    @property
    def is_restricted(self) -> bool:
        """Whether `restrict` was called."""
        return self._opening is not None

    def opening_variants(self, eligible: Mask) -> Mask:
        """Mark the eligible variants; after `restrict`, only those in its `opening`."""
        return eligible if self._opening is None else eligible & self._opening

    def rules(self, pending: PendingGroup) -> Rules:
        """Return the topology rules that restrict the domains of these pods.

        Rules are the same for pods with equal eligibility, except that the domains of a spread
        depend on the pods' size.
        """
        key = pending.eligibility, pending.size.tobytes() if pending.states_spread else b""
        cached = self._rules.get(key)
        if cached is None:
            self._stating.setdefault(key, pending)
            cached = self._rules[key] = self._read_rules(pending)
        return cached

    def _read_rules(self, pending: PendingGroup) -> Rules:
        """Return the topology rules, without those by hostname; see `ExistingOccupancy`."""
        eligibility = pending.eligibility
        counting = [group for group in eligibility.counted if not group.per_node]
        hard = [group for group in counting if group.hard]
        owned = tuple(
            (
                self._tallies[group.index],
                group in eligibility.counted,
                self._universe(pending, group, self._opening),
            )
            for group in eligibility.owned
            if not group.per_node
        )
        return Rules(
            owned=owned,
            counting=self._tallies_of(counting),
            repelling=self._tallies_of(
                group for group in hard if group.type is TopologyType.ANTI_AFFINITY
            ),
            attracting=self._tallies_of(
                group for group in hard if group.type is TopologyType.AFFINITY
            ),
        )

    def _tallies_of(self, groups: Iterable[TopologyGroup]) -> tuple[TopologyTally, ...]:
        return tuple(self._tallies[group.index] for group in groups)

    def _universe(
        self, pending: PendingGroup, group: TopologyGroup, opening: Mask | None
    ) -> tuple[str, ...]:
        """Return the domains whose counts a spread compares, sorted.

        These are the domains of existing nodes and of nodes that can be launched for the pods now;
        with `opening`, those of existing nodes and of its variants.
        """
        if group.type is not TopologyType.SPREAD:
            return ()
        if opening is not None:
            mask = self._counted_variants(pending.eligibility, group, opening)
            domains = self._launch_options.values(group.key, mask)
        else:
            mask = self.reach(pending)
            domains = self._launch_options.domains(group.key, mask)
            if group.index in self._cautious:
                launchable = self._launch_options.fitting_variants(
                    np.ones_like(mask), np.zeros_like(pending.size)
                )
                mask |= self._counted_variants(pending.eligibility, group, launchable)
                domains = self._launch_options.values(group.key, mask)
        return tuple(sorted({*group.universe, *domains}))

    def reach(self, pending: PendingGroup, affordable: Mask | None = None) -> Mask:
        """Mark the variants in which a node can be launched for such a pod now.

        The pod's preferences do not matter: they are given up before the pod stays pending.
        `affordable` (node types) marks the node types that limits still admit, if that is not as in
        `restrict`.
        """
        return self._launch_options.fitting_variants(
            pending.eligibility.required,
            pending.size,
            self._affordable if affordable is None else affordable,
        )

    def reached_domains(self, pending: PendingGroup, key: str) -> list[str]:
        """Return the domains of a label in which a node can be launched for such a pod now."""
        return self._launch_options.domains(key, self.reach(pending))

    def _counted_variants(
        self, eligibility: Eligibility, group: TopologyGroup, among: Mask
    ) -> Mask:
        """Mark the variants in `among` whose nodes a spread counts.

        Its `nodeAffinityPolicy` and `nodeTaintsPolicy` decide, and the keys of the pods' spreads.
        """
        mask = among.copy()
        if group.node_filter.alternatives is not None:
            mask &= eligibility.own_eligible
        if group.node_filter.tolerations is not None:
            mask &= eligibility.tolerated
        return self._launch_options.with_labels(mask, group.node_filter.keys)

    def stated_rules(self) -> list[Rules]:
        """Return the rules of the pods of the solve that state some, wherever they are placed."""
        every = (self.rules(pending) for pending in self._stating.values())
        return [rules for rules in every if rules.owned]

    def may_count(self, group: TopologyGroup, opened: Mask) -> bool:
        """Whether a spread may count a new node in the variants of `opened`."""
        return any(
            self._counted_variants(pending.eligibility, group, opened).any()
            for pending in self._stating.values()
            if group in pending.eligibility.owned
        )

    def breaking_domains(self, opened: Mask) -> dict[TopologyGroup, set[str]]:
        """Return the required spreads that break if new nodes are in the variants of `opened`.

        The spreads do not compare the domains of these variants, which are returned for each.
        """
        found: dict[TopologyGroup, set[str]] = {}
        for pending in self._stating.values():
            for tally, own, _ in self.rules(pending).owned:
                group = tally.group
                if group.type is not TopologyType.SPREAD or not group.hard:
                    continue
                # Pods that were placed before `restrict` did not compare the domains in `opening`.
                universe = self._universe(pending, group, None)
                counted = self._counted_variants(pending.eligibility, group, opened)
                new = set(self._launch_options.values(group.key, counted)).difference(universe)
                if new and is_broken(tally, own, (*universe, *new)):
                    found.setdefault(group, set()).update(new)
        return found

    def options(
        self, pending: PendingGroup, fitting: Indices, rules: Rules
    ) -> tuple[list[DomainOption], list[Mask], list[Mask]]:
        """Return the combinations of domains open to pending pods, and masks for each.

        Args:
            pending: The pods to place.
            fitting: The number of the pods that fit on each existing node (nodes).
            rules: The rules of the pods, which name the topology keys whose domains are chosen.

        Returns:
            The options, sorted by domain; per option a mask of variants; per option a mask of
                existing nodes.

        """
        keys, optional = rules.keys, rules.optional_keys
        by_node = self._domains_of_nodes(keys)
        combinations = set(self._launch_options.combinations(pending.eligible, keys, optional))
        for domains, spare in zip(by_node, fitting.tolist(), strict=True):
            lacking = {key for key, domain in zip(keys, domains, strict=True) if domain is None}
            if spare and lacking <= optional:
                combinations.add(domains)
        options, masks, members = [], [], []
        for combination in sorted(combinations, key=lambda each: [one or "" for one in each]):
            pins = tuple(zip(keys, combination, strict=True))
            mask = self._launch_options.pinned_mask(pending.eligible, pins)
            inside = np.array([domains == combination for domains in by_node], dtype=np.bool_)
            price = self._launch_options.unit_price(mask, pending.size)
            spare = int(np.minimum(fitting[inside], pending.number).sum()) if by_node else 0
            options.append(DomainOption(pins, spare, np.isfinite(price), price))
            masks.append(mask)
            members.append(inside)
        return options, masks, members

    def of_node(self, index: int, rules: Rules) -> Pins:
        """Return the domains of an existing node that the rules choose or count pods in."""
        keys = tuple(sorted({*rules.keys, *(tally.group.key for tally in rules.counting)}))
        return tuple(zip(keys, self._domains_of_nodes(keys)[index], strict=True)) if keys else ()

    def admitting_nodes(self, rules: Rules) -> Mask:
        """Mark the existing nodes in whose domains the rules admit one more pod."""
        truth = [admits(self.of_node(index, rules), rules) for index in range(len(self._nodes))]
        return np.array(truth, dtype=np.bool_)

    def _domains_of_nodes(self, keys: tuple[str, ...]) -> list[tuple[Domain, ...]]:
        """Return the domains of each existing node, one per key; None for a missing label."""
        cached = self._where.get(keys)
        if cached is None:
            domains = zip(*(self._nodes.domains(key) for key in keys), strict=True)
            cached = self._where[keys] = list(domains)
        return cached
