"""The pods that wait for a node somebody has to make.

kube-scheduler says so pod by pod, and for hundreds it takes seconds. What it said of one
holds for those that their owner made from the same template: they wait as well.
"""

from __future__ import annotations

from controller.apis.pods import Pod
from controller.state.pods import is_provisionable, is_untried


class Waiting:
    """Pods that kube-scheduler found no node for, and their untried twins; by `namespace/name`."""

    def __init__(self) -> None:
        self._refused: dict[str, Pod] = {}
        self._untried: dict[str, Pod] = {}
        self._refused_of: dict[str, dict[str, Pod]] = {}

    def put(self, pod: Pod) -> None:
        """Take in a pod, whether it waits or not."""
        if is_provisionable(pod):
            self._refused[pod.key] = pod
            self._refused_of.setdefault(_owner(pod), {})[pod.key] = pod
        elif is_untried(pod):
            self._untried[pod.key] = pod

    def drop(self, pod: Pod) -> None:
        """Forget a pod, as it was put."""
        self._untried.pop(pod.key, None)
        if self._refused.pop(pod.key, None) is not None:
            siblings = self._refused_of[_owner(pod)]
            del siblings[pod.key]
            if not siblings:
                del self._refused_of[_owner(pod)]

    def all(self) -> tuple[Pod, ...]:
        """Return the pods that wait, by name."""
        twins = {key: pod for key, pod in self._untried.items() if self._has_refused_twin(pod)}
        found = self._refused | twins
        return tuple(found[key] for key in sorted(found))

    def is_news(self, before: Pod | None, after: Pod | None) -> bool:
        """Whether a change, already put, tells of a pod that waits and was not known to.

        That a pod is refused whose twin was refused before is no news.
        """
        if after is None or not (is_provisionable(after) or self._has_refused_twin(after)):
            return False
        return before is None or not is_untried(before) or not self._has_refused_twin(before)

    def _has_refused_twin(self, pod: Pod) -> bool:
        siblings = self._refused_of.get(_owner(pod), {}) if _owner(pod) else {}
        others = (other for key, other in siblings.items() if key != pod.key)
        twin = next(others, None)
        return is_untried(pod) and twin is not None and twin.spec == pod.spec


def _owner(pod: Pod) -> str:
    owners = pod.metadata.owner_references
    return owners[0].uid if owners else ""
