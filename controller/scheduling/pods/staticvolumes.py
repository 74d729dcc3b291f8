"""Which PersistentVolumes an unbound PersistentVolumeClaim can be bound to, as in kube-scheduler.

kube-scheduler binds a claim of a StorageClass that waits for the first consumer to an existing
volume that the node can attach, before it has a volume provisioned.
"""

from __future__ import annotations

from controller.apis.kubernetes.pods import PersistentVolumeClaimSpec
from controller.apis.kubernetes.quantities import parse
from controller.apis.kubernetes.workloads import PersistentVolume
from controller.constraints import selectors

NO_PROVISIONER = "kubernetes.io/no-provisioner"
"""The provisioner of a StorageClass for which no volumes are created."""


def can_bind(
    volume: PersistentVolume, spec: PersistentVolumeClaimSpec, namespace: str, name: str
) -> bool:
    """Whether a claim can be bound to a volume of its StorageClass, regardless of the node.

    Raises:
        ValueError: a quantity is malformed.

    """
    own, reserved = volume.spec, volume.spec.claim_ref
    if reserved is not None and (reserved.namespace, reserved.name) != (namespace, name):
        return False
    is_suitable = (
        own.volume_mode == spec.volume_mode
        and (own.volume_attributes_class_name or "") == (spec.volume_attributes_class_name or "")
        and _size(own.capacity) >= requested_size(spec)
        and not volume.metadata.is_deleting
    )
    if reserved is not None:
        return is_suitable
    return (
        is_suitable
        and volume.status.phase == "Available"
        and (spec.selector is None or selectors.selects(spec.selector, volume.metadata.labels))
        and set(spec.access_modes) <= set(own.access_modes)
    )


def requested_size(spec: PersistentVolumeClaimSpec) -> int:
    """Return the storage that a claim requests, in thousandths of a byte."""
    return _size(spec.resources.requests)


def size_order(volume: PersistentVolume) -> tuple[int, str]:
    """Return the sort key of volumes: kube-scheduler binds the smallest that suffices."""
    return _size(volume.spec.capacity), volume.metadata.name


def _size(amounts: dict[str, str | int | float]) -> int:
    return parse(amounts.get("storage", 0))
