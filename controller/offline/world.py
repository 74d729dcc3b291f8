"""A recorded world: one JSON object with everything that a solve reads.

`docs/reference/formats.md` describes the format. `load` converts parsed JSON to a `World`, or
raises an error that names the object and the field. `compose` returns a `World` of decoded objects,
such as the objects of a live cluster.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar, cast

from controller.apis.karpenter.capacitybuffer import CapacityBuffer
from controller.apis.karpenter.nodeclaim import NodeClaim
from controller.apis.karpenter.nodeoverlay import NodeOverlay
from controller.apis.karpenter.nodepool import NodePool
from controller.apis.karpenter.validation import overlay_problems
from controller.apis.kinds import POD_TEMPLATE, Kind, T
from controller.apis.kubernetes import devices, workloads
from controller.apis.kubernetes.meta import Wire, with_fields
from controller.apis.kubernetes.nodes import Node
from controller.apis.kubernetes.pods import Pod
from controller.apis.kubernetes.schedulerconfig import default_constraints
from controller.apis.ownership import is_ours, node_pool_of
from controller.cloudprovider.instancetypes import InstanceType
from controller.offline.instancetypes import Types, from_file, from_rows
from controller.offline.wirevalues import WorldError, objects
from controller.state.buffers import SCALABLES, Find, blueprint_of, replicas, virtual_pods
from controller.state.nodes import StateNode, is_unregistered
from controller.state.overlays import conflicting_overlays, fee_of, with_fee, with_overlays
from controller.state.pods import is_daemon, is_static, is_terminal
from controller.state.snapshot import Snapshot
from controller.state.spreads import Selectors, with_default_spreads

_T = TypeVar("_T", bound=Wire)


class Objects(Protocol):
    """Returns all objects of a wire type; empty if there are none."""

    def __call__(self, kind: type[_T], /) -> Sequence[_T]:
        """Return the objects."""


@dataclass(frozen=True, slots=True)
class World:
    """A snapshot, the pending pods, and settings of the controller by name."""

    snapshot: Snapshot
    pods: tuple[Pod, ...]
    settings: Mapping[str, str]
    buffer_pods: tuple[Pod, ...] = ()
    """The virtual pods of CapacityBuffers, which are placed after all other pods."""

    node_pools: tuple[NodePool, ...] = ()
    """All NodePools, including those that launch no nodes for pending pods."""

    nominated_pods: tuple[Pod, ...] = ()
    """The pending pods with a nominated node, on which the snapshot has them as if bound."""

    gated_pods: tuple[Pod, ...] = ()
    """The pods with scheduling gates, which kube-scheduler and Joiner do not consider yet."""

    events: tuple[workloads.Event, ...] = ()
    """The controller's events about pods that it could not schedule."""


KINDS: Mapping[str, type[Wire]] = {
    "pods": Pod,
    "nodes": Node,
    "nodeClaims": NodeClaim,
    "nodePools": NodePool,
    "nodeOverlays": NodeOverlay,
    "capacityBuffers": CapacityBuffer,
    "daemonSets": workloads.DaemonSet,
    "namespaces": workloads.Namespace,
    "limitRanges": workloads.LimitRange,
    "priorityClasses": workloads.PriorityClass,
    "persistentVolumes": workloads.PersistentVolume,
    "persistentVolumeClaims": workloads.PersistentVolumeClaim,
    "storageClasses": workloads.StorageClass,
    "csiNodes": workloads.CSINode,
    "csiDrivers": workloads.CSIDriver,
    "csiStorageCapacities": workloads.CSIStorageCapacity,
    "volumeAttachments": workloads.VolumeAttachment,
    "podDisruptionBudgets": workloads.PodDisruptionBudget,
    "services": workloads.Service,
    "replicationControllers": workloads.ReplicationController,
    "podTemplates": workloads.PodTemplate,
    "replicaSets": workloads.ReplicaSet,
    "statefulSets": workloads.StatefulSet,
    "deployments": workloads.Deployment,
    "resourceSlices": devices.ResourceSlice,
    "resourceClaims": devices.ResourceClaim,
    "deviceClasses": devices.DeviceClass,
    "deviceTaintRules": devices.DeviceTaintRule,
    "podGroups": workloads.PodGroup,
    "coschedulingPodGroups": workloads.CoschedulingPodGroup,
    "events": workloads.Event,
}
"""The kinds of a world's objects, by their keys in the JSON."""

KEYS: Mapping[type[Wire], str] = {kind: key for key, kind in KINDS.items()}
"""The keys of the objects in a world, by their type."""

NO_NODE_POOL = ""
"""The key for the instance types of nodes without a NodePool, such as nodes of node groups."""

_KNOWN = frozenset({*KINDS, "settings", "instanceTypes"})


def types_file(world: Mapping[str, Any]) -> str | None:
    """Return the path of the file with the world's instance types, None if it names no file.

    Raises:
        WorldError: `instanceTypes` is an object without the path of a file.

    """
    types = world.get("instanceTypes")
    if isinstance(types, Mapping):
        path = types.get("file")
        if not isinstance(path, str):
            raise WorldError('instanceTypes: expected a list or an object such as {"file": PATH}')
        return path
    return None


def load(world: Mapping[str, Any], *, types: object = None) -> World:
    """Return the world of parsed JSON.

    `types` is the parsed content of the world's file of instance types, if it names one.

    Raises:
        WorldError: something is missing or malformed.

    """
    if not isinstance(world, Mapping):
        raise WorldError("expected a JSON object")
    unknown = sorted(set(world) - _KNOWN)
    if unknown:
        known = ", ".join(sorted(_KNOWN))
        raise WorldError(f"{unknown[0]}: unknown key; known keys are {known}")
    for key in ("pods", "instanceTypes"):
        if key not in world:
            raise WorldError(f"{key}: required")
    types_of_world = from_file(types) if types_file(world) else from_rows(world["instanceTypes"])

    def of(kind: type[_T]) -> Sequence[_T]:
        return objects(world, KEYS[kind], kind)

    settings = _settings(world.get("settings", {}))
    return compose(
        of, types_by_pool(types_of_world, of(NodePool), of(NodeOverlay), settings), settings
    )


def compose(
    of: Objects, instance_types: Mapping[str, tuple[InstanceType, ...]], settings: Mapping[str, Any]
) -> World:
    """Return the world of the objects that `of` returns.

    `instance_types` are by NodePool; `settings` have the format of a world.

    Raises:
        WorldError: a setting is malformed, or an object refers to another that does not exist.

    """
    pods = _with_priorities(of(Pod), of(workloads.PriorityClass))
    node_pools = tuple(of(NodePool))
    spread = _default_spread_function(of, settings.get("SCHEDULER_CONFIG"))
    nodes = _state_nodes(of(Node), [claim for claim in of(NodeClaim) if is_ours(claim)])
    pending, nominated = _split_by_nomination(
        tuple(spread(pod for pod in pods if _is_provisionable(pod))), nodes
    )
    expecting = {pod.spec.node_name for pod in nominated}
    snapshot = Snapshot(
        nodes=tuple(
            replace(node, nominated=True) if node.name in expecting else node for node in nodes
        ),
        # Running pods may be evicted; they then have the same default spread constraints.
        pods=(*spread(pod for pod in pods if pod.spec.node_name), *nominated),
        node_pools=tuple(pool for pool in node_pools if _is_usable(pool)),
        instance_types=instance_types,
        daemon_sets=tuple(of(workloads.DaemonSet)),
        namespaces=tuple(of(workloads.Namespace)),
        limit_ranges=tuple(of(workloads.LimitRange)),
        persistent_volumes=tuple(of(workloads.PersistentVolume)),
        persistent_volume_claims=tuple(of(workloads.PersistentVolumeClaim)),
        storage_classes=tuple(of(workloads.StorageClass)),
        csi_nodes=tuple(of(workloads.CSINode)),
        csi_drivers=tuple(of(workloads.CSIDriver)),
        csi_storage_capacities=tuple(of(workloads.CSIStorageCapacity)),
        volume_attachments=tuple(of(workloads.VolumeAttachment)),
        pod_disruption_budgets=tuple(of(workloads.PodDisruptionBudget)),
        resource_slices=tuple(of(devices.ResourceSlice)),
        resource_claims=tuple(of(devices.ResourceClaim)),
        device_classes=tuple(of(devices.DeviceClass)),
        device_taint_rules=tuple(of(devices.DeviceTaintRule)),
        pod_groups=(*of(workloads.PodGroup), *of(workloads.CoschedulingPodGroup)),
    )
    return World(
        snapshot,
        pending,
        {name: _as_text(value) for name, value in settings.items() if name != "SCHEDULER_CONFIG"},
        tuple(spread(_buffer_pods(of))),
        node_pools,
        nominated,
        tuple(pod for pod in pods if pod.spec.scheduling_gates and not pod.spec.node_name),
        tuple(of(workloads.Event)),
    )


def types_by_pool(
    types: Types,
    every: Sequence[NodePool],
    overlays: Sequence[NodeOverlay],
    settings: Mapping[str, Any],
) -> dict[str, tuple[InstanceType, ...]]:
    """Return the instance types of each of Joiner's NodePools, with NodeOverlays and fees applied.

    `every` are all NodePools of the world. Those of other tools are left out.
    The key `NO_NODE_POOL` has the types of nodes without a NodePool, without overlays and fees.

    Raises:
        WorldError: a NodeOverlay is malformed, or the fee is not an amount.

    """
    pools = list(filter(is_ours, every))
    with_overlays = _overlaid(types, pools, overlays)
    by_pool = _with_fees(with_overlays, pools, settings.get("NODE_PRICE_PER_HOUR", 0.0))
    outside = types.by_node_pool([NO_NODE_POOL])
    return by_pool | outside if any(outside.values()) else by_pool


def _overlaid(
    types: Types, pools: Sequence[NodePool], overlays: Sequence[NodeOverlay]
) -> dict[str, tuple[InstanceType, ...]]:
    by_pool = types.by_node_pool(pool.metadata.name for pool in pools)
    if not overlays:
        return by_pool
    for overlay in overlays:
        if fault := _fault_in_overlay(overlay):
            raise WorldError(fault)
    try:
        rejected = conflicting_overlays(overlays, pools=pools, instance_types=by_pool)
        accepted = [overlay for overlay in overlays if overlay.metadata.name not in rejected]
        return {
            pool.metadata.name: with_overlays(by_pool[pool.metadata.name], accepted, pool=pool)
            for pool in pools
        }
    except ValueError as exc:
        raise WorldError(f"nodeOverlays: {exc}") from exc


def _with_fees(
    types: Mapping[str, tuple[InstanceType, ...]], pools: Sequence[NodePool], default: object
) -> dict[str, tuple[InstanceType, ...]]:
    """Return the instance types of each NodePool with its fee per node in every price."""
    try:
        fee = float(str(default))
    except ValueError:
        fee = math.nan
    if not 0 <= fee < math.inf:
        raise WorldError(f"settings: NODE_PRICE_PER_HOUR: {default!r} is not an amount in $/h")
    fees = {pool.metadata.name: fee_of(pool, fee) for pool in pools}
    return {name: tuple(with_fee(of_pool, fees[name])) for name, of_pool in types.items()}


def _settings(content: object) -> dict[str, Any]:
    if not isinstance(content, Mapping):
        raise WorldError("settings: expected an object of names and values")
    return {str(name): value for name, value in content.items()}


def _as_text(setting: object) -> str:
    """Return a setting as the value of an environment variable."""
    return str(setting).lower() if isinstance(setting, bool) else str(setting)


def _default_spread_function(
    of: Objects, config: object
) -> Callable[[Iterable[Pod]], Iterable[Pod]]:
    """Return a function that adds the cluster's default spread constraints to pods."""
    try:
        constraints = default_constraints(config)
    except ValueError as exc:
        raise WorldError(f"settings: SCHEDULER_CONFIG: {exc}") from exc
    if not constraints:
        return iter
    selectors = Selectors(
        services=of(workloads.Service),
        replication_controllers=of(workloads.ReplicationController),
        workloads=(*of(workloads.ReplicaSet), *of(workloads.StatefulSet)),
    )
    return lambda pods: with_default_spreads(pods, constraints, selectors)


def _is_usable(pool: NodePool) -> bool:
    """Whether the NodePool launches nodes for pending pods.

    It must be Joiner's, and neither static, nor being deleted, nor not ready.
    """
    ready = [condition.status for condition in pool.status.conditions if condition.type == "Ready"]
    return (
        is_ours(pool)
        and pool.spec.replicas is None
        and not pool.metadata.is_deleting
        and all(status == "True" for status in ready)
    )


def _is_provisionable(pod: Pod) -> bool:
    """Whether the pod is pending, without a scheduling gate, and not of a DaemonSet or a Node.

    kube-scheduler does not bind a terminating pod.
    """
    return (
        not pod.spec.node_name
        and not pod.metadata.is_deleting
        and not pod.spec.scheduling_gates
        and not is_terminal(pod)
        and not is_daemon(pod)
        and not is_static(pod)
    )


def _split_by_nomination(
    pods: Sequence[Pod], nodes: Sequence[StateNode]
) -> tuple[tuple[Pod, ...], tuple[Pod, ...]]:
    """Return the pods to schedule, and the pods with a nominated node, as if bound to it.

    As in the controller, a nomination does not count if the node is being deleted.
    """
    names: dict[str, str] = {}
    for node in nodes:
        if not node.deleting:
            names[node.name] = node.name
            names |= {node.claim.metadata.name: node.name} if node.claim is not None else {}
    where = [names.get(pod.status.nominated_node_name) for pod in pods]
    return (
        tuple(pod for pod, name in zip(pods, where, strict=True) if name is None),
        tuple(
            with_fields(pod, "spec", node_name=name)
            for pod, name in zip(pods, where, strict=True)
            if name is not None
        ),
    )


def _state_nodes(nodes: Sequence[Node], claims: Sequence[NodeClaim]) -> tuple[StateNode, ...]:
    """Return the nodes with their NodeClaims, and NodeClaims without a node.

    A Node may be seen before its NodeClaim has the provider ID. The NodeClaim then stands for it.
    """
    launching = Counter(node_pool_of(claim) for claim in claims if not claim.status.provider_id)
    by_provider = {claim.status.provider_id: claim for claim in claims if claim.status.provider_id}
    state_nodes = []
    matched: set[str] = set()
    for node in nodes:
        claim = by_provider.get(node.spec.provider_id)
        if claim is not None:
            matched.add(claim.metadata.name)
        elif is_unregistered(node) and launching[node_pool_of(node)]:
            launching[node_pool_of(node)] -= 1
            continue
        leaving = node.metadata.is_deleting or (claim is not None and claim.metadata.is_deleting)
        state_nodes.append(StateNode(node=node, claim=claim, deleting=leaving))
    state_nodes.extend(
        StateNode(claim=claim, deleting=claim.metadata.is_deleting)
        for claim in claims
        if claim.metadata.name not in matched
    )
    return tuple(state_nodes)


def effective(of: Objects) -> tuple[Objects, list[str]]:
    """Return the objects without those that the controller ignores, and the faults of these.

    Invalid NodeOverlays, and CapacityBuffers whose pods cannot be resolved, have a fault. In a
    cluster, the message of a condition of the object is the fault. CapacityBuffers that another
    controller provisions are ignored too, and have none.
    """
    find = _finder(of)
    overlays = [(overlay, _fault_in_overlay(overlay)) for overlay in of(NodeOverlay)]
    buffers = [
        (buffer, _fault_in_buffer(buffer, find))
        for buffer in of(CapacityBuffer)
        if buffer.spec.is_active
    ]
    usable: Mapping[type[Wire], Sequence[Wire]] = {
        NodeOverlay: [overlay for overlay, fault in overlays if not fault],
        CapacityBuffer: [buffer for buffer, fault in buffers if not fault],
    }

    def of_effective(kind: type[_T]) -> Sequence[_T]:
        return cast("Sequence[_T]", usable[kind]) if kind in usable else of(kind)

    return of_effective, [fault for _, fault in (*overlays, *buffers) if fault]


def _fault_in_overlay(overlay: NodeOverlay) -> str:
    problems = "; ".join(overlay_problems(overlay))
    return f"nodeOverlays {overlay.metadata.name}: {problems}" if problems else ""


def _fault_in_buffer(buffer: CapacityBuffer, find: Find) -> str:
    try:
        replicas(buffer, blueprint_of(buffer, find))
    except ValueError as error:
        return f"capacityBuffers {buffer.metadata.namespace}/{buffer.metadata.name}: {error}"
    return ""


def _finder(of: Objects) -> Find:
    """Return a function that finds the templates and the workloads of CapacityBuffers."""
    kinds: Sequence[Kind[Any]] = ()
    if of(CapacityBuffer):
        kinds = (POD_TEMPLATE, *SCALABLES.values())
    found = {
        (kind.name, value.metadata.namespace, value.metadata.name): value
        for kind in kinds
        for value in of(kind.type)
    }

    def find(kind: Kind[T], name: str, namespace: str) -> T | None:
        return cast("T | None", found.get((kind.name, namespace, name)))

    return find


def _buffer_pods(of: Objects) -> tuple[Pod, ...]:
    """Return the pods of every buffer that Joiner provisions.

    Raises:
        WorldError: the template or workload of a buffer is not in the world, or the buffer is
            invalid.

    """
    find = _finder(of)
    pods: list[Pod] = []
    for buffer in of(CapacityBuffer):
        if not buffer.spec.is_active:
            continue
        if fault := _fault_in_buffer(buffer, find):
            raise WorldError(fault)
        blueprint = blueprint_of(buffer, find)
        pods.extend(virtual_pods(buffer, blueprint, replicas(buffer, blueprint)))
    return tuple(pods)


def _with_priorities(pods: Sequence[Pod], classes: Sequence[workloads.PriorityClass]) -> list[Pod]:
    """Return the pods with the priority that admission sets.

    It is the priority of the pod's PriorityClass or of the default one.
    """
    values = {priority.metadata.name: priority.value for priority in classes}
    default = next((priority.value for priority in classes if priority.global_default), None)
    ranked = []
    for pod in pods:
        value = values.get(pod.spec.priority_class_name, default)
        if pod.spec.priority is None and value is not None:
            pod = with_fields(pod, "spec", priority=value)
        ranked.append(pod)
    return ranked
