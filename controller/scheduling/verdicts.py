"""Why a pod that could not be placed was not."""

from __future__ import annotations

import numpy as np

from controller.scheduling.encoding import causes as why
from controller.scheduling.encoding.encoding import Vector
from controller.scheduling.encoding.wishes import Wish
from controller.scheduling.question import Question

TOO_FEW_TYPES = "the types that hold these pods are fewer than minValues asks"


class Verdicts:
    """Finds causes, given what limits have `left`."""

    def __init__(self, question: Question) -> None:
        """Judge pods of this question."""
        self._catalog, self._devices = question.catalog, question.devices
        self._market = question.market
        self._openings, self._stock = question.openings, question.stock

    def causes(self, wish: Wish, left: Vector) -> tuple[str, ...]:
        """Say what stands in the way of such a pod, pool by pool where it is the pools."""
        impossible = why.causes(self._catalog, wish.shape, wish.demand)
        if wish.shape.equipment is not None:
            impossible = (*self._devices.causes(wish.shape.equipment), *impossible)
        if len(impossible) == len(self._catalog.pools) or not self._catalog.pools:
            return impossible
        found = (
            *self._taken_ports(wish),
            *self.spent_limits(wish, left),
            *why.rules_in_the_way(wish.owned, wish.counted),
            *impossible,
        )
        return found or (TOO_FEW_TYPES,)

    def _taken_ports(self, wish: Wish) -> tuple[str, ...]:
        """Say so when a daemon takes a port of such pods wherever they could go."""
        anywhere = wish.reading.own & wish.reading.tolerated
        where = self._market.variant_of[self._openings.fitting_kinds(anywhere, wish)]
        if not len(where) or self._market.free(wish.shape.ports)[where].any():
            return ()
        named = ", ".join(str(port.port) for port in wish.shape.ports)
        return (f"a DaemonSet takes host port {named} on every node that could be made",)

    def spent_limits(self, wish: Wish, left: Vector) -> tuple[str, ...]:
        """Name the limits that leave no room for any node that could hold such a pod."""
        kinds = self._openings.fitting_kinds(wish.reading.possible, wish)
        rows = np.unique(self._market.row_of[kinds])
        spent = []
        for place, (pool, name) in enumerate(self._stock.names):
            draws = self._stock.per_row[rows, place]
            least = draws[draws > 0].min(initial=np.inf)
            if np.isfinite(least) and left[place] < least:
                spent.append(f"NodePool {pool}: limit of {name} reached")
        return tuple(spent)
