"""The pending pods that need a new node.

kube-scheduler reports them pod by pod, which takes seconds for hundreds of pods. A report about one
pod applies to all pods that its owner created from the same template and that existed at that time.
It does not apply to later pods, because capacity may have become free.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from controller.apis.kubernetes.pods import Pod
from controller.state.pods import are_alike, controller_of, is_provisionable, is_untried

MAX_UNTRIED_AGE = timedelta(seconds=10)
"""The age up to which a pod that no scheduler has tried is expected to be tried soon."""


@dataclass(frozen=True, slots=True)
class _Observation:
    pod: Pod
    sequence: int


class PendingPods:
    """The pods that a scheduler reported unschedulable, and untried pods that are equal to them.

    Keys are `namespace/name`.
    """

    def __init__(self) -> None:
        self._sequence = 0
        self._first_seen: dict[str, int] = {}
        self._unschedulable: dict[str, Pod] = {}
        self._untried: dict[str, _Observation] = {}
        self._last_unschedulable: dict[str, _Observation] = {}  # by controller
        self._predicted: set[str] = set()

    def change(self, before: Pod | None, after: Pod | None) -> None:
        """Apply the change of a pod from `before` to `after`; None if the pod does not exist."""
        self._sequence += 1
        key = after.key if after is not None else before.key if before is not None else ""
        if after is None or after.spec.node_name:
            self._first_seen.pop(key, None)
        else:
            self._first_seen.setdefault(key, self._sequence)
        seen = self._untried.pop(key, None)
        was_unschedulable = self._unschedulable.pop(key, None)
        if after is not None and is_provisionable(after):
            self._unschedulable[key] = after
            if was_unschedulable is None:
                self._record_unschedulable(after, seen)
            return
        self._predicted.discard(key)
        if after is not None and is_untried(after):
            self._untried[key] = self._observation(after, seen)
        if was_unschedulable is not None:
            self._forget_unschedulable(was_unschedulable)

    def position(self, key: str) -> float:
        """Return the sequence number of an unbound pod's first event; infinite for other pods.

        Pods that were seen earlier have smaller numbers.
        """
        return self._first_seen.get(key, math.inf)

    def all(self) -> tuple[Pod, ...]:
        """Return the pending pods, sorted by name."""
        predicted = {k: seen.pod for k, seen in self._untried.items() if self._is_predicted(seen)}
        pending = self._unschedulable | predicted
        return tuple(pending[key] for key in sorted(pending))

    def undecided_pods(self) -> tuple[Pod, ...]:
        """Return the pods that no scheduler has tried yet and that are not known to be pending."""
        return tuple(seen.pod for seen in self._untried.values() if not self._is_predicted(seen))

    def has_undecided(self, now: datetime) -> bool:
        """Whether a scheduler that reported unschedulable pods still has new pods to try.

        Pods that are `MAX_UNTRIED_AGE` old do not count.
        """
        schedulers = {pod.spec.scheduler_name for pod in self._unschedulable.values()}
        return any(
            now - (seen.pod.metadata.creation_timestamp or now) < MAX_UNTRIED_AGE
            and seen.pod.spec.scheduler_name in schedulers
            and not self._is_predicted(seen)
            for seen in self._untried.values()
        )

    def becomes_pending(self, before: Pod | None, after: Pod | None) -> bool:
        """Whether a pod is pending after a change.

        False if the change only confirms that an untried pod is unschedulable, as a report on an
        equal pod predicted. `before` and `after` are the pod before and after the change; None if
        it did not exist.
        """
        if after is None or not is_provisionable(after):
            return False
        was_untried = before is not None and is_untried(before)
        return not (was_untried and after.key in self._predicted)

    def _record_unschedulable(self, pod: Pod, seen: _Observation | None) -> None:
        """Record a pod that was just reported unschedulable as the latest of its owner."""
        if seen is not None and self._is_predicted(seen):
            self._predicted.add(pod.key)
        self._last_unschedulable[controller_of(pod)] = _Observation(pod, self._sequence)

    def _forget_unschedulable(self, pod: Pod) -> None:
        latest = self._last_unschedulable.get(controller_of(pod))
        if latest is not None and latest.pod.key == pod.key:
            del self._last_unschedulable[controller_of(pod)]

    def _observation(self, pod: Pod, seen: _Observation | None) -> _Observation:
        """Return an untried pod with the sequence number of its first event."""
        if seen is not None and seen.pod.metadata.uid == pod.metadata.uid:
            return replace(seen, pod=pod)
        return _Observation(pod, self._sequence)

    def _is_predicted(self, seen: _Observation) -> bool:
        last = self._last_unschedulable.get(controller_of(seen.pod))
        return last is not None and last.sequence > seen.sequence and are_alike(last.pod, seen.pod)
