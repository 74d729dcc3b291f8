"""The nodes that can attach a pod's volumes, and the number of attachments per CSI driver.

The node affinity and the zone labels of a bound PersistentVolume say which nodes can attach it. An
unbound claim gets an existing volume that it can be bound to, or one that is created where the
allowed topologies of its StorageClass are. Volumes restrict the nodes of a pod, but not the domains
that a topology spread compares.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product

import msgspec

from controller.apis import labels
from controller.apis.kubernetes.meta import with_fields
from controller.apis.kubernetes.pods import (
    AWSElasticBlockStoreVolumeSource,
    NodeSelectorTerm,
    PersistentVolumeClaimSource,
    PersistentVolumeClaimSpec,
    Pod,
    PodSpec,
    Volume,
)
from controller.apis.kubernetes.taints import Requirement
from controller.apis.kubernetes.workloads import (
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
)
from controller.constraints import requirements
from controller.constraints.requirements import NOTHING, Requirements, ValueSet, one_of, text
from controller.scheduling.pods.staticvolumes import (
    NO_PROVISIONER,
    can_bind,
    requested_size,
    size_order,
)
from controller.scheduling.pods.storagecapacity import nodes_with_storage
from controller.state.pods import is_terminal
from controller.state.snapshot import Snapshot

AWS_EBS = "ebs.csi.aws.com"
EBS_DRIVERS = frozenset({AWS_EBS, "ebs.csi.eks.amazonaws.com"})
"""The CSI drivers of EBS volumes: the add-on's, and that of EKS Auto Mode."""

_IN_TREE = {"kubernetes.io/aws-ebs": AWS_EBS}

SHARED_CLAIM = "persistentvolumeclaim/"
"""Prefix of a label that pods of a solve get if they share an unbound claim: the claim's name
follows. Pods with the label get nodes in one zone."""

_ZONE_LABELS = frozenset(
    {
        labels.ZONE,
        labels.REGION,
        *(old for old, new in labels.ALIASES.items() if new in (labels.ZONE, labels.REGION)),
    }
) - {"topology.ebs.csi.aws.com/zone"}
"""The labels of a PersistentVolume that kube-scheduler compares with the node's."""

Alternatives = tuple[dict[str, ValueSet], ...]
"""Requirements, of which a node must meet one."""


ANYWHERE: Alternatives = ({},)


class VolumeError(ValueError):
    """A pod's volumes do not allow it to run yet; the message says why."""


@dataclass(frozen=True, slots=True)
class Volumes:
    """A pod's volumes: the nodes that can attach all of them, and their number per CSI driver.

    * `alternatives`: requirements, of which a node must meet one to attach all volumes.
    * `by_claim`: pairs of driver and volume; pods that name the same claim share the volume.
    * `created`: pairs of driver and number of volumes that are created for each pod.
    * `exclusive`: the claims, by namespace and name, that only one pod may use at a time.
    * `shared`: the names of unbound claims that other pods use, too, each with the label of nodes
      of which one value can attach the volume: the zone, or the hostname for disks of nodes.
    """

    alternatives: Alternatives = ({},)
    by_claim: tuple[tuple[str, str], ...] = ()
    created: tuple[tuple[str, int], ...] = ()
    exclusive: tuple[str, ...] = ()
    shared: tuple[tuple[str, str], ...] = ()

    def count(self, drivers: Set[str]) -> int:
        """Return the number of volumes of these CSI drivers."""
        return sum(driver in drivers for driver, _ in self.by_claim) + sum(
            number for driver, number in self.created if driver in drivers
        )


NO_VOLUMES = Volumes()


@dataclass(slots=True)
class _Offer:
    """What a StorageClass offers for an unbound claim.

    * `alternatives`: the nodes that can attach a volume, created or existing.
    * `volumes`: the existing volumes that the claim can be bound to, the smallest first, with the
      alternatives of their node affinity.
    * `least`: the least number of existing volumes with the same node affinity.
    """

    alternatives: Alternatives
    volumes: tuple[tuple[PersistentVolume, Alternatives], ...]
    least: int = field(init=False)
    _known: dict[frozenset[tuple[str, ValueSet]], tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Count the volumes with the same node affinity."""
        at_same_nodes = Counter(
            frozenset(frozenset(term.items()) for term in reach) for _, reach in self.volumes
        )
        self.least = min(at_same_nodes.values(), default=0)

    def volumes_on(self, alternative: dict[str, ValueSet]) -> tuple[str, ...]:
        """Return the names of the volumes that every node of an alternative can attach."""
        key = frozenset(alternative.items())
        if key not in self._known:
            self._known[key] = tuple(
                volume.metadata.name
                for volume, reach in self.volumes
                if any(requirements.conjunction(alternative, term) == alternative for term in reach)
            )
        return self._known[key]


@dataclass(frozen=True, slots=True)
class _StaticClaim:
    """An unbound claim for which no volume is created, and the existing ones it can be bound to.

    `described` names the claim in errors; `key` is its namespace and name.
    """

    described: str
    key: str
    spec: PersistentVolumeClaimSpec
    offer: _Offer


class VolumeIndex:
    """The PersistentVolumeClaims, PersistentVolumes and StorageClasses of a snapshot, by name."""

    def __init__(self, snapshot: Snapshot, pods: Sequence[Pod] = ()) -> None:
        """Index the snapshot; `pods` are the pods of the solve, pending or to be moved."""
        self._snapshot, self._pods = snapshot, pods
        self._claims = {
            (claim.metadata.namespace, claim.metadata.name): claim
            for claim in snapshot.persistent_volume_claims
        }
        self._volumes = {volume.metadata.name: volume for volume in snapshot.persistent_volumes}
        self._classes = {
            storage_class.metadata.name: storage_class for storage_class in snapshot.storage_classes
        }
        self._zonal = EBS_DRIVERS | {
            driver.name
            for csi_node in snapshot.csi_nodes
            for driver in csi_node.spec.drivers or ()
            if labels.ZONE in map(labels.normalize, driver.topology_keys or ())
        }
        self._tracked = {
            driver.metadata.name for driver in snapshot.csi_drivers if driver.spec.storage_capacity
        }
        self._nodes = {node.name for node in snapshot.nodes if not node.deleting}
        self._leaving = {node.name for node in snapshot.nodes if node.deleting}
        self._leaving |= {pod.spec.node_name for pod in pods if pod.spec.node_name}
        self._users = Counter(
            (pod.metadata.namespace, volume.persistent_volume_claim.claim_name)
            for pod in pods
            for volume in pod.spec.volumes
            if volume.persistent_volume_claim is not None
        )
        self._reserved: dict[str, str] = {}
        """The claim for which a volume is reserved, by the name of the volume."""

        # Thousands of claims have equal specs, and a volume on the disk of each node is an
        # alternative of its own. So the alternatives of equal specs are one object.
        self._offers: dict[tuple[object, ...], _Offer] = {}
        self._combined: dict[tuple[int, int], tuple[Alternatives, Alternatives, Alternatives]] = {}

    @cached_property
    def _unbound_volumes(self) -> Mapping[str, list[PersistentVolume]]:
        """The volumes that are not bound, by StorageClass, the smallest first."""
        by_class: defaultdict[str, list[PersistentVolume]] = defaultdict(list)
        for volume in self._volumes.values():
            if volume.status.phase != "Bound":
                by_class[volume.spec.storage_class_name].append(volume)
        for volumes in by_class.values():
            volumes.sort(key=size_order)
        return by_class

    @cached_property
    def users_of_claims(self) -> Mapping[str, str]:
        """The pod on a node that uses a claim, by the claim's namespace and name.

        Pods of the solve are left out.
        """
        own = {pod.key for pod in self._pods}
        return {
            f"{pod.metadata.namespace}/{volume.persistent_volume_claim.claim_name}": pod.key
            for pod in self._snapshot.pods
            if pod.spec.node_name and not is_terminal(pod) and pod.key not in own
            for volume in pod.spec.volumes
            if volume.persistent_volume_claim is not None
        }

    def of(
        self, namespace: str, spec: PodSpec, node_alternatives: Sequence[Requirements] = ({},)
    ) -> Volumes:
        """Return a pod's volumes.

        `node_alternatives` are the requirements of the pod's own constraints, of which a node must
        meet one.

        Raises:
            VolumeError: a claim is missing, lost, being deleted or cannot be bound, a volume is
                malformed, or no node can attach all volumes.

        """
        reaches: list[tuple[str, Alternatives]] = []
        static: list[_StaticClaim] = []
        by_claim: set[tuple[str, str]] = set()
        created: defaultdict[str, int] = defaultdict(int)
        exclusive: list[str] = []
        for volume in spec.volumes:
            if volume.persistent_volume_claim is not None:
                name = volume.persistent_volume_claim.claim_name
                claim = self._claim(namespace, name)
                reaches.extend(self._of_claim(claim, static))
                by_claim.add(self._identity(claim))
                if "ReadWriteOncePod" in claim.spec.access_modes:
                    exclusive.append(claim.metadata.key)
            elif volume.ephemeral is not None and volume.ephemeral.volume_claim_template:
                template = volume.ephemeral.volume_claim_template.spec
                described = f"ephemeral volume {volume.name}"
                reach = self._unbound(template, namespace, "", described, static)
                reaches.append((described, reach))
                created[self._driver_of_class(template)] += 1
            elif volume.aws_elastic_block_store is not None:
                by_claim.add((AWS_EBS, _handle(volume.aws_elastic_block_store)))
        if not reaches and not by_claim:
            return NO_VOLUMES
        common = self._common(reaches)
        return Volumes(
            self._with_free_volumes(common, static, node_alternatives) if static else common,
            tuple(sorted(by_claim)),
            tuple(sorted(created.items())),
            tuple(exclusive),
            tuple(self._shared_claims(namespace, spec)),
        )

    def attachments(self, pod: Pod) -> Iterator[tuple[str, str]]:
        """Yield driver and identity of each volume that a running pod has attached."""
        for volume in pod.spec.volumes:
            name, template = f"{pod.metadata.name}-{volume.name}", None
            if volume.persistent_volume_claim is not None:
                name = volume.persistent_volume_claim.claim_name
            elif volume.ephemeral is not None:
                template = volume.ephemeral.volume_claim_template
            else:
                if volume.aws_elastic_block_store is not None:
                    yield AWS_EBS, _handle(volume.aws_elastic_block_store)
                continue
            claim = self._claims.get((pod.metadata.namespace, name))
            if claim is not None:
                yield self._identity(claim)
            elif template is not None:
                yield self._driver_of_class(template.spec), f"{pod.metadata.namespace}/{name}"

    def still_attached(self) -> Iterator[tuple[str, str, str]]:
        """Yield node, driver and identity of each CSI volume that is attached to a node.

        Volumes of the solve's own pods are left out on the nodes that these pods leave.
        """
        leaving = {
            (pod.spec.node_name, *volume)
            for pod in self._pods
            if pod.spec.node_name
            for volume in self.attachments(pod)
        }
        for attachment in self._snapshot.volume_attachments:
            name = attachment.spec.source.persistent_volume_name or ""
            volume = self._volumes.get(name)
            if volume is not None and volume.spec.csi is not None:
                handle = volume.spec.csi.volume_handle or name
                attached = attachment.spec.node_name, attachment.spec.attacher, handle
                if attached not in leaving:
                    yield attached

    def with_existing_claims(self, pod: Pod) -> Pod:
        """Return the pod with its ephemeral volumes as their existing claims specify them.

        The claim of an ephemeral volume is named after the pod and the volume. A bound claim
        replaces the volume: it restricts the pod's nodes like that of any other volume. A claim
        that is not bound has the default StorageClass if the volume names none. The pod also has
        the labels of `with_shared_claims`.
        """
        volumes = pod.spec.volumes
        if not volumes:
            return pod
        if any(volume.ephemeral is not None for volume in volumes):
            resolved = [self._with_existing_claim(pod, volume) for volume in volumes]
            if resolved != volumes:
                pod = with_fields(pod, "spec", volumes=resolved)
        return self.with_shared_claims(pod)

    def with_shared_claims(self, pod: Pod) -> Pod:
        """Return the pod with a label for each unbound claim that it shares with other pods."""
        names = self._shared_claims(pod.metadata.namespace, pod.spec)
        shared = {f"{SHARED_CLAIM}{name}": "" for name, _ in names}
        if not shared:
            return pod
        return with_fields(pod, "metadata", labels={**pod.metadata.labels, **shared})

    def _with_existing_claim(self, pod: Pod, volume: Volume) -> Volume:
        name = f"{pod.metadata.name}-{volume.name}"
        claim = self._claims.get((pod.metadata.namespace, name))
        if volume.ephemeral is None or claim is None:
            return volume
        if claim.spec.volume_name or claim.metadata.is_deleting:
            source = PersistentVolumeClaimSource(claim_name=name)
            return Volume(name=volume.name, persistent_volume_claim=source)
        template = volume.ephemeral.volume_claim_template
        if template is None or template.spec.storage_class_name is not None:
            return volume
        chosen = claim.spec.storage_class_name
        path = "ephemeral.volume_claim_template.spec"
        return with_fields(volume, path, storage_class_name=chosen)

    def _shared_claims(self, namespace: str, spec: PodSpec) -> Iterator[tuple[str, str]]:
        """Yield the unbound claims that get a volume in one zone, or on one node, for several pods.

        With each name comes the label of the zone or of the node.
        """
        for volume in spec.volumes:
            if volume.persistent_volume_claim is not None:
                name = volume.persistent_volume_claim.claim_name
                claim = self._claims.get((namespace, name))
                if (
                    claim is not None
                    and not claim.spec.volume_name
                    and self._driver_of_class(claim.spec) in {*self._zonal, NO_PROVISIONER}
                    and (self._users[namespace, name] > 1 or self._is_used(claim))
                ):
                    volumes = self._unbound_volumes.get(claim.spec.storage_class_name or "", ())
                    on_nodes = volumes and all(volume.spec.local is not None for volume in volumes)
                    yield name, labels.HOSTNAME if on_nodes else labels.ZONE

    def _is_used(self, claim: PersistentVolumeClaim) -> bool:
        """Whether a pod that has a node, or is nominated for one, uses a claim."""
        return claim.metadata.key in self.users_of_claims

    def _claim(self, namespace: str, name: str) -> PersistentVolumeClaim:
        claim = self._claims.get((namespace, name))
        if claim is None:
            raise VolumeError(f"PersistentVolumeClaim {name} not found")
        if claim.metadata.is_deleting:
            raise VolumeError(f"PersistentVolumeClaim {name} is being deleted")
        if claim.status.phase == "Lost":
            raise VolumeError(f"PersistentVolumeClaim {name} has lost its volume")
        return claim

    def _identity(self, claim: PersistentVolumeClaim) -> tuple[str, str]:
        """Return the driver of a claim's volume, and the driver's name of the volume.

        The claim's namespace and name stand for a volume that has no name yet.
        """
        volume = self._volumes.get(claim.spec.volume_name)
        if volume is None:
            return self._driver_of_class(claim.spec), claim.metadata.key
        if volume.spec.csi is not None:
            return volume.spec.csi.driver, volume.spec.csi.volume_handle or claim.metadata.key
        if volume.spec.aws_elastic_block_store is not None:
            return AWS_EBS, _handle(volume.spec.aws_elastic_block_store)
        return "", claim.metadata.key

    def _driver_of_class(self, spec: PersistentVolumeClaimSpec) -> str:
        storage_class = self._classes.get(spec.storage_class_name or "")
        provisioner = storage_class.provisioner if storage_class is not None else ""
        return _IN_TREE.get(provisioner, provisioner)

    def _of_claim(
        self, claim: PersistentVolumeClaim, static: list[_StaticClaim]
    ) -> Iterator[tuple[str, Alternatives]]:
        """Yield the requirements for nodes that can attach a claim's volume, each with its origin.

        A claim for which no volume is created is added to `static`.

        Raises:
            VolumeError: the volume is missing or malformed, or the claim cannot be bound.

        """
        name = claim.metadata.name
        described = f"PersistentVolumeClaim {name}"
        if not claim.spec.volume_name:
            selected = claim.metadata.annotations.get(labels.SELECTED_NODE, "")
            if selected in self._nodes:
                # kube-scheduler has chosen the node for which the volume is created.
                yield described, ({labels.HOSTNAME: one_of(selected)},)
            yield (
                described,
                self._unbound(claim.spec, claim.metadata.namespace, name, described, static),
            )
            return
        annotations = claim.metadata.annotations
        if claim.status.phase == "Pending" and labels.BIND_COMPLETED not in annotations:
            raise VolumeError(
                f"{described} is not bound yet: it names PersistentVolume {claim.spec.volume_name}"
            )
        volume = self._volumes.get(claim.spec.volume_name)
        volume_text = f"PersistentVolume {claim.spec.volume_name} of {described}"
        if volume is None:
            raise VolumeError(f"{volume_text} not found")
        try:
            yield volume_text, self._node_affinity(volume, is_bound=True)
        except ValueError as malformed:
            raise VolumeError(f"{volume_text}: {malformed}") from malformed
        yield volume_text, _zones_of_labels(volume)

    def _unbound(
        self,
        spec: PersistentVolumeClaimSpec,
        namespace: str,
        name: str,
        described: str,
        static: list[_StaticClaim],
    ) -> Alternatives:
        """Return the requirements for the nodes of an unbound claim.

        `name` is empty for the claim of an ephemeral volume. `described` names the claim in errors.
        A claim for which no volume is created is added to `static`.

        Raises:
            VolumeError: the claim has no StorageClass, or one that binds immediately, or no volume
                is left for it and none is created.

        """
        if not spec.storage_class_name:
            raise VolumeError(f"{described} is not bound and has no StorageClass")
        storage_class = self._classes.get(spec.storage_class_name)
        if storage_class is None:
            raise VolumeError(f"StorageClass {spec.storage_class_name} of {described} not found")
        if storage_class.volume_binding_mode == "Immediate":
            raise VolumeError(
                f"{described} is not bound yet: StorageClass {spec.storage_class_name} has "
                "volumeBindingMode Immediate, so the pod waits until the volume is provisioned"
            )
        try:
            offer = self._offer(storage_class, spec, namespace, name)
        except ValueError as malformed:
            raise VolumeError(f"{described}: {malformed}") from malformed
        if not _creates_volumes(storage_class):
            if not offer.volumes:
                raise VolumeError(_no_volume_left(described, storage_class))
            static.append(_StaticClaim(described, f"{namespace}/{name}", spec, offer))
        return offer.alternatives

    def _offer(
        self,
        storage_class: StorageClass,
        spec: PersistentVolumeClaimSpec,
        namespace: str,
        name: str,
    ) -> _Offer:
        """Return what a StorageClass offers for an unbound claim; cached for equal specs.

        Raises:
            ValueError: a volume or a CSIStorageCapacity is malformed.

        """
        is_named = (namespace, name) in self._promised
        key = (msgspec.msgpack.encode(spec), (namespace, name) if is_named else None)
        cached = self._offers.get(key)
        if cached is None:
            created = self._created_volumes(storage_class, spec)
            volumes = [
                (volume, self._node_affinity(volume, is_bound=False))
                for volume in self._unbound_volumes.get(storage_class.metadata.name, ())
                if created != ({},) and can_bind(volume, spec, namespace, name)
            ]
            terms = [*created, *(term for _, reach in volumes for term in reach)]
            cached = self._offers[key] = _Offer(_distinct(terms), tuple(volumes))
        return cached

    def _created_volumes(
        self, storage_class: StorageClass, spec: PersistentVolumeClaimSpec
    ) -> Alternatives:
        """Return where a StorageClass has a volume created for a claim; empty if it creates none.

        Raises:
            ValueError: a CSIStorageCapacity is malformed.

        """
        if not _creates_volumes(storage_class):
            return ()
        terms = tuple(
            requirements.read([part.requirement for part in term.match_label_expressions])
            for term in storage_class.allowed_topologies
        )
        if storage_class.provisioner not in self._tracked:
            return terms or ({},)
        initialized = {node.name for node in self._snapshot.nodes if node.initialized}
        capacities = [
            capacity
            for capacity in self._snapshot.csi_storage_capacities
            if capacity.storage_class_name == storage_class.metadata.name
        ]
        with_storage = tuple(nodes_with_storage(spec, capacities, initialized))
        return _combinations(terms or ({},), with_storage)

    @cached_property
    def _promised(self) -> Set[tuple[str, str]]:
        """The claims, by namespace and name, that volumes without a claim are reserved for."""
        return {
            (volume.spec.claim_ref.namespace, volume.spec.claim_ref.name)
            for volumes in self._unbound_volumes.values()
            for volume in volumes
            if volume.spec.claim_ref is not None
        }

    @cached_property
    def _competing_claims(self) -> Counter[str]:
        """The number of unbound claims that pods of the solve use, by StorageClass."""
        used = [self._claims[key] for key in self._users if key in self._claims]
        return Counter(
            claim.spec.storage_class_name or "" for claim in used if not claim.spec.volume_name
        )

    def _with_free_volumes(
        self,
        alternatives: Alternatives,
        claims: Sequence[_StaticClaim],
        node_alternatives: Sequence[Requirements],
    ) -> Alternatives:
        """Return the alternatives in which each of a pod's claims gets another existing volume.

        If other pods of the solve compete for the volumes, it is one alternative, and its volumes
        are reserved: if possible, one that the pod's own constraints allow.

        Raises:
            VolumeError: too few volumes are left.

        """
        contested = any(
            len(claims) < self._competing_claims[claim.spec.storage_class_name or ""]
            # Otherwise there are enough for all claims wherever there is one.
            and claim.offer.least < self._competing_claims[claim.spec.storage_class_name or ""]
            for claim in claims
        )
        if len(claims) == 1 and not contested:
            return alternatives
        # As kube-scheduler, in the order of the requested sizes.
        ordered = sorted(claims, key=lambda claim: requested_size(claim.spec))
        own = tuple(map(dict, node_alternatives))
        fitting: list[dict[str, ValueSet]] = []
        reserved: dict[str, str] = {}
        for alternative in alternatives:
            chosen = self._chosen_volumes(alternative, ordered)
            if chosen:
                fitting.append(alternative)
                is_allowed = contested and bool(_combinations((alternative,), own))
                if is_allowed or not reserved:
                    reserved, fitting = chosen, [alternative] if contested else fitting
                if is_allowed:
                    break
        if not fitting:
            storage_class = self._classes[claims[-1].spec.storage_class_name or ""]
            raise VolumeError(_no_volume_left(claims[-1].described, storage_class))
        if contested:
            self._reserved.update(reserved)
            return (fitting[0],)
        return tuple(fitting)

    def _chosen_volumes(
        self, alternative: dict[str, ValueSet], claims: Sequence[_StaticClaim]
    ) -> dict[str, str]:
        """Return a volume for each claim on nodes of an alternative, or none if one gets none.

        The result has the key of the claim by the name of its volume.
        """
        chosen: dict[str, str] = {}
        for claim in claims:
            for name in claim.offer.volumes_on(alternative):
                if name not in chosen and self._reserved.get(name, claim.key) == claim.key:
                    chosen[name] = claim.key
                    break
            else:
                return {}
        return chosen

    def _common(self, reaches: Sequence[tuple[str, Alternatives]]) -> Alternatives:
        """Return the requirements for nodes that attach all volumes, given with their origins.

        Raises:
            VolumeError: no node can attach all of them.

        """
        common: Alternatives = ANYWHERE
        for index, (origin, alternatives) in enumerate(reaches):
            narrowed = self._narrow_alternatives(common, alternatives)
            if not narrowed:
                before = reaches[:index]
                apart = [one for one in before if not _combinations(one[1], alternatives)] or before
                named = "; ".join(
                    f"{name} requires {alternatives_text(reach)}"
                    for name, reach in (*apart[:2], (origin, alternatives))
                    if alternatives_text(reach)
                )
                raise VolumeError(f"no node can attach all volumes of the pod: {named}")
            common = narrowed
        return common

    def _narrow_alternatives(self, some: Alternatives, others: Alternatives) -> Alternatives:
        """Return the combinations of alternatives; cached for the same objects."""
        key = id(some), id(others)
        if key not in self._combined:
            # The objects are kept with the result, so that their IDs stay unique.
            self._combined[key] = some, others, _combinations(some, others)
        return self._combined[key][2]

    def _node_affinity(self, volume: PersistentVolume, *, is_bound: bool) -> Alternatives:
        """Return the alternatives of a volume's node affinity.

        Raises:
            ValueError: a term is malformed.

        """
        affinity = volume.spec.node_affinity
        if affinity is None or affinity.required is None:
            return ({},)
        lies_on_node = volume.spec.local is not None or volume.spec.host_path is not None
        terms = tuple(
            requirements.read(self._expressions(term, may_move=lies_on_node and is_bound))
            for term in affinity.required.node_selector_terms
        )
        return terms or ({},)

    def _expressions(self, term: NodeSelectorTerm, *, may_move: bool) -> list[Requirement]:
        # A bound volume on a node's own disk requires that node. If the pod must leave the node, it
        # needs a new node nevertheless.
        return [
            expression
            for expression in term.match_expressions
            if not (
                may_move
                and expression.key == labels.HOSTNAME
                and self._leaving.intersection(expression.values)
            )
        ]


def alternatives_text(alternatives: Alternatives) -> str:
    """Return alternatives as text; those that only exclude labels are left out."""
    return " or ".join(
        " and ".join(f"{key} {text(allowed)}" for key, allowed in sorted(alternative.items()))
        for alternative in alternatives
        if not all(allowed.is_empty for allowed in alternative.values())
    )


def _creates_volumes(storage_class: StorageClass) -> bool:
    return storage_class.provisioner not in ("", NO_PROVISIONER)


def _zones_of_labels(volume: PersistentVolume) -> Alternatives:
    """Return the requirements of a volume's labels for zone and region; `__` separates values.

    kube-scheduler admits nodes that have neither a label for the zone nor one for the region.
    """
    wanted: dict[str, ValueSet] = {}
    for key, value in volume.metadata.labels.items():
        names = [name.strip() for name in value.split("__")]
        if key in _ZONE_LABELS and all(names):
            requirements.narrow(wanted, labels.normalize(key), one_of(*names))
    return (wanted, {labels.ZONE: NOTHING, labels.REGION: NOTHING}) if wanted else ({},)


def _combinations(some: Alternatives, others: Alternatives) -> Alternatives:
    """Return each of some alternatives combined with each of others, if a node can meet both.

    Volumes of one StorageClass have equal alternatives: without repetitions, the number of
    combinations does not grow with the number of volumes.
    """
    pairs = (requirements.conjunction(*parts) for parts in product(some, others))
    return _distinct([pair for pair in pairs if requirements.is_possible(pair)])


def _distinct(alternatives: Sequence[dict[str, ValueSet]]) -> Alternatives:
    """Return alternatives without repetitions."""
    return tuple({frozenset(item.items()): item for item in alternatives}.values())


def _no_volume_left(described: str, storage_class: StorageClass) -> str:
    name, provisioner = storage_class.metadata.name, storage_class.provisioner
    return (
        f"no PersistentVolume is left for {described}: StorageClass {name} has the provisioner "
        f"{provisioner}. Create a PersistentVolume of this StorageClass"
    )


def _handle(source: AWSElasticBlockStoreVolumeSource) -> str:
    """Return the ID of an EBS volume, which may be written as `aws://ZONE/ID`."""
    return source.volume_id.rpartition("/")[2]
