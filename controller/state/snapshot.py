"""The input of the engine: the state of the whole cluster, frozen."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from controller.apis.karpenter.nodepool import NodePool
from controller.apis.kubernetes import devices, workloads
from controller.apis.kubernetes.meta import with_fields
from controller.apis.kubernetes.pods import Pod
from controller.cloudprovider.instancetypes import InstanceType
from controller.state.nodes import StateNode
from controller.state.pods import is_daemon


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a cluster at one time.

    `pods` are the bound pods that are not terminal; the pending pods are a separate argument of the
    engine. `instance_types` are per NodePool name, with overlays applied. `node_pools` are the
    NodePools that are ready, not static and not being deleted.
    """

    nodes: tuple[StateNode, ...] = ()
    pods: tuple[Pod, ...] = ()
    node_pools: tuple[NodePool, ...] = ()
    instance_types: Mapping[str, tuple[InstanceType, ...]] = field(default_factory=dict)
    daemon_sets: tuple[workloads.DaemonSet, ...] = ()
    namespaces: tuple[workloads.Namespace, ...] = ()
    limit_ranges: tuple[workloads.LimitRange, ...] = ()
    persistent_volumes: tuple[workloads.PersistentVolume, ...] = ()
    persistent_volume_claims: tuple[workloads.PersistentVolumeClaim, ...] = ()
    storage_classes: tuple[workloads.StorageClass, ...] = ()
    csi_nodes: tuple[workloads.CSINode, ...] = ()
    csi_drivers: tuple[workloads.CSIDriver, ...] = ()
    csi_storage_capacities: tuple[workloads.CSIStorageCapacity, ...] = ()
    volume_attachments: tuple[workloads.VolumeAttachment, ...] = ()
    pod_disruption_budgets: tuple[workloads.PodDisruptionBudget, ...] = ()
    resource_slices: tuple[devices.ResourceSlice, ...] = ()
    resource_claims: tuple[devices.ResourceClaim, ...] = ()
    device_classes: tuple[devices.DeviceClass, ...] = ()
    device_taint_rules: tuple[devices.DeviceTaintRule, ...] = ()
    pod_groups: tuple[workloads.PodGroup, ...] = ()

    def without(self, names: Collection[str]) -> Snapshot:
        """Return the snapshot without these nodes and their pods.

        Their daemon pods stay: they tell what such a pod requests after admission. Other nodes that
        are not initialized get no pods.
        """
        left = self.fork(gone=names, closed=self.uninitialized)
        gone = (pod for pod in self.pods if pod.spec.node_name in names)
        return replace(left, pods=(*left.pods, *(pod for pod in gone if is_daemon(pod))))

    @property
    def uninitialized(self) -> frozenset[str]:
        """The names of the nodes that are not initialized."""
        return frozenset(node.name for node in self.nodes if not node.initialized)

    def fork(
        self,
        *,
        gone: Collection[str] = (),
        closed: Collection[str] = (),
        unbound: Collection[str] = (),
        bound: Mapping[str, str] = MappingProxyType({}),
    ) -> Snapshot:
        """Return the snapshot in which nodes and pods have changed.

        `gone` are the names of nodes that are removed with their pods, `closed` those of nodes that
        are being deleted, so that they get no pods. `bound` maps the keys of pods to the nodes that
        they run on now. `unbound` are the keys of pods that are left out.
        """
        gone, closed = frozenset(gone), frozenset(closed)
        nodes = tuple(
            replace(node, deleting=True) if node.name in closed else node
            for node in self.nodes
            if node.name not in gone
        )
        if not (gone or bound or unbound):
            return replace(self, nodes=nodes)  # on the event loop: no pod is read
        return replace(
            self,
            nodes=nodes,
            pods=tuple(
                with_fields(pod, "spec", node_name=bound[pod.key])
                if bound and pod.key in bound
                else pod
                for pod in self.pods
                if (bound and pod.key in bound)
                or (pod.spec.node_name not in gone and not (unbound and pod.key in unbound))
            ),
        )


def with_promised_capacity(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot in which unlaunched NodeClaims have the capacity that they request.

    Their nodes will have at least this capacity. So a pod can be planned there if kube-scheduler
    binds one of the claim's pods elsewhere. An earlier leader's NodeClaims may wait minutes for
    their launch.
    """
    return replace(snapshot, nodes=tuple(map(_with_promised_capacity, snapshot.nodes)))


def _with_promised_capacity(node: StateNode) -> StateNode:
    claim = node.claim
    if claim is None or node.node is not None or node.provider_id:
        return node
    fixed_labels = {
        r.key: r.values[0]
        for r in claim.spec.requirements
        if r.operator == "In" and len(r.values) == 1
    }
    promised = with_fields(claim, "metadata", labels={**fixed_labels, **claim.metadata.labels})
    promised = with_fields(promised, "status", allocatable=claim.spec.resources.requests)
    return replace(node, claim=promised)
