"""Who shares a node with whom, on nodes that exist."""

from __future__ import annotations

import numpy as np

from controller.scheduling.arrays import Indices, Vector
from controller.scheduling.nodes.existing import ExistingNodes
from controller.scheduling.pods.groups import PendingGroup
from controller.scheduling.topology.groups import Tallies, TopologyGroup, TopologyKind


class ExistingOccupancy:
    """Counts per node of the groups whose domains are the nodes themselves."""

    def __init__(self, tallies: Tallies, nodes: ExistingNodes) -> None:
        """Take over what the groups have counted of running pods."""
        hosts = [host or "" for host in nodes.domains("kubernetes.io/hostname")]
        self._nodes = nodes
        self._counted: dict[int, Vector] = {}
        self._owners: dict[int, Vector] = {}
        for place, tally in enumerate(tallies):
            if tally.group.per_node:
                self._counted[place] = np.array(
                    [tally.counts[host] for host in hosts], dtype=np.float64
                )
                self._owners[place] = np.array(
                    [tally.owners[host] for host in hosts], dtype=np.float64
                )

    def room(self, pending: PendingGroup, fitting: Indices) -> Indices:
        """Return how many of the pods each node takes, of the many that fit by size."""
        room = np.where(pending.eligibility.nodes, fitting, 0)
        if pending.pod_class.ports:
            room = np.where(self._nodes.free_of(pending.pod_class.ports), np.minimum(room, 1), 0)
        for group in pending.owned:
            if group.per_node:
                room = np.minimum(room, self._admitted(group, own=group in pending.counted))
        for group in pending.counted:
            if group.per_node and group.kind is TopologyKind.ANTI_AFFINITY:
                room = np.where(self._owners[group.index] > 0, 0, room)
        return np.maximum(room, 0).astype(np.int64)

    def put(self, pending: PendingGroup, index: int, count: int) -> None:
        """Count pods that went to a node."""
        for group in pending.counted:
            if group.per_node:
                self._counted[group.index][index] += count
        for group in pending.owned:
            if group.per_node:
                self._owners[group.index][index] += count

    def _admitted(self, group: TopologyGroup, *, own: bool) -> Vector:
        """Return how many owners each node takes; a node that is new always has a count of 0,
        so the least count is 0 too.
        """
        counted = self._counted[group.index]
        many = float(np.iinfo(np.int32).max)
        if group.kind is TopologyKind.AFFINITY:
            return np.where(counted > 0, many, 0.0)
        if group.kind is TopologyKind.ANTI_AFFINITY:
            return np.where(counted > 0, 0.0, 1.0 if own else many)
        if own:
            return group.max_skew - counted
        return np.where(counted <= group.max_skew, many, 0.0)
