"""From portions to the problem that is packed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from controller.scheduling.domains.crowds import clashes
from controller.scheduling.encoding.encoding import Indices, Matrix, Vector
from controller.scheduling.encoding.market import Market
from controller.scheduling.encoding.topology import Group, Groups, Kind
from controller.scheduling.encoding.wishes import Portion, Wish
from controller.scheduling.packing.giveaways import visible
from controller.scheduling.packing.kinds import NO_KINDS, undominated
from controller.scheduling.packing.problem import NodeRules, Problem


class Poser:
    """Brings portions, a market and limits into arrays.

    `room` is kinds × the solve's resources; `consumption` kinds × limits, counted in
    `limit_units` (limits).
    """

    def __init__(
        self,
        market: Market,
        groups: Groups,
        *,
        room: Matrix,
        consumption: Matrix,
        limit_units: Vector,
    ) -> None:
        """Nothing has been posed yet."""
        self._market, self._groups = market, groups
        self._room, self._prices = room, visible(market.price)
        self._consumption, self._limit_units = consumption, limit_units
        self._per_node: dict[tuple[tuple[Group, ...], ...], tuple[tuple[int, ...], ...]] = {}

    def classes(self, portions: Sequence[Portion]) -> list[list[Portion]]:
        """Bring together the portions that packing cannot tell apart."""
        classes: dict[tuple[object, ...], list[Portion]] = {}
        for portion in portions:
            everyone = tuple(self._sharing(part.wish) for part in portion.everyone)
            alike = tuple(sorted(portion.needs.items())) if portion.needs is not None else None
            key = (portion.size.tobytes(), portion.variants.tobytes(), everyone, alike)
            classes.setdefault(key, []).append(portion)
        return list(classes.values())

    def _sharing(self, wish: Wish) -> tuple[object, ...]:
        """Return all that decides whom pods may share a node with."""
        stated = (wish.owned, wish.counted)
        known = self._per_node.get(stated)
        if known is None:
            owned, counted = ([one.index for one in part if one.per_node] for part in stated)
            known = self._per_node[stated] = tuple(owned), tuple(counted)
        equipment = wish.shape.equipment
        return known, wish.shape.ports, equipment and equipment.signature

    def problem(
        self,
        classes: Sequence[Sequence[Portion]],
        left: Vector,
        keep: Indices = NO_KINDS,
        more: tuple[Matrix, Matrix] | None = None,
        proving: bool = False,
    ) -> tuple[Problem, Indices]:
        """Bring classes and kinds into arrays; with the market's kinds that are in it, among
        them those to `keep`. `more` is what classes take and kinds have beyond the solve's
        resources, `left` (limits) what may still be bought. What is asked for `proving` has
        every kind that an answer might be cheaper by.
        """
        market_ = self._market
        sizes, room = np.stack([one[0].size for one in classes]), self._room
        if more is None and any(one[0].needs is not None for one in classes):
            # A node has room for one unit of pods with devices.
            units = np.array([[float(one[0].needs is not None)] for one in classes])
            more = units, np.ones((len(room), 1))
        if more is not None:
            sizes, room = np.hstack((sizes, more[0])), np.hstack((room, more[1]))
        labelled = np.stack([one[0].variants for one in classes])[:, market_.variant_of]
        distinct, which = np.unique(sizes, axis=0, return_inverse=True)
        holds = np.ones((len(distinct), len(room)), dtype=np.bool_)
        for r in range(sizes.shape[1]):
            holds &= room[None, :, r] >= distinct[:, r, None]
        allowed = labelled & holds[which.reshape(-1)]
        consumption = self._consumption
        allowed &= (consumption <= left).all(axis=1)
        few, every = undominated(allowed, labelled, market_.price, room, consumption)
        kinds = np.union1d(every if proving else few, keep)
        demand = np.array([sum(p.units for p in one) for one in classes], dtype=np.int64)
        allowed = allowed[:, kinds]
        prices = self._prices[kinds]
        alone = np.where(allowed, prices, np.inf).min(axis=1, initial=np.inf)
        # Where limits leave pods over, not those of which the most wait: spreads stay even.
        waiting = 1e-3 * demand / demand.max(initial=1) if len(left) else 0.0
        penalty = (10.0 + waiting) * np.where(np.isfinite(alone), alone, 1.0)
        problem = Problem(
            demand=demand,
            sizes=sizes,
            penalty=penalty,
            prices=prices,
            room=room[kinds],
            allowed=allowed,
            labelled=labelled[:, kinds],
            rules=self._node_rules(classes),
            consumption=consumption[kinds] / self._limit_units,
            stock=left / self._limit_units,
            proves=proving or len(few) == len(every),
        )
        return problem, kinds

    def _node_rules(self, classes: Sequence[Sequence[Portion]]) -> NodeRules:
        """Bring the rules about sharing a node into arrays: groups first, then host ports."""
        firsts = [[part.wish for part in one[0].everyone] for one in classes]
        # A spread over nodes counts those who come before its owners, or among them: pods
        # that others are counted in the domains of, and owners of such spreads. The others
        # come last, when nobody minds any more.
        early = [
            any(part.pins for part in one)
            or any(
                group.per_node and group.kind is Kind.SPREAD
                for wish in wishes
                for group in wish.owned
            )
            for one, wishes in zip(classes, firsts, strict=True)
        ]
        rules: list[tuple[list[bool], list[bool], float, bool]] = []
        for group in self._groups.all:
            if not group.per_node or group.kind is Kind.AFFINITY:
                continue
            owned = [any(group in wish.owned for wish in wishes) for wishes in firsts]
            if any(owned):
                repels = group.kind is Kind.ANTI_AFFINITY
                counted = [
                    (repels or first) and any(group in wish.counted for wish in wishes)
                    for first, wishes in zip(early, firsts, strict=True)
                ]
                rules.append((owned, counted, float(group.max_skew), repels))
        ports = [tuple(p for wish in wishes for p in wish.shape.ports) for wishes in firsts]
        for owners, others in clashes(ports):
            rules.append((owners, others, 1.0, True))
        width = len(classes)
        return NodeRules(
            owned=np.array([one[0] for one in rules], dtype=np.bool_).reshape(len(rules), width),
            counted=np.array([one[1] for one in rules], dtype=np.bool_).reshape(len(rules), width),
            limit=np.array([one[2] for one in rules], dtype=np.float64),
            repels=np.array([one[3] for one in rules], dtype=np.bool_),
        )
