"""Read the input of a solve: pending pods, existing nodes and offerings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from controller.apis.kubernetes.pods import Pod
from controller.apis.kubernetes.quantities import MILLI
from controller.constraints import resources
from controller.constraints.requirements import NOTHING, Requirements, one_of, read
from controller.constraints.taints import PREFER_NO_SCHEDULE
from controller.scheduling.arrays import ResourceAxis
from controller.scheduling.catalog.launchoptions import LaunchOptions, Supply
from controller.scheduling.catalog.limits import (
    LimitHeadroom,
    headroom_of,
    purchase_limits,
)
from controller.scheduling.catalog.minvalues import (
    OfferingMinimums,
    flexible_capacity,
    with_joined_variants,
)
from controller.scheduling.catalog.offerings import Catalog
from controller.scheduling.catalog.variants import Variants, distinguished_values, variants_of
from controller.scheduling.dra.deviceallocator import DeviceAllocator
from controller.scheduling.nodes.attachments import Attachments
from controller.scheduling.nodes.existing import ExistingNodes
from controller.scheduling.placement.eligibility import EligibilityReader, new_node_alternatives
from controller.scheduling.pods.classes import PodClass, PodSignatures, pod_classes
from controller.scheduling.pods.groups import topology_groups_of
from controller.scheduling.pods.preferences import PodConstraints, initial_constraints
from controller.scheduling.pods.volumes import EBS_DRIVERS, VolumeIndex, Volumes
from controller.scheduling.settings import Settings
from controller.scheduling.topology.groups import TopologyGroup, TopologyGroups
from controller.state.snapshot import Snapshot
from controller.state.usage import usage

FIRST_RESOURCES = (resources.CPU, resources.MEMORY)
"""The first resources of every solve, whether a pod requests them or not."""

DRA_IGNORED = "the pod has resource claims, which Joiner ignores: set IGNORE_DRA_REQUESTS=false"

ConstrainedClass = tuple[PodClass, PodConstraints]
"""Equal pending pods, with their initial requirements and preferences."""


@dataclass(frozen=True, slots=True)
class PendingPods:
    """The pending pods in classes of equal pods; `refused` maps malformed pods to causes."""

    classes: tuple[ConstrainedClass, ...]
    refused: Mapping[str, tuple[str, ...]]

    @property
    def keys(self) -> set[str]:
        """The keys of all pods that are not refused."""
        return {key for pod_class, _ in self.classes for key in pod_class.keys}

    @property
    def number(self) -> int:
        """The number of pending pods, including those refused."""
        return len(self.refused) + sum(len(pod_class.keys) for pod_class, _ in self.classes)

    @property
    def axis(self) -> ResourceAxis:
        """The resources of the solve: CPU and memory, then all others that pods request."""
        names = {name for pod_class, _ in self.classes for name in pod_class.requests}
        return ResourceAxis((*FIRST_RESOURCES, *sorted(names.difference(FIRST_RESOURCES))))

    def count_attachments(self, catalog: Catalog) -> None:
        """Count the EBS volumes of the pods, if some new node could not attach all of them.

        A volume that several pods share counts once per pod.
        """
        counts = [pod_class.volumes.count(EBS_DRIVERS) for pod_class, _ in self.classes]
        total = sum(
            count * len(pod_class.keys)
            for count, (pod_class, _) in zip(counts, self.classes, strict=True)
        )
        limits = catalog.axis.column(catalog.allocatable, resources.EBS_ATTACHMENTS)
        if total * MILLI > limits.min(initial=np.inf):
            for count, (pod_class, _) in zip(counts, self.classes, strict=True):
                pod_class.attachments = count

    def set_sizes(self, axis: ResourceAxis) -> None:
        """Set the size of every class, its requests along the solve's axis of resources."""
        sizes = axis.vectors(pod_class.requests for pod_class, _ in self.classes)
        for (pod_class, _), size in zip(self.classes, sizes, strict=True):
            pod_class.size = size

    def one_per_placement_key(self) -> list[ConstrainedClass]:
        """Return the first class of each placement key."""
        firsts: dict[bytes, ConstrainedClass] = {}
        for pod_class, constraints in self.classes:
            firsts.setdefault(pod_class.placement_key, (pod_class, constraints))
        return list(firsts.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulingProblem:
    """The input of a solve: the pending pods and the cluster.

    A solver does not change it: remaining capacity, tallies, volumes and devices are copied for
    each solve.
    """

    settings: Settings
    catalog: Catalog
    pods: PendingPods
    axis: ResourceAxis
    nodes: ExistingNodes
    attachments: Attachments
    groups: TopologyGroups
    devices: DeviceAllocator
    supply: Supply
    reader: EligibilityReader


def scheduling_problem(
    pods: Sequence[Pod],
    *,
    snapshot: Snapshot,
    settings: Settings,
    catalog: Catalog,
    signatures: PodSignatures | None = None,
    lifted: bool = False,
) -> SchedulingProblem:
    """Return the scheduling problem of pods in a cluster.

    `signatures` and `lifted` are passed to `pod_classes`. The pods that `snapshot` has as running
    and that are among `pods` leave their nodes.
    """
    volumes = VolumeIndex(snapshot, pods)
    devices = DeviceAllocator(pods, snapshot, catalog)
    pending = _read_pods(
        pod_classes(
            [volumes.with_existing_claims(pod) for pod in pods],
            signatures=signatures,
            lifted=lifted,
            budgets=snapshot.pod_disruption_budgets,
        ),
        volumes=volumes,
        devices=devices,
        settings=settings,
        soft_taints=_has_soft_taints(catalog),
    )
    pending.count_attachments(catalog)
    axis = pending.axis
    pending.set_sizes(axis)
    running = _running_pods(snapshot, pending)
    if any(pod_class.volumes.shared for pod_class, _ in pending.classes):
        running = [volumes.with_shared_claims(pod) for pod in running]
    nodes = ExistingNodes(snapshot.nodes, pods=running, daemons=catalog.daemons, axis=axis)
    groups = _stated_groups(pending, running, snapshot)
    supply = _supply(
        pending,
        _required_variants(pending, groups.all, devices, catalog),
        axis=axis,
        settings=settings,
        headroom=headroom_of(catalog, usage(snapshot.nodes, snapshot.instance_types)),
    )
    return SchedulingProblem(
        settings=settings,
        catalog=catalog,
        pods=pending,
        axis=axis,
        nodes=nodes,
        attachments=Attachments(nodes.all, snapshot=snapshot, running=running, index=volumes),
        groups=groups,
        devices=devices,
        supply=supply,
        reader=EligibilityReader(supply=supply, nodes=nodes, groups=groups, devices=devices),
    )


def _read_pods(
    pods_by_class: Sequence[PodClass],
    *,
    volumes: VolumeIndex,
    devices: DeviceAllocator,
    settings: Settings,
    soft_taints: bool,
) -> PendingPods:
    """Set the volumes and constraints of classes, and refuse malformed classes.

    `soft_taints` says whether any NodePool has a PreferNoSchedule taint.
    """
    classes, refused = _split_by_claims(pods_by_class, devices, settings)
    read_classes: list[ConstrainedClass] = []
    cached: dict[bytes, tuple[PodConstraints, Volumes]] = {}
    for pod_class in classes:
        signature, key = pod_class.signature, pod_class.placement_key
        error = signature.request_error
        try:
            if not error and key not in cached:
                constraints = initial_constraints(
                    signature.spec, policy=settings.preference_policy, soft_taints=soft_taints
                )
                cached[key] = (
                    constraints,
                    volumes.of(signature.namespace, signature.spec, constraints.strict),
                )
        except ValueError as malformed:
            error = str(malformed)
        if error:
            refused |= dict.fromkeys(pod_class.keys, (error,))
        else:
            constraints, pod_class.volumes = cached[key]
            read_classes.append((pod_class, constraints))
    refused |= _refuse_further_users(read_classes, volumes)
    return PendingPods(tuple(one for one in read_classes if one[0].keys), refused)


def _refuse_further_users(
    classes: Sequence[ConstrainedClass], volumes: VolumeIndex
) -> dict[str, tuple[str, ...]]:
    """Remove the pods whose ReadWriteOncePod claim another pod uses; return them with causes.

    A pod on a node precedes the pods of the solve, which are in the order of placement.
    """
    refused: dict[str, tuple[str, ...]] = {}
    first_users: dict[str, str] = {}
    for pod_class, _ in classes:
        for claim in pod_class.volumes.exclusive:
            user = volumes.users_of_claims.get(claim) or first_users.setdefault(
                claim, pod_class.keys[0] if pod_class.keys else ""
            )
            cause = (
                f"PersistentVolumeClaim {claim} has the access mode ReadWriteOncePod, and pod "
                f"{user} uses it"
            )
            refused |= {key: (cause,) for key in pod_class.keys if key != user}
            pod_class.keys = [key for key in pod_class.keys if key == user]
    return refused


def _split_by_claims(
    classes: Sequence[PodClass], devices: DeviceAllocator, settings: Settings
) -> tuple[list[PodClass], dict[str, tuple[str, ...]]]:
    """Split pod classes by the claims of their pods; also return the refused pods with causes."""
    split_classes: list[PodClass] = []
    refused: dict[str, tuple[str, ...]] = {}
    for pod_class in classes:
        if not pod_class.signature.spec.resource_claims:
            split_classes.append(pod_class)
        elif settings.ignore_dra_requests:
            refused |= dict.fromkeys(pod_class.keys, (DRA_IGNORED,))
        else:
            parts, failed = devices.claims.split_by_claims(pod_class)
            split_classes.extend(parts)
            refused |= {key: (cause,) for key, cause in failed.items()}
    return split_classes, refused


def _has_soft_taints(catalog: Catalog) -> bool:
    """Whether any NodePool has a PreferNoSchedule taint."""
    return any(
        taint.effect == PREFER_NO_SCHEDULE for pool in catalog.pools for taint in pool.taints
    )


def _running_pods(snapshot: Snapshot, pending: PendingPods) -> list[Pod]:
    """Return the pods that have a node and are not among the pending pods of this solve."""
    pending_keys = pending.keys
    return [pod for pod in snapshot.pods if pod.spec.node_name and pod.key not in pending_keys]


def _stated_groups(
    pending: PendingPods, running: Sequence[Pod], snapshot: Snapshot
) -> TopologyGroups:
    """Return the topology groups of pending and running pods, with the running pods counted."""
    groups = TopologyGroups(snapshot.namespaces)
    for pod_class, constraints in pending.one_per_placement_key():
        topology_groups_of(pod_class, constraints, groups)
    groups.of_running(running, snapshot.nodes)
    groups.count_running(running, snapshot.nodes)
    return groups


def _required_variants(
    pending: PendingPods,
    groups: Iterable[TopologyGroup],
    devices: DeviceAllocator,
    catalog: Catalog,
) -> Variants:
    """Return the variants for all requirements of pods and their devices on new nodes.

    They also distinguish the domains of every topology group.
    """
    firsts = pending.one_per_placement_key()
    needs = [
        (alternative, pod_class.signature.ports)
        for pod_class, constraints in firsts
        for alternative in new_node_alternatives(pod_class, constraints, devices)
    ]
    required = [alternative for alternative, _ in needs]
    for _, constraints in firsts:
        # The requirements without volumes and devices decide which nodes a spread counts.
        required.extend(constraints.strict)
        required.extend(
            read(term.preference.match_expressions) for term in constraints.preferred_nodes
        )
    required.extend(devices.queries)
    domains: list[Requirements] = []
    for key in sorted({group.key for group in groups if not group.per_node}):
        sets_of_key = list(
            dict.fromkeys(requirements[key] for requirements in required if key in requirements)
        )
        values = distinguished_values(catalog, key, sets_of_key)
        domains.extend({key: one_of(value)} for value in values)
        domains.append({key: NOTHING})  # a node without the label meets an anti-affinity
    variants = variants_of(catalog, [*required, *domains], ports=(ports for _, ports in needs))
    return with_joined_variants(variants, needs, domains)


def _supply(
    pending: PendingPods,
    variants: Variants,
    *,
    axis: ResourceAxis,
    settings: Settings,
    headroom: LimitHeadroom,
) -> Supply:
    """Return the variants as the supply of a solve, with their capacity and limits."""
    limits = purchase_limits(variants, headroom)
    sizes = [pod_class.size for pod_class, _ in pending.classes]
    capacity = variants.capacity_along(axis)
    minimums = OfferingMinimums(variants, settings)
    beyond_limits = LaunchOptions(
        variants, flexible_capacity(variants, capacity, settings, sizes), minimums
    )
    launch_options, admitted = beyond_limits, limits.admit_one(limits.left)
    if not admitted.all():
        within = np.where(admitted[:, None], capacity, -1.0)
        launch_options = LaunchOptions(
            variants, flexible_capacity(variants, within, settings, sizes), minimums
        )
    return Supply(
        variants=variants,
        minimums=minimums,
        capacity=launch_options.capacity,
        launch_options=launch_options,
        beyond_limits=beyond_limits,
        headroom=headroom,
        limits=limits,
    )
