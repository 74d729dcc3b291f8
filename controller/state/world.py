"""A recorded world: one JSON object that holds everything a solve may look at.

The format is described in `docs/formats.md`. Whoever calls `load` reads the file;
here a parsed object becomes a `World`, or an error that names the object and the field.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from controller.apis import labels
from controller.apis.capacitybuffer import CapacityBuffer
from controller.apis.meta import Wire
from controller.apis.nodeclaim import NodeClaim
from controller.apis.nodeoverlay import NodeOverlay
from controller.apis.nodepool import NodePool
from controller.apis.nodes import Node
from controller.apis.pods import Pod, Quantities
from controller.apis.taints import Requirement
from controller.apis.workloads import (
    CSINode,
    DaemonSet,
    LimitRange,
    Namespace,
    PersistentVolume,
    PersistentVolumeClaim,
    PodDisruptionBudget,
    PodTemplate,
    PriorityClass,
    Scalable,
    StorageClass,
)
from controller.cloudprovider.instancetypes import InstanceType, Offering
from controller.constraints.requirements import value_set
from controller.constraints.resources import parsed
from controller.state.buffers import Mould, replicas, virtual_pods
from controller.state.nodes import StateNode
from controller.state.overlays import conflicting, overlaid
from controller.state.snapshot import Snapshot


class WorldError(ValueError):
    """A world that cannot be read; the message names the object and the field."""


@dataclass(frozen=True, slots=True)
class World:
    """A snapshot, the pods that wait, and the settings as users write them."""

    snapshot: Snapshot
    pods: tuple[Pod, ...]
    settings: Mapping[str, str]
    buffer_pods: tuple[Pod, ...] = ()
    """The pods that stand for the room of capacity buffers; placed after all others."""


class OfferingRow(Wire):
    """An offering as a world states it."""

    requirements: dict[str, str]
    price: float
    available: bool = True
    reservation_capacity: int = 0


class InstanceTypeRow(Wire):
    """An instance type as a world states it."""

    name: str
    requirements: list[Requirement] = []
    offerings: list[OfferingRow] = []
    capacity: Quantities = {}
    overhead: Quantities = {}


class FileOfferingRow(Wire, rename="pascal"):
    """An offering in the layout of Karpenter's kwok type files."""

    price: float
    requirements: list[Requirement] = []


class FileTypeRow(Wire):
    """An instance type in the layout of Karpenter's kwok type files."""

    name: str
    architecture: str
    operating_systems: list[str]
    resources: Quantities
    offerings: list[FileOfferingRow] = []


KWOK_GROUP = "karpenter.kwok.sh"
KWOK_OVERHEAD = {"cpu": 100, "memory": 10 * 2**20 * 1000}
"""What Karpenter's kwok provider keeps of every machine, in thousandths."""

_AWS_NAME = re.compile(r"^\w+\.(nano|micro|small|medium|large|\d*xlarge|metal)$", re.ASCII)
_KNOWN = frozenset(
    {
        "pods",
        "nodes",
        "nodeClaims",
        "nodePools",
        "nodeOverlays",
        "capacityBuffers",
        "daemonSets",
        "namespaces",
        "limitRanges",
        "priorityClasses",
        "persistentVolumes",
        "persistentVolumeClaims",
        "storageClasses",
        "csiNodes",
        "podDisruptionBudgets",
        "podTemplates",
        "replicaSets",
        "statefulSets",
        "deployments",
        "resourceSlices",
        "resourceClaims",
        "deviceClasses",
        "settings",
        "instanceTypes",
    }
)
_T = TypeVar("_T")


def types_file(world: Mapping[str, Any]) -> str | None:
    """Return the path of the file that holds the world's instance types, if it names one."""
    types = world.get("instanceTypes")
    if isinstance(types, Mapping):
        path = types.get("file")
        if not isinstance(path, str):
            raise WorldError('instanceTypes: expected a list, or an object such as {"file": PATH}')
        return path
    return None


def load(world: Mapping[str, Any], *, types: object = None) -> World:
    """Read a parsed world; `types` is the parsed content of its types file, if it names one.

    Raises:
        WorldError: something is missing or malformed.

    """
    if not isinstance(world, Mapping):
        raise WorldError("a world is a JSON object")
    unknown = sorted(set(world) - _KNOWN)
    if unknown:
        known = ", ".join(sorted(_KNOWN))
        raise WorldError(f"{unknown[0]}: not a part of a world; known are {known}")
    for key in ("pods", "instanceTypes"):
        if key not in world:
            raise WorldError(f"{key}: required")
    found_types = _types_from_file(types) if types_file(world) else _types(world["instanceTypes"])
    pods = _with_priorities(
        _objects(world, "pods", Pod), _objects(world, "priorityClasses", PriorityClass)
    )
    pools = tuple(one for one in _objects(world, "nodePools", NodePool) if _usable(one))
    for pool in pools:
        _check_terms(pool.spec.template.spec.requirements, f"nodePools {pool.metadata.name}")
    overlays = _objects(world, "nodeOverlays", NodeOverlay)
    snapshot = Snapshot(
        nodes=_state_nodes(
            _objects(world, "nodes", Node), _objects(world, "nodeClaims", NodeClaim)
        ),
        pods=tuple(pod for pod in pods if pod.spec.node_name),
        node_pools=pools,
        instance_types=_types_by_pool(found_types, pools, overlays),
        daemon_sets=_objects(world, "daemonSets", DaemonSet),
        namespaces=_objects(world, "namespaces", Namespace),
        limit_ranges=_objects(world, "limitRanges", LimitRange),
        persistent_volumes=_objects(world, "persistentVolumes", PersistentVolume),
        persistent_volume_claims=_objects(world, "persistentVolumeClaims", PersistentVolumeClaim),
        storage_classes=_objects(world, "storageClasses", StorageClass),
        csi_nodes=_objects(world, "csiNodes", CSINode),
        pod_disruption_budgets=_objects(world, "podDisruptionBudgets", PodDisruptionBudget),
    )
    return World(
        snapshot,
        tuple(pod for pod in pods if _waits(pod)),
        _settings(world.get("settings", {})),
        _buffer_pods(world),
    )


def _objects(world: Mapping[str, Any], key: str, kind: type[_T]) -> tuple[_T, ...]:
    rows = world.get(key)
    if rows is None:
        return ()
    if not isinstance(rows, list):
        raise WorldError(f"{key}: expected a list")
    try:
        return tuple(msgspec.convert(rows, list[kind]))  # type: ignore[valid-type]
    except msgspec.ValidationError:
        for index, row in enumerate(rows):
            _converted(row, kind, f"{key}[{index}] {_name(row)}".rstrip())
        raise


def _converted(row: object, kind: type[_T], where: str) -> _T:
    try:
        return msgspec.convert(row, kind)
    except msgspec.ValidationError as exc:
        text, _, path = str(exc).partition(" - at `")
        field = path.rstrip("`").removeprefix("$").lstrip(".") or "the object itself"
        raise WorldError(f"{where}: {field}: {text}") from exc


def _name(row: object) -> str:
    metadata = row.get("metadata") if isinstance(row, Mapping) else None
    if not isinstance(metadata, Mapping):
        return str(row.get("name", "")) if isinstance(row, Mapping) else ""
    namespace = metadata.get("namespace")
    name = str(metadata.get("name", ""))
    return f"{namespace}/{name}" if namespace else name


def _types(rows: object) -> tuple[InstanceType, ...]:
    if not isinstance(rows, list):
        raise WorldError('instanceTypes: expected a list, or an object such as {"file": PATH}')
    found = []
    for index, row in enumerate(rows):
        where = f"instanceTypes[{index}] {_name(row)}".rstrip()
        one = _converted(row, InstanceTypeRow, where)
        _check_terms(one.requirements, where)
        found.append(
            InstanceType(
                name=one.name,
                requirements=tuple(one.requirements),
                offerings=tuple(
                    Offering(
                        offering.requirements,
                        offering.price,
                        offering.available,
                        offering.reservation_capacity,
                    )
                    for offering in one.offerings
                ),
                capacity=_quantities(one.capacity, f"{where}: capacity"),
                overhead=_quantities(one.overhead, f"{where}: overhead"),
            )
        )
    return tuple(found)


def _types_from_file(rows: object) -> tuple[InstanceType, ...]:
    if not isinstance(rows, list):
        raise WorldError("the file of instance types: expected a JSON list")
    found = []
    for index, row in enumerate(rows):
        where = f"the file of instance types: [{index}] {_name(row)}".rstrip()
        one = _converted(row, FileTypeRow, where)
        found.append(
            InstanceType(
                name=one.name,
                requirements=tuple(_file_requirements(one)),
                offerings=tuple(
                    Offering(
                        {term.key: term.values[0] for term in offering.requirements if term.values},
                        offering.price,
                    )
                    for offering in one.offerings
                ),
                capacity=_quantities({"pods": "110", **one.resources}, f"{where}: resources"),
                overhead=KWOK_OVERHEAD,
            )
        )
    return tuple(found)


def _file_requirements(row: FileTypeRow) -> Iterable[Requirement]:
    """Yield what Karpenter's kwok provider says of such a type."""
    cpu, memory = str(row.resources.get("cpu", "")), str(row.resources.get("memory", ""))
    size = _AWS_NAME.match(row.name)
    family = re.split(r"[.-]", row.name, maxsplit=1)
    said = {
        labels.INSTANCE_TYPE: [row.name],
        labels.ARCH: [row.architecture],
        labels.OS: row.operating_systems,
        labels.ZONE: _offered(row, labels.ZONE),
        labels.CAPACITY_TYPE: _offered(row, labels.CAPACITY_TYPE),
        f"{KWOK_GROUP}/instance-size": [size.group(1) if size else cpu],
        f"{KWOK_GROUP}/instance-family": [family[0] if len(family) > 1 else row.name[:1]],
        f"{KWOK_GROUP}/instance-cpu": [cpu],
        f"{KWOK_GROUP}/instance-memory": [memory],
    }
    for key, values in said.items():
        yield Requirement(key=key, operator="In", values=values)


def _offered(row: FileTypeRow, key: str) -> list[str]:
    values = {
        value
        for offering in row.offerings
        for term in offering.requirements
        if term.key == key
        for value in term.values
    }
    return sorted(values)


def _quantities(amounts: Quantities, where: str) -> dict[str, int]:
    try:
        return parsed(amounts)
    except ValueError as exc:
        raise WorldError(f"{where}: {exc}") from exc


def _types_by_pool(
    types: tuple[InstanceType, ...], pools: Sequence[NodePool], overlays: Sequence[NodeOverlay]
) -> dict[str, tuple[InstanceType, ...]]:
    by_pool = {pool.metadata.name: types for pool in pools}
    if not overlays:
        return by_pool
    try:
        refused = conflicting(overlays, pools=pools, instance_types=by_pool)
        heard = [one for one in overlays if one.metadata.name not in refused]
        return {pool.metadata.name: overlaid(types, heard, pool=pool) for pool in pools}
    except ValueError as exc:
        raise WorldError(f"nodeOverlays: {exc}") from exc


def _check_terms(terms: Sequence[Requirement], where: str) -> None:
    for index, term in enumerate(terms):
        try:
            value_set(term.operator, term.values)
        except ValueError as exc:
            raise WorldError(f"{where}: requirements[{index}] {term.key}: {exc}") from exc


def _settings(found: object) -> dict[str, str]:
    if not isinstance(found, Mapping):
        raise WorldError("settings: expected an object of names and values")
    return {str(name): str(value) for name, value in found.items()}


def _usable(pool: NodePool) -> bool:
    """Whether the pool takes part: dynamic, staying, and not known to be unready."""
    ready = [one.status for one in pool.status.conditions if one.type == "Ready"]
    return (
        pool.spec.replicas is None
        and not pool.metadata.is_deleting
        and all(status == "True" for status in ready)
    )


def _waits(pod: Pod) -> bool:
    """Whether the pod is for a node autoscaler: unbound, unfinished, nobody's daemon."""
    return (
        not pod.spec.node_name
        and pod.status.phase not in {"Succeeded", "Failed"}
        and not any(one.kind in {"DaemonSet", "Node"} for one in pod.metadata.owner_references)
    )


def _state_nodes(nodes: Sequence[Node], claims: Sequence[NodeClaim]) -> tuple[StateNode, ...]:
    by_provider = {one.status.provider_id: one for one in claims if one.status.provider_id}
    by_name = {one.status.node_name: one for one in claims if one.status.node_name}
    found = []
    matched: set[str] = set()
    for node in nodes:
        claim = by_provider.get(node.spec.provider_id) or by_name.get(node.metadata.name)
        if claim is not None:
            matched.add(claim.metadata.name)
        leaving = node.metadata.is_deleting or (claim is not None and claim.metadata.is_deleting)
        found.append(StateNode(node=node, claim=claim, deleting=leaving))
    found.extend(
        StateNode(claim=claim, deleting=claim.metadata.is_deleting)
        for claim in claims
        if claim.metadata.name not in matched
    )
    return tuple(found)


_SCALABLES = {
    "Deployment": "deployments",
    "ReplicaSet": "replicaSets",
    "StatefulSet": "statefulSets",
}


def _buffer_pods(world: Mapping[str, Any]) -> tuple[Pod, ...]:
    """Return the pods of every buffer whose template or workload is in the world."""
    moulds: dict[tuple[str, str, str], Mould] = {}
    for one in _objects(world, "podTemplates", PodTemplate):
        moulds["PodTemplate", one.metadata.namespace, one.metadata.name] = Mould(one.template)
    for kind, key in _SCALABLES.items():
        for found in _objects(world, key, Scalable):
            scale = 1 if found.spec.replicas is None else found.spec.replicas
            moulds[kind, found.metadata.namespace, found.metadata.name] = Mould(
                found.spec.template, scale
            )
    pods: list[Pod] = []
    for buffer in _objects(world, "capacityBuffers", CapacityBuffer):
        template, scalable = buffer.spec.pod_template_ref, buffer.spec.scalable_ref
        namespace = buffer.metadata.namespace
        if template is not None:
            mould = moulds.get(("PodTemplate", namespace, template.name))
        elif scalable is not None:
            mould = moulds.get((scalable.kind, namespace, scalable.name))
        else:
            mould = None
        if mould is None:
            raise WorldError(
                f"capacityBuffers {namespace}/{buffer.metadata.name}: what its podTemplateRef or "
                "scalableRef names is not in the world"
            )
        pods.extend(virtual_pods(buffer, mould, replicas(buffer, mould)))
    return tuple(pods)


def _with_priorities(pods: Sequence[Pod], classes: Sequence[PriorityClass]) -> list[Pod]:
    """Write priorities into pods as admission would, from their class or the default one."""
    values = {one.metadata.name: one.value for one in classes}
    default = next((one.value for one in classes if one.global_default), None)
    found = []
    for pod in pods:
        value = values.get(pod.spec.priority_class_name, default)
        if pod.spec.priority is None and value is not None:
            spec = msgspec.structs.replace(pod.spec, priority=value)
            found.append(msgspec.structs.replace(pod, spec=spec))
        else:
            found.append(pod)
    return found
