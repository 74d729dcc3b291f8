"""Storage of equal parts of pods as one object, which saves memory.

Ten thousand pods of fifty Deployments have fifty specs. The values are frozen, so equal values can
be one object. The mirror then takes a quarter of the memory.
"""

from __future__ import annotations

import sys
from typing import TypeVar

import msgspec

from controller.apis.kubernetes.conditions import Condition
from controller.apis.kubernetes.meta import ObjectMeta
from controller.apis.kubernetes.pods import Pod, PodStatus
from controller.state.pods import controller_of

MAX_OWNERS = 20_000
"""The maximum number of stored owners; at the limit all are removed, which costs only memory."""

MAX_CONDITIONS = 20_000
"""The maximum number of stored conditions."""

BLANK = Pod(metadata=ObjectMeta())
"""An empty pod, whose empty lists are shared: each takes memory, and a pod has a dozen."""

_Struct = TypeVar("_Struct", bound=msgspec.Struct)


class Replicas:
    """Stores one pod of each owner, and shares its parts with equal pods."""

    def __init__(self) -> None:
        self._pod_by_owner: dict[object, Pod] = {}
        self._conditions: dict[Condition, Condition] = {}

    def share(self, pod: Pod) -> Pod:
        """Return an equal pod that shares its parts with a pod of the same owner.

        A pod without an owner shares its parts with a pod of the same namespace and labels. Volumes
        other than claims are removed: each has a unique name, and none restricts scheduling.
        """
        owner = controller_of(pod) or (
            pod.metadata.namespace,
            frozenset(pod.metadata.labels.items()),
        )
        stored = self._pod_by_owner.get(owner, BLANK)
        volumes = [v for v in pod.spec.volumes if v.persistent_volume_claim or v.ephemeral]
        spec = msgspec.structs.replace(
            pod.spec, volumes=volumes, node_name=sys.intern(pod.spec.node_name)
        )
        pod = msgspec.structs.replace(
            pod,
            metadata=_share_fields(pod.metadata, stored.metadata),
            spec=_share_fields(spec, stored.spec),
            status=_share_fields(self._status(pod), stored.status),
        )
        if stored is BLANK:
            if len(self._pod_by_owner) >= MAX_OWNERS:
                self._pod_by_owner.clear()
            self._pod_by_owner[owner] = pod
        elif pod.status is not stored.status:
            # Pods of an owner have equal specs, but their status changes over time.
            self._pod_by_owner[owner] = msgspec.structs.replace(stored, status=pod.status)
        return pod

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


def _share_fields(part: _Struct, stored: _Struct) -> _Struct:
    """Return an equal part that shares all equal values with the stored part."""
    equal = {
        name: stored_value
        for name in part.__struct_fields__
        if (stored_value := getattr(stored, name)) == getattr(part, name)
    }
    if len(equal) == len(part.__struct_fields__):
        return stored
    return msgspec.structs.replace(part, **equal)
