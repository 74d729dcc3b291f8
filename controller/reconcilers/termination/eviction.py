"""Evicts pods through the Eviction API, with a backoff for each pod.

A PodDisruptionBudget can prevent an eviction for hours, and retries for a thousand such pods must
not overload the API server.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from controller.apis.kinds import POD
from controller.apis.kubernetes.nodes import Node
from controller.apis.kubernetes.pods import Pod
from controller.apis.wording import is_namespace_terminating
from controller.apiserver.errors import ApiError, ConflictError, NotFoundError, TooManyRequestsError
from controller.reconcilers.ports import Ports, PortUser

FIRST_PAUSE = timedelta(milliseconds=100)
LONGEST_PAUSE = timedelta(seconds=10)
"""The shortest and longest time between two eviction requests for a pod, as in Karpenter."""

_SEVERAL_BUDGETS = "more than one PodDisruptionBudget"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Refused:
    """A pod whose eviction was refused `times` in a row, last at `at`."""

    times: int
    at: datetime
    why: str = ""
    """Why the API server or a webhook refused it; empty if a PodDisruptionBudget did."""

    def is_backing_off(self, now: datetime) -> bool:
        """Whether the backoff has not elapsed."""
        return self.at <= now < self.at + pause(self.times)


@dataclass(frozen=True, slots=True)
class Eviction(PortUser):
    """Evicts pods; each response is counted and published as an event."""

    ports: Ports
    _refused: dict[str, dict[str, _Refused]] = field(default_factory=dict)
    """The last refusal for each pod, by the UIDs of node and pod."""

    _forced: dict[str, dict[str, datetime]] = field(default_factory=dict)
    """The node's deadline when a pod was deleted, by the UIDs of node and pod."""

    async def evict(self, pod: Pod, node: Node, *, purpose: str = "drain node") -> bool:
        """Evict the pod; returns False if it was refused or the backoff has not elapsed.

        Events are published on the draining `node`, too; `purpose` is part of their message.

        Raises:
            ApiError: the request failed for another reason than a PodDisruptionBudget or the
                deletion of the namespace.

        """
        refusals = self._refused.setdefault(node.metadata.uid, {})
        last = refusals.get(pod.metadata.uid)
        if last is not None and last.is_backing_off(self.clock()):
            return False
        try:
            await self.api.evict(pod.metadata.name, pod.metadata.namespace, uid=pod.metadata.uid)
        except (NotFoundError, ConflictError) as error:
            refusals.pop(pod.metadata.uid, None)
            self.metrics.record_eviction(error.status)
            return True
        except ApiError as error:
            self.metrics.record_eviction(error.status)
            times = 1 if last is None else last.times + 1
            refusals[pod.metadata.uid] = _Refused(times, self.clock())
            if is_namespace_terminating(error):
                fields = {"Pod": pod.key, "Node": node.metadata.name}
                log.debug("pod is deleted with its namespace", extra=fields)
                return False
            refused = isinstance(error, TooManyRequestsError) or _SEVERAL_BUDGETS in str(error)
            why = "evicting pod violates a PDB" if refused else "the eviction was refused"
            message = f"Failed to {purpose}, {why} (Pod={pod.key}): {error}"
            await self.recorder.publish(node, "Warning", "FailedDraining", message)
            if not refused:
                refusals[pod.metadata.uid] = _Refused(times, self.clock(), f"{pod.key}: {error}")
                raise
            return False
        refusals.pop(pod.metadata.uid, None)
        self.metrics.record_eviction(200)
        await self.recorder.publish(pod, "Normal", "Evicted", "Evicted pod")
        return True

    def refusal(self, node: Node) -> str:
        """Return why a pod of the node cannot be evicted; empty without a reason but budgets."""
        refusals = self._refused.get(node.metadata.uid, {})
        return next((refused.why for refused in refusals.values() if refused.why), "")

    def forget(self, node: Node) -> None:
        """Drop the state of a deleted node's pods."""
        self._refused.pop(node.metadata.uid, None)
        self._forced.pop(node.metadata.uid, None)

    async def force(self, pod: Pod, node: Node, *, deadline: datetime, now: datetime) -> None:
        """Delete a pod regardless of PodDisruptionBudgets, so that it ends before the deadline.

        The request is repeated only if the deadline becomes earlier.
        """
        forced = self._forced.setdefault(node.metadata.uid, {})
        known = forced.get(pod.metadata.uid)
        if known is not None and known <= deadline:
            return
        # Never 0: that would drop the object while the containers still run.
        grace = max(int((deadline - now).total_seconds()), 1)
        await self.recorder.publish(
            pod, "Normal", "Disrupted", "Deleting the pod to accommodate the terminationTime"
        )
        try:
            await self.api.delete(
                POD,
                pod.metadata.name,
                namespace=pod.metadata.namespace,
                uid=pod.metadata.uid,
                grace_period_seconds=grace,
            )
        except (NotFoundError, ConflictError):
            fields = {"Pod": pod.key, "Node": node.metadata.name}
            log.debug("pod is already deleted or replaced", extra=fields)
        forced[pod.metadata.uid] = deadline


def pause(refusals: int) -> timedelta:
    """Return the backoff after this many refusals in a row."""
    # The exponent is bounded, because refusals for days would overflow it.
    return min(FIRST_PAUSE * 2.0 ** min(refusals - 1, 30), LONGEST_PAUSE)
