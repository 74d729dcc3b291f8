"""Releases nodes that were launched for a gang which cannot be scheduled as a whole.

EC2 may refuse the last instance of a gang after it launched the others. The next round tries to
launch the missing nodes from other offerings. If that is impossible, it deletes the NodeClaims that
were created for the gang, and the round after it schedules the whole gang again.
"""

from __future__ import annotations

import logging
from collections.abc import Set
from dataclasses import dataclass

from controller.apis import labels
from controller.apis.karpenter.nodeclaim import NodeClaim
from controller.apis.kinds import NODE_CLAIM
from controller.reconcilers.newnodes.plan import PlacementPlan
from controller.reconcilers.ports import Ports, PortUser
from controller.reconcilers.writing import delete
from controller.state.gangs import gang_of
from controller.state.pods import is_reschedulable

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GangRelease(PortUser):
    """Deletes the NodeClaims of gangs that cannot be scheduled as a whole."""

    ports: Ports
    plan: PlacementPlan

    async def release(self, refused: Set[str]) -> None:
        """Delete the NodeClaims that were created only for the gangs `refused` and run no pods.

        A node that runs pods stays. So does a node on which pods outside these gangs are planned.
        """
        if not refused:
            return
        for claim in self.cluster.list(NODE_CLAIM):
            if self._is_released(claim, refused):
                await self._delete(claim)

    def _is_released(self, claim: NodeClaim, refused: Set[str]) -> bool:
        gangs = gangs_of(claim)
        if not gangs or not gangs <= refused or claim.metadata.is_deleting:
            return False
        nodes = [node.metadata.name for node in self.cluster.nodes_of(claim)]
        if any(is_reschedulable(pod) for name in nodes for pod in self.cluster.pods_on(name)):
            return False
        planned = map(self.cluster.pod, self.plan.expected_on(claim.metadata.name, *nodes).values())
        return all(pod is None or gang_of(pod) in refused for pod in planned)

    async def _delete(self, claim: NodeClaim) -> None:
        named = claim.metadata.annotations[labels.GANG]
        await delete(self.api, claim)
        log.info(
            "deleting nodeclaim of a gang that cannot be scheduled as a whole",
            extra={"NodeClaim": claim.metadata.name, "gang": named},
        )
        await self.recorder.publish(
            claim,
            "Normal",
            "GangReleased",
            f"Deleting NodeClaim: gang {named} cannot be scheduled as a whole",
        )


def gangs_of(claim: NodeClaim) -> frozenset[str]:
    """Return the gangs for which a NodeClaim was created, as `namespace/name`."""
    return frozenset(filter(None, claim.metadata.annotations.get(labels.GANG, "").split(",")))
