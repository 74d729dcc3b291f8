"""Whether all pods have come that their owners ask for."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from controller.apis.kinds import REPLICA_SET, STATEFUL_SET, Kind
from controller.apis.meta import OwnerReference
from controller.apis.pods import Pod
from controller.apis.workloads import Scalable, StatefulSet
from controller.apiserver.errors import ApiError
from controller.apiserver.port import ApiServer
from controller.state.cluster import Cluster

COUNTED: Mapping[tuple[str, str], Kind[Any]] = {
    (kind.api_version, kind.name): kind for kind in (REPLICA_SET, STATEFUL_SET)
}
"""Owners that say how many pods they want; of others nobody knows what is to follow."""

MOST_OWNERS = 32
"""Beyond these asking takes longer than it can save."""


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Compares the pods that are there with what their owners say at the API server.

    Workloads are not mirrored for this: old ReplicaSets are the largest crowd of some clusters.
    """

    api: ApiServer
    cluster: Cluster

    async def are_complete(self, seen: AbstractSet[str]) -> bool:
        """Whether the owners of all pods in `seen`, uids, have as many pods as they ask for.

        False as well for what nobody can tell: pods of other owners or of none, uids of
        anything else.
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
            found = await asyncio.gather(
                *(self.api.get(kind, owner.name, home) for kind, owner, home in owners.values())
            )
        except ApiError:
            return False
        present = self.cluster.replicas(owners)
        return all(
            present[uid] >= _expected(workload) for uid, workload in zip(owners, found, strict=True)
        )


def _controller(pod: Pod) -> OwnerReference | None:
    return next((owner for owner in pod.metadata.owner_references if owner.controller), None)


def _expected(workload: Scalable) -> int:
    """Return how many pods a workload has before it waits for some of them to be ready."""
    if isinstance(workload, StatefulSet) and workload.spec.pod_management_policy != "Parallel":
        return 1
    return 1 if workload.spec.replicas is None else workload.spec.replicas
