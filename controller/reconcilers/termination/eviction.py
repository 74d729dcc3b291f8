"""Asks the API server to let a pod go, and takes its no for an answer.

A pod that may not go is asked for less and less often, each by itself: a budget can
stay spent for hours, and a thousand such pods must not keep the API server busy.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from controller.apis.kinds import NODE, POD
from controller.apis.nodes import Node
from controller.apis.pods import Pod
from controller.apiserver.errors import ApiError, ConflictError, NotFoundError, TooManyRequestsError
from controller.apiserver.port import ApiServer
from controller.reconcilers.clock import Clock
from controller.telemetry.events import Recorder
from controller.telemetry.metrics import Metrics

FIRST_PAUSE = timedelta(milliseconds=100)
LONGEST_PAUSE = timedelta(seconds=10)
"""How long a pod is left alone after its first refusal, and after many; as with Karpenter."""

_SEVERAL_BUDGETS = "more than one PodDisruptionBudget"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Refused:
    """A pod that was refused so many `times` in a row, the last time `at` this moment."""

    times: int
    at: datetime

    def is_left_alone(self, now: datetime) -> bool:
        """Whether it is too soon to ask again."""
        return self.at <= now < self.at + pause(self.times)


@dataclass(frozen=True, slots=True)
class Eviction:
    """Evicts pods one at a time; each answer is counted and told."""

    api: ApiServer
    recorder: Recorder
    metrics: Metrics
    clock: Clock
    _refused: dict[str, dict[str, _Refused]] = field(default_factory=dict)
    """Node's uid → pod's uid → what was said last."""

    async def evict(self, pod: Pod, node: Node) -> bool:
        """Ask for the pod's eviction; returns False when it may not go now, or not so soon."""
        refusals = self._refused.setdefault(node.metadata.uid, {})
        last = refusals.get(pod.metadata.uid)
        if last is not None and last.is_left_alone(self.clock()):
            return False
        try:
            await self.api.evict(pod.metadata.name, pod.metadata.namespace, uid=pod.metadata.uid)
        except (NotFoundError, ConflictError) as error:
            refusals.pop(pod.metadata.uid, None)
            self.metrics.evicted(error.status)
            return True
        except ApiError as error:
            self.metrics.evicted(error.status)
            times = 1 if last is None else last.times + 1
            refusals[pod.metadata.uid] = _Refused(times, self.clock())
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
        refusals.pop(pod.metadata.uid, None)
        self.metrics.evicted(200)
        await self.recorder.publish(POD, pod, "Normal", "Evicted", "Evicted pod")
        return True

    def forget(self, node: Node) -> None:
        """Drop what is known of the pods of a node that has gone."""
        self._refused.pop(node.metadata.uid, None)

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


def pause(refusals: int) -> timedelta:
    """Return how long a pod is left alone after so many refusals in a row."""
    # The exponent is bounded so that a refusal of days does not overflow.
    return min(FIRST_PAUSE * 2.0 ** min(refusals - 1, 30), LONGEST_PAUSE)
