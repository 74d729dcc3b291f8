"""Where a pod's volumes can be reached from, and how many more a node can attach.

A bound volume lies where its PersistentVolume says; one yet to be made, where its
storage class allows. What volumes demand narrows the node, never the domains over which
a topology spread counts.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import product

import msgspec

from controller.apis import labels
from controller.apis.pods import (
    NodeSelectorTerm,
    PersistentVolumeClaimSource,
    PersistentVolumeClaimSpec,
    Pod,
    PodSpec,
    Volume,
)
from controller.apis.taints import Requirement
from controller.apis.workloads import PersistentVolume, PersistentVolumeClaim
from controller.constraints import requirements
from controller.constraints.requirements import ValueSet
from controller.state.snapshot import Snapshot

AWS_EBS = "ebs.csi.aws.com"
_IN_TREE = {"kubernetes.io/aws-ebs": AWS_EBS}


class VolumeError(ValueError):
    """A pod's volumes do not allow it to run yet; the message says why."""


@dataclass(frozen=True, slots=True)
class Volumes:
    """A pod's volumes: the places that reach them all (any of `alternatives`), and what
    they take of each driver: `named` claims, shared by pods that name the same, and
    `born` with each pod.
    """

    alternatives: tuple[dict[str, ValueSet], ...] = ({},)
    named: tuple[tuple[str, str], ...] = ()
    born: tuple[tuple[str, int], ...] = ()


NO_VOLUMES = Volumes()


class VolumeIndex:
    """Claims, volumes and classes of a snapshot, by name."""

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
        """Read a pod's volumes.

        Raises:
            VolumeError: a claim is missing, lost, leaving or cannot be bound.

        """
        per_volume: list[tuple[dict[str, ValueSet], ...]] = []
        named: set[tuple[str, str]] = set()
        born: defaultdict[str, int] = defaultdict(int)
        for volume in spec.volumes:
            if volume.persistent_volume_claim is not None:
                name = volume.persistent_volume_claim.claim_name
                claim = self._claim(namespace, name)
                places, driver = self._of_claim(claim)
                named.add((driver, f"{namespace}/{name}"))
            elif volume.ephemeral is not None and volume.ephemeral.volume_claim_template:
                template = volume.ephemeral.volume_claim_template
                places, driver = self._unbound(template.spec, f"ephemeral volume {volume.name}")
                born[driver] += 1
            else:
                continue
            per_volume.append(places)
        if not per_volume:
            return NO_VOLUMES
        crossed = [requirements.conjunction(*parts) for parts in product(*per_volume)]
        possible = [
            alternative
            for alternative in crossed
            if not any(values.is_empty for values in alternative.values())
        ]
        return Volumes(
            tuple(possible or crossed), tuple(sorted(named)), tuple(sorted(born.items()))
        )

    def settled(self, pod: Pod) -> Pod:
        """Return the pod with its ephemeral volumes as claims, where those are bound already.

        Such a volume is like any other then: it lies somewhere. Its claim bears the names of
        pod and volume.
        """
        volumes = pod.spec.volumes
        if not volumes or not any(volume.ephemeral is not None for volume in volumes):
            return pod
        settled = [self._settled(pod, volume) for volume in volumes]
        if settled == volumes:
            return pod
        spec = msgspec.structs.replace(pod.spec, volumes=settled)
        return msgspec.structs.replace(pod, spec=spec)

    def _settled(self, pod: Pod, volume: Volume) -> Volume:
        name = f"{pod.metadata.name}-{volume.name}"
        claim = self._claims.get((pod.metadata.namespace, name))
        if volume.ephemeral is None or claim is None or not claim.spec.volume_name:
            return volume
        source = PersistentVolumeClaimSource(claim_name=name)
        return Volume(name=volume.name, persistent_volume_claim=source)

    def _claim(self, namespace: str, name: str) -> PersistentVolumeClaim:
        claim = self._claims.get((namespace, name))
        if claim is None:
            raise VolumeError(f"volume claim {name} does not exist")
        if claim.metadata.is_deleting:
            raise VolumeError(f"volume claim {name} is being deleted")
        if claim.status.phase == "Lost":
            raise VolumeError(f"volume claim {name} has lost its volume")
        return claim

    def _of_claim(
        self, claim: PersistentVolumeClaim
    ) -> tuple[tuple[dict[str, ValueSet], ...], str]:
        name = claim.metadata.name
        if not claim.spec.volume_name:
            return self._unbound(claim.spec, f"volume claim {name}")
        volume = self._volumes.get(claim.spec.volume_name)
        if volume is None:
            raise VolumeError(f"volume {claim.spec.volume_name} of claim {name} does not exist")
        if volume.metadata.is_deleting:
            raise VolumeError(f"volume {claim.spec.volume_name} of claim {name} is being deleted")
        return _reachable(volume), _driver(volume)

    def _unbound(
        self, spec: PersistentVolumeClaimSpec, what: str
    ) -> tuple[tuple[dict[str, ValueSet], ...], str]:
        if not spec.storage_class_name:
            raise VolumeError(f"{what} is unbound and has no storage class")
        storage_class = self._classes.get(spec.storage_class_name)
        if storage_class is None:
            raise VolumeError(f"storage class {spec.storage_class_name} of {what} does not exist")
        if storage_class.volume_binding_mode == "Immediate":
            raise VolumeError(f"{what} waits to be bound at once by {spec.storage_class_name}")
        terms = tuple(
            requirements.read([part.requirement for part in term.match_label_expressions])
            for term in storage_class.allowed_topologies
        )
        return terms or ({},), _IN_TREE.get(storage_class.provisioner, storage_class.provisioner)


def _reachable(volume: PersistentVolume) -> tuple[dict[str, ValueSet], ...]:
    affinity = volume.spec.node_affinity
    if affinity is None or affinity.required is None:
        return ({},)
    fixed = volume.spec.local is not None or volume.spec.host_path is not None
    terms = tuple(
        requirements.read(_expressions(term, without_hostname=fixed))
        for term in affinity.required.node_selector_terms
    )
    return terms or ({},)


def _expressions(term: NodeSelectorTerm, *, without_hostname: bool) -> list[Requirement]:
    # A volume on a node's own disk names the node, which may be on its way out: the pod
    # may need a new node for it all the same.
    return [
        expression
        for expression in term.match_expressions
        if not (without_hostname and expression.key == labels.HOSTNAME)
    ]


def _driver(volume: PersistentVolume) -> str:
    if volume.spec.csi is not None:
        return volume.spec.csi.driver
    return AWS_EBS if volume.spec.aws_elastic_block_store is not None else ""
