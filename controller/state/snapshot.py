"""What a solve is asked with: the whole world it may look at, frozen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from controller.apis.devices import DeviceClass, ResourceClaim, ResourceSlice
from controller.apis.nodepool import NodePool
from controller.apis.pods import Pod
from controller.apis.workloads import (
    CSINode,
    DaemonSet,
    LimitRange,
    Namespace,
    PersistentVolume,
    PersistentVolumeClaim,
    PodDisruptionBudget,
    StorageClass,
)
from controller.cloudprovider.instancetypes import InstanceType
from controller.state.nodes import StateNode


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A world.

    `pods` are those that run (with a node name); the ones that wait are the question
    and are passed beside the snapshot. `instance_types` are per NodePool name, after
    overlays. Pools that are not ready, static or being deleted are left out of
    `node_pools` by whoever takes the snapshot.
    """

    nodes: tuple[StateNode, ...] = ()
    pods: tuple[Pod, ...] = ()
    node_pools: tuple[NodePool, ...] = ()
    instance_types: Mapping[str, tuple[InstanceType, ...]] = field(default_factory=dict)
    daemon_sets: tuple[DaemonSet, ...] = ()
    namespaces: tuple[Namespace, ...] = ()
    limit_ranges: tuple[LimitRange, ...] = ()
    persistent_volumes: tuple[PersistentVolume, ...] = ()
    persistent_volume_claims: tuple[PersistentVolumeClaim, ...] = ()
    storage_classes: tuple[StorageClass, ...] = ()
    csi_nodes: tuple[CSINode, ...] = ()
    pod_disruption_budgets: tuple[PodDisruptionBudget, ...] = ()
    resource_slices: tuple[ResourceSlice, ...] = ()
    resource_claims: tuple[ResourceClaim, ...] = ()
    device_classes: tuple[DeviceClass, ...] = ()
