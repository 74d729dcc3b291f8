"""Tells the scheduler which node each pod was planned for.

A node that is bought for certain pods is of little use when others take it: what is left
fits nowhere, and more nodes must be bought. `status.nominatedNodeName` is Kubernetes' own
word for where a pod is expected: the scheduler tries that node first, and keeps its room
from pods of no higher priority. It is written before the node is let take pods in.

Of pods that must spread among one another only one at a time is nominated for a node. To a
spread, kube-scheduler counts pods nominated for the node in question as if they were there, and
those nominated elsewhere not at all: with two of them each node would look too full for its own
pods, and none would ever be bound. One alone keeps its room from other workloads' pods.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from controller.apis.kinds import NODE, POD
from controller.apis.nodeclaim import NodeClaim
from controller.apis.pods import Pod
from controller.apiserver.errors import ApiError, ConflictError, InvalidError, NotFoundError
from controller.apiserver.port import ApiServer
from controller.cloudprovider.errors import CloudProviderError
from controller.cloudprovider.provider import CloudProvider
from controller.constraints import taints
from controller.constraints.selectors import selects
from controller.reconcilers.clock import Clock
from controller.reconcilers.newnodes.plan import PlacementPlan
from controller.state.cluster import Cluster
from controller.state.nodes import is_up
from controller.state.pods import is_provisionable, is_untried
from controller.state.spreads import DefaultSpreads

CONCURRENT_WRITES = 16

PATIENCE_SECONDS = 10.0
"""How long a node waits for its pods to be nominated; in life it is not ready sooner anyway."""

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Nomination:
    """Writes the plan for a node onto its pods, as soon as its name is known.

    EC2 names a machine when it launches it, long before it joins: by the time it does, the
    writing is done. A node that joins by another name has its pods told once more.
    """

    api: ApiServer
    cloud: CloudProvider
    cluster: Cluster
    plan: PlacementPlan
    spreads: DefaultSpreads
    clock: Clock
    _writes: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(CONCURRENT_WRITES))

    async def awaited(self, claim: NodeClaim) -> None:
        """Nominate the node that a claim's instance will be, if the cloud tells its name."""
        if not self.plan.expected_on(claim.metadata.name):
            return
        try:
            instance = await self.cloud.get(claim.status.provider_id)
        except CloudProviderError as error:
            log.debug("nominating early: %s", error, extra={"NodeClaim": claim.metadata.name})
            return
        if instance.hostname:
            await self.nominate(claim, instance.hostname)

    async def reconcile(self, key: str) -> None:
        """Tell of their places once more the pods that a node, named by the key, has lost.

        The scheduler drops the nomination of a pod that it tries in vain, as it does when
        other nodes open a moment before the pod's own.
        """
        node = self.cluster.get(NODE, key)
        claim = self.cluster.claim_of(node) if node is not None else None
        if node is None or claim is None or taints.is_held(node.spec.taints) or not is_up(node):
            return
        forgotten = [p for p in self.expected(claim, key) if not p.status.nominated_node_name]
        now = self.clock()
        await self._write_all([p for p in forgotten if self.plan.may_remind(p, now)], key)

    async def nominate(self, claim: NodeClaim, name: str) -> None:
        """Nominate a claim's node for its pods; without it they still find a place."""
        untold = [p for p in self.expected(claim, name) if p.status.nominated_node_name != name]
        await self._write_all(untold, name)

    def expected(self, claim: NodeClaim, name: str) -> Sequence[Pod]:
        """Return the pods that wait for a claim's node and can be nominated for it together."""
        waiting = self.waiting(claim, name)
        if not any(map(must_spread, waiting)):
            return waiting
        return told_together(
            sorted(
                self.cluster.queued(waiting), key=lambda pod: pod.status.nominated_node_name != name
            )
        )

    def waiting(self, claim: NodeClaim, name: str) -> Sequence[Pod]:
        """Return the pods that wait for a claim's node."""
        planned = self.plan.expected_on(name, claim.metadata.name)
        return self.spreads.applied(
            [
                pod
                for uid, key in planned.items()
                if (pod := self.cluster.pod(key)) is not None
                and pod.metadata.uid == uid
                and (is_provisionable(pod) or is_untried(pod))
            ]
        )

    async def _write_all(self, pods: Sequence[Pod], name: str) -> None:
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await asyncio.gather(*(self._write(pod, name) for pod in pods))
        except (ApiError, TimeoutError) as error:
            why = str(error) or "it takes too long"
            log.warning("nominating node: %s", why, extra={"Node": name, "pods": len(pods)})

    async def _write(self, pod: Pod, node: str) -> None:
        async with self._writes:
            try:
                nominated = await self.api.patch(
                    POD,
                    pod.metadata.name,
                    {"status": {"nominatedNodeName": node}},
                    namespace=pod.metadata.namespace,
                    subresource="status",
                    uid=pod.metadata.uid,
                )
            except (NotFoundError, ConflictError, InvalidError):
                return  # it has gone, or is bound already
            self.cluster.observe(POD, nominated)


def told_together(pods: Iterable[Pod]) -> list[Pod]:
    """Return those of a node's pods that kube-scheduler can be told of at the same time: of each
    that must spread among others only the first of them.
    """
    told: list[Pod] = []
    for pod in pods:
        if not any(_spreads_among(pod, other) or _spreads_among(other, pod) for other in told):
            told.append(pod)
    return told


def must_spread(pod: Pod) -> bool:
    """Whether the pod may come only where that keeps it spread with others."""
    return any(
        constraint.when_unsatisfiable == "DoNotSchedule"
        for constraint in pod.spec.topology_spread_constraints
    )


def _spreads_among(pod: Pod, other: Pod) -> bool:
    """Whether the one must be spread among pods like the other."""
    return pod.metadata.namespace == other.metadata.namespace and any(
        constraint.when_unsatisfiable == "DoNotSchedule"
        and selects(constraint.label_selector, other.metadata.labels)
        for constraint in pod.spec.topology_spread_constraints
    )


def node_forgotten(before: Pod | None, after: Pod | None) -> str:
    """Return the node that a pod was nominated for and is no more, though it still waits."""
    if before is None or after is None or after.spec.node_name or after.status.nominated_node_name:
        return ""
    return before.status.nominated_node_name
