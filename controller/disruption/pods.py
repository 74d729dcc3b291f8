"""Which pods a drain waits for, which are critical, and which end soon."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta

from controller.apis import labels
from controller.apis.kubernetes.pods import Pod
from controller.apis.kubernetes.taints import Taint
from controller.apis.kubernetes.workloads import PersistentVolume
from controller.constraints.taints import untolerated_taint
from controller.state.pods import is_daemon, is_static, is_terminal
from controller.state.snapshot import Snapshot

DISRUPTED = Taint(key=labels.DISRUPTED_TAINT, effect="NoSchedule")
"""The taint that keeps new pods off a node that is being disrupted."""

STUCK_TERMINATING = timedelta(minutes=1)
"""A pod that is this long past its deletion timestamp is stuck: no drain waits for it."""


SOON = timedelta(minutes=2)
"""Consolidation waits for a terminating pod that ends within this time: most take 30 s."""


def is_stuck_terminating(pod: Pod, now: datetime) -> bool:
    """Return whether the pod's deletion timestamp passed more than a minute ago."""
    deletion = pod.metadata.deletion_timestamp
    return deletion is not None and now - deletion > STUCK_TERMINATING


def is_soon_gone(pod: Pod, now: datetime) -> bool:
    """Return whether the pod is terminating and will soon release its capacity.

    Its deletion timestamp is at most `SOON` ahead or `STUCK_TERMINATING` past. DaemonSet pods never
    count.
    """
    deletion = pod.metadata.deletion_timestamp
    if deletion is None or is_daemon(pod):
        return False
    return -STUCK_TERMINATING <= deletion - now <= SOON


def is_drainable(pod: Pod, now: datetime) -> bool:
    """Return whether a drain has to wait for the pod to end."""
    return not (
        is_terminal(pod)
        or is_static(pod)
        or untolerated_taint((DISRUPTED,), pod.spec.tolerations) is None
        or is_stuck_terminating(pod, now)
    )


def surges(pod: Pod) -> bool:
    """Return whether the pod's annotation `joiner.dev/surge` requests a rollout of its Deployment.

    A drain then restarts the Deployment instead of evicting the pod.
    """
    return pod.metadata.annotations.get(labels.SURGE) == "true" and any(
        owner.kind == "ReplicaSet" for owner in pod.metadata.owner_references
    )


def is_of_job(pod: Pod) -> bool:
    """Return whether the pod belongs to a Job: it ends by itself, and restarts if it is moved."""
    return any(owner.kind == "Job" for owner in pod.metadata.owner_references)


def is_critical(pod: Pod) -> bool:
    """Return whether the pod has a system-critical priority class."""
    return pod.spec.priority_class_name in ("system-cluster-critical", "system-node-critical")


def local_claims(snapshot: Snapshot) -> frozenset[tuple[str, str]]:
    """Return the PersistentVolumeClaims, by namespace and name, with a volume on a node's disk."""
    local = {
        volume.metadata.name for volume in snapshot.persistent_volumes if _lies_on_a_node(volume)
    }
    if not local:
        return frozenset()
    return frozenset(
        (claim.metadata.namespace, claim.metadata.name)
        for claim in snapshot.persistent_volume_claims
        if claim.spec.volume_name in local
    )


def uses_any(pod: Pod, claims: Collection[tuple[str, str]]) -> bool:
    """Return whether the pod uses one of these claims.

    The claim of an ephemeral volume is named after pod and volume.
    """
    own = pod.metadata
    return any(
        (
            own.namespace,
            volume.persistent_volume_claim.claim_name
            if volume.persistent_volume_claim is not None
            else f"{own.name}-{volume.name}",
        )
        in claims
        for volume in pod.spec.volumes
        if volume.persistent_volume_claim is not None or volume.ephemeral is not None
    )


def _lies_on_a_node(volume: PersistentVolume) -> bool:
    affinity = volume.spec.node_affinity
    if volume.spec.local is None and volume.spec.host_path is None:
        return False
    return affinity is not None and any(
        expression.key == labels.HOSTNAME
        for term in (affinity.required.node_selector_terms if affinity.required else ())
        for expression in term.match_expressions
    )
