"""Writes the planned node of each pod to `status.nominatedNodeName` for kube-scheduler.

A new node is planned for certain pods. If other pods take its capacity, the planned pods need
further nodes. kube-scheduler tries the nominated node first, and reserves its capacity against pods
of the same or a lower priority. Joiner writes the nomination before pods may be bound to the node.

Of pods whose topology spread constraints select each other, only one at a time is nominated for a
node. When kube-scheduler tries a node, its topology spread counts the pods nominated for this node,
but not those nominated for other nodes. With two nominated pods per node, each node would seem to
violate the spread, and no pod would be bound. One nomination still reserves capacity.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from controller.apis.karpenter.nodeclaim import NodeClaim
from controller.apis.kinds import NODE, POD
from controller.apis.kubernetes.pods import Pod
from controller.apiserver.errors import ApiError, ConflictError, InvalidError, NotFoundError
from controller.cloudprovider.errors import CloudProviderError
from controller.constraints import taints
from controller.constraints.selectors import selects
from controller.reconcilers.concurrency import gather_all
from controller.reconcilers.newnodes.plan import PlacementPlan
from controller.reconcilers.ports import Ports, PortUser
from controller.state.nodes import is_up
from controller.state.pods import is_provisionable, is_untried
from controller.state.spreads import DefaultSpreads

CONCURRENT_WRITES = 16

PATIENCE_SECONDS = 10.0
"""How long in total the nominations for a node may take; a real node takes longer to be Ready."""

MOST_NAMED = 10
"""How many pods a log line names."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Nomination(PortUser):
    """Writes the plan of a node to its pods as soon as the node's name is known.

    EC2 assigns the name at launch, long before the node registers. If the node registers with
    another name, its pods are nominated again. In the methods, `name` is the name of the node.
    """

    ports: Ports
    plan: PlacementPlan
    spreads: DefaultSpreads
    _writes: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(CONCURRENT_WRITES))

    async def nominate_on_launch(self, claim: NodeClaim) -> None:
        """Nominate the future node of a claim's instance, if EC2 reports its host name."""
        if not self.plan.expected_on(claim.metadata.name):
            return
        try:
            instance = await self.cloud.get(claim.status.provider_id)
        except CloudProviderError as error:
            log.debug(
                "cannot nominate the node for its pods before it registers: %s",
                error,
                extra={"NodeClaim": claim.metadata.name},
            )
            return
        if instance.hostname:
            await self.nominate(claim, instance.hostname)

    async def reconcile(self, key: str) -> None:
        """Nominate the node `key` again for planned pods that lost the nomination.

        kube-scheduler clears the nomination of a pod that it cannot schedule, for example when
        other nodes open just before the pod's own node.
        """
        node = self.cluster.get(NODE, key)
        claim = self.cluster.claim_of(node) if node is not None else None
        if node is None or claim is None or taints.is_held(node.spec.taints) or not is_up(node):
            return
        forgotten = [p for p in self.expected_pods(claim, key) if not p.status.nominated_node_name]
        now = self.clock()
        await self._write_all([p for p in forgotten if self.plan.may_renominate(p, now)], key)

    async def nominate(self, claim: NodeClaim, name: str) -> None:
        """Nominate a claim's node for its pods; a failure is only logged."""
        untold = [
            p for p in self.expected_pods(claim, name) if p.status.nominated_node_name != name
        ]
        await self._write_all(untold, name)

    def expected_pods(self, claim: NodeClaim, name: str) -> Sequence[Pod]:
        """Return the pods planned for a claim's node that can be nominated for it together."""
        waiting = self.pending_pods(claim, name)
        if not any(map(must_spread, waiting)):
            return waiting
        return nominated_together(
            sorted(
                self.cluster.in_queue_order(waiting),
                key=lambda pod: pod.status.nominated_node_name != name,
            )
        )

    def pending_pods(self, claim: NodeClaim, name: str) -> Sequence[Pod]:
        """Return the pending pods planned for a claim's node."""
        planned = self.plan.expected_on(name, claim.metadata.name)
        return self.spreads.apply(
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
                await gather_all(*(self._write(pod, name) for pod in pods))
        except (ApiError, TimeoutError) as error:
            why = str(error) or f"no response within {PATIENCE_SECONDS:g} s"
            named = ", ".join(pod.key for pod in pods[:MOST_NAMED])
            fields = {"Node": name, "pods": len(pods), "Pods": named}
            log.warning(
                "cannot nominate node for pods; kube-scheduler may bind them to other nodes: %s",
                why,
                extra=fields,
            )

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
                return  # the pod is deleted or already bound
            self.cluster.observe(POD, nominated)


def nominated_together(pods: Iterable[Pod]) -> list[Pod]:
    """Return the pods that can be nominated for a node together.

    Of pods whose topology spread constraints select each other, that is only the first.
    """
    chosen: list[Pod] = []
    for pod in pods:
        if not any(_spreads_among(pod, other) or _spreads_among(other, pod) for other in chosen):
            chosen.append(pod)
    return chosen


def must_spread(pod: Pod) -> bool:
    """Whether the pod has a topology spread constraint with `DoNotSchedule`."""
    return any(
        constraint.when_unsatisfiable == "DoNotSchedule"
        for constraint in pod.spec.topology_spread_constraints
    )


def _spreads_among(pod: Pod, other: Pod) -> bool:
    """Whether one pod must be spread among pods like the other."""
    return pod.metadata.namespace == other.metadata.namespace and any(
        constraint.when_unsatisfiable == "DoNotSchedule"
        and selects(constraint.label_selector, other.metadata.labels)
        for constraint in pod.spec.topology_spread_constraints
    )


def lost_nomination(before: Pod | None, after: Pod | None) -> str:
    """Return the name of the node whose nomination a pending pod lost; empty if none."""
    if before is None or after is None or after.spec.node_name or after.status.nominated_node_name:
        return ""
    return before.status.nominated_node_name
