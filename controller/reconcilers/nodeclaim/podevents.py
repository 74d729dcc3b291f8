"""Records when a pod was last bound to or left a node, which starts `consolidateAfter`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from controller.apis.kinds import NODE, NODE_CLAIM
from controller.apis.kubernetes.pods import Pod
from controller.reconcilers.ports import Ports, PortUser
from controller.state.pods import is_daemon, is_static, is_terminal

WINDOW = timedelta(seconds=10)
"""The shortest time between two writes of a NodeClaim's last pod event."""


@dataclass(frozen=True, slots=True)
class PodEvents(PortUser):
    """Writes `status.lastPodEventTime` of the NodeClaim of a node whose pods changed."""

    ports: Ports

    async def reconcile(self, node_name: str) -> timedelta | None:
        """Write the current time to the node's NodeClaim, unless it was written within `WINDOW`.

        Returns None: only the next pod event needs another call.
        """
        node = self.cluster.get(NODE, node_name)
        claim = self.cluster.claim_of(node) if node is not None else None
        if claim is None or claim.metadata.is_deleting:
            return None
        now, known = self.clock(), claim.status.last_pod_event_time
        # A clock that ran ahead wrote a future time: overwrite it.
        if known is not None and timedelta(0) <= now - known < WINDOW:
            return None
        updated = await self.api.patch(
            NODE_CLAIM,
            claim.metadata.name,
            {"status": {"lastPodEventTime": now.strftime("%Y-%m-%dT%H:%M:%SZ")}},
            subresource="status",
        )
        self.cluster.observe(NODE_CLAIM, updated)
        return None


def affected_node(before: Pod | None, after: Pod | None) -> str | None:
    """Return the node that a pod was bound to or left by this change, or None.

    A pod leaves its node when it succeeds, fails, terminates or is deleted. DaemonSet and static
    pods do not count.
    """
    pod = after or before
    if pod is None or not pod.spec.node_name or is_daemon(pod) or is_static(pod):
        return None
    return pod.spec.node_name if _stage(before) != _stage(after) else None


def _stage(pod: Pod | None) -> str:
    if pod is None:
        return "gone"
    if is_terminal(pod):
        return "ended"
    if pod.metadata.is_deleting:
        return "terminating"
    return "bound" if pod.spec.node_name else "waiting"
