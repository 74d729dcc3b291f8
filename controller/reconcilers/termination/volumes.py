"""The volumes that are still attached to a draining node."""

from __future__ import annotations

from collections.abc import Iterable

from controller.apis.kinds import PERSISTENT_VOLUME_CLAIM
from controller.apis.kubernetes.pods import Pod
from controller.state.cluster import Cluster


def attached_volumes(cluster: Cluster, node_name: str, *, but_not_of: Iterable[Pod]) -> list[str]:
    """Return the names of the PersistentVolumes attached to a node, sorted.

    Volumes of the pods `but_not_of` are left out.
    """
    stay = {volume for pod in but_not_of for volume in _volumes(cluster, pod)}
    names = (a.spec.source.persistent_volume_name for a in cluster.attachments_to(node_name))
    return sorted(name for name in names if name is not None and name not in stay)


def _volumes(cluster: Cluster, pod: Pod) -> Iterable[str]:
    for volume in pod.spec.volumes:
        if volume.persistent_volume_claim is not None:
            name = volume.persistent_volume_claim.claim_name
        elif volume.ephemeral is not None:
            name = f"{pod.metadata.name}-{volume.name}"
        else:
            continue
        claim = cluster.get(PERSISTENT_VOLUME_CLAIM, name, pod.metadata.namespace)
        if claim is not None and claim.spec.volume_name:
            yield claim.spec.volume_name
