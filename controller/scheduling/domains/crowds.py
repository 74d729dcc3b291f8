"""Who shares a node with whom, on nodes that exist."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from controller.constraints import hostports
from controller.constraints.hostports import HostPort
from controller.scheduling.encoding.encoding import Indices, Vector
from controller.scheduling.encoding.nodes import Nodes
from controller.scheduling.encoding.topology import Group, Kind
from controller.scheduling.encoding.wishes import Wish


class NodeCrowds:
    """Counts per node of the groups whose domains are the nodes themselves."""

    def __init__(self, groups: Sequence[Group], nodes: Nodes) -> None:
        """Take over what the groups have counted of running pods."""
        hosts = [one or "" for one in nodes.domains("kubernetes.io/hostname")]
        self._nodes = nodes
        self._counted: dict[int, Vector] = {}
        self._owners: dict[int, Vector] = {}
        for group in groups:
            if group.per_node:
                self._counted[group.index] = np.array(
                    [group.counts[host] for host in hosts], dtype=np.float64
                )
                self._owners[group.index] = np.array(
                    [group.owners[host] for host in hosts], dtype=np.float64
                )

    def room(self, wish: Wish, fitting: Indices) -> Indices:
        """Return how many pods of a wish each node takes, of the many that fit by size."""
        room = np.where(wish.reading.nodes, fitting, 0)
        if wish.shape.ports:
            room = np.where(self._nodes.free_of(wish.shape.ports), np.minimum(room, 1), 0)
        for group in wish.owned:
            if group.per_node:
                room = np.minimum(room, self._admitted(group, own=group in wish.counted))
        for group in wish.counted:
            if group.per_node and group.kind is Kind.ANTI_AFFINITY:
                room = np.where(self._owners[group.index] > 0, 0, room)
        return np.maximum(room, 0).astype(np.int64)

    def put(self, wish: Wish, index: int, count: int) -> None:
        """Count pods that went to a node."""
        for group in wish.counted:
            if group.per_node:
                self._counted[group.index][index] += count
        for group in wish.owned:
            if group.per_node:
                self._owners[group.index][index] += count

    def _admitted(self, group: Group, *, own: bool) -> Vector:
        """Return how many owners each node takes; a node that is new always has a count of 0,
        so the least count is 0 too.
        """
        counted = self._counted[group.index]
        many = float(np.iinfo(np.int32).max)
        if group.kind is Kind.AFFINITY:
            return np.where(counted > 0, many, 0.0)
        if group.kind is Kind.ANTI_AFFINITY:
            return np.where(counted > 0, 0.0, 1.0 if own else many)
        if own:
            return group.max_skew - counted
        return np.where(counted <= group.max_skew, many, 0.0)


def clashes(ports: Sequence[tuple[HostPort, ...]]) -> list[tuple[list[bool], list[bool]]]:
    """Return, per host port, which classes take it and which cannot be beside them."""
    found = []
    for port in sorted({port for taken in ports for port in taken}):
        owners = [port in taken for taken in ports]
        others = [hostports.conflict((port,), taken) for taken in ports]
        found.append((owners, others))
    return found
