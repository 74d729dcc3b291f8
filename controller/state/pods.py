"""What a pod's state means to an autoscaler: whether it waits, stays or must move."""

from __future__ import annotations

from datetime import datetime, timedelta
from operator import attrgetter

from controller.apis import conditions, durations, labels
from controller.apis.pods import Pod

_KIND = attrgetter("kind", "api_version")

MIRROR_ANNOTATIONS = ("kubernetes.io/config.source", "kubernetes.io/config.mirror")


def is_terminal(pod: Pod) -> bool:
    """Whether the pod has run to its end and needs no node any more."""
    return pod.status.phase in ("Succeeded", "Failed")


def is_owned_by(pod: Pod, api_version: str, kind: str) -> bool:
    """Whether an object of this kind owns the pod."""
    owners = pod.metadata.owner_references
    return bool(owners) and (kind, api_version) in map(_KIND, owners)


def controller_of(pod: Pod) -> str:
    """Return the uid of the workload that makes pods such as this one; empty without one."""
    references = pod.metadata.owner_references
    return next((reference.uid for reference in references if reference.controller), "")


def are_alike(pod: Pod, other: Pod) -> bool:
    """Whether one workload made both pods from the same template, and nobody has told them apart
    since: what a scheduler says of the one holds for the other.

    Labels count, by which rules of other pods may speak of the one and not of the other.
    """
    maker = controller_of(pod)
    return (
        bool(maker)
        and maker == controller_of(other)
        and pod.spec == other.spec
        and pod.metadata.labels == other.metadata.labels
    )


def is_daemon(pod: Pod) -> bool:
    """Whether a DaemonSet owns the pod: it comes with its node and goes with it."""
    return is_owned_by(pod, "apps/v1", "DaemonSet")


def is_static(pod: Pod) -> bool:
    """Whether the kubelet made the pod from a file of its own: nobody can move it."""
    annotations = pod.metadata.annotations
    return is_owned_by(pod, "v1", "Node") or (
        bool(annotations) and any(annotations.get(n, "api") != "api" for n in MIRROR_ANNOTATIONS)
    )


def is_provisionable(pod: Pod) -> bool:
    """Whether the pod waits for a node that somebody has to make.

    The scheduler must have given up on it (`PodScheduled` with reason `Unschedulable`);
    which scheduler that is does not matter. A pod with a nominated node waits too: it has
    a place in the plan, and needs another when that comes to nothing.
    """
    if pod.spec.node_name or is_terminal(pod):
        return False
    scheduled = conditions.find(pod.status.conditions, "PodScheduled")
    if scheduled is None or scheduled.reason != "Unschedulable":
        return False
    return not is_daemon(pod) and not is_owned_by(pod, "v1", "Node")


def is_untried(pod: Pod) -> bool:
    """Whether the scheduler has not had its say about the pod yet."""
    if pod.spec.node_name or is_terminal(pod) or pod.metadata.is_deleting:
        return False
    if is_daemon(pod) or is_static(pod):
        return False
    return conditions.find(pod.status.conditions, "PodScheduled") is None


def is_reschedulable(pod: Pod) -> bool:
    """Whether the pod will need another node when its own goes.

    A pod that is already terminating comes back only when a StatefulSet waits for its
    name to be free.
    """
    if is_terminal(pod) or is_daemon(pod) or is_static(pod):
        return False
    return not pod.metadata.is_deleting or is_owned_by(pod, "apps/v1", "StatefulSet")


def forbids_disruption(pod: Pod, now: datetime) -> bool:
    """Whether the pod's `karpenter.sh/do-not-disrupt` holds now: never that of one that has ended,
    or is ending anyway.

    The annotation is `true`, or a duration counted from the pod's start; a text that is
    neither protects nothing.
    """
    if labels.DO_NOT_DISRUPT not in pod.metadata.annotations:
        return False
    if is_terminal(pod) or pod.metadata.is_deleting:
        return False
    try:
        protected = protected_for(pod)
    except ValueError:
        return False
    if protected is None or pod.status.start_time is None:
        return True
    return now < pod.status.start_time + protected


def protected_for(pod: Pod) -> timedelta | None:
    """Return for how long after the pod's start its `karpenter.sh/do-not-disrupt` holds; None for
    ever.

    Raises:
        ValueError: it is neither `true` nor a duration.

    """
    value = pod.metadata.annotations[labels.DO_NOT_DISRUPT]
    if value == "true":
        return None
    protected = durations.parse_finite(value)
    if not protected:
        raise ValueError(f"{value!r} is no time at all")
    return protected
