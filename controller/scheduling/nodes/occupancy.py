"""Numbers of pods on each existing node, for topology rules by hostname."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence, Set

import numpy as np

from controller.scheduling.arrays import Indices, Vector
from controller.scheduling.nodes.existing import ExistingNodes
from controller.scheduling.pods.groups import PendingGroup
from controller.scheduling.topology.groups import Tallies, TopologyGroup, TopologyType
from controller.scheduling.topology.rules import further, minimum


class ExistingOccupancy:
    """Counts per existing node of the topology groups whose domains are the nodes themselves."""

    def __init__(
        self, tallies: Tallies, nodes: ExistingNodes, cautious: Set[int] = frozenset()
    ) -> None:
        """Start with the tallies of running pods.

        The spreads with the indices `cautious` expect a new node without any pod that they count.
        """
        self._cautious = cautious
        self._hosts = hosts = [host or "" for host in nodes.domains("kubernetes.io/hostname")]
        self._nodes, self._tallies = nodes, tallies
        self._counted: dict[int, Vector] = {}
        self._owners: dict[int, Vector] = {}
        for index, tally in enumerate(tallies):
            if tally.group.per_node:
                self._counted[index] = np.array(
                    [tally.counts[host] for host in hosts], dtype=np.float64
                )
                self._owners[index] = np.array(
                    [tally.owners[host] for host in hosts], dtype=np.float64
                )

    def fitting_counts(self, pending: PendingGroup, by_size: Indices) -> Indices:
        """Return the number of pending pods that fit on each node (nodes).

        `by_size` is the number that fit by their requests; eligibility, host ports and hostname
        rules reduce it. A spread by hostname compares the existing nodes only: for further pods,
        its minimum count may be higher.
        """
        fitting = np.where(pending.eligibility.nodes, by_size, 0)
        if pending.ports:
            fitting = np.where(self._nodes.free_of(pending.ports), np.minimum(fitting, 1), 0)
        for group in pending.owned:
            if group.per_node:
                counts = self._counted[group.index]
                least = self._least(group) if fitting.any() else 0
                own = group in pending.counted
                fitting = np.minimum(fitting, further(group, counts, own=own, least=least))
        for group in pending.counted:
            if group.per_node and group.type is TopologyType.ANTI_AFFINITY:
                fitting = np.where(self._owners[group.index] > 0, 0, fitting)
        return np.maximum(fitting, 0).astype(np.int64)

    def _least(self, group: TopologyGroup, beside: Collection[float] = ()) -> float:
        """Return the minimum count of a required spread by hostname; 0 for the other rules.

        `beside` are the counts of new nodes.
        """
        if not group.is_host_spread or group.index in self._cautious:
            return 0
        counts = self._tallies[group.index].counts
        return minimum(group, [*(counts[host] for host in group.universe), *beside])

    def broken_spreads(
        self, counts_on_new_nodes: Callable[[TopologyGroup], Sequence[int]]
    ) -> list[TopologyGroup]:
        """Return the required spreads by hostname that pods on existing nodes break.

        `counts_on_new_nodes` returns the number of pods that a spread counts on each new node.
        """
        broken = []
        for index, counts in self._counted.items():
            group = self._tallies[index].group
            if not group.is_host_spread:
                continue
            skew = counts[self._owners[index] > 0].max(initial=0) - group.max_skew
            if skew > 0 and skew > self._least(group, counts_on_new_nodes(group)):
                broken.append(group)
        return broken

    def put(self, pending: PendingGroup, index: int, count: int) -> None:
        """Count `count` pods placed on the node at `index`; a negative count removes them."""
        for group in pending.counted:
            if group.per_node:
                self._counted[group.index][index] += count
                self._tallies[group.index].counts[self._hosts[index]] += count
        for group in pending.owned:
            if group.per_node:
                self._owners[group.index][index] += count
