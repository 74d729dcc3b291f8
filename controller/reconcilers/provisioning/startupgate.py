"""Keeps pods off new nodes until kube-scheduler knows the planned node of each pod.

kube-scheduler tries every pending pod again whenever a node opens, and clears the nomination of a
pod that it cannot schedule. Without nominations, pods take the first free capacity, and in the end
one pod fits nowhere. So Joiner holds a node that was launched together with others: from
registration until it is Ready, it has Joiner's own taint. Then Joiner nominates the node for its
pods and removes the taint. Nodes that are Ready at almost the same time open together, and briefly
wait for nodes of the same launch that have not registered yet.

Joiner opens each node by a write of its own. After the first write, kube-scheduler tries at least
one pod per millisecond. So Joiner sends the writes in the order in which kube-scheduler tries the
nodes' pods, and does not wait for the responses: they would arrive after the events of all pods
that are bound meanwhile.

A node may need DaemonSet pods to become Ready, which tolerate `node.kubernetes.io/not-ready`. If
one of these DaemonSets does not tolerate Joiner's taint as well, Joiner holds no node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from controller.apis.karpenter.nodeclaim import LAUNCHED, NodeClaim
from controller.apis.kinds import DAEMON_SET, NODE, NODE_CLAIM
from controller.apis.kubernetes import conditions
from controller.apis.kubernetes.meta import to_wire
from controller.apis.kubernetes.nodes import Node
from controller.apiserver.errors import ConflictError, NotFoundError
from controller.constraints import taints
from controller.reconcilers.clock import first_past
from controller.reconcilers.ports import Ports, PortUser
from controller.reconcilers.provisioning.nomination import Nomination
from controller.state.nodes import is_up
from controller.state.pods import is_untried

PATIENCE = timedelta(seconds=2)
"""How long a Ready node waits for nodes that are not, so that they open together."""

TRIED_WITHIN_PATIENCE = 100
"""How many pods kube-scheduler surely tries within `PATIENCE`; with more, Joiner does not wait for
it."""

AGAIN = timedelta(milliseconds=100)
"""How soon to check again whether kube-scheduler has tried the pods."""

NO_TIME = timedelta(0)


@dataclass(frozen=True, slots=True)
class _Check:
    """A check of all held nodes: the node that made it, its time, and when that node repeats it."""

    node: str
    up: frozenset[str]
    at: datetime
    again_at: datetime

    def covers(self, node: str, now: datetime) -> bool:
        """Whether the check covers a node, given by UID, so that it need not check itself."""
        # After a clock was set back the remaining time is unknown.
        return node != self.node and node in self.up and self.at <= now < self.again_at


@dataclass(slots=True)
class StartupGate(PortUser):
    """Holds new nodes, and opens them once their pods are nominated."""

    ports: Ports
    nomination: Nomination
    _up_since: dict[str, datetime] = field(default_factory=dict)
    _last_check: _Check | None = None
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def on_launch(self, claim: NodeClaim) -> None:
        """Nominate the future node for its pods while the claim's instance starts."""
        await self.nomination.nominate_on_launch(claim)

    async def on_join(self, claim: NodeClaim, node: Node) -> bool:
        """Nominate the node for its pods, or return True to hold it until they are nominated."""
        name = node.metadata.name
        if (
            self.nomination.plan.others_pending(claim.metadata.name, name)
            and self.nomination.expected_pods(claim, name)
            and not self._keeps_off_daemons()
        ):
            return True
        await self.nomination.nominate(claim, name)
        return False

    async def open_if_ready(self, node: Node) -> timedelta | None:
        """Open a held node, together with all other held nodes that are Ready.

        Returns how long the node still waits; None if it is open, or not Ready yet.
        """
        async with self._lock:  # two concurrent runs would open the same nodes
            now = self.clock()
            last, own = self._last_check, node.metadata.uid
            if last is not None and last.covers(own, now):
                return last.again_at - now
            coming = list(filter(self.cluster.manages, self.cluster.closed_nodes()))
            up = [other for other in coming if taints.is_held(other.spec.taints) and is_up(other)]
            self._up_since = {
                other.metadata.name: first_past(now, self._up_since.get(other.metadata.name))
                for other in up
            }
            since = self._up_since.get(node.metadata.name)
            if since is None:
                return None
            left = since + PATIENCE - now
            all_up = len(up) == len(coming) and not self._others_are_registering(up)
            if not all_up and left > NO_TIME:
                return self._check_again(node, up, now, left)
            if left > NO_TIME and self._are_about_to_be_tried(up):
                return self._check_again(node, up, now, min(left, AGAIN))
            await self._open(up)
            return None

    def _check_again(
        self, node: Node, up: Iterable[Node], now: datetime, pause: timedelta
    ) -> timedelta:
        """Return how long a node waits; until then, its check covers the other nodes.

        Each check reads all nodes, so one check per node would take quadratic time.
        """
        others = frozenset(other.metadata.uid for other in up)
        self._last_check = _Check(node.metadata.uid, others, now, now + pause)
        return pause

    def _are_about_to_be_tried(self, nodes: Iterable[Node]) -> bool:
        """Whether kube-scheduler is about to try the last pods for the first time.

        It tries such pods before all others, and would clear their nominations.
        """
        untried = sum(
            is_untried(pod)
            for node in nodes
            if (claim := self.cluster.claim_of(node)) is not None
            for pod in self.nomination.expected_pods(claim, node.metadata.name)
        )
        return 0 < untried <= TRIED_WITHIN_PATIENCE

    def _others_are_registering(self, nodes: Sequence[Node]) -> bool:
        """Whether nodes of the same launch that have planned pods have not registered yet."""
        known = [_launched_at(claim) for node in nodes if (claim := self.cluster.claim_of(node))]
        launches = [moment for moment in known if moment is not None]
        if not launches:
            return False
        first, last = min(launches) - PATIENCE, max(launches) + PATIENCE
        return any(
            first <= launched <= last
            for name in self.nomination.plan.planned_nodes()
            if (claim := self.cluster.get(NODE_CLAIM, name)) is not None
            and not claim.metadata.is_deleting
            and self.cluster.node_of(claim) is None
            and self.nomination.plan.expected_on(name)
            and (launched := _launched_at(claim)) is not None
        )

    async def _open(self, nodes: Sequence[Node]) -> None:
        claims = {node.metadata.name: self.cluster.claim_of(node) for node in nodes}
        await self._nominate(claims)
        await self._nominate(claims)  # kube-scheduler may have cleared some nominations meanwhile
        # The requests are sent in order, and none waits for the response to another.
        await asyncio.gather(*map(self._remove_hold_taint, self._in_queue_order(claims)))
        # Nominations that kube-scheduler cleared while the nodes were held are written again.
        await asyncio.gather(*map(self.nomination.reconcile, claims))

    async def _nominate(self, claims: Mapping[str, NodeClaim | None]) -> None:
        await asyncio.gather(
            *(self.nomination.nominate(claim, name) for name, claim in claims.items() if claim)
        )

    def _in_queue_order(self, claims: Mapping[str, NodeClaim | None]) -> list[str]:
        """Sort nodes so that the node whose pods kube-scheduler tries first comes first."""
        expected = [
            (pod, name)
            for name, claim in claims.items()
            if claim is not None
            for pod in self.nomination.expected_pods(claim, name)
        ]
        node_of = {pod.key: name for pod, name in expected}
        queue = self.cluster.in_queue_order(pod for pod, _ in expected)
        # kube-scheduler tries untried pods first.
        ahead = sorted(queue, key=lambda pod: (-(pod.spec.priority or 0), not is_untried(pod)))
        return list(dict.fromkeys([*(node_of[pod.key] for pod in ahead), *claims]))

    async def _remove_hold_taint(self, name: str) -> None:
        node = self.cluster.get(NODE, name)
        if node is None:
            return
        others = [to_wire(t) for t in node.spec.taints if not taints.are_same(t, taints.HELD)]
        try:
            opened = await self.api.patch(
                NODE,
                name,
                {"spec": {"taints": others or None}},
                resource_version=node.metadata.resource_version,
            )
        except (ConflictError, NotFoundError):
            return  # the change triggers another run
        self.cluster.observe(NODE, opened)

    def _keeps_off_daemons(self) -> bool:
        """Whether a DaemonSet tolerates nodes that are not ready, but not the hold taint."""
        return any(
            taints.untolerated_taint([taints.NOT_READY], tolerations) is None
            and taints.untolerated_taint([taints.HELD], tolerations) is not None
            for tolerations in (
                daemon.spec.template.spec.tolerations for daemon in self.cluster.list(DAEMON_SET)
            )
        )


def _launched_at(claim: NodeClaim) -> datetime | None:
    launched = conditions.find(claim.status.conditions, LAUNCHED)
    return launched.last_transition_time if launched is not None and launched.is_true else None
