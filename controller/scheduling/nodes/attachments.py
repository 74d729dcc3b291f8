"""The number of volumes that each existing node can still attach, per CSI driver."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from controller.apis.kubernetes.pods import Pod
from controller.scheduling.arrays import Indices, Vector
from controller.scheduling.pods.volumes import VolumeError, VolumeIndex, Volumes
from controller.state.nodes import StateNode
from controller.state.snapshot import Snapshot


class Attachments:
    """The volumes attached to each existing node per CSI driver, and the limits of its CSINode."""

    def __init__(
        self,
        nodes: Sequence[StateNode],
        *,
        snapshot: Snapshot,
        running: Sequence[Pod],
        index: VolumeIndex,
    ) -> None:
        """Count the volumes that running pods have attached.

        `nodes` are in the order of their arrays.
        """
        names = {node.name: index for index, node in enumerate(nodes)}
        self._count = len(nodes)
        self._limits: dict[str, dict[int, int]] = defaultdict(dict)
        for csi_node in snapshot.csi_nodes:
            node = names.get(csi_node.metadata.name)
            for driver in csi_node.spec.drivers:
                count = driver.allocatable.count if driver.allocatable is not None else None
                if node is not None and count is not None:
                    self._limits[driver.name][node] = count
        self._attached: dict[tuple[int, str], set[str]] = defaultdict(set)
        for pod in running if self._limits else ():
            if pod.spec.volumes and pod.spec.node_name in names:
                try:
                    held = index.of(pod.metadata.namespace, index.with_bound_claims(pod).spec)
                except VolumeError:
                    continue  # The pod runs already, so an unreadable claim does not block it.
                self.put(names[pod.spec.node_name], held, [pod.key])

    def fitting(self, volumes: Volumes, fitting: Indices) -> Indices:
        """Return how many pods with these volumes each node can still attach for.

        Args:
            volumes: The volumes of one pod.
            fitting: How many of the pods each node can take otherwise (nodes).

        """
        limited = fitting.copy()
        for driver, limits in self._limits.items():
            # Named claims are attached once per node, however many pods share them; volumes that
            # are created with each pod count once per pod.
            named = {name for owner, name in volumes.named if owner == driver}
            born = dict(volumes.born).get(driver, 0)
            if not named and not born:
                continue
            for node, limit in limits.items():
                attached = self._attached[(node, driver)]
                spare = limit - len(attached) - len(named - attached)
                many = spare // born if born else int(limited[node])
                limited[node] = min(int(limited[node]), many) if spare >= 0 else 0
        return np.maximum(limited, 0)

    def copy(self) -> Attachments:
        """Return an independent copy of the attachments."""
        twin = copy.copy(self)
        twin._attached = defaultdict(
            set, {node: set(held) for node, held in self._attached.items()}
        )
        return twin

    @property
    def drivers(self) -> tuple[str, ...]:
        """The CSI drivers for which at least one node has a limit, sorted."""
        return tuple(sorted(self._limits))

    def spare(self, driver: str, plenty: float) -> Vector:
        """Return how many more volumes of a driver each node can attach (nodes).

        Nodes without a limit get `plenty`.
        """
        spare = np.full(self._count, plenty)
        for node, limit in self._limits[driver].items():
            spare[node] = max(limit - len(self._attached[(node, driver)]), 0)
        return spare

    def put(self, node: int, volumes: Volumes, keys: Sequence[str]) -> None:
        """Count the volumes of pods placed on the node at index `node`."""
        for driver, name in volumes.named:
            self._attached[(node, driver)].add(name)
        for driver, count in volumes.born:
            for key in keys:
                self._attached[(node, driver)].update(f"{key}#{n}" for n in range(count))
