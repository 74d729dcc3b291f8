"""Storage of equal parts of pods, nodes and NodeClaims as one object, which saves memory.

Ten thousand pods of fifty Deployments have fifty specs, and the nodes of an instance type have one
capacity. The values are frozen, so equal values can be one object. The mirror then takes a quarter
of the memory.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from controller.apis import labels
from controller.apis.karpenter.nodeclaim import NodeClaim
from controller.apis.kubernetes.conditions import Condition
from controller.apis.kubernetes.meta import ObjectMeta
from controller.apis.kubernetes.nodes import Node
from controller.apis.kubernetes.pods import Pod, PodStatus
from controller.state.pods import controller_of

MAX_OWNERS = 20_000
"""The maximum number of stored owners; at the limit all are removed, which costs only memory."""

MAX_CONDITIONS = 20_000
"""The maximum number of stored conditions."""

MAX_KINDS_OF_NODES = 2_000
"""The maximum number of stored nodes and NodeClaims."""

OWN_METADATA = ("name", "uid", "resource_version", "creation_timestamp")
OWN_SPEC = ("node_name",)
"""The fields in which pods of one owner usually differ, and no others."""

BLANK = Pod(metadata=ObjectMeta())
"""An empty pod, whose empty lists are shared: each takes memory, and a pod has a dozen."""

_Struct = TypeVar("_Struct", bound=msgspec.Struct)
_Node = TypeVar("_Node", Node, NodeClaim)


class Replicas:
    """Stores one pod of each owner, and shares its parts with equal pods."""

    def __init__(self) -> None:
        self._pod_by_owner: dict[object, Pod] = {}
        self._conditions: dict[Condition, Condition] = {}

    def share(self, pod: Pod) -> Pod:
        """Return an equal pod that shares its parts with a pod of the same owner.

        A pod without an owner shares its parts with a pod of the same namespace and labels. Volumes
        other than claims and EBS volumes are removed: each has a unique name, and none restricts
        scheduling.
        """
        owner = controller_of(pod) or (
            pod.metadata.namespace,
            frozenset(pod.metadata.labels.items()),
        )
        stored = self._pod_by_owner.get(owner, BLANK)
        volumes = [
            v
            for v in pod.spec.volumes
            if v.persistent_volume_claim or v.ephemeral or v.aws_elastic_block_store
        ]
        spec = msgspec.structs.replace(
            pod.spec, volumes=volumes, node_name=sys.intern(pod.spec.node_name)
        )
        pod = msgspec.structs.replace(
            pod,
            metadata=_share_fields(pod.metadata, stored.metadata, OWN_METADATA),
            spec=_share_fields(spec, stored.spec, OWN_SPEC),
            status=self._share_status(pod, stored.status),
        )
        if stored is BLANK:
            if len(self._pod_by_owner) >= MAX_OWNERS:
                self._pod_by_owner.clear()
            self._pod_by_owner[owner] = pod
        elif pod.status is not stored.status:
            # Pods of an owner have equal specs, but their status changes over time.
            self._pod_by_owner[owner] = msgspec.structs.replace(stored, status=pod.status)
        return pod

    def _share_status(self, pod: Pod, stored: PodStatus) -> PodStatus:
        if pod.status == stored:
            return stored
        return _share_fields(self._status(pod), stored)

    def _status(self, pod: Pod) -> PodStatus:
        """Return the status without allocated resources that are redundant or have no effect."""
        statuses = pod.status.container_statuses
        if statuses:
            requests = {
                container.name: container.resources.requests for container in pod.spec.containers
            }
            statuses = [
                msgspec.structs.replace(status, allocated_resources={}, resources=None)
                if status.allocated_resources == requests.get(status.name)
                and status.resources is not None
                and status.resources.requests == status.allocated_resources
                else status
                for status in statuses
            ]
        if len(self._conditions) >= MAX_CONDITIONS:
            self._conditions.clear()
        shared = self._conditions
        conditions = [
            shared.setdefault(condition, condition) for condition in pod.status.conditions
        ]
        status = msgspec.structs.replace(
            pod.status, container_statuses=statuses, conditions=conditions
        )
        if pod.spec.resources is None:
            return msgspec.structs.replace(status, allocated_resources={}, resources=None)
        return status


class Siblings:
    """Stores the latest node and NodeClaim of each NodePool and instance type.

    The next one shares its equal parts. Specs are not compared: they have little in common.
    """

    def __init__(self) -> None:
        self._latest: dict[tuple[type, str, str], Any] = {}

    def share(self, node: _Node) -> _Node:
        """Return an equal node or NodeClaim that shares its parts with the latest of its kind."""
        own = node.metadata.labels
        kind = type(node), own.get(labels.NODEPOOL, ""), own.get(labels.INSTANCE_TYPE, "")
        latest: _Node = self._latest.get(kind, node)
        if len(self._latest) >= MAX_KINDS_OF_NODES:
            self._latest.clear()
        metadata = msgspec.structs.replace(
            node.metadata,
            labels=_share_values(own, latest.metadata.labels),
            annotations=_share_values(node.metadata.annotations, latest.metadata.annotations),
        )
        conditions = [
            *map(_share_fields, node.status.conditions, latest.status.conditions),
            *node.status.conditions[len(latest.status.conditions) :],
        ]
        status = msgspec.structs.replace(node.status, conditions=conditions)
        node = self._latest[kind] = msgspec.structs.replace(
            node,
            metadata=_share_fields(metadata, latest.metadata),
            status=_share_fields(status, latest.status),
        )
        return node


def _share_values(part: dict[str, str], stored: dict[str, str]) -> dict[str, str]:
    """Return an equal dict that shares all equal values with the stored dict."""
    return {
        key: known if (known := stored.get(key)) == value else value for key, value in part.items()
    }


def _share_fields(part: _Struct, stored: _Struct, own: Sequence[str] = ()) -> _Struct:
    """Return an equal part that shares all equal values with the stored part.

    It is fast if only the fields `own` differ.
    """
    likely = (
        msgspec.structs.replace(stored, **{n: getattr(part, n) for n in own}) if own else stored
    )
    if likely == part:
        return likely
    equal = {
        name: stored_value
        for name in part.__struct_fields__
        if (stored_value := getattr(stored, name)) == getattr(part, name)
    }
    return msgspec.structs.replace(part, **equal)
