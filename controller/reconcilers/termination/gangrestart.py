"""Restarts gangs: if a drain ends too many pods of a gang, its other pods are evicted as well.

A gang that has lost too many pods makes no progress, so its other pods would occupy nodes to no
purpose. The workload recreates all of them, and the provisioner schedules the gang as a whole. Pods
that do not belong to the gang stay on its nodes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from controller.apis.karpenter.durations import LONGEST
from controller.apis.kinds import POD
from controller.apis.kubernetes.nodes import Node
from controller.apis.kubernetes.pods import Pod
from controller.reconcilers.concurrency import gather_all
from controller.reconcilers.ports import Ports, PortUser
from controller.reconcilers.termination.drain import grace_period
from controller.reconcilers.termination.eviction import Eviction
from controller.state.gangs import GangReader, gang_of
from controller.state.pods import is_terminal

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Restarts:
    """The restarts that the drain of one node causes.

    `lost` are the UIDs of the pods that the node lost. `left` are the pods that are still to be
    evicted, by UID, with the names of their gangs.
    """

    lost: set[str] = field(default_factory=set)
    left: dict[str, tuple[Pod, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GangRestart(PortUser):
    """Evicts the other pods of gangs that lose pods on a node."""

    ports: Ports
    eviction: Eviction
    _restarts: dict[str, _Restarts] = field(default_factory=dict)
    """The restarts that the drain of a node causes, by the node's UID."""

    async def follow(self, node: Node, lost: Iterable[Pod]) -> None:
        """Evict the other pods of the gangs that lose these pods of a node.

        PodDisruptionBudgets apply: the next call retries refused evictions. The annotation
        `karpenter.sh/do-not-disrupt` has no effect, because the work of these pods is lost already.
        """
        restarts = self._restarts.setdefault(node.metadata.uid, _Restarts())
        members = {pod.metadata.uid: pod for pod in lost if gang_of(pod) and not is_terminal(pod)}
        new = [pod for uid, pod in members.items() if uid not in restarts.lost]
        restarts.lost |= members.keys()
        if new:
            reader = GangReader(self.cluster.pod_groups())
            for pod in new:
                if name := reader.gang_of(pod):
                    others = self._others(reader, name, pod, members.values())
                    restarts.left |= {other.metadata.uid: (other, name) for other in others}
        await gather_all(*(self._evict(uid, node, restarts) for uid in tuple(restarts.left)))

    def forget(self, node: Node) -> None:
        """Drop the state of a deleted node."""
        self._restarts.pop(node.metadata.uid, None)

    def _others(
        self, reader: GangReader, name: str, lost: Pod, every: Iterable[Pod]
    ) -> Iterable[Pod]:
        """Yield the pods of a gang that restart because it loses a pod.

        Pods that were created after the loss belong to the restarted gang.
        """
        since = _lost_at(lost)
        bound = [pod for pod in self.cluster.pods_of_gang(name) if pod.spec.node_name]
        for pod in reader.restarting_pods(name, bound, {one.key for one in every}):
            created = pod.metadata.creation_timestamp
            if since is None or created is None or created <= since:
                yield pod

    async def _evict(self, uid: str, node: Node, restarts: _Restarts) -> None:
        pod, gang = restarts.left[uid]
        now = self.cluster.get(POD, pod.metadata.name, pod.metadata.namespace)
        if now is None or now.metadata.uid != uid or now.metadata.is_deleting:
            del restarts.left[uid]
            return
        if await self.eviction.evict(now, node, purpose=f"restart gang {gang}"):
            del restarts.left[uid]
            message = f"Gang {gang} lost pods on node {node.metadata.name} and restarts as a whole"
            await self.recorder.publish(now, "Normal", "GangRestarted", message)
            fields = {"Pod": now.key, "gang": gang, "Node": node.metadata.name}
            log.info("evicted pod, because its gang lost pods on node and restarts", extra=fields)


def _lost_at(pod: Pod) -> datetime | None:
    """Return when the deletion of a pod was requested, None if it was not or is unknown."""
    end, grace = pod.metadata.deletion_timestamp, grace_period(pod)
    # The API server adds the grace period to the time of the request. From `LONGEST` on, the sum
    # overflows.
    return end - grace if end is not None and grace < LONGEST else None
