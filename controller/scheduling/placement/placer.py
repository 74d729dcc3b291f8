"""Placement of pending groups in domains and on existing nodes, and its reversal."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from controller.scheduling.arrays import Indices, Mask
from controller.scheduling.catalog.launchoptions import Supply
from controller.scheduling.dra.deviceallocator import DeviceAllocator
from controller.scheduling.nodes.attachments import Attachments
from controller.scheduling.nodes.existing import ExistingNodes
from controller.scheduling.nodes.occupancy import ExistingOccupancy
from controller.scheduling.placement.colocation import colocate
from controller.scheduling.placement.domains import Domains
from controller.scheduling.pods.groups import PendingGroup, PodGroup
from controller.scheduling.topology.groups import (
    Tallies,
    TopologyGroup,
    TopologyType,
)
from controller.scheduling.topology.rules import on_one_node
from controller.scheduling.topology.spread import (
    Pins,
    Rules,
    assign,
    best_option,
    count_admitted,
    misplaced_count,
    record,
)

NEW_NODE = "a new node"
"""The hostname under which pod affinities by hostname count pods that need new nodes."""


@dataclass(kw_only=True)
class Placer:
    """Places pending groups on existing nodes, and the remaining pods in pod groups to be packed.

    `existing` maps the name of an existing node to the keys of the pods placed on it. `filled`
    lists the placements of this round that can be undone, each with the index of its node.
    `capacity` is node types × the solve's resources.
    """

    supply: Supply
    nodes: ExistingNodes
    occupancy: ExistingOccupancy
    attachments: Attachments
    devices: DeviceAllocator
    domains: Domains
    tallies: Tallies

    def __post_init__(self) -> None:
        self.existing: defaultdict[str, list[str]] = defaultdict(list)
        self.filled: list[tuple[PodGroup, int]] = []
        self._none_fitting = np.zeros(len(self.nodes), dtype=np.int64)

    def place(
        self, waiting: Sequence[PendingGroup], pod_groups: list[PodGroup]
    ) -> tuple[list[PendingGroup], list[PendingGroup]]:
        """Place pending groups in turn; return the groups with pods left, and the groups held back.

        Pods left without a node may be placed after a preference is relaxed. Until then, other pods
        must not take the capacity that they could use. So buffers are held back, and if limits make
        pods compete, pods of lower priority too.

        Args:
            waiting: The groups to place. Groups with an affinity to other pods are placed after the
                rest, buffers last.
            pod_groups: The pod groups that need new nodes, extended in place.

        """
        failed: list[PendingGroup] = []
        held_back: list[PendingGroup] = []
        compete = bool(len(self.supply.headroom.left))
        for pending in sorted(
            waiting,
            key=lambda pending: (
                pending.is_buffer,
                pending.needs_other_pods,
                pending.pod_class.index,
            ),
        ):
            if any(before.precedes(pending, compete=compete) for before in failed):
                held_back.append(pending)
            else:
                self._place(pending, pod_groups, failed)
        return failed, held_back

    def _place(
        self, pending: PendingGroup, pod_groups: list[PodGroup], failed: list[PendingGroup]
    ) -> None:
        """Place one pending group; add it to `failed` if pods are left."""
        fitting, rules = self._fitting_counts(pending), self.domains.rules(pending)
        if pending.needs_colocation:
            self._place_colocated(pending, fitting, rules, pod_groups)
        elif not rules.keys:
            self._fill_everywhere(pending, fitting, rules)
            if pending.number and self.supply.launch_options.launchable(
                pending.eligible, pending.size
            ):
                keys = self._take(pending, pending.number)
                pod_groups.append(PodGroup(pending, (), keys, pending.eligible))
        else:
            self._place_in_domains(pending, fitting, rules, pod_groups)
        if pending.number:
            failed.append(pending)

    def _fitting_counts(self, pending: PendingGroup) -> Indices:
        """Return the number of pending pods that fit on each existing node (nodes)."""
        if not len(self.nodes):
            return self._none_fitting
        fitting = self.occupancy.fitting_counts(pending, self.nodes.holds(pending.size))
        fitting = self.attachments.fitting_counts(pending.pod_class.volumes, fitting)
        return self.devices.fitting_counts(pending, self.nodes.all, fitting)

    def _place_colocated(
        self, pending: PendingGroup, fitting: Indices, rules: Rules, pod_groups: list[PodGroup]
    ) -> None:
        """Place pods that must share a node with certain other pods.

        They are placed on existing nodes with those pods, then as companions of pod groups that
        need new nodes. If the affinity is to pods like themselves and none is placed yet, the first
        pods are placed together on one node.
        """
        self._fill_everywhere(pending, fitting, rules)
        if not pending.number:
            return
        affinity_groups = [
            group
            for group in pending.owned
            if group.per_node and group.type is TopologyType.AFFINITY
        ]
        is_first = all(
            group in pending.counted and not self.tallies[group.index].total
            for group in affinity_groups
        )
        before = pending.number
        colocate(
            pending, pod_groups, affinity_groups, rules, self.supply.capacity, self.supply.variants
        )
        self._count_on_new_nodes(pending, before - pending.number)
        hosts = [
            pod_group
            for pod_group in pod_groups
            if all(group in pod_group.pending.counted for group in affinity_groups)
        ]
        if not pending.number or not is_first or hosts:
            return
        self._start_colocation(pending, rules, pod_groups, affinity_groups)

    def _start_colocation(
        self,
        pending: PendingGroup,
        rules: Rules,
        pod_groups: list[PodGroup],
        affinity_groups: Sequence[TopologyGroup],
    ) -> None:
        """Place the first pods of a hostname affinity together on one node.

        An existing node is used if it holds as many of the pods as a new node would, and if no new
        node can be launched.
        """
        # The affinity itself is left out: no node can meet it before the first pod is placed.
        without_affinity = replace(
            pending, owned=tuple(group for group in pending.owned if group not in affinity_groups)
        )
        fitting = self._fitting_counts(without_affinity)
        fitting = np.where(self.domains.admitting_nodes(rules), fitting, 0)
        pins, mask = self._new_domains(pending, rules)
        most_on_one_node = self._most_together(pending, mask)
        if len(fitting) and fitting.max() >= max(min(most_on_one_node, pending.number), 1):
            # The first node that holds them all, or else the first that holds the most.
            chosen = np.arange(len(fitting)) == int(
                (fitting >= min(fitting.max(), pending.number)).argmax()
            )
            self._fill_nodes(pending, fitting, chosen, rules)
        elif most_on_one_node:
            count = count_admitted(pins, rules, min(most_on_one_node, pending.number))
            pod_groups.append(PodGroup(pending, pins, self._take(pending, count), mask, unit=count))

    def _new_domains(self, pending: PendingGroup, rules: Rules) -> tuple[Pins, Mask]:
        """Return the best domains for a new node for these pods, and the variants there."""
        if not rules.keys:
            return (), pending.eligible
        options, masks, _ = self.domains.options(pending, self._none_fitting, rules)
        best = best_option(options, rules)
        for option, mask in zip(options, masks, strict=True):
            if option is best:
                return option.pins, mask
        return (), np.zeros_like(pending.eligible)

    def _most_together(self, pending: PendingGroup, mask: Mask) -> int:
        """Return the number of these pods that fit on one new node of the variants in `mask`."""
        node_types = self.supply.launch_options.fitting_node_types(mask, pending.size)
        needed = pending.size > 0
        if not len(node_types):
            return 0
        fitting = np.floor(self.supply.capacity[node_types][:, needed] / pending.size[needed])
        return min(int(fitting.min(axis=1).max()), on_one_node(pending))

    def _place_in_domains(
        self, pending: PendingGroup, fitting: Indices, rules: Rules, pod_groups: list[PodGroup]
    ) -> None:
        """Assign the pods to domains, fill existing nodes there, and group the rest by domain."""
        options, masks, members = self.domains.options(pending, fitting, rules)
        assign(pending.number, options, rules)
        for option, mask, inside in zip(options, masks, members, strict=True):
            before = pending.number
            self._fill_nodes(pending, fitting, inside, None, most=option.taken, pins=option.pins)
            rest = option.taken - (before - pending.number)
            if rest:
                keys = self._take(pending, rest)
                pod_groups.append(PodGroup(pending, option.pins, keys, mask))

    def _fill_everywhere(self, pending: PendingGroup, fitting: Indices, rules: Rules) -> None:
        """Place pods on existing nodes in order, wherever they fit."""
        everywhere = np.ones(len(self.nodes), dtype=np.bool_)
        self._fill_nodes(pending, fitting, everywhere, rules)
        is_spread = any(group.is_host_spread for group in pending.owned)
        before = 0
        while is_spread and pending.number and pending.number != before:
            # The pods just placed may have raised the minimum count of the spread.
            before = pending.number
            self._fill_nodes(pending, self._fitting_counts(pending), everywhere, rules)

    def _fill_nodes(
        self,
        pending: PendingGroup,
        fitting: Indices,
        inside: Mask,
        rules: Rules | None,
        most: int | None = None,
        pins: Pins = (),
    ) -> None:
        """Place pods on existing nodes in order.

        Args:
            pending: The pods to place; the method removes those it places.
            fitting: The number of the pods that fit on each node (nodes).
            inside: The nodes that may be used (nodes).
            rules: The rules that the domains of each node must admit, and whose tallies count the
                pods there; None if `assign` has done both.
            most: The maximum number of pods to place; None for all.
            pins: The domains in which `assign` has counted the pods already. Such placements can be
                undone and are recorded in `filled`.

        """
        if not len(fitting):
            return
        left = pending.number if most is None else min(most, pending.number)
        for index in np.flatnonzero((fitting > 0) & inside).tolist():
            if not left:
                return
            count = min(int(fitting[index]), left)
            node = self.nodes.all[index]
            where = self.domains.of_node(index, rules) if rules is not None else ()
            admitted = count if rules is None else count_admitted(where, rules, count)
            count = self.devices.put(pending, node, admitted) if admitted else 0
            if rules is not None:
                record(rules, where, count - admitted)
            if not count:
                continue
            taken = pending.take(count)
            self.existing[node.name].extend(taken)
            self.attachments.put(index, pending.pod_class.volumes, taken)
            self.nodes.put(index, pending.size * count, pending.ports)
            self.occupancy.put(pending, index, count)
            left -= count
            if pins:
                self.filled.append((PodGroup(pending, pins, list(taken), pending.eligible), index))

    def _take(self, pending: PendingGroup, count: int) -> list[str]:
        """Remove pods from a pending group, and count them as pods on new nodes."""
        self._count_on_new_nodes(pending, count)
        return pending.take(count)

    def _count_on_new_nodes(self, pending: PendingGroup, count: int) -> None:
        """Count pods that need new nodes, for affinity by hostname; `count` may be negative.

        The first pod of an affinity to pods like itself may be placed on any node. So the affinity
        must know that other pods exist, but not on which node they are.
        """
        for group in pending.counted:
            if group.per_node and group.type is TopologyType.AFFINITY:
                self.tallies[group.index].counts[NEW_NODE] += count

    def withdraw(self, pod_group: PodGroup, keys: Sequence[str]) -> PendingGroup:
        """Remove pods that need new nodes from the tallies, and release their devices.

        Returns the pods as a pending group.
        """
        self._count_on_new_nodes(pod_group.pending, -len(keys))
        return self._uncount(pod_group, keys)

    def _uncount(self, pod_group: PodGroup, keys: Sequence[str]) -> PendingGroup:
        """Remove pods from the tallies of their domains, and release the pod group's devices."""
        self.devices.release(pod_group)
        record(self.domains.rules(pod_group.pending), pod_group.pins, -len(keys))
        return replace(pod_group.pending, keys=list(keys))

    def misplaced_count(self, pod_group: PodGroup, keys: Sequence[str]) -> int:
        """Return the number of these pods that must leave their domains to meet the rules again."""
        return misplaced_count(pod_group.pins, self.domains.rules(pod_group.pending), len(keys))

    def remove_from_node(self, pod_group: PodGroup, index: int, count: int) -> PendingGroup:
        """Remove the last `count` pods of a pod group from the existing node at `index`.

        Returns the pods as a pending group.
        """
        pending, taken = pod_group.pending, pod_group.keys[-count:]
        del pod_group.keys[-count:]
        keys = self.existing[self.nodes.all[index].name]
        keys[:] = [key for key in keys if key not in taken]
        self.nodes.put(index, -pending.size * count, ())
        self.occupancy.put(pending, index, -count)
        self.devices.release_last(pending, self.nodes.all[index], count)
        return self._uncount(pod_group, taken)
