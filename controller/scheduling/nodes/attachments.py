"""The number of volumes that each existing node can still attach, per CSI driver."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from controller.apis import labels
from controller.apis.kubernetes.pods import Pod
from controller.scheduling.arrays import Indices, Vector
from controller.scheduling.pods.volumes import EBS_DRIVERS, VolumeIndex, Volumes
from controller.state.nodes import StateNode
from controller.state.pods import is_terminal
from controller.state.snapshot import Snapshot


class Attachments:
    """The volumes attached to each existing node, and the limits of its CSINode, per CSI driver."""

    def __init__(
        self,
        nodes: Sequence[StateNode],
        *,
        snapshot: Snapshot,
        running: Sequence[Pod],
        index: VolumeIndex,
    ) -> None:
        """Count the volumes that are attached, or that running pods use.

        `nodes` are in the order of the axis *nodes* of `ExistingNodes`. `index` finds the volumes
        of the `running` pods.
        """
        names = {node.name: index for index, node in enumerate(nodes)}
        self._count = len(nodes)
        self._limits: dict[str, dict[int, int]] = defaultdict(dict)
        self._expect_ebs_limits(nodes, snapshot)
        for csi_node in snapshot.csi_nodes:
            node = names.get(csi_node.metadata.name)
            for driver in csi_node.spec.drivers or ():
                count = driver.allocatable.count if driver.allocatable is not None else None
                if node is not None and count is not None:
                    self._limits[driver.name][node] = count
        self._attached: dict[tuple[int, str], set[str]] = defaultdict(set)
        for pod in running if self._limits else ():
            if pod.spec.volumes and pod.spec.node_name in names and not is_terminal(pod):
                for driver_name, volume in index.attachments(pod):
                    self._attached[(names[pod.spec.node_name], driver_name)].add(volume)
        self._lingering: dict[tuple[int, str], set[str]] = defaultdict(set)
        """Volumes that are still attached to nodes, by index of the node and driver."""

        for node_name, driver_name, volume in index.still_attached() if self._limits else ():
            if node_name in names:
                self._lingering[(names[node_name], driver_name)].add(volume)

    def _expect_ebs_limits(self, nodes: Sequence[StateNode], snapshot: Snapshot) -> None:
        """Take the limits of nodes whose EBS driver does not run yet from their instance types."""
        expected = {
            (pool, instance_type.name): instance_type.attachable_volumes
            for pool in {node.node_pool for node in nodes if not node.initialized}
            for instance_type in snapshot.instance_types.get(pool, ())
        }
        for index, node in enumerate(nodes):
            key = (node.node_pool, node.labels.get(labels.INSTANCE_TYPE, ""))
            if not node.initialized and key in expected:
                for driver in EBS_DRIVERS:
                    self._limits[driver][index] = expected[key]

    def fitting_counts(self, volumes: Volumes, fitting: Indices) -> Indices:
        """Return the number of pods with these volumes that each node can still take (nodes).

        Args:
            volumes: The volumes of one pod.
            fitting: That number without regard to volumes (nodes).

        """
        limited = fitting.copy()
        for driver, limits in self._limits.items():
            # The volume of a claim is attached once per node, however many pods share it. Volumes
            # that are created for each pod count once per pod.
            claims = {claim for owner, claim in volumes.by_claim if owner == driver}
            created = dict(volumes.created).get(driver, 0)
            if not claims and not created:
                continue
            for node, limit in limits.items():
                attached = self._attached[(node, driver)]
                further = claims - attached
                if not further and not created:
                    continue  # As in kube-scheduler: the node may have more volumes than its limit.
                spare = limit - self._used_count(node, driver) - len(further)
                pods = spare // created if created else int(limited[node])
                limited[node] = min(int(limited[node]), pods) if spare >= 0 else 0
        return np.maximum(limited, 0)

    def copy(self) -> Attachments:
        """Return an independent copy of the attachments."""
        duplicate = copy.copy(self)
        duplicate._attached = defaultdict(
            set, {key: set(names) for key, names in self._attached.items()}
        )
        return duplicate

    @property
    def drivers(self) -> tuple[str, ...]:
        """The CSI drivers for which at least one node has a limit, sorted."""
        return tuple(sorted(self._limits))

    def spare(self, driver: str, unlimited: float) -> Vector:
        """Return the number of further volumes of a driver that each node can attach (nodes).

        The number is `unlimited` for nodes without a limit.
        """
        spare = np.full(self._count, unlimited)
        for node, limit in self._limits[driver].items():
            spare[node] = max(limit - self._used_count(node, driver), 0)
        return spare

    def _used_count(self, node: int, driver: str) -> int:
        return len(self._attached[(node, driver)] | self._lingering[(node, driver)])

    def put(self, node: int, volumes: Volumes, keys: Sequence[str]) -> None:
        """Count the volumes of pods placed on the node at index `node`."""
        for driver, claim in volumes.by_claim:
            self._attached[(node, driver)].add(claim)
        for driver, count in volumes.created:
            for key in keys:
                self._attached[(node, driver)].update(f"{key}#{n}" for n in range(count))
