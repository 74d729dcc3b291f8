"""Numbers of pods on each existing node, for topology rules by hostname."""

from __future__ import annotations

import numpy as np

from controller.scheduling.arrays import Indices, Vector
from controller.scheduling.nodes.existing import ExistingNodes
from controller.scheduling.pods.groups import PendingGroup
from controller.scheduling.topology.groups import Tallies, TopologyType
from controller.scheduling.topology.rules import further


class ExistingOccupancy:
    """Counts per existing node of the topology groups whose domains are the nodes themselves."""

    def __init__(self, tallies: Tallies, nodes: ExistingNodes) -> None:
        """Start with the tallies of running pods."""
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
        rules reduce it. The minimum count of a spread by hostname is always 0, because a new node
        has a count of 0.
        """
        fitting = np.where(pending.eligibility.nodes, by_size, 0)
        if pending.ports:
            fitting = np.where(self._nodes.free_of(pending.ports), np.minimum(fitting, 1), 0)
        for group in pending.owned:
            if group.per_node:
                counts = self._counted[group.index]
                fitting = np.minimum(fitting, further(group, counts, own=group in pending.counted))
        for group in pending.counted:
            if group.per_node and group.type is TopologyType.ANTI_AFFINITY:
                fitting = np.where(self._owners[group.index] > 0, 0, fitting)
        return np.maximum(fitting, 0).astype(np.int64)

    def put(self, pending: PendingGroup, index: int, count: int) -> None:
        """Count `count` pods placed on the node at `index`; a negative count removes them."""
        for group in pending.counted:
            if group.per_node:
                self._counted[group.index][index] += count
                self._tallies[group.index].counts[self._hosts[index]] += count
        for group in pending.owned:
            if group.per_node:
                self._owners[group.index][index] += count
