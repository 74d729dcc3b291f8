"""Asks the API server to let a pod go, and takes its no for an answer."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime

from controller.apis.kinds import NODE, POD
from controller.apis.nodes import Node
from controller.apis.pods import Pod
from controller.apiserver.errors import ApiError, ConflictError, NotFoundError, TooManyRequestsError
from controller.apiserver.port import ApiServer
from controller.telemetry.events import Recorder
from controller.telemetry.metrics import Metrics

_SEVERAL_BUDGETS = "more than one PodDisruptionBudget"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Eviction:
    """Evicts pods one at a time; each answer is counted and told."""

    api: ApiServer
    recorder: Recorder
    metrics: Metrics

    async def evict(self, pod: Pod, node: Node) -> bool:
        """Ask for the pod's eviction; returns False when a budget forbids it now."""
        try:
            await self.api.evict(pod.metadata.name, pod.metadata.namespace, uid=pod.metadata.uid)
        except (NotFoundError, ConflictError) as error:
            self.metrics.evicted(error.status)
            return True
        except ApiError as error:
            self.metrics.evicted(error.status)
            refused = isinstance(error, TooManyRequestsError) or _SEVERAL_BUDGETS in str(error)
            if not refused:
                raise
            await self.recorder.publish(
                NODE,
                node,
                "Warning",
                "FailedDraining",
                f'Failed to evict pod "{pod.key}": {error}',
            )
            return False
        self.metrics.evicted(200)
        await self.recorder.publish(POD, pod, "Normal", "Evicted", "Evicted pod")
        return True

    async def force(self, pod: Pod, *, deadline: datetime, now: datetime) -> None:
        """Delete a pod past budgets, so that it has ended when the node's time is up."""
        # Never 0: that would drop the object while the containers still run.
        grace = max(int((deadline - now).total_seconds()), 1)
        await self.recorder.publish(
            POD, pod, "Normal", "Disrupted", "Deleting the pod to accommodate the terminationTime"
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
            log.debug("pod went by itself", extra={"Pod": pod.key})
