"""The states of a pod that matter to an autoscaler: pending, bound, reschedulable, protected."""

from __future__ import annotations

from datetime import datetime, timedelta
from operator import attrgetter

from controller.apis import labels
from controller.apis.karpenter import durations
from controller.apis.kubernetes import conditions
from controller.apis.kubernetes.conditions import Condition
from controller.apis.kubernetes.meta import OwnerReference
from controller.apis.kubernetes.pods import Pod
from controller.apis.kubernetes.taints import Requirement

_KIND_AND_VERSION = attrgetter("kind", "api_version")

BUILT_IN_WORKLOADS = frozenset({"", "apps", "batch"})
"""The API groups of the workloads of Kubernetes itself."""

MIRROR_ANNOTATIONS = ("kubernetes.io/config.source", "kubernetes.io/config.mirror")


def is_terminal(pod: Pod) -> bool:
    """Whether the pod is terminal and needs no node."""
    return pod.status.phase in ("Succeeded", "Failed")


def is_owned_by(pod: Pod, api_version: str, kind: str) -> bool:
    """Whether an object of this kind owns the pod."""
    owners = pod.metadata.owner_references
    return bool(owners) and (kind, api_version) in map(_KIND_AND_VERSION, owners)


def controller_of(pod: Pod) -> str:
    """Return the UID of the workload that controls the pod; empty if there is none."""
    references = pod.metadata.owner_references
    return next((reference.uid for reference in references if reference.controller), "")


def are_alike(pod: Pod, other: Pod) -> bool:
    """Whether one workload created both pods from the same template, and both are unchanged.

    A scheduler's result for one then applies to the other. Labels must be equal too, because other
    pods' topology rules may select by them.
    """
    owner = controller_of(pod)
    return (
        bool(owner)
        and owner == controller_of(other)
        and pod.spec == other.spec
        and pod.metadata.labels == other.metadata.labels
    )


def is_daemon(pod: Pod) -> bool:
    """Whether the pod exists as long as its node: a DaemonSet owns it, or a controller like it."""
    return is_owned_by(pod, "apps/v1", "DaemonSet") or custom_daemon_controller(pod) is not None


def custom_daemon_controller(pod: Pod) -> OwnerReference | None:
    """Return the controller that bound the pod to its node as a DaemonSet does; None if none did.

    It is a custom resource, and each term of the pod's required node affinity names the same one
    node (`matchFields` of `metadata.name`). The workloads of Kubernetes itself are not among them:
    a ReplicaSet or a Job with such a template keeps all its pods on one node.
    """
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity is not None else None
    if affinity is None or affinity.required is None:
        return None
    named = {
        next((f.values[0] for f in term.match_fields if _names_a_node(f)), "")
        for term in affinity.required.node_selector_terms
    }
    if len(named) != 1 or "" in named:
        return None
    return next(
        (
            owner
            for owner in pod.metadata.owner_references
            if owner.controller and owner.api_version.rpartition("/")[0] not in BUILT_IN_WORKLOADS
        ),
        None,
    )


def _names_a_node(field: Requirement) -> bool:
    return field.key == "metadata.name" and field.operator == "In" and len(field.values) == 1


def is_static(pod: Pod) -> bool:
    """Whether the pod is static: the kubelet created it from a file, so it cannot move."""
    annotations = pod.metadata.annotations
    return is_owned_by(pod, "v1", "Node") or (
        bool(annotations) and any(annotations.get(n, "api") != "api" for n in MIRROR_ANNOTATIONS)
    )


def is_provisionable(pod: Pod) -> bool:
    """Whether the pod is pending and needs a new node.

    A scheduler must have reported it unschedulable (`PodScheduled` with reason `Unschedulable`). A
    pod with a nominated node is included: if the nominated node fails, the pod needs another one. A
    terminating pod that a finalizer keeps is not, because kube-scheduler does not bind it.
    """
    if pod.spec.node_name or is_terminal(pod) or pod.metadata.is_deleting:
        return False
    scheduled = conditions.find(pod.status.conditions, "PodScheduled")
    if scheduled is None or scheduled.reason != "Unschedulable":
        return False
    return not is_daemon(pod) and not is_owned_by(pod, "v1", "Node")


def pending_resize(pod: Pod) -> Condition | None:
    """Return the condition `PodResizePending` while the kubelet cannot apply an in-place resize.

    Its reason is `Deferred` if the node lacks capacity now, or `Infeasible` if the node can never
    hold the pod at its new size. Returns None if no resize is pending.
    """
    pending = conditions.find(pod.status.conditions, "PodResizePending")
    return pending if pending is not None and pending.is_true and not is_terminal(pod) else None


def is_untried(pod: Pod) -> bool:
    """Whether no scheduler has tried the pod yet."""
    if pod.spec.node_name or is_terminal(pod) or pod.metadata.is_deleting:
        return False
    if is_daemon(pod) or is_static(pod):
        return False
    return conditions.find(pod.status.conditions, "PodScheduled") is None


def is_reschedulable(pod: Pod) -> bool:
    """Whether the pod needs another node when its own is deleted.

    A terminating pod needs one only if a StatefulSet waits for its name.
    """
    if is_terminal(pod) or is_daemon(pod) or is_static(pod):
        return False
    return not pod.metadata.is_deleting or is_owned_by(pod, "apps/v1", "StatefulSet")


def forbids_disruption(pod: Pod, now: datetime) -> bool:
    """Whether the pod's `karpenter.sh/do-not-disrupt` protects it now.

    The annotation is `true`, or a duration from the pod's start; any other value protects nothing.
    Terminal and terminating pods are not protected.
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


def will_forbid_disruption(pod: Pod) -> bool:
    """Whether the pod's `karpenter.sh/do-not-disrupt` will protect it once it runs."""
    if labels.DO_NOT_DISRUPT not in pod.metadata.annotations:
        return False
    try:
        return protected_for(pod) != timedelta()
    except ValueError:
        return False


def protected_for(pod: Pod) -> timedelta | None:
    """Return how long from its start `karpenter.sh/do-not-disrupt` protects a pod; None if forever.

    Raises:
        ValueError: the annotation is neither `true` nor a duration longer than 0.

    """
    value = pod.metadata.annotations[labels.DO_NOT_DISRUPT]
    if value == "true":
        return None
    protected = durations.parse_finite(value)
    if not protected:
        raise ValueError(f"duration {value!r} must be longer than 0")
    return protected
