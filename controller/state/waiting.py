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

YOUNG = timedelta(seconds=10)
"""How long an untried pod is expected to be tried at any moment."""


@dataclass(frozen=True, slots=True)
class _Observation:
    pod: Pod
    turn: int


class Waiting:
    """Pods that kube-scheduler found no node for, and their untried twins, by `namespace/name`."""

    def __init__(self) -> None:
        self._turn = 0
        self._first_seen: dict[str, int] = {}
        self._refused: dict[str, Pod] = {}
        self._untried: dict[str, _Observation] = {}
        self._last_refusal: dict[str, _Observation] = {}  # by controller
        self._foreseen: set[str] = set()

    def change(self, before: Pod | None, after: Pod | None) -> None:
        """Apply one change of a pod; None if it is absent."""
        self._turn += 1
        key = after.key if after is not None else before.key if before is not None else ""
        if after is None or after.spec.node_name:
            self._first_seen.pop(key, None)
        else:
            self._first_seen.setdefault(key, self._turn)
        seen = self._untried.pop(key, None)
        refused_before = self._refused.pop(key, None)
        if after is not None and is_provisionable(after):
            self._refused[key] = after
            if refused_before is None:
                self._refuse(after, seen)
            return
        self._foreseen.discard(key)
        if after is not None and is_untried(after):
            self._untried[key] = self._observed(after, seen)
        if refused_before is not None:
            self._forget_refusal(refused_before)

    def position(self, key: str) -> float:
        """Return a number that is smaller the earlier an unbound pod was first seen.

        It is infinite for a pod that is bound or absent.
        """
        return self._first_seen.get(key, math.inf)

    def all(self) -> tuple[Pod, ...]:
        """Return the pending pods, sorted by name."""
        twins = {k: seen.pod for k, seen in self._untried.items() if self._has_refused_twin(seen)}
        waiting = self._refused | twins
        return tuple(waiting[key] for key in sorted(waiting))

    def undecided(self) -> tuple[Pod, ...]:
        """Return the pods that no scheduler has tried yet and that are not known to be pending."""
        return tuple(
            seen.pod for seen in self._untried.values() if not self._has_refused_twin(seen)
        )

    def has_undecided(self, now: datetime) -> bool:
        """Whether a scheduler that found no node for other pods still has young pods to try."""
        schedulers = {pod.spec.scheduler_name for pod in self._refused.values()}
        return any(
            now - (seen.pod.metadata.creation_timestamp or now) < YOUNG
            and seen.pod.spec.scheduler_name in schedulers
            and not self._has_refused_twin(seen)
            for seen in self._untried.values()
        )

    def is_news(self, before: Pod | None, after: Pod | None) -> bool:
        """Whether the last changes made a pod pending that was not known to be."""
        if after is None or not is_provisionable(after):
            return False
        was_untried = before is not None and is_untried(before)
        return not (was_untried and after.key in self._foreseen)

    def _refuse(self, pod: Pod, seen: _Observation | None) -> None:
        """Remember a pod that was just reported unschedulable as its owner's latest."""
        if seen is not None and self._has_refused_twin(seen):
            self._foreseen.add(pod.key)
        self._last_refusal[controller_of(pod)] = _Observation(pod, self._turn)

    def _forget_refusal(self, pod: Pod) -> None:
        last = self._last_refusal.get(controller_of(pod))
        if last is not None and last.pod.key == pod.key:
            del self._last_refusal[controller_of(pod)]

    def _observed(self, pod: Pod, seen: _Observation | None) -> _Observation:
        """Return an untried pod with the order in which it was first seen."""
        if seen is not None and seen.pod.metadata.uid == pod.metadata.uid:
            return replace(seen, pod=pod)
        return _Observation(pod, self._turn)

    def _has_refused_twin(self, seen: _Observation) -> bool:
        last = self._last_refusal.get(controller_of(seen.pod))
        return last is not None and last.turn > seen.turn and are_alike(last.pod, seen.pod)
