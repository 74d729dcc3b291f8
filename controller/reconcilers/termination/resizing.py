"""Reports in-place resizes of pods that the kubelet cannot apply."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import msgspec

from controller.apis.kinds import NODE, POD
from controller.apis.kubernetes.conditions import Condition
from controller.apis.kubernetes.nodes import Node
from controller.apis.kubernetes.pods import Pod, PodStatus
from controller.apis.kubernetes.quantities import written
from controller.constraints.resources import Resources, less, parsed, pod_requests, total
from controller.reconcilers.ports import Ports, PortUser
from controller.state.pods import is_terminal, pending_resize

CHECKED = timedelta(minutes=1)
"""How often a node with a pending resize is checked again."""

INFEASIBLE = "Infeasible"


@dataclass(frozen=True, slots=True)
class Resizing(PortUser):
    """Publishes why the kubelet of a node cannot apply a resize."""

    ports: Ports

    async def reconcile(self, node_name: str) -> timedelta | None:
        """Report the pending resizes on a node of ours; returns when to check them again."""
        node = self.cluster.get(NODE, node_name)
        if node is None or self.cluster.claim_of(node) is None:
            return None
        pods = [pod for pod in self.cluster.pods_on(node_name) if not is_terminal(pod)]
        resized = [(pod, pending) for pod in pods if (pending := pending_resize(pod)) is not None]
        for pod, pending in resized:
            await self._report(pod, pending, node, pods)
        return CHECKED if resized else None

    async def _report(self, pod: Pod, pending: Condition, node: Node, pods: Sequence[Pod]) -> None:
        name = node.metadata.name
        if pending.reason == INFEASIBLE:
            message = (
                f"Resize is infeasible on node {name}: {pending.message}. "
                "Recreate the pod with these requests to have it run on a larger node"
            )
        elif lack := _lacking(pod, node, pods):
            message = (
                f"Resize is deferred: node {name} has {lack}. "
                "The kubelet applies the resize when enough other pods have left the node"
            )
        else:
            return  # Other pods have left: the kubelet is about to apply the resize.
        await self.recorder.publish(
            POD,
            pod,
            "Warning",
            "ResizePending",
            message,
            dedupe_by=f"{pending.reason}/{pending.observed_generation}",
        )


def _lacking(pod: Pod, node: Node, pods: Sequence[Pod]) -> str:
    """Return which resources the node lacks for the resized pod, empty if it lacks none."""
    others = total(pod_requests(other) for other in pods if other is not pod)
    available = less(parsed(node.status.allocatable), others)
    return ", ".join(
        f"{written(max(available.get(name, 0), 0), name)} {name} available for the pod, "
        f"{written(amount, name)} requested"
        for name, amount in sorted(_desired(pod).items())
        if amount > available.get(name, 0)
    )


def _desired(pod: Pod) -> Resources:
    """Return the requests of the pod's spec, applied or not."""
    return pod_requests(msgspec.structs.replace(pod, status=PodStatus()))
