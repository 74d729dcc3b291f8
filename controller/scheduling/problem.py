"""What a solve is about: what waits, what is there, and what can be bought."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from controller.apis.pods import Pod
from controller.constraints import resources
from controller.constraints.requirements import Requirements, one_of, read
from controller.constraints.taints import PREFER_NO_SCHEDULE
from controller.scheduling.arrays import Matrix
from controller.scheduling.catalog.launchoptions import LaunchOptions
from controller.scheduling.catalog.limits import headroom as headroom_of
from controller.scheduling.catalog.minvalues import flexible_room, spanning
from controller.scheduling.catalog.offerings import Catalog
from controller.scheduling.catalog.variants import Variants, values_apart, variants_of
from controller.scheduling.dra.dynamicresources import DynamicResources
from controller.scheduling.nodes.attachments import Attachments
from controller.scheduling.nodes.existing import ExistingNodes
from controller.scheduling.nodes.occupancy import ExistingOccupancy
from controller.scheduling.packing.formulation import ProblemBuilder
from controller.scheduling.packing.pricefloor import overstatement
from controller.scheduling.placement.domains import Domains
from controller.scheduling.placement.eligibility import (
    EligibilityReader,
    new_node_alternatives,
    size_of,
)
from controller.scheduling.pods.classes import PodClass, pod_classes
from controller.scheduling.pods.groups import topology_groups_of
from controller.scheduling.pods.preferences import PodConstraints, first_constraints
from controller.scheduling.pods.volumes import VolumeIndex, Volumes
from controller.scheduling.settings import Settings
from controller.scheduling.topology.groups import TopologyGroups, count_running
from controller.state.snapshot import Snapshot
from controller.state.usage import usage

SHAPING = (resources.CPU, resources.MEMORY)
"""What gives a machine its shape: the first of the solve's resources, asked for or not."""

CLAIMS_DEVICES = "claims devices, which are left alone here: set IGNORE_DRA_REQUESTS=false"


class SchedulingProblem:
    """Pods and a world, read; `left` (limits) is what may be bought to begin with.

    `room` is kinds × the solve's resources, `names`; `consumption` kinds × limits, counted in
    `limit_units`. `refused` has the pods that cannot even be read, with causes.
    """

    def __init__(
        self, pods: Sequence[Pod], *, snapshot: Snapshot, settings: Settings, catalog: Catalog
    ) -> None:
        """Read the pods and the world; nothing is decided yet."""
        self.settings, self.catalog = settings, catalog
        self.refused: dict[str, tuple[str, ...]] = {}
        self.volumes = VolumeIndex(snapshot)
        self.devices = DynamicResources(pods, snapshot, catalog)
        self.waiting = self._read_constraints(
            pod_classes([self.volumes.settled(pod) for pod in pods])
        )
        asked = {name for pod_class, _ in self.waiting for name in pod_class.requests}
        self.names = names = (*SHAPING, *sorted(asked.difference(SHAPING)))
        waiting_keys = {key for pod_class, _ in self.waiting for key in pod_class.keys}
        running = [
            pod for pod in snapshot.pods if pod.spec.node_name and pod.key not in waiting_keys
        ]
        self.nodes = ExistingNodes(
            snapshot.nodes, pods=running, daemons=catalog.daemons, names=names
        )
        self.groups = self._stated_groups(snapshot, running)
        self.variants = self._read_variants()
        self.room = flexible_room(
            self.variants,
            along(names, catalog)[self.variants.row_of],
            settings,
            [size_of(pod_class, names) for pod_class, _ in self.waiting],
        )
        self.launch_options = LaunchOptions(self.variants, self.room)
        self.domains = Domains(self.nodes, self.launch_options)
        self.reader = EligibilityReader(
            catalog=catalog,
            variants=self.variants,
            nodes=self.nodes,
            groups=self.groups,
            devices=self.devices,
            launch_options=self.launch_options,
            names=names,
        )
        self.headroom = headroom_of(catalog, usage(snapshot.nodes))
        # Reservations are limits as well: a node of one takes one of its instances.
        held = self.variants.reservation_of_variant[self.variants.variant_of]
        reserved = held[:, None] == np.arange(len(catalog.reservations))[None]
        self.consumption = np.concatenate(
            [self.headroom.per_row[self.variants.row_of], reserved], axis=1
        ).astype(np.float64)
        counts = [float(count) for _, count in catalog.reservations]
        self.left = np.concatenate([self.headroom.left, np.array(counts, dtype=np.float64)])
        # Memory is counted in thousandths of bytes; programs solve for what is about 1. By
        # powers of two numbers come back as they went.
        most = self.consumption.max(axis=0, initial=1.0)
        self.limit_units = np.exp2(np.floor(np.log2(most)))
        self.problem_builder = ProblemBuilder(
            self.variants,
            self.groups,
            room=self.room,
            consumption=self.consumption,
            limit_units=self.limit_units,
        )
        bought = self.variants.price[held < 0]
        self.overstated = overstatement(self.variants.price, sum(counts))
        self.overstated += overstatement(bought, len(pods))
        self.occupancy = ExistingOccupancy(self.groups.all, self.nodes)
        self.attachments = Attachments(
            self.nodes.all, snapshot=snapshot, running=running, index=self.volumes
        )

    def _read_constraints(
        self, classes: Sequence[PodClass]
    ) -> list[tuple[PodClass, PodConstraints]]:
        soft = any(
            taint.effect == PREFER_NO_SCHEDULE
            for pool in self.catalog.pools
            for taint in pool.taints
        )
        policy = self.settings.preference_policy
        waiting = []
        known: dict[bytes, tuple[PodConstraints, Volumes]] = {}
        for pod_class in self._with_devices(classes):
            if pod_class.flaw:
                self._refuse(pod_class.keys, pod_class.flaw)
                continue
            try:
                if pod_class.placement_key not in known:
                    constraints = first_constraints(pod_class.spec, policy=policy, soft_taints=soft)
                    volumes = self.volumes.of(pod_class.namespace, pod_class.spec)
                    known[pod_class.placement_key] = constraints, volumes
                constraints, pod_class.volumes = known[pod_class.placement_key]
            except ValueError as malformed:
                self._refuse(pod_class.keys, str(malformed))
                continue
            waiting.append((pod_class, constraints))
        return waiting

    def _with_devices(self, classes: Sequence[PodClass]) -> Sequence[PodClass]:
        """Part pod classes by the claims of their pods; give those up that cannot have devices."""
        if not any(pod_class.spec.resource_claims for pod_class in classes):
            return classes
        parted: list[PodClass] = []
        for pod_class in classes:
            if not pod_class.spec.resource_claims:
                parted.append(pod_class)
            elif self.settings.ignore_dra_requests:
                self._refuse(pod_class.keys, CLAIMS_DEVICES)
            else:
                parts, failed = self.devices.split_by_claims(pod_class)
                parted.extend(parts)
                for key, cause in failed.items():
                    self._refuse([key], cause)
        return parted

    def _one_per_placement_key(self) -> list[tuple[PodClass, PodConstraints]]:
        """Return the first class of each placement key."""
        firsts: dict[bytes, tuple[PodClass, PodConstraints]] = {}
        for pod_class, constraints in self.waiting:
            firsts.setdefault(pod_class.placement_key, (pod_class, constraints))
        return list(firsts.values())

    def _stated_groups(self, snapshot: Snapshot, running: Sequence[Pod]) -> TopologyGroups:
        groups = TopologyGroups(snapshot.namespaces)
        for pod_class, constraints in self._one_per_placement_key():
            topology_groups_of(pod_class, constraints, groups)
        groups.of_running(running, snapshot.nodes)
        count_running(groups.all, running, snapshot.nodes)
        return groups

    def _read_variants(self) -> Variants:
        asking = [
            (alternative, pod_class.ports)
            for pod_class, constraints in self._one_per_placement_key()
            for alternative in new_node_alternatives(pod_class, constraints, self.devices)
        ]
        asked = [alternative for alternative, _ in asking]
        for _, constraints in self._one_per_placement_key():
            asked.extend(
                read(one.preference.match_expressions) for one in constraints.preferred_nodes
            )
        asked.extend(self.devices.queries)
        domains: list[Requirements] = []
        for key in sorted({group.key for group in self.groups.all if not group.per_node}):
            wanted = list(dict.fromkeys(one[key] for one in asked if key in one))
            values = values_apart(self.catalog, key, wanted)
            domains.extend({key: one_of(value)} for value in values)
        opened = variants_of(self.catalog, [*asked, *domains], ports=(ports for _, ports in asking))
        return spanning(opened, asking, domains)

    def _refuse(self, keys: Sequence[str], cause: str) -> None:
        for key in keys:
            self.refused[key] = (cause,)


def along(names: Sequence[str], catalog: Catalog) -> Matrix:
    """Return what rows have for pods along other resource names; rows × names."""
    room = np.zeros((len(catalog.pool_of_row), len(names)))
    for place, name in enumerate(names):
        if name in catalog.resource_names:
            room[:, place] = catalog.allocatable[:, catalog.resource_names.index(name)]
    return room
