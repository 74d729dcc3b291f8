"""Tells the scheduler which node each pod was planned for.

A node that is bought for certain pods is of little use when others take it: what is left
fits nowhere, and more nodes must be bought. `status.nominatedNodeName` is Kubernetes' own
word for where a pod is expected: the scheduler tries that node first, and keeps its room
from pods of no higher priority. It is written before the node is let take pods in.

Pods that must spread are left out. To a spread, kube-scheduler counts pods nominated for the
node in question as if they were there, and those nominated elsewhere not at all: each node
would look too full for its own pods, and none would ever be bound.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field

from controller.apis.kinds import POD
from controller.apis.nodeclaim import NodeClaim
from controller.apis.nodes import Node
from controller.apis.pods import Pod
from controller.apiserver.errors import ApiError, ConflictError, InvalidError, NotFoundError
from controller.apiserver.port import ApiServer
from controller.cloudprovider.errors import CloudProviderError
from controller.cloudprovider.provider import CloudProvider
from controller.reconcilers.provisioning.plan import Plan
from controller.state.cluster import Cluster
from controller.state.spreads import DefaultSpreads

CONCURRENT_WRITES = 16

PATIENCE_SECONDS = 10.0
"""How long a node waits for its pods to be nominated; in life it is not ready sooner anyway."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Nomination:
    """Writes the plan for a node onto its pods, as soon as its name is known.

    EC2 names a machine when it launches it, long before it joins: by the time it does, the
    writing is done. A node that joins by another name has its pods told once more.
    """

    api: ApiServer
    cloud: CloudProvider
    cluster: Cluster
    plan: Plan
    spreads: DefaultSpreads
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
            await self._nominate(claim, instance.hostname)

    async def joined(self, claim: NodeClaim, node: Node) -> None:
        """Nominate a node for the pods it was made for; without it they still find a place."""
        await self._nominate(claim, node.metadata.name)

    async def _nominate(self, claim: NodeClaim, name: str) -> None:
        expected = self.plan.expected_on(name, claim.metadata.name)
        if not expected:
            return
        untold = [
            pod
            for pod in self.cluster.pending_pods()
            if pod.metadata.uid in expected and pod.status.nominated_node_name != name
        ]
        pods = [pod for pod in self.spreads.applied(untold) if not _must_spread(pod)]
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


def _must_spread(pod: Pod) -> bool:
    return any(
        constraint.when_unsatisfiable == "DoNotSchedule"
        for constraint in pod.spec.topology_spread_constraints
    )
