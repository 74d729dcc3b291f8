"""Keeps what replicas have in common once.

Ten thousand pods of fifty Deployments are fifty specs and ten thousand names. Values
are frozen, so equal ones can be the same one: the mirror is a third of the size, and a
snapshot travels to the solver's process in a fraction of the time.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from controller.apis.pods import Pod, PodStatus
from controller.state.pods import controller_of

MOST_OWNERS = 20_000
"""Owners remembered; past that they are all forgotten, which costs only memory."""

SPEC = (
    "node_selector",
    "affinity",
    "tolerations",
    "topology_spread_constraints",
    "containers",
    "init_containers",
    "overhead",
    "resources",
    "resource_claims",
)
METADATA = ("labels", "annotations", "owner_references")

_Struct = TypeVar("_Struct", bound=msgspec.Struct)


class Replicas:
    """Remembers one pod of each owner, and lets the others share what is equal."""

    def __init__(self) -> None:
        self._twins: dict[str, Pod] = {}

    def shared(self, pod: Pod) -> Pod:
        """Return an equal pod that shares its parts with one of the same controller.

        Volumes that are no claims are left out: each has a name of its own, and none
        binds a pod to a place.
        """
        controller = controller_of(pod)
        volumes = [v for v in pod.spec.volumes if v.persistent_volume_claim or v.ephemeral]
        spec = msgspec.structs.replace(pod.spec, volumes=volumes)
        pod = msgspec.structs.replace(pod, spec=spec, status=_without_echoes(pod))
        if not controller:
            return pod
        twin = self._twins.get(controller)
        if twin is None:
            if len(self._twins) >= MOST_OWNERS:
                self._twins.clear()
            self._twins[controller] = pod
            return pod
        return msgspec.structs.replace(
            pod,
            metadata=_sharing(pod.metadata, twin.metadata, METADATA),
            spec=_sharing(pod.spec, twin.spec, SPEC),
        )


def _without_echoes(pod: Pod) -> PodStatus:
    """Return the status without what only repeats the spec: what containers were granted."""
    asked = {container.name: container.resources.requests for container in pod.spec.containers}
    statuses = [
        msgspec.structs.replace(status, allocated_resources={}, resources=None)
        if status.allocated_resources == asked.get(status.name)
        and status.resources is not None
        and status.resources.requests == status.allocated_resources
        else status
        for status in pod.status.container_statuses
    ]
    return msgspec.structs.replace(pod.status, container_statuses=statuses)


def _sharing(part: _Struct, twin: _Struct, names: tuple[str, ...]) -> _Struct:
    equal: dict[str, Any] = {
        name: theirs for name in names if (theirs := getattr(twin, name)) == getattr(part, name)
    }
    return msgspec.structs.replace(part, **equal)
