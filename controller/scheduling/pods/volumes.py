"""The nodes that can attach a pod's volumes, and the number of attachments per CSI driver.

The node affinity of a bound PersistentVolume says which nodes can attach it; for an unbound volume
the allowed topologies of its StorageClass do. Volumes restrict the nodes of a pod, but not the
domains that a topology spread compares.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import reduce
from itertools import product

from controller.apis import labels
from controller.apis.kubernetes.meta import with_fields
from controller.apis.kubernetes.pods import (
    NodeSelectorTerm,
    PersistentVolumeClaimSource,
    PersistentVolumeClaimSpec,
    Pod,
    PodSpec,
    Volume,
)
from controller.apis.kubernetes.taints import Requirement
from controller.apis.kubernetes.workloads import PersistentVolume, PersistentVolumeClaim
from controller.constraints import requirements
from controller.constraints.requirements import ValueSet
from controller.state.snapshot import Snapshot

AWS_EBS = "ebs.csi.aws.com"
_IN_TREE = {"kubernetes.io/aws-ebs": AWS_EBS}


class VolumeError(ValueError):
    """A pod's volumes do not allow it to run yet; the message says why."""


@dataclass(frozen=True, slots=True)
class Volumes:
    """A pod's volumes: the nodes that can attach all of them, and their number per CSI driver.

    * `alternatives`: requirements, of which a node must meet one to attach all volumes.
    * `by_claim`: pairs of driver and claim; pods that name the same claim share the volume.
    * `created`: pairs of driver and number of volumes that are created for each pod.
    """

    alternatives: tuple[dict[str, ValueSet], ...] = ({},)
    by_claim: tuple[tuple[str, str], ...] = ()
    created: tuple[tuple[str, int], ...] = ()


NO_VOLUMES = Volumes()


class VolumeIndex:
    """The PersistentVolumeClaims, PersistentVolumes and StorageClasses of a snapshot, by name."""

    def __init__(self, snapshot: Snapshot) -> None:
        """Index the snapshot."""
        self._claims = {
            (claim.metadata.namespace, claim.metadata.name): claim
            for claim in snapshot.persistent_volume_claims
        }
        self._volumes = {volume.metadata.name: volume for volume in snapshot.persistent_volumes}
        self._classes = {
            storage_class.metadata.name: storage_class for storage_class in snapshot.storage_classes
        }

    def of(self, namespace: str, spec: PodSpec) -> Volumes:
        """Return a pod's volumes.

        Raises:
            VolumeError: a claim is missing, lost, being deleted or cannot be bound, or a volume is
                malformed.

        """
        per_volume: list[tuple[dict[str, ValueSet], ...]] = []
        by_claim: set[tuple[str, str]] = set()
        created: defaultdict[str, int] = defaultdict(int)
        for volume in spec.volumes:
            if volume.persistent_volume_claim is not None:
                name = volume.persistent_volume_claim.claim_name
                claim = self._claim(namespace, name)
                alternatives, driver = self._of_claim(claim)
                by_claim.add((driver, f"{namespace}/{name}"))
            elif volume.ephemeral is not None and volume.ephemeral.volume_claim_template:
                template = volume.ephemeral.volume_claim_template
                alternatives, driver = self._unbound(
                    template.spec, f"ephemeral volume {volume.name}"
                )
                created[driver] += 1
            else:
                continue
            per_volume.append(alternatives)
        if not per_volume:
            return NO_VOLUMES
        crossed = reduce(_cross, per_volume)
        return Volumes(crossed, tuple(sorted(by_claim)), tuple(sorted(created.items())))

    def with_existing_claims(self, pod: Pod) -> Pod:
        """Return the pod with its ephemeral volumes as their existing claims specify them.

        The claim of an ephemeral volume is named after the pod and the volume. A bound claim
        replaces the volume: it restricts the pod's nodes like that of any other volume. A claim
        that is not bound has the default StorageClass if the volume names none.
        """
        volumes = pod.spec.volumes
        if not volumes or not any(volume.ephemeral is not None for volume in volumes):
            return pod
        resolved = [self._with_existing_claim(pod, volume) for volume in volumes]
        return pod if resolved == volumes else with_fields(pod, "spec", volumes=resolved)

    def _with_existing_claim(self, pod: Pod, volume: Volume) -> Volume:
        name = f"{pod.metadata.name}-{volume.name}"
        claim = self._claims.get((pod.metadata.namespace, name))
        if volume.ephemeral is None or claim is None:
            return volume
        if claim.spec.volume_name:
            source = PersistentVolumeClaimSource(claim_name=name)
            return Volume(name=volume.name, persistent_volume_claim=source)
        template = volume.ephemeral.volume_claim_template
        if template is None or template.spec.storage_class_name is not None:
            return volume
        chosen = claim.spec.storage_class_name
        path = "ephemeral.volume_claim_template.spec"
        return with_fields(volume, path, storage_class_name=chosen)

    def _claim(self, namespace: str, name: str) -> PersistentVolumeClaim:
        claim = self._claims.get((namespace, name))
        if claim is None:
            raise VolumeError(f"PersistentVolumeClaim {name} not found")
        if claim.metadata.is_deleting:
            raise VolumeError(f"PersistentVolumeClaim {name} is being deleted")
        if claim.status.phase == "Lost":
            raise VolumeError(f"PersistentVolumeClaim {name} has lost its volume")
        return claim

    def _of_claim(
        self, claim: PersistentVolumeClaim
    ) -> tuple[tuple[dict[str, ValueSet], ...], str]:
        """Return the requirements for nodes that can attach a claim's volume, and its driver.

        Raises:
            VolumeError: the volume is missing, malformed or being deleted, or the claim cannot be
                bound.

        """
        name = claim.metadata.name
        if not claim.spec.volume_name:
            return self._unbound(claim.spec, f"PersistentVolumeClaim {name}")
        volume = self._volumes.get(claim.spec.volume_name)
        volume_text = f"PersistentVolume {claim.spec.volume_name} of PersistentVolumeClaim {name}"
        if volume is None:
            raise VolumeError(f"{volume_text} not found")
        if volume.metadata.is_deleting:
            raise VolumeError(f"{volume_text} is being deleted")
        try:
            return _alternatives_of(volume), _driver(volume)
        except ValueError as malformed:
            raise VolumeError(f"{volume_text}: {malformed}") from malformed

    def _unbound(
        self, spec: PersistentVolumeClaimSpec, description: str
    ) -> tuple[tuple[dict[str, ValueSet], ...], str]:
        """Return the requirements for the nodes of an unbound volume, and its driver.

        `description` names the claim in errors.

        Raises:
            VolumeError: the claim has no StorageClass, or one that binds immediately.

        """
        if not spec.storage_class_name:
            raise VolumeError(f"{description} is not bound and has no StorageClass")
        storage_class = self._classes.get(spec.storage_class_name)
        if storage_class is None:
            raise VolumeError(f"StorageClass {spec.storage_class_name} of {description} not found")
        if storage_class.volume_binding_mode == "Immediate":
            raise VolumeError(
                f"{description} is not bound yet: StorageClass {spec.storage_class_name} has "
                "volumeBindingMode Immediate, so the pod waits until the volume is provisioned"
            )
        terms = tuple(
            requirements.read([part.requirement for part in term.match_label_expressions])
            for term in storage_class.allowed_topologies
        )
        return terms or ({},), _IN_TREE.get(storage_class.provisioner, storage_class.provisioner)


def _cross(
    some: tuple[dict[str, ValueSet], ...], others: tuple[dict[str, ValueSet], ...]
) -> tuple[dict[str, ValueSet], ...]:
    """Return each of some alternatives combined with each of others, without repetitions.

    One node must reach all volumes, so combinations that contradict themselves are left out, unless
    all do. Volumes of one StorageClass have equal alternatives: without their repetitions, the
    number of combinations does not grow with the number of volumes.
    """
    crossed = {
        frozenset(combined.items()): combined
        for combined in (requirements.conjunction(*parts) for parts in product(some, others))
    }
    possible = [
        alternative
        for alternative in crossed.values()
        if not any(values.is_empty for values in alternative.values())
    ]
    return tuple(possible or crossed.values())


def _alternatives_of(volume: PersistentVolume) -> tuple[dict[str, ValueSet], ...]:
    affinity = volume.spec.node_affinity
    if affinity is None or affinity.required is None:
        return ({},)
    is_on_node = volume.spec.local is not None or volume.spec.host_path is not None
    terms = tuple(
        requirements.read(_expressions(term, without_hostname=is_on_node))
        for term in affinity.required.node_selector_terms
    )
    return terms or ({},)


def _expressions(term: NodeSelectorTerm, *, without_hostname: bool) -> list[Requirement]:
    # A volume on a node's own disk requires that node, which may be about to be disrupted. The pod
    # then needs a new node nevertheless.
    return [
        expression
        for expression in term.match_expressions
        if not (without_hostname and expression.key == labels.HOSTNAME)
    ]


def _driver(volume: PersistentVolume) -> str:
    if volume.spec.csi is not None:
        return volume.spec.csi.driver
    return AWS_EBS if volume.spec.aws_elastic_block_store is not None else ""
