"""Checks whether the owners of pods have created all of their pods."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from controller.apis.kinds import REPLICA_SET, STATEFUL_SET, Kind
from controller.apis.kubernetes.meta import OwnerReference
from controller.apis.kubernetes.pods import Pod
from controller.apis.kubernetes.workloads import Scalable, StatefulSet
from controller.apiserver.errors import ApiError
from controller.reconcilers.concurrency import gather_all
from controller.reconcilers.ports import Ports, PortUser

COUNTED: Mapping[tuple[str, str], Kind[Any]] = {
    (kind.api_version, kind.name): kind for kind in (REPLICA_SET, STATEFUL_SET)
}
"""Owner kinds with a number of replicas; the number of pods of other owners is unknown."""

MOST_OWNERS = 32
"""The largest number of owners to read: reading more takes longer than it can save."""


@dataclass(frozen=True, slots=True)
class Arrivals(PortUser):
    """Compares the existing pods with the replicas that their owners request.

    Owners are read from the API server, not mirrored: old ReplicaSets are the most numerous objects
    of some clusters.
    """

    ports: Ports

    async def are_complete(self, seen: AbstractSet[str]) -> bool:
        """Whether the owners of all pods in `seen` (UIDs) have as many pods as they request.

        Of a StatefulSet that creates its pods one after another, one pod suffices. False if the
        answer is unknown: if a UID is not that of a pending pod, a pod's owner is neither a
        ReplicaSet nor a StatefulSet, there are too many owners, or one cannot be read.
        """
        waiting = {pod.metadata.uid: pod for pod in self.cluster.pending_pods()}
        if not seen or not seen <= waiting.keys():
            return False
        owners: dict[str, tuple[Kind[Any], OwnerReference, str]] = {}
        for pod in (waiting[uid] for uid in seen):
            owner = _controller(pod)
            kind = COUNTED.get((owner.api_version, owner.kind)) if owner is not None else None
            if owner is None or kind is None:
                return False
            owners[owner.uid] = (kind, owner, pod.metadata.namespace)
        if len(owners) > MOST_OWNERS:
            return False
        try:
            found = await gather_all(
                *(
                    self.api.get(kind, owner.name, namespace)
                    for kind, owner, namespace in owners.values()
                )
            )
        except ApiError:
            return False
        present = self.cluster.replicas(owners)
        return all(
            present[uid] >= _expected_pods(workload)
            for uid, workload in zip(owners, found, strict=True)
        )


def _controller(pod: Pod) -> OwnerReference | None:
    return next((owner for owner in pod.metadata.owner_references if owner.controller), None)


def _expected_pods(workload: Scalable) -> int:
    """Return how many pods a workload creates before it waits for some to be Ready."""
    if isinstance(workload, StatefulSet) and workload.spec.pod_management_policy != "Parallel":
        return 1
    return 1 if workload.spec.replicas is None else workload.spec.replicas
