"""Which domains are open to a wish, and what must be counted in them."""

from __future__ import annotations

import numpy as np

from controller.scheduling.domains.openings import Openings
from controller.scheduling.domains.spread import Option, Rules
from controller.scheduling.encoding.encoding import Indices, Mask
from controller.scheduling.encoding.nodes import Nodes
from controller.scheduling.encoding.topology import Group, Kind
from controller.scheduling.encoding.wishes import Reading, Wish


class Domains:
    """The domains of nodes that exist and of those that can be made."""

    def __init__(self, nodes: Nodes, openings: Openings) -> None:
        """Any domain may be opened that anybody could open."""
        self._nodes, self._openings = nodes, openings
        self._opening: Mask | None = None
        self._rules: dict[Reading, Rules] = {}
        self._where: dict[tuple[str, ...], list[tuple[str | None, ...]]] = {}

    def settle(self, opening: Mask) -> None:
        """Count from now on only the domains that these variants open."""
        self._opening = opening
        self._rules.clear()

    @property
    def is_settled(self) -> bool:
        """Whether it is known which variants open domains."""
        return self._opening is not None

    def left_open(self, variants: Mask) -> Mask:
        """Return those of these variants that open domains."""
        return variants if self._opening is None else variants & self._opening

    def rules(self, wish: Wish) -> Rules:
        """Return what domains must heed for a wish."""
        known = self._rules.get(wish.reading)
        if known is None:
            known = self._rules[wish.reading] = self._read_rules(wish.reading)
        return known

    def _read_rules(self, wish: Reading) -> Rules:
        counting = tuple(one for one in wish.counted if not one.per_node)
        shunned = tuple(one for one in counting if one.kind is Kind.ANTI_AFFINITY and one.hard)
        owned = tuple(
            (group, group in wish.counted, self._universe(wish, group))
            for group in wish.owned
            if not group.per_node
        )
        targets = tuple(one for one in counting if one.kind is Kind.AFFINITY and one.hard)
        return Rules(owned, counting, shunned, targets)

    def _universe(self, wish: Reading, group: Group) -> tuple[str, ...]:
        """Return the domains whose counts a spread compares: of nodes that exist, and of
        those that any pool could open, as far as its policies let them count.
        """
        mask = np.ones_like(wish.own)
        if group.node_filter.alternatives is not None:
            mask &= wish.own
        if group.node_filter.tolerations is not None:
            mask &= wish.tolerated
        mask &= self.left_open(mask)
        return tuple(sorted(group.universe | set(self._openings.values(group.key, mask))))

    def options(
        self, wish: Wish, room: Indices, keys: tuple[str, ...]
    ) -> tuple[list[Option], list[Mask], list[Mask]]:
        """Return the combinations of domains open to a wish, with variants and nodes of each."""
        where = self._whereabouts(keys)
        combinations = set(self._openings.combinations(wish.variants, keys))
        for one, spare in zip(where, room.tolist(), strict=True):
            named = tuple(domain for domain in one if domain is not None)
            if spare and len(named) == len(keys):
                combinations.add(named)
        options, masks, members = [], [], []
        for combination in sorted(combinations):
            pins = tuple(zip(keys, combination, strict=True))
            mask = self._openings.pinned(wish.variants, pins)
            inside = np.array([one == combination for one in where], dtype=np.bool_)
            price = self._openings.unit_price(mask, wish)
            spare = int(np.minimum(room[inside], wish.number).sum()) if where else 0
            options.append(Option(pins, spare, np.isfinite(price), price))
            masks.append(mask)
            members.append(inside)
        return options, masks, members

    def _whereabouts(self, keys: tuple[str, ...]) -> list[tuple[str | None, ...]]:
        """Return the domains in which each node that exists lies."""
        known = self._where.get(keys)
        if known is None:
            found = zip(*(self._nodes.domains(key) for key in keys), strict=True)
            known = self._where[keys] = list(found)
        return known
