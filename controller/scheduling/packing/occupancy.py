"""Who may join whom on nodes being filled."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from controller.scheduling.arrays import Indices, Mask, Matrix, Vector
from controller.scheduling.packing.problem import NodeRules


@dataclass(slots=True, kw_only=True)
class NodeOccupancy:
    """Who is on each of some nodes, as far as the rules about sharing care.

    `limit` and `repels` (groups) are of the rules that speak of the classes, which no more
    counted owners may join from so many counted pods on, `full_at`, and no other owners from
    more than `over_at`; `owned`,
    `matched`, `own_counted`, `own_uncounted`: groups × classes; `owners` and `counted`:
    nodes × groups.
    """

    limit: Vector
    repels: Mask
    full_at: Vector
    over_at: Vector
    owned: Matrix
    matched: Matrix
    own_counted: Matrix
    own_uncounted: Matrix
    owners: Matrix
    counted: Matrix

    @classmethod
    def holding(cls, rules: NodeRules, columns: Indices, held: Indices) -> NodeOccupancy:
        """Start with what nodes hold (nodes × classes) of the classes in `columns`."""
        owned = rules.owned[:, columns]
        bind = np.flatnonzero(owned.any(axis=1))
        owned, repels = owned[bind], rules.repels[bind]
        matched = rules.counted[bind][:, columns]
        return cls(
            limit=rules.limit[bind],
            repels=repels,
            full_at=np.where(repels, 1.0, rules.limit[bind]),
            over_at=np.where(repels, 0.0, rules.limit[bind]),
            owned=owned.astype(np.float64),
            matched=matched.astype(np.float64),
            own_counted=(owned & matched).astype(np.float64),
            own_uncounted=(owned & ~matched).astype(np.float64),
            owners=held.astype(np.float64) @ owned.T,
            counted=held.astype(np.float64) @ matched.T,
        )

    @property
    def ruled(self) -> Mask:
        """Mark the classes that some rule speaks of."""
        return np.asarray((self.owned + self.matched).any(axis=0))

    def add_nodes(self, number: int) -> None:
        """Add so many empty nodes."""
        more = np.zeros((number, len(self.limit)))
        self.owners, self.counted = np.vstack([self.owners, more]), np.vstack([self.counted, more])

    def keep_nodes(self, kept: Mask) -> None:
        """Forget the other nodes."""
        self.owners, self.counted = self.owners[kept], self.counted[kept]

    def keep_classes(self, kept: Mask) -> None:
        """Forget the other classes."""
        self.owned, self.matched = self.owned[:, kept], self.matched[:, kept]
        self.own_counted = self.own_counted[:, kept]
        self.own_uncounted = self.own_uncounted[:, kept]

    def bar(self, fits: Mask) -> None:
        """Take out of nodes × classes who may not join by one."""
        if len(self.limit):
            fits &= self._barred(slice(None)) == 0

    def lets_in(self, class_index: int) -> Mask:
        """Mark the nodes that one more pod of a class may join."""
        return np.asarray(self._barred(class_index) == 0)

    def _barred(self, classes: slice | int) -> Matrix:
        """Return by how many rules pods of the classes may not join by one."""
        full: Mask = self.counted >= self.full_at
        over: Mask = self.counted > self.over_at
        # A counted pod may not join owners that are already at their limit.
        closed: Mask = (self.owners > 0) & (self.repels | full)
        blocked: Matrix = full.astype(np.float64) @ self.own_counted[:, classes]
        blocked += over.astype(np.float64) @ self.own_uncounted[:, classes]
        blocked += closed.astype(np.float64) @ self.matched[:, classes]
        return blocked

    def spare(self, chosen: Indices) -> Indices:
        """Return how many of the chosen class each node may still take by these rules."""
        if not len(self.limit):
            return np.full(len(chosen), np.iinfo(np.int64).max)
        binding = self.matched[:, chosen].T * np.maximum(
            self.owned[:, chosen].T, (self.owners > 0) & ~self.repels
        )
        spare = np.where(binding > 0, self.full_at - self.counted, np.inf).min(axis=1)
        whole: Indices = np.maximum(np.minimum(spare, 2**31), 1).astype(np.int64)
        return whole

    def add(self, chosen: Indices, amount: Indices) -> None:
        """Put pods of the chosen class on each node."""
        if len(self.limit):
            self.owners += self.owned[:, chosen].T * amount[:, None]
            self.counted += self.matched[:, chosen].T * amount[:, None]
