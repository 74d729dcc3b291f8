"""Eligibility of pods: their constraints matched against variants and existing nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np

from controller.apis.kubernetes.taints import Toleration
from controller.constraints.requirements import Requirements, conjunction
from controller.constraints.taints import TOLERATE_PREFERENCES, untolerated_taint
from controller.scheduling.arrays import Mask
from controller.scheduling.catalog.launchoptions import Supply
from controller.scheduling.dra.deviceallocator import DeviceAllocator
from controller.scheduling.nodes.existing import ExistingNodes
from controller.scheduling.pods.classes import PodClass
from controller.scheduling.pods.groups import Eligibility, PendingGroup, topology_groups_of
from controller.scheduling.pods.preferences import PodConstraints
from controller.scheduling.topology.groups import TopologyGroup, TopologyGroups


@dataclass(kw_only=True)
class EligibilityReader:
    """Reads the eligibility of pod classes; cached by the identity of the constraints."""

    supply: Supply
    nodes: ExistingNodes
    groups: TopologyGroups
    devices: DeviceAllocator
    _tiers: dict[tuple[bytes, bytes], tuple[int, ...]] = field(default_factory=dict)
    _selecting: dict[tuple[object, ...], tuple[TopologyGroup, ...]] = field(default_factory=dict)
    _eligibilities: dict[int, Eligibility] = field(default_factory=dict)
    _tolerating: dict[tuple[Toleration, ...], Mask] = field(default_factory=dict)

    def pending_group(
        self, pod_class: PodClass, constraints: PodConstraints, keys: Sequence[str]
    ) -> PendingGroup:
        """Return pods of a class as a pending group.

        The eligible variants are those in the NodePools of the highest weight.
        """
        eligibility = self.eligibility(pod_class, constraints)
        pending = PendingGroup(
            pod_class=pod_class,
            eligibility=eligibility,
            keys=list(keys),
            owned=eligibility.owned,
            eligible=np.zeros_like(eligibility.eligible),
            tiers=(),
        )
        pending.tiers = self._weights(pending)
        self.next_tier(pending)
        return pending

    def eligibility(self, pod_class: PodClass, constraints: PodConstraints) -> Eligibility:
        """Return the eligibility of pods of a class under these constraints."""
        eligibility = self._eligibilities.get(id(constraints))
        if eligibility is None:
            eligibility = self._eligibilities[id(constraints)] = self._eligibility(
                pod_class, constraints
            )
        return eligibility

    def next_tier(self, pending: PendingGroup) -> bool:
        """Make the NodePools of the next lower weight eligible; return False if there are none."""
        if not pending.tiers:
            return False
        tier, *rest = pending.tiers
        pending.eligible = pending.eligibility.eligible & (
            self.supply.variants.weight_of_variant == tier
        )
        pending.tiers = tuple(rest)
        return True

    def _weights(self, pending: PendingGroup) -> tuple[int, ...]:
        """Return the weights of NodePools that could launch a node for the pods, highest first."""
        key = (pending.eligibility.eligible.tobytes(), pending.size.tobytes())
        cached = self._tiers.get(key)
        if cached is None:
            fitting = self.supply.launch_options.fitting_variants(
                pending.eligibility.eligible, pending.size
            )
            weights = set(self.supply.variants.weight_of_variant[fitting].tolist())
            cached = self._tiers[key] = tuple(sorted(weights, reverse=True))
        return cached

    def _eligibility(self, pod_class: PodClass, constraints: PodConstraints) -> Eligibility:
        """Return the eligibility of a class, read without the cache."""
        meeting_preference = self.supply.variants.compatible_mask(constraints.preferred)
        alternatives = new_node_alternatives(pod_class, constraints, self.devices)
        variants, minimums = self.supply.variants, self.supply.minimums
        meeting = [variants.compatible_mask(needed) for needed in alternatives]
        variants_by_alternative = tuple(
            mask & meeting_preference & minimums.met(conjunction(needed, constraints.preferred))
            for mask, needed in zip(meeting, alternatives, strict=True)
        )
        own_eligible = self._union(
            meeting
            if alternatives == constraints.strict
            else [variants.compatible_mask(needed) for needed in constraints.strict]
        )
        required = self._union(
            [
                mask & minimums.met(needed)
                for mask, needed in zip(meeting, alternatives, strict=True)
            ]
        )
        free = self.supply.variants.free(pod_class.signature.ports)
        hard_tolerations = (*constraints.tolerations, TOLERATE_PREFERENCES)
        # Device alternatives describe new nodes only. `DeviceAllocator.fitting_counts` checks the
        # devices of existing nodes.
        alternatives_on_nodes = (
            alternatives
            if pod_class.device_requests is None
            else alternatives_of(pod_class, constraints)
        )
        nodes = self.nodes.compatible_mask(
            [
                conjunction(alternative, constraints.preferred)
                for alternative in alternatives_on_nodes
            ]
        )
        nodes &= self.nodes.tolerated_mask(hard_tolerations)
        return Eligibility(
            constraints=constraints,
            owned=topology_groups_of(pod_class, constraints, self.groups),
            counted=self._groups_counting(pod_class),
            alternatives=alternatives,
            variants_by_alternative=variants_by_alternative,
            own_eligible=own_eligible,
            tolerated=self._tolerated_mask(hard_tolerations),
            required=required & self._tolerated_mask(hard_tolerations) & free,
            eligible=self._union(variants_by_alternative)
            & self._tolerated_mask(constraints.tolerations)
            & free,
            nodes=nodes,
        )

    def _tolerated_mask(self, tolerations: Sequence[Toleration]) -> Mask:
        """Mark the variants whose NodePool has only taints that are tolerated."""
        key = tuple(tolerations)
        cached = self._tolerating.get(key)
        if cached is None:
            pools = [
                untolerated_taint(pool.taints, key) is None
                for pool in self.supply.variants.catalog.pools
            ]
            cached = np.array(pools, dtype=np.bool_)[self.supply.variants.pool_of_variant]
            self._tolerating[key] = cached
        return cached

    def _union(self, variants_by_alternative: Sequence[Mask]) -> Mask:
        eligible = np.zeros(len(self.supply.variants.pool_of_variant), dtype=np.bool_)
        for meeting in variants_by_alternative:
            eligible |= meeting
        return eligible

    def _groups_counting(self, pod_class: PodClass) -> tuple[TopologyGroup, ...]:
        namespace, labels = pod_class.signature.namespace, pod_class.signature.labels
        key = (namespace, tuple(sorted(labels.items())))
        cached = self._selecting.get(key)
        if cached is None:
            selecting = self.groups.selecting_groups(namespace, labels)
            cached = self._selecting[key] = tuple(self.groups.all[index] for index in selecting)
        return cached


def new_node_alternatives(
    pod_class: PodClass, constraints: PodConstraints, devices: DeviceAllocator
) -> tuple[Requirements, ...]:
    """Return the alternative requirements for a new node of these pods, devices included.

    Each alternative of selector, affinity and volumes is combined with each alternative of the
    claimed devices.
    """
    alternatives = alternatives_of(pod_class, constraints)
    if pod_class.device_requests is None:
        return alternatives
    return tuple(
        conjunction(*pair)
        for pair in product(alternatives, devices.nodes.alternatives(pod_class.device_requests))
    )


def alternatives_of(pod_class: PodClass, constraints: PodConstraints) -> tuple[Requirements, ...]:
    """Return each alternative of selector and affinity, with each alternative of the volumes."""
    if pod_class.volumes.alternatives == ({},):
        return constraints.strict
    return tuple(
        conjunction(alternative, reach)
        for alternative in constraints.strict
        for reach in pod_class.volumes.alternatives
    )
