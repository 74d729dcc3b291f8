"""The pods that the rules about sharing a node still allow on nodes that are being filled."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from controller.scheduling.arrays import Indices, Mask, Matrix, Vector
from controller.scheduling.packing.problem import NodeRules


@dataclass(slots=True, kw_only=True)
class NodeOccupancy:
    """The numbers of pods on each node that the rules about sharing a node compare.

    `limit`, `repels` and `over_at` are over the groups that any of the classes owns. No further
    owner that the group counts may join a node with at least `limit` counted pods; no other owner
    may join one with more than `over_at`. These are the limits of `topology.rules.limit`, with and
    without `own`.

    `owned` and `matched` (groups × classes) mark the classes that own a group and those that it
    counts; `own_counted` and `own_uncounted` its owners that it counts, or does not count. `owners`
    and `counted` are nodes × groups: numbers of pods.
    """

    limit: Vector
    repels: Mask
    over_at: Vector
    owned: Matrix
    matched: Matrix
    own_counted: Matrix
    own_uncounted: Matrix
    owners: Matrix
    counted: Matrix

    @classmethod
    def with_pods(cls, rules: NodeRules, columns: Indices, held: Indices) -> NodeOccupancy:
        """Return the occupancy of nodes with the pods `held` (nodes × the classes in `columns`)."""
        owned = rules.owned[:, columns]
        owned_groups = np.flatnonzero(owned.any(axis=1))
        owned, repels = owned[owned_groups], rules.repels[owned_groups]
        matched = rules.counted[owned_groups][:, columns]
        return cls(
            limit=rules.limit[owned_groups],
            repels=repels,
            over_at=np.where(repels, 0.0, rules.limit[owned_groups]),
            owned=owned.astype(np.float64),
            matched=matched.astype(np.float64),
            own_counted=(owned & matched).astype(np.float64),
            own_uncounted=(owned & ~matched).astype(np.float64),
            owners=held.astype(np.float64) @ owned.T,
            counted=held.astype(np.float64) @ matched.T,
        )

    @property
    def has_rules(self) -> Mask:
        """Mark the classes that own a rule or are counted by one."""
        return np.asarray((self.owned + self.matched).any(axis=0))

    def add_nodes(self, number: int) -> None:
        """Add empty nodes."""
        more = np.zeros((number, len(self.limit)))
        self.owners, self.counted = np.vstack([self.owners, more]), np.vstack([self.counted, more])

    def keep_nodes(self, kept: Mask) -> None:
        """Keep only these nodes."""
        self.owners, self.counted = self.owners[kept], self.counted[kept]

    def keep_classes(self, kept: Mask) -> None:
        """Keep only these classes."""
        self.owned, self.matched = self.owned[:, kept], self.matched[:, kept]
        self.own_counted = self.own_counted[:, kept]
        self.own_uncounted = self.own_uncounted[:, kept]

    def exclude_forbidden(self, fits: Mask) -> None:
        """Unmark, in place, the classes of which a rule forbids one more pod; nodes × classes."""
        if len(self.limit):
            fits &= self._forbidding_rules(slice(None)) == 0

    def allows_one_more(self, class_index: int, nodes: slice | Indices = slice(None)) -> Mask:
        """Mark those of the nodes (all by default) that may have one more pod of a class."""
        return np.asarray(self._forbidding_rules(class_index, nodes) == 0)

    def _forbidding_rules(
        self, classes: slice | int, nodes: slice | Indices = slice(None)
    ) -> Matrix:
        """Return the number of rules that forbid one more pod of the classes.

        The result is nodes × classes, or over nodes for one class.
        """
        counted = self.counted[nodes]
        full: Mask = counted >= self.limit
        over: Mask = counted > self.over_at
        # A counted pod may not join owners that are already at their limit.
        closed: Mask = (self.owners[nodes] > 0) & (self.repels | full)
        blocked: Matrix = full.astype(np.float64) @ self.own_counted[:, classes]
        blocked += over.astype(np.float64) @ self.own_uncounted[:, classes]
        blocked += closed.astype(np.float64) @ self.matched[:, classes]
        return blocked

    def spare(self, chosen: Indices) -> Indices:
        """Return the number of pods of each node's chosen class that the rules allow; at least 1.

        The caller excludes the nodes on which the rules forbid one pod.
        """
        if not len(self.limit):
            return np.full(len(chosen), np.iinfo(np.int64).max)
        binding = self.matched[:, chosen].T * np.maximum(
            self.owned[:, chosen].T, (self.owners > 0) & ~self.repels
        )
        spare = np.where(binding > 0, self.limit - self.counted, np.inf).min(axis=1)
        whole: Indices = np.maximum(np.minimum(spare, 2**31), 1).astype(np.int64)
        return whole

    def add(self, chosen: Indices, amount: Indices) -> None:
        """Add an amount of pods of the chosen class to each node."""
        if len(self.limit):
            self.owners += self.owned[:, chosen].T * amount[:, None]
            self.counted += self.matched[:, chosen].T * amount[:, None]
