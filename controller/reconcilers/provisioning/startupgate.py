"""Opens nodes that were bought together once their pods know their places.

kube-scheduler tries every pod that waits again whenever a node opens, and forgets the
nomination of a pod that it tried in vain. With the plan forgotten, pods take the first room
there is, and in the end one is left that fits nowhere. So a node that was bought with others
is held from its registration until it is up, by a taint of our own, and then its pods are
nominated, and it is opened, in that order. Nodes that are up at almost the same time open
together, those that were launched together and have not joined yet included.

No write opens two nodes, and from the first on the scheduler tries a pod a millisecond or faster.
So the writes are sent in the order in which it comes to the nodes' pods, one after the other, and
none waits for an answer: that comes late, behind the news of all the pods that are bound by then.

What a node needs to be up is not held off it: whoever runs on a node that is not ready does
so because it tolerates that, and where that is all it tolerates no node is held.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from controller.apis import conditions, labels
from controller.apis.kinds import DAEMON_SET, NODE, NODE_CLAIM
from controller.apis.meta import to_wire
from controller.apis.nodeclaim import LAUNCHED, NodeClaim
from controller.apis.nodes import Node
from controller.apiserver.errors import ConflictError, NotFoundError
from controller.apiserver.port import ApiServer
from controller.constraints import taints
from controller.reconcilers.clock import Clock, noted
from controller.reconcilers.provisioning.nomination import Nomination
from controller.state.cluster import Cluster
from controller.state.nodes import is_up
from controller.state.pods import is_untried

PATIENCE = timedelta(seconds=2)
"""How long a node that is up waits for those that are not yet, so that they open together."""

TRIED_WITHIN_PATIENCE = 100
"""How many pods the scheduler surely tries in that time; with more, it is not waited for."""

AGAIN = timedelta(milliseconds=100)
"""How soon to look again whether it has."""

NO_TIME = timedelta(0)


@dataclass(slots=True)
class StartupGate:
    """Says which nodes are held, and lets pods into them."""

    api: ApiServer
    cluster: Cluster
    clock: Clock
    nomination: Nomination
    _up_since: dict[str, datetime] = field(default_factory=dict)
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def awaited(self, claim: NodeClaim) -> None:
        """Tell pods of their places while the claim's instance starts."""
        await self.nomination.awaited(claim)

    async def joined(self, claim: NodeClaim, node: Node) -> bool:
        """Tell pods of their places, or return that the node is to be held until they are told."""
        name = node.metadata.name
        if (
            self.nomination.plan.others_await(claim.metadata.name, name)
            and self.nomination.expected(claim, name)
            and not self._bars_daemons()
        ):
            return True
        await self.nomination.nominate(claim, name)
        return False

    async def registered(self, node: Node) -> timedelta | None:
        """Open a node that was held and all that are up with it; returns how long it must wait."""
        async with self._turn:  # two at once would open the same nodes
            coming = [
                other
                for other in self.cluster.list(NODE)
                if _is_coming(other) and self.cluster.manages(other)
            ]
            up = [other for other in coming if taints.is_held(other.spec.taints) and is_up(other)]
            now = self.clock()
            self._up_since = {
                other.metadata.name: noted(self._up_since.get(other.metadata.name), now)
                for other in up
            }
            since = self._up_since.get(node.metadata.name)
            if since is None:
                return None
            left = since + PATIENCE - now
            all_up = len(up) == len(coming) and not self._are_awaited_beside(up)
            if not all_up and left > NO_TIME:
                return left
            if left > NO_TIME and self._are_about_to_be_tried(up):
                return min(left, AGAIN)
            await self._open(up)
            return None

    def _are_about_to_be_tried(self, nodes: Iterable[Node]) -> bool:
        """Whether the scheduler is about to try the last pods for the first time: it drops their
        nominations, and whoever it has not tried comes before all others.
        """
        untried = sum(
            is_untried(pod)
            for node in nodes
            if (claim := self.cluster.claim_of(node)) is not None
            for pod in self.nomination.expected(claim, node.metadata.name)
        )
        return 0 < untried <= TRIED_WITHIN_PATIENCE

    def _are_awaited_beside(self, nodes: Sequence[Node]) -> bool:
        """Whether pods are expected on machines that were launched when one of these was, and
        that have not joined yet.
        """
        known = [_launched_at(claim) for node in nodes if (claim := self.cluster.claim_of(node))]
        launches = [moment for moment in known if moment is not None]
        if not launches:
            return False
        first, last = min(launches) - PATIENCE, max(launches) + PATIENCE
        return any(
            first <= launched <= last
            for claim in self.cluster.list(NODE_CLAIM)
            if not claim.metadata.is_deleting
            and self.cluster.node_of(claim) is None
            and self.nomination.plan.expected_on(claim.metadata.name)
            and (launched := _launched_at(claim)) is not None
        )

    async def _open(self, nodes: Sequence[Node]) -> None:
        claims = {node.metadata.name: self.cluster.claim_of(node) for node in nodes}
        await self._tell(claims)
        await self._tell(claims)  # while hundreds were told, the scheduler has dropped some
        # They are sent one after the other, and none waits for the answer to another.
        await asyncio.gather(*map(self._let_pods_in, self._in_turn(claims)))
        # What the scheduler has dropped meanwhile was of no concern while the nodes were held.
        await asyncio.gather(*map(self.nomination.reconcile, claims))

    async def _tell(self, claims: Mapping[str, NodeClaim | None]) -> None:
        await asyncio.gather(
            *(self.nomination.nominate(claim, name) for name, claim in claims.items() if claim)
        )

    def _in_turn(self, claims: Mapping[str, NodeClaim | None]) -> list[str]:
        """Sort nodes, given with their claims: that whose pods the scheduler tries first first."""
        expected = [
            (pod, name)
            for name, claim in claims.items()
            if claim is not None
            for pod in self.nomination.expected(claim, name)
        ]
        node_of = {pod.key: name for pod, name in expected}
        queue = self.cluster.queued(pod for pod, _ in expected)
        # Whom the scheduler has tried waits behind those whom it has not.
        ahead = sorted(queue, key=lambda pod: (-(pod.spec.priority or 0), not is_untried(pod)))
        return list(dict.fromkeys([*(node_of[pod.key] for pod in ahead), *claims]))

    async def _let_pods_in(self, name: str) -> None:
        node = self.cluster.get(NODE, name)
        if node is None:
            return
        others = [to_wire(t) for t in node.spec.taints if not taints.same(t, taints.HELD)]
        try:
            opened = await self.api.patch(
                NODE,
                name,
                {"spec": {"taints": others or None}},
                resource_version=node.metadata.resource_version,
            )
        except (ConflictError, NotFoundError):
            return  # what has changed brings it back
        self.cluster.observe(NODE, opened)

    def _bars_daemons(self) -> bool:
        """Whether something that nodes may need to be ready would be held off them."""
        return any(
            taints.untolerated([taints.NOT_READY], tolerations) is None
            and taints.untolerated([taints.HELD], tolerations) is not None
            for tolerations in (
                daemon.spec.template.spec.tolerations for daemon in self.cluster.list(DAEMON_SET)
            )
        )


def _is_coming(node: Node) -> bool:
    """Whether a node has joined and lets no pods in yet: it is held, or will be in a moment."""
    return not node.metadata.is_deleting and any(
        taints.same(taint, taints.HELD) or taint.key == labels.UNREGISTERED_TAINT
        for taint in node.spec.taints
    )


def _launched_at(claim: NodeClaim) -> datetime | None:
    launched = conditions.find(claim.status.conditions, LAUNCHED)
    return launched.last_transition_time if launched is not None and launched.is_true else None
