"""The topology domains that are open to pending pods, and the tallies that count pods in them."""

from __future__ import annotations

from collections.abc import Iterable

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
from controller.scheduling.topology.spread import Domain, DomainOption, Pins, Rules, admits


class Domains:
    """The topology domains of existing nodes and of nodes that can be launched."""

    def __init__(
        self, nodes: ExistingNodes, launch_options: LaunchOptions, tallies: Tallies
    ) -> None:
        """Start with all domains of nodes that can be launched; `restrict` reduces them."""
        self._nodes, self._launch_options, self._tallies = nodes, launch_options, tallies
        self._opening: Mask | None = None
        self._rules: dict[Eligibility, Rules] = {}
        self._where: dict[tuple[str, ...], list[tuple[Domain, ...]]] = {}

    def restrict(self, opening: Mask) -> None:
        """Restrict the domains of new nodes to the domains of the variants in `opening`.

        Cached rules are discarded, because the domains that they compare may differ.
        """
        self._opening = opening
        self._rules.clear()

    @property
    def is_restricted(self) -> bool:
        """Whether `restrict` was called."""
        return self._opening is not None

    def opening_variants(self, eligible: Mask) -> Mask:
        """Mark the eligible variants; after `restrict`, only those in its `opening`."""
        return eligible if self._opening is None else eligible & self._opening

    def rules(self, eligibility: Eligibility) -> Rules:
        """Return the topology rules that restrict the domains of pods with this eligibility."""
        cached = self._rules.get(eligibility)
        if cached is None:
            cached = self._rules[eligibility] = self._read_rules(eligibility)
        return cached

    def _read_rules(self, eligibility: Eligibility) -> Rules:
        """Return the topology rules, without those by hostname; see `ExistingOccupancy`."""
        counting = [group for group in eligibility.counted if not group.per_node]
        hard = [group for group in counting if group.hard]
        owned = tuple(
            (
                self._tallies[group.index],
                group in eligibility.counted,
                self._universe(eligibility, group),
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

    def _universe(self, eligibility: Eligibility, group: TopologyGroup) -> tuple[str, ...]:
        """Return the domains whose counts a spread compares, sorted.

        These are the domains of existing nodes, and the domains of nodes that can be launched, if
        the spread's `nodeAffinityPolicy` and `nodeTaintsPolicy` count such nodes.
        """
        mask = np.ones_like(eligibility.own_eligible)
        if group.node_filter.alternatives is not None:
            mask &= eligibility.own_eligible
        if group.node_filter.tolerations is not None:
            mask &= eligibility.tolerated
        mask &= self.opening_variants(mask)
        return tuple(sorted(group.universe | set(self._launch_options.values(group.key, mask))))

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
