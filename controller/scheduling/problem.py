"""Read the input of a solve: pending pods, existing nodes and offerings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from controller.apis.kubernetes.pods import Pod
from controller.constraints import resources
from controller.constraints.requirements import Requirements, one_of, read
from controller.constraints.taints import PREFER_NO_SCHEDULE
from controller.scheduling.arrays import Matrix
from controller.scheduling.catalog.launchoptions import LaunchOptions
from controller.scheduling.catalog.limits import (
    LimitHeadroom,
    PurchaseLimits,
    headroom_of,
    purchase_limits,
)
from controller.scheduling.catalog.minvalues import flexible_capacity, with_joined_variants
from controller.scheduling.catalog.offerings import Catalog
from controller.scheduling.catalog.variants import Variants, distinguished_values, variants_of
from controller.scheduling.dra.deviceallocator import DeviceAllocator
from controller.scheduling.nodes.attachments import Attachments
from controller.scheduling.nodes.existing import ExistingNodes
from controller.scheduling.placement.eligibility import EligibilityReader, new_node_alternatives
from controller.scheduling.pods.classes import PodClass, pod_classes
from controller.scheduling.pods.groups import topology_groups_of
from controller.scheduling.pods.preferences import PodConstraints, initial_constraints
from controller.scheduling.pods.signatures import PodSignatures
from controller.scheduling.pods.volumes import VolumeIndex, Volumes
from controller.scheduling.resourceaxis import ResourceAxis
from controller.scheduling.settings import Settings
from controller.scheduling.topology.groups import TopologyGroup, TopologyGroups
from controller.state.snapshot import Snapshot
from controller.state.usage import usage

SHAPING = (resources.CPU, resources.MEMORY)
"""The first resources of every solve, whether a pod requests them or not."""

CLAIMS_DEVICES = "the pod has resource claims, which Joiner ignores: set IGNORE_DRA_REQUESTS=false"

ConstrainedClass = tuple[PodClass, PodConstraints]
"""Equal pending pods, with their initial requirements and preferences."""


@dataclass(frozen=True, slots=True)
class WaitingPods:
    """The pending pods in classes of equal ones; `refused` maps malformed pods to causes."""

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
        asked = {name for pod_class, _ in self.classes for name in pod_class.requests}
        return ResourceAxis((*SHAPING, *sorted(asked.difference(SHAPING))))

    def one_per_placement_key(self) -> list[ConstrainedClass]:
        """Return the first class of each placement key."""
        firsts: dict[bytes, ConstrainedClass] = {}
        for pod_class, constraints in self.classes:
            firsts.setdefault(pod_class.placement_key, (pod_class, constraints))
        return list(firsts.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Supply:
    """What can be bought.

    `capacity`: node types × the solve's resources, allocatable capacity. `headroom`: what the
    limits of NodePools still allow. `limits`: the same for node types, with capacity reservations.
    """

    variants: Variants
    capacity: Matrix
    launch_options: LaunchOptions
    headroom: LimitHeadroom
    limits: PurchaseLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulingProblem:
    """Pending pods and the cluster, read; nothing is decided yet.

    A solver does not change it: remaining capacity, tallies, volumes and devices are copied for
    each solve.
    """

    settings: Settings
    catalog: Catalog
    pods: WaitingPods
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
    volumes = VolumeIndex(snapshot)
    devices = DeviceAllocator(pods, snapshot, catalog)
    waiting = _read_pods(
        pod_classes(
            [volumes.with_bound_claims(pod) for pod in pods],
            signatures=signatures,
            lifted=lifted,
            budgets=snapshot.pod_disruption_budgets,
        ),
        volumes=volumes,
        devices=devices,
        settings=settings,
        soft_taints=_taint_softly(catalog),
    )
    axis = waiting.axis
    running = _running(snapshot, waiting)
    nodes = ExistingNodes(snapshot.nodes, pods=running, daemons=catalog.daemons, axis=axis)
    groups = _stated_groups(waiting, running, snapshot)
    supply = _supply(
        waiting,
        _asked_variants(waiting, groups.all, devices, catalog),
        axis=axis,
        settings=settings,
        headroom=headroom_of(catalog, usage(snapshot.nodes, snapshot.instance_types)),
    )
    return SchedulingProblem(
        settings=settings,
        catalog=catalog,
        pods=waiting,
        axis=axis,
        nodes=nodes,
        attachments=Attachments(nodes.all, snapshot=snapshot, running=running, index=volumes),
        groups=groups,
        devices=devices,
        supply=supply,
        reader=EligibilityReader(
            catalog=catalog,
            variants=supply.variants,
            nodes=nodes,
            groups=groups,
            devices=devices,
            launch_options=supply.launch_options,
            axis=axis,
        ),
    )


def _read_pods(
    settled: Sequence[PodClass],
    *,
    volumes: VolumeIndex,
    devices: DeviceAllocator,
    settings: Settings,
    soft_taints: bool,
) -> WaitingPods:
    """Give classes their volumes and constraints; refuse the malformed ones.

    `soft_taints` says whether any NodePool has a PreferNoSchedule taint.
    """
    classes, refused = _split_by_claims(settled, devices, settings)
    read_classes: list[ConstrainedClass] = []
    known: dict[bytes, tuple[PodConstraints, Volumes]] = {}
    for pod_class in classes:
        key, flaw = pod_class.placement_key, pod_class.flaw
        try:
            if not flaw and key not in known:
                constraints = initial_constraints(
                    pod_class.spec, policy=settings.preference_policy, soft_taints=soft_taints
                )
                known[key] = constraints, volumes.of(pod_class.namespace, pod_class.spec)
        except ValueError as malformed:
            flaw = str(malformed)
        if flaw:
            refused |= dict.fromkeys(pod_class.keys, (flaw,))
        else:
            constraints, pod_class.volumes = known[key]
            read_classes.append((pod_class, constraints))
    return WaitingPods(tuple(read_classes), refused)


def _split_by_claims(
    classes: Sequence[PodClass], devices: DeviceAllocator, settings: Settings
) -> tuple[list[PodClass], dict[str, tuple[str, ...]]]:
    """Split pod classes by the claims of their pods; also return the pods without devices.

    Those pods come with the cause.
    """
    parted: list[PodClass] = []
    refused: dict[str, tuple[str, ...]] = {}
    for pod_class in classes:
        if not pod_class.spec.resource_claims:
            parted.append(pod_class)
        elif settings.ignore_dra_requests:
            refused |= dict.fromkeys(pod_class.keys, (CLAIMS_DEVICES,))
        else:
            parts, failed = devices.split_by_claims(pod_class)
            parted.extend(parts)
            refused |= {key: (cause,) for key, cause in failed.items()}
    return parted, refused


def _taint_softly(catalog: Catalog) -> bool:
    """Whether any NodePool has a PreferNoSchedule taint."""
    return any(
        taint.effect == PREFER_NO_SCHEDULE for pool in catalog.pools for taint in pool.taints
    )


def _running(snapshot: Snapshot, waiting: WaitingPods) -> list[Pod]:
    """Return the pods that have a node and are not among the pending pods of this solve."""
    moving = waiting.keys
    return [pod for pod in snapshot.pods if pod.spec.node_name and pod.key not in moving]


def _stated_groups(
    waiting: WaitingPods, running: Sequence[Pod], snapshot: Snapshot
) -> TopologyGroups:
    """Return the topology groups of pending and running pods, with the running pods counted."""
    groups = TopologyGroups(snapshot.namespaces)
    for pod_class, constraints in waiting.one_per_placement_key():
        topology_groups_of(pod_class, constraints, groups)
    groups.of_running(running, snapshot.nodes)
    groups.count_running(running, snapshot.nodes)
    return groups


def _asked_variants(
    waiting: WaitingPods,
    groups: Iterable[TopologyGroup],
    devices: DeviceAllocator,
    catalog: Catalog,
) -> Variants:
    """Return the variants for everything that pods and their devices require of new nodes.

    They also tell apart the domains of every topology group.
    """
    firsts = waiting.one_per_placement_key()
    asking = [
        (alternative, pod_class.ports)
        for pod_class, constraints in firsts
        for alternative in new_node_alternatives(pod_class, constraints, devices)
    ]
    asked = [alternative for alternative, _ in asking]
    for _, constraints in firsts:
        # The requirements without volumes and devices decide which nodes a spread counts.
        asked.extend(constraints.strict)
        asked.extend(
            read(term.preference.match_expressions) for term in constraints.preferred_nodes
        )
    asked.extend(devices.queries)
    domains: list[Requirements] = []
    for key in sorted({group.key for group in groups if not group.per_node}):
        wanted = list(
            dict.fromkeys(requirements[key] for requirements in asked if key in requirements)
        )
        values = distinguished_values(catalog, key, wanted)
        domains.extend({key: one_of(value)} for value in values)
    opened = variants_of(catalog, [*asked, *domains], ports=(ports for _, ports in asking))
    return with_joined_variants(opened, asking, domains)


def _supply(
    waiting: WaitingPods,
    variants: Variants,
    *,
    axis: ResourceAxis,
    settings: Settings,
    headroom: LimitHeadroom,
) -> Supply:
    """Return what can be bought: these variants within the limits."""
    capacity = flexible_capacity(
        variants,
        variants.capacity_along(axis),
        settings,
        axis.vectors(pod_class.requests for pod_class, _ in waiting.classes),
    )
    return Supply(
        variants=variants,
        capacity=capacity,
        launch_options=LaunchOptions(variants, capacity),
        headroom=headroom,
        limits=purchase_limits(variants, headroom),
    )
