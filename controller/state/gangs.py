"""Gangs: pods that are scheduled together or not at all.

A pod belongs to a gang by one of these, the first that it has:

* `spec.schedulingGroup`, the PodGroup of Kubernetes 1.36 and later
* the label of the coscheduling plugin, `scheduling.x-k8s.io/pod-group`
* Kueue's label of a pod group, or its annotation of an admitted job
* the labels of a LeaderWorkerSet's group, or of a JobSet

A PodGroup states how many of its pods must be scheduled together. A LeaderWorkerSet and a pod group
of Kueue state their size. In other gangs all existing pods are scheduled together.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from controller.apis import labels
from controller.apis.kubernetes.pods import Pod
from controller.apis.kubernetes.workloads import PodGroup
from controller.state.pods import is_terminal


@dataclass(frozen=True, slots=True)
class Gang:
    """A gang with pending pods.

    `min_count` of its pods are scheduled together or not at all; `bound` of them have a node.
    `existing` counts the pods that are pending or bound. If `topology_key` is set, all pods run in
    one domain of this node label.
    """

    name: str
    min_count: int
    bound: int
    existing: int
    topology_key: str = ""


def gang_of(pod: Pod) -> str:
    """Return the gang of a pod as `namespace/name`; empty if it has none."""
    own, group = pod.metadata, pod.spec.scheduling_group
    index = own.labels.get(labels.LWS_GROUP_INDEX)
    candidates = (
        group.pod_group_name if group is not None else "",
        own.labels.get(labels.COSCHEDULING_GROUP),
        own.labels.get(labels.KUEUE_GROUP),
        own.annotations.get(labels.KUEUE_WORKLOAD),
        f"{own.labels.get(labels.LWS_NAME, '')}-{index}" if index else "",
        own.labels.get(labels.JOBSET_NAME),
    )
    name = next(filter(None, candidates), "")
    return f"{own.namespace}/{name}" if name else ""


class GangReader:
    """Determines the gangs of pods; pods of a PodGroup without a gang policy have none."""

    def __init__(self, pod_groups: Iterable[PodGroup]) -> None:
        self.groups = {one.metadata.key: one for one in pod_groups}

    def gang_of(self, pod: Pod) -> str:
        """Return the gang of a pod as `namespace/name`; empty if it has none."""
        name = gang_of(pod)
        group = self.groups.get(name)
        return name if group is None or _least(group) is not None else ""

    def min_count(self, name: str, pods: Sequence[Pod]) -> int:
        """Return the number of pods of a gang that run together: as stated, or else all `pods`."""
        group = self.groups.get(name)
        stated_count = _least(group) if group is not None else _size(pods[0])
        return stated_count or len(pods)

    def restarting_pods(self, name: str, pods: Iterable[Pod], lost: Collection[str]) -> list[Pod]:
        """Return the pods of a gang that restart because others are lost; none if enough stay.

        `pods` are the bound pods of the gang, `lost` the keys of the pods that it loses.
        """
        running = [pod for pod in pods if not is_terminal(pod)]
        staying = [pod for pod in running if pod.key not in lost and stays(pod)]
        return staying if staying and len(staying) < self.min_count(name, running) else []


def stays(pod: Pod) -> bool:
    """Whether a bound pod is neither terminal nor terminating."""
    return not is_terminal(pod) and not pod.metadata.is_deleting


def gangs_among(
    pending: Sequence[Pod], bound: Iterable[Pod], pod_groups: Iterable[PodGroup]
) -> dict[str, Gang]:
    """Return the gangs of the pending pods, by name.

    A bound pod does not count if it is terminating, or if it is among the pending pods because its
    node is being deleted. Cost: O(bound pods) if any pending pod belongs to a gang.
    """
    reader = GangReader(pod_groups)
    members: dict[str, list[Pod]] = {}
    for pod in pending:
        if name := reader.gang_of(pod):
            members.setdefault(name, []).append(pod)
    if not members:
        return {}
    leaving = {pod.key for pods in members.values() for pod in pods}
    staying: dict[str, list[Pod]] = {name: [] for name in members}
    for pod in bound:
        if (name := gang_of(pod)) in members and stays(pod) and pod.key not in leaving:
            staying[name].append(pod)
    gangs = {}
    for name, pods in members.items():
        existing = len(pods) + len(staying[name])
        min_count = reader.min_count(name, [*pods, *staying[name]])
        key = _topology_key(pods[0], reader.groups.get(name))
        gangs[name] = Gang(name, min_count, len(staying[name]), existing, key)
    return gangs


def _least(group: PodGroup) -> int | None:
    """Return the number of pods of a PodGroup that are scheduled together; None if not stated."""
    gang = group.spec.scheduling_policy.gang
    return gang.min_count if gang is not None else group.spec.min_member


def _size(pod: Pod) -> int | None:
    """Return the size of the gang that the pod's annotations state, or None."""
    for key in (labels.KUEUE_GROUP_SIZE, labels.LWS_SIZE):
        text = pod.metadata.annotations.get(key, "")
        if text.isascii() and text.isdigit() and int(text) > 0:
            return int(text)
    return None


def _topology_key(pod: Pod, group: PodGroup | None) -> str:
    constraints = group.spec.scheduling_constraints if group is not None else None
    keys = [one.key for one in constraints.topology] if constraints is not None else []
    key = next(filter(None, keys), "") or pod.metadata.annotations.get(labels.KUEUE_TOPOLOGY, "")
    return labels.normalize(key)
