"""Stores equal parts of pods once.

Ten thousand pods of fifty Deployments have fifty specs. The values are frozen, so equal ones can be
one object: the mirror takes a quarter of the memory.
"""

from __future__ import annotations

import sys
from typing import TypeVar

import msgspec

from controller.apis.kubernetes.conditions import Condition
from controller.apis.kubernetes.meta import ObjectMeta
from controller.apis.kubernetes.pods import Pod, PodStatus
from controller.state.pods import controller_of

MOST_TWINS = 20_000
"""The maximum number of remembered owners; beyond it all are forgotten, which costs only memory."""

MOST_CONDITIONS = 20_000
"""The maximum number of remembered conditions."""

BLANK = Pod(metadata=ObjectMeta())
"""An empty pod: an empty list takes half as much memory as a name, and a pod has a dozen."""

_Struct = TypeVar("_Struct", bound=msgspec.Struct)


class Replicas:
    """Remembers one pod of each owner, and shares its parts with equal ones."""

    def __init__(self) -> None:
        self._twins: dict[object, Pod] = {}
        self._conditions: dict[Condition, Condition] = {}

    def shared(self, pod: Pod) -> Pod:
        """Return an equal pod that shares its parts with a pod of the same owner.

        Without an owner, it shares with a pod with the same labels. Volumes other than claims are
        removed: each has a unique name, and none restricts scheduling.
        """
        maker = controller_of(pod) or (
            pod.metadata.namespace,
            frozenset(pod.metadata.labels.items()),
        )
        twin = self._twins.get(maker, BLANK)
        volumes = [v for v in pod.spec.volumes if v.persistent_volume_claim or v.ephemeral]
        spec = msgspec.structs.replace(
            pod.spec, volumes=volumes, node_name=sys.intern(pod.spec.node_name)
        )
        pod = msgspec.structs.replace(
            pod,
            metadata=_sharing(pod.metadata, twin.metadata),
            spec=_sharing(spec, twin.spec),
            status=_sharing(self._status(pod), twin.status),
        )
        if twin is BLANK:
            if len(self._twins) >= MOST_TWINS:
                self._twins.clear()
            self._twins[maker] = pod
        elif pod.status is not twin.status:
            # Most of what a pod was made of stays as it was; its status is that of its days.
            self._twins[maker] = msgspec.structs.replace(twin, status=pod.status)
        return pod

    def _status(self, pod: Pod) -> PodStatus:
        """Return the status without allocated resources that repeat the spec or do not count."""
        asked = {container.name: container.resources.requests for container in pod.spec.containers}
        statuses = [
            msgspec.structs.replace(status, allocated_resources={}, resources=None)
            if status.allocated_resources == asked.get(status.name)
            and status.resources is not None
            and status.resources.requests == status.allocated_resources
            else status
            for status in pod.status.container_statuses
        ]
        if len(self._conditions) >= MOST_CONDITIONS:
            self._conditions.clear()
        known = self._conditions
        conditions = [known.setdefault(condition, condition) for condition in pod.status.conditions]
        status = msgspec.structs.replace(
            pod.status, container_statuses=statuses, conditions=conditions
        )
        if pod.spec.resources is None:
            return msgspec.structs.replace(status, allocated_resources={}, resources=None)
        return status


def _sharing(part: _Struct, twin: _Struct) -> _Struct:
    """Return an equal part that shares all equal values with the twin's."""
    equal = {
        name: theirs
        for name in part.__struct_fields__
        if (theirs := getattr(twin, name)) == getattr(part, name)
    }
    if len(equal) == len(part.__struct_fields__):
        return twin
    return msgspec.structs.replace(part, **equal)
