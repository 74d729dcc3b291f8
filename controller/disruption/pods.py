"""What a pod means for a node on its way out: must a drain wait for it, and in which turn."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta

from controller.apis import labels
from controller.apis.pods import Pod
from controller.apis.taints import Taint
from controller.apis.workloads import PersistentVolume
from controller.constraints.taints import untolerated
from controller.state.pods import is_daemon, is_static, is_terminal
from controller.state.snapshot import Snapshot

DISRUPTED = Taint(key=labels.DISRUPTED_TAINT, effect="NoSchedule")
"""Keeps new pods off a node on its way out."""

STUCK_TERMINATING = timedelta(minutes=1)
"""A pod this long past its own end will not go by waiting for it."""


SOON = timedelta(minutes=2)
"""How long an ending pod may take that is waited for: most have half a minute."""


def is_stuck_terminating(pod: Pod, now: datetime) -> bool:
    """Whether it should have gone more than a minute ago."""
    deletion = pod.metadata.deletion_timestamp
    return deletion is not None and now - deletion > STUCK_TERMINATING


def is_soon_gone(pod: Pod, now: datetime) -> bool:
    """Whether it is ending, and its room will be free in a moment: a daemon's never is."""
    deletion = pod.metadata.deletion_timestamp
    if deletion is None or is_daemon(pod):
        return False
    return -STUCK_TERMINATING <= deletion - now <= SOON


def is_drainable(pod: Pod, now: datetime) -> bool:
    """Whether a drain has to wait for it."""
    return not (
        is_terminal(pod)
        or is_static(pod)
        or untolerated((DISRUPTED,), pod.spec.tolerations) is None
        or is_stuck_terminating(pod, now)
    )


def surges(pod: Pod) -> bool:
    """Whether its owner wants its Deployment rolled rather than the pod evicted."""
    return pod.metadata.annotations.get(labels.SURGE) == "true" and any(
        owner.kind == "ReplicaSet" for owner in pod.metadata.owner_references
    )


def is_of_job(pod: Pod) -> bool:
    """Whether it ends by itself some time, and begins again where it is moved."""
    return any(owner.kind == "Job" for owner in pod.metadata.owner_references)


def is_critical(pod: Pod) -> bool:
    """Whether the cluster itself leans on it."""
    return pod.spec.priority_class_name in ("system-cluster-critical", "system-node-critical")


def local_claims(snapshot: Snapshot) -> frozenset[tuple[str, str]]:
    """Return the volume claims, by namespace and name, whose volumes lie on the disk of a node."""
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
    """Whether one of the pod's volumes is one of these claims'; an ephemeral one's bears the names
    of pod and volume.
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
