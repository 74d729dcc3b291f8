"""Solve one scheduling problem; `scheduler` describes the order of the steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set

import numpy as np

from controller.scheduling.arrays import Indices, Mask
from controller.scheduling.causes import TOO_FEW_TYPES, PlacementCauses
from controller.scheduling.nodeclaims import NodeClaimWriter
from controller.scheduling.nodes.occupancy import ExistingOccupancy
from controller.scheduling.packing.formulation import ProblemBuilder
from controller.scheduling.packing.localsearch import MAX_PODS
from controller.scheduling.packing.plannednodes import PlannedNode, backfill
from controller.scheduling.packing.purchasing import Purchaser, price_overstatement
from controller.scheduling.placement.domains import Domains
from controller.scheduling.placement.placer import Placer
from controller.scheduling.pods.groups import Eligibility, PendingGroup, PodGroup
from controller.scheduling.pods.preferences import Relaxed, relax
from controller.scheduling.poolorder import PoolOrder
from controller.scheduling.problem import SchedulingProblem
from controller.scheduling.rearrangement import Rearranged, Rearrangement
from controller.scheduling.reporter import SILENT, Reporter
from controller.scheduling.results import NewNode, Results
from controller.scheduling.retries import can_exclude
from controller.scheduling.topology.groups import TopologyGroup, TopologyType

HEAVIER_POOLS = "NodePools of greater weight"


def _at_once() -> bool:
    """Return true, so that only the quickest packing is computed."""
    return True


class Solver:
    """The state of a solve, and its rounds of placing, buying and relaxing."""

    def __init__(
        self,
        problem: SchedulingProblem,
        expired: Callable[[], bool],
        reporter: Reporter = SILENT,
        *,
        cautious: Set[int] = frozenset(),
        packed_first: Set[int] = frozenset(),
        final_weights: Mapping[str, int] | None = None,
    ) -> None:
        """Copy the parts of the problem that the solve changes.

        `cautious` are the indices of the topology spreads that count every domain in which the
        solve might launch a node, for any pod; see `broken_spreads`.
        `packed_first` are the indices of the pod classes that get new nodes before other pods of
        the same priority. `final_weights` are weights of NodePools, by name, in whose order the
        solve puts its nodes in the end.
        """
        self._settings, self._reporter = problem.settings, reporter
        self._expired = expired if problem.settings.refinements else _at_once
        self._waiting, self._reader, supply = problem.pods.classes, problem.reader, problem.supply
        self._supply, self._groups = supply, problem.groups.all
        self._devices = problem.devices.fork()
        tallies = [tally.copy() for tally in problem.groups.tallies]
        nodes = problem.nodes.copy()
        self._domains = Domains(nodes, supply.launch_options, tallies, cautious)
        self._occupancy = ExistingOccupancy(tallies, nodes, cautious)
        self._placer = Placer(
            supply=supply,
            nodes=nodes,
            occupancy=self._occupancy,
            attachments=problem.attachments.copy(),
            devices=self._devices,
            domains=self._domains,
            tallies=tallies,
        )
        self._causes = PlacementCauses(
            supply=supply, devices=self._devices, domains=self._domains, tallies=tallies
        )
        builder = ProblemBuilder(
            supply.variants, problem.groups.all, capacity=supply.capacity, limits=supply.limits
        )
        self._rearrangement = Rearrangement(builder=builder, supply=supply, domains=self._domains)
        self._purchaser = Purchaser(
            builder=builder,
            limit_units=supply.limits.units,
            price_overstatement=price_overstatement(supply.variants, problem.pods.number),
            refinements=problem.settings.refinements,
            expired=self._expired,
            reporter=reporter,
        )
        self._pool_order = PoolOrder(
            supply=supply, domains=self._domains, purchaser=self._purchaser
        )
        self._packed_first, self._final_weights = packed_first, final_weights
        self._left = supply.limits.left
        self._unschedulable = dict(problem.pods.refused)
        self._planned: list[PlannedNode] = []
        self._held_back: list[PendingGroup] = []
        self._without_node: list[PendingGroup] = []
        self._relaxed: dict[Eligibility, Relaxed | None] = {}
        self._bound = 0.0
        self._is_apart = False
        """Whether pods that pin their node have nodes of their own, which are not rearranged."""

        self._is_cheapest = False
        """Whether no other nodes for the pods that got one cost less."""

    def run(self) -> Results:
        """Solve the problem and return where each pod is scheduled."""
        first = (
            self._reader.pending_group(pod_class, constraints, pod_class.keys)
            for pod_class, constraints in self._waiting
        )
        self._rounds([self._attainable(pending) for pending in first])
        self._rounds(self._retry_held_back())
        few = 0 < sum(node.number for node in self._planned) <= MAX_PODS
        is_final = self._is_apart or (self._is_cheapest and not self._without_node)
        if few and not is_final and not self._expired():
            self._rearrange(self._supply.variants.weight_of_variant)
        if self._final_weights is not None and not self._expired():
            self._put_in_order(self._final_weights, few=few and not self._is_apart)
        return self._results()

    def blocking_domains(self) -> dict[str, set[str]]:
        """Return the domains, by label, whose low counts keep pods with a spread unschedulable.

        The constraints of the pods exclude these domains, even without regard to volumes. No
        existing node is in these domains: they count only if this solve launches nodes there. The
        domains of `broken_spreads` are included.
        """
        domains: defaultdict[str, set[str]] = defaultdict(set)
        for group, new in self._breaking_domains().items():
            domains[group.key] |= new
        for pending in self._without_node:
            for tally, _, universe in self._domains.rules(pending).owned:
                group = tally.group
                reach = self._domains.reached_domains(pending, group.key)
                domains[group.key] |= set(universe).difference(group.universe, reach)
        return {key: values for key, values in domains.items() if values and can_exclude(key)}

    @property
    def spreads(self) -> frozenset[int]:
        """The topology spreads, by index."""
        return frozenset(group.index for group in self._groups if group.type is TopologyType.SPREAD)

    def broken_spreads(self) -> frozenset[int]:
        """Return the topology spreads, by index, that the results break.

        A spread compares the domains of existing nodes and of nodes that can be launched for its
        own pods. It breaks if the solve launches nodes in further domains for other pods.
        """
        hosts = self._occupancy.broken_spreads(self._counts_on_new_nodes)
        return frozenset(group.index for group in (*self._breaking_domains(), *hosts))

    def _counts_on_new_nodes(self, group: TopologyGroup) -> list[int]:
        """Return the number of pods that a spread by hostname counts on each new node.

        The number is 0 if the pods have other spreads, too: those may keep pods from the new node
        until a pod is on the existing one.
        """
        return [
            0 if group.node_filter.keys else node.count(group)
            for node in self._planned
            if self._domains.may_count(group, node.eligible)
        ]

    def _breaking_domains(self) -> dict[TopologyGroup, set[str]]:
        """Return the broken spreads over other domains than nodes, with the further domains."""
        if not any(group.type is TopologyType.SPREAD for group in self._groups):
            return {}
        members = {id(each): each for node in self._planned for each, _ in node.members}
        eligible = self._union(each.eligible for each in members.values())
        if not self._domains.breaking_domains(eligible):
            return {}
        # Not every pod of a node allows these variants, and a NodeClaim lists only instance types
        # that hold its pods.
        options = self._supply.launch_options
        holding = (options.fitting_variants(node.eligible, node.size) for node in self._planned)
        return self._domains.breaking_domains(self._union(holding))

    def short_of_limits(self) -> frozenset[int]:
        """Return the indices of the pod classes that limits leave unschedulable.

        Empty if this solve launches no node in a NodePool that they could use, because then no
        other pods used up the limits; and if all NodePools have the same weight.
        """
        if len({pool.weight for pool in self._supply.variants.catalog.pools}) < 2:
            return frozenset()
        pool_of_variant = self._supply.variants.pool_of_variant
        used = {
            int(pool_of_variant[self._supply.variants.variant_of[planned.node_type]])
            for planned in self._planned
        }
        return frozenset(
            pending.pod_class.index
            for pending in self._without_node
            if pending.number
            and not used.isdisjoint(pool_of_variant[pending.eligibility.eligible].tolist())
            and self._causes.reached_limits(pending, self._left)
        )

    def _rounds(self, waiting: list[PendingGroup]) -> None:
        """Place pods; relax a preference of the pods without a node and place them again."""
        while waiting:
            pod_groups: list[PodGroup] = []
            self._placer.filled.clear()
            planned = len(self._planned)
            failed, held = self._placer.place(waiting, pod_groups)
            for batch in self._batches(pod_groups):
                failed.extend(self._buy(batch))
            if failed:
                failed.extend(self._withdraw_invalid(planned))
            waiting = [weaker for pending in failed for weaker in self._next_relaxation(pending)]
            waiting.extend(held)

    # Packing the remaining pods onto new nodes.

    def _batches(self, pod_groups: Sequence[PodGroup]) -> list[list[PodGroup]]:
        """Return the pod groups that are packed together, in the order of packing.

        All are packed together, unless limits make pods compete; then pods of greater priority are
        packed first, and among equals the `packed_first`. Capacity reservations are limited too:
        pods that can use only reserved capacity are packed before pods for which it is only
        cheaper.
        """
        elsewhere = self._supply.variants.reservation_of_variant < 0
        batches: defaultdict[tuple[int, bool, bool], list[PodGroup]] = defaultdict(list)
        for pod_group in pod_groups:
            pod_class = pod_group.pending.pod_class
            priority = pod_class.priority if len(self._supply.headroom.left) else 0
            needs_reservation = not pod_group.eligible[elsewhere].any()
            batches[priority, pod_class.index in self._packed_first, needs_reservation].append(
                pod_group
            )
        return [batches[rank] for rank in sorted(batches, reverse=True)]

    def _buy(self, pod_groups: Sequence[PodGroup]) -> list[PendingGroup]:
        """Buy nodes for pod groups; return the pods without a node."""
        if self._devices.has_claims:
            purchase = self._purchaser.buy_with_devices(
                pod_groups,
                self._left,
                devices=self._devices,
                variants=self._supply.variants,
                capacity=self._supply.capacity,
            )
        else:
            purchase = self._purchaser.buy(pod_groups, self._left)
        # Without topology rules and other purchases, nothing restricted the choice of nodes.
        self._is_cheapest = purchase.is_cheapest and not (self._planned or self._groups)
        self._planned += purchase.planned
        self._is_apart |= purchase.is_apart
        self._left = purchase.left
        # Pods of a later purchase might have shared nodes of an earlier one, so the bounds do not
        # add up. Only the greatest of them holds for all pods.
        self._bound = max(self._bound, purchase.bound)
        return [
            self._placer.withdraw(pod_group, pod_group.keys) for pod_group in purchase.remaining
        ]

    def _withdraw_invalid(self, first: int) -> list[PendingGroup]:
        """Withdraw pods of this round, last first, that now break topology rules.

        Other pods got no node, so a spread is uneven or the pods for an affinity are missing.
        `first` is the index of the first node planned in this round. If one pod of a node with
        bound pods is withdrawn, all of them are.
        """
        planned = self._planned[first:]
        withdrawn: list[PendingGroup] = []
        while misplaced := self._withdraw_misplaced(planned):
            withdrawn += misplaced
        for node in planned:
            if not node.number:
                self._left = self._left + self._supply.limits.consumption[node.node_type]
        self._planned[first:] = [node for node in planned if node.number]
        return withdrawn

    def _withdraw_misplaced(self, planned: Sequence[PlannedNode]) -> list[PendingGroup]:
        """Withdraw the pods that topology rules no longer allow in their domains.

        This may break rules of further pods, so the caller repeats it.
        """
        placer = self._placer
        withdrawn = [
            placer.remove_from_node(pod_group, index, misplaced)
            for pod_group, index in reversed(placer.filled)
            if (misplaced := placer.misplaced_count(pod_group, pod_group.keys))
        ]
        for node in reversed(planned):
            withdrawn += self._withdraw_from_planned(node)
        return withdrawn

    def _withdraw_from_planned(self, node: PlannedNode) -> list[PendingGroup]:
        """Withdraw the pods of a planned node that topology rules no longer allow there."""
        withdrawn: list[PendingGroup] = []
        for pod_group, keys in node.members:
            misplaced = self._placer.misplaced_count(pod_group, keys)
            if misplaced and node.is_bound:
                withdrawn += [self._placer.withdraw(*member) for member in node.members]
                node.members.clear()
                break
            if misplaced:
                withdrawn.append(self._placer.withdraw(pod_group, keys[-misplaced:]))
                del keys[-misplaced:]
        return withdrawn

    # Relaxation, and the results.

    def _rearrange(self, weights: Indices) -> None:
        """Improve the planned nodes; pods that get a node now are no longer unschedulable.

        `weights` are the weights of the variants.
        """
        rearranged = self._rearrangement.rearrange(
            self._planned, self._without_node, self._left, weights
        )
        if rearranged is not None:
            self._adopt(rearranged)

    def _put_in_order(self, final_weights: Mapping[str, int], *, few: bool) -> None:
        """Move pods to NodePools of greater weight; for few pods, the local search does it."""
        variants = self._supply.variants
        by_pool = [final_weights[pool.name] for pool in variants.catalog.pools]
        weights = np.array(by_pool, dtype=np.int64)[variants.pool_of_variant]
        if few:
            self._rearrange(weights)
        else:
            self._adopt(self._pool_order.put_in_order(self._planned, self._left, weights))

    def _adopt(self, rearranged: Rearranged) -> None:
        """Replace the planned nodes by rearranged ones."""
        self._planned, self._left = rearranged.planned, rearranged.left
        for key in (key for node in rearranged.planned for key in node.keys):
            self._unschedulable.pop(key, None)
        for pending in self._without_node:
            pending.keys = [key for key in pending.keys if key in self._unschedulable]
        cost = sum(
            float(self._supply.variants.price[node.node_type]) for node in rearranged.planned
        )
        self._reporter.nodes_rearranged(nodes=len(rearranged.planned), cost=cost)

    def _next_relaxation(self, pending: PendingGroup) -> list[PendingGroup]:
        """Return the pods with weaker constraints to try next.

        The NodePools of the next lower weight are tried first; then preferences are dropped one by
        one. If none are left, pods with spreads are held back until the end. Others are
        unschedulable, and their causes are recorded.
        """
        if self._reader.next_tier(pending):
            self._reporter.pods_relaxed(pods=pending.number, given_up=HEAVIER_POOLS)
            return [pending]
        weaker = self._weaker(pending)
        if weaker is not None:
            return [self._attainable(weaker)]
        if not self._domains.is_restricted and self._domains.rules(pending).spreads:
            self._held_back.append(pending)
            return []
        if len(self._supply.headroom.left):
            backfill(pending, self._planned, self._supply.variants, self._supply.capacity)
        if pending.number:
            self._without_node.append(pending)
            self._mark_unschedulable(pending.keys, self._causes.causes(pending, self._left))
        return []

    def _attainable(self, pending: PendingGroup) -> PendingGroup:
        """Return the pods without the preferences that no existing or new node can satisfy.

        So these pods are placed together with other pods and not after them.
        """
        while not len(
            self._supply.launch_options.fitting_node_types(
                pending.eligibility.eligible, pending.size
            )
        ):
            weaker = self._weaker(pending) if not pending.eligibility.nodes.any() else None
            if weaker is None:
                break
            pending = weaker
        return pending

    def _weaker(self, pending: PendingGroup) -> PendingGroup | None:
        """Return the pods with one preference less, or None if they have none."""
        if pending.eligibility not in self._relaxed:
            self._relaxed[pending.eligibility] = relax(pending.constraints)
        step = self._relaxed[pending.eligibility]
        if step is None:
            return None
        self._reporter.pods_relaxed(pods=pending.number, given_up=step.given_up)
        return self._reader.pending_group(pending.pod_class, step.constraints, pending.keys)

    def _retry_held_back(self) -> list[PendingGroup]:
        """Restrict the domains to those with nodes; return the pods that a spread held back.

        These are the domains of the planned nodes and of the held-back pods. Before, every domain
        counts in which a node could be launched; but a domain without any node does not limit a
        spread.
        """
        if not self._held_back:
            return []
        affordable = self._supply.limits.admit_one(self._left)
        self._domains.restrict(
            self._union(node.eligible for node in self._planned)
            | self._union(self._domains.reach(group, affordable) for group in self._held_back),
            affordable,
        )
        return [
            self._reader.pending_group(pending.pod_class, pending.constraints, pending.keys)
            for pending in self._held_back
        ]

    def _union(self, masks: Iterable[Mask]) -> Mask:
        """Mark the variants that any of the masks marks."""
        none = np.zeros(len(self._supply.variants.pool_of_variant), dtype=np.bool_)
        return np.asarray(np.logical_or.reduce([none, *masks]))

    def _mark_unschedulable(self, keys: Sequence[str], causes: tuple[str, ...]) -> None:
        for key in keys:
            self._unschedulable[key] = causes

    def _results(self) -> Results:
        """Return the results, with a NodeClaim for every planned node."""
        writer = NodeClaimWriter(
            supply=self._supply,
            left=self._left[: len(self._supply.headroom.left)],
            devices=self._devices,
            settings=self._settings,
            domains={
                group.key: self._supply.launch_options.label_values(group.key)
                for group in self._groups
            },
        )
        new_nodes: list[NewNode] = []
        for planned in self._planned:
            made = writer.write_all(planned)
            new_nodes += made
            written = {key for node in made for key in node.pods}
            left = [key for key in planned.keys if key not in written]
            self._mark_unschedulable(left, (TOO_FEW_TYPES,))
        cost = sum((node.price for node in new_nodes), 0.0)
        existing = sorted(self._placer.existing.items())
        return Results(
            new_nodes=tuple(new_nodes),
            existing_nodes={name: tuple(keys) for name, keys in existing},
            unschedulable=dict(sorted(self._unschedulable.items())),
            cost=cost,
            lower_bound=min(self._bound, cost),
        )
