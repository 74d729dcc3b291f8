"""Improve the new nodes of a small solve (at most `MAX_PODS` pods on them) after its last round.

Each round buys nodes for its own pods. Here pods also move between nodes of different rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from controller.scheduling.arrays import Indices, Vector
from controller.scheduling.catalog.launchoptions import Supply
from controller.scheduling.packing.formulation import ProblemBuilder, each_apart
from controller.scheduling.packing.localsearch import MAX_PODS, LocalSearch, MoveRules
from controller.scheduling.packing.plannednodes import Families, PlannedNode
from controller.scheduling.placement.domains import Domains
from controller.scheduling.pods.groups import PendingGroup, PodGroup


@dataclass(frozen=True, slots=True)
class Rearranged:
    """Improved new nodes, and the remaining amounts of the limits (`left`)."""

    planned: list[PlannedNode]
    left: Vector


@dataclass(frozen=True, slots=True, kw_only=True)
class Rearrangement:
    """Removes new nodes and recreates them if that is cheaper."""

    builder: ProblemBuilder
    supply: Supply
    domains: Domains

    def rearrange(
        self,
        planned: Sequence[PlannedNode],
        without_node: Sequence[PendingGroup],
        left: Vector,
        weights: Indices,
    ) -> Rearranged | None:
        """Return cheaper nodes for the same pods; None if there is no improvement.

        Placing pods that had no node (`without_node`) is an improvement too. `left` (limits) is the
        remaining amount of each limit. `weights` (variants) are the weights of the NodePools.
        """
        families = Families(planned, self._movable(without_node), self._in_all_domains)
        # The problem must contain the best node types of every NodePool weight, because the search
        # may launch nodes in a pool of any weight.
        by_weight = [
            replace(pod_group, eligible=pod_group.eligible & (weights == weight))
            for weight in np.unique(weights).tolist()
            for pod_group in families.classes
        ]
        present_node_types = np.array([node.node_type for node in planned], dtype=np.int64)
        freed = left + self.supply.limits.consumption[present_node_types].sum(axis=0)
        classes = each_apart([*families.classes, *by_weight])
        problem, node_types = self.builder.problem(classes, freed, keep=present_node_types)
        rules = [self.domains.rules(pod_group.pending) for pod_group in families.classes]
        search = LocalSearch(
            problem=problem,
            move_rules=MoveRules(
                weight=weights[self.supply.variants.variant_of[node_types]],
                pins=[pod_group.pins for pod_group in families.classes],
                rules=rules,
                bound=[pod_group.is_bound for pod_group in families.classes],
                alternatives=families.others,
                # Pods on existing nodes may have affinity to pods on new nodes.
                all_rules=list(dict.fromkeys((*rules, *self.domains.stated_rules()))),
            ),
            pods=families.pods(),
            node_types=np.searchsorted(node_types, present_node_types),
            fixed=np.array([node.is_bound for node in planned]),
        )
        if not search.run(families.waiting):
            return None
        nodes = search.nodes
        made = np.where(nodes.node_type < 0, -1, node_types[nodes.node_type])
        return Rearranged(
            planned=families.planned_nodes(made.tolist(), nodes.pods[:, : len(rules)]),
            left=nodes.headroom * self.supply.limits.units,
        )

    def _movable(self, without_node: Sequence[PendingGroup]) -> list[PodGroup]:
        """Return the pods without a node that the search may place, the most important first.

        Each pod group is in the first of its domains. Pods with resource claims are left out,
        because devices are allocated while nodes are packed. Pending groups of more than `MAX_PODS`
        pods are left out too, and pods that must share a node with certain other pods.
        """
        pod_groups = []
        without_devices = (
            pending for pending in without_node if pending.pod_class.device_requests is None
        )
        for pending in sorted(
            without_devices, key=lambda pending: (pending.is_buffer, pending.pod_class.index)
        ):
            rules, eligible = self.domains.rules(pending), pending.eligibility.eligible
            domains = self.supply.launch_options.combinations(
                eligible, rules.keys, rules.optional_keys
            )
            fits = len(self.supply.launch_options.fitting_node_types(eligible, pending.size)) > 0
            few = 0 < pending.number <= MAX_PODS
            if fits and domains and few and not pending.needs_colocation:
                pins = tuple(zip(rules.keys, domains[0], strict=True))
                pod_groups.append(PodGroup(pending, pins, list(pending.keys), eligible))
        return pod_groups

    def _in_all_domains(self, pod_group: PodGroup) -> list[PodGroup]:
        """Return a pod group for each combination of domains in which nodes can be launched for it.

        The first one is in the present domains, and for a bound pod group it is the only one. The
        nodes may be in NodePools of any weight.
        """
        eligible = self.domains.opening_variants(pod_group.pending.eligibility.eligible)
        keys = tuple(key for key, _ in pod_group.pins)
        all_pins = [pod_group.pins]
        if not pod_group.is_bound:
            optional = self.domains.rules(pod_group.pending).optional_keys
            pins_of_combinations = (
                tuple(zip(keys, domains, strict=True))
                for domains in self.supply.launch_options.combinations(eligible, keys, optional)
            )
            all_pins += [pins for pins in pins_of_combinations if pins != pod_group.pins]
        return [
            replace(
                pod_group,
                pins=pins,
                keys=[],
                unit=1,
                colocated=[],
                needs=None,
                eligible=self.supply.launch_options.pinned_mask(eligible, pins)
                if pod_group.needs is None
                else pod_group.eligible,
            )
            for pins in all_pins
        ]
