"""One problem being solved; the order of things is told in `scheduler`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from controller.scheduling.causes import TOO_FEW_TYPES, PlacementCauses
from controller.scheduling.nodeclaims import NodeClaimWriter
from controller.scheduling.packing.localsearch import LocalSearch, MoveRules
from controller.scheduling.packing.packer import pack
from controller.scheduling.packing.plannednodes import Families, PlannedNode, unfolded
from controller.scheduling.packing.pricing import lower_bound
from controller.scheduling.placement.placer import Placer
from controller.scheduling.pods.groups import Eligibility, PendingGroup, PodGroup
from controller.scheduling.pods.preferences import PodConstraints, relaxed
from controller.scheduling.problem import SchedulingProblem
from controller.scheduling.results import NewNode, Results
from controller.scheduling.retries import closable
from controller.scheduling.topology.groups import TopologyKind

FEW = 100
"""Up to how many pods on new nodes the answer is gone over once more, node by node."""


class Solver:
    """The state of an answer in the making, and its rounds."""

    def __init__(self, problem: SchedulingProblem, expired: Callable[[], bool]) -> None:
        """Nothing is decided yet."""
        self._problem, self._expired = problem, expired
        self._reader, self._domains = problem.reader, problem.domains
        self._launch_options = problem.launch_options
        self._devices, self._variants, self._headroom = (
            problem.devices,
            problem.variants,
            problem.headroom,
        )
        self._problem_builder, self._limit_units = problem.problem_builder, problem.limit_units
        self._overstated = problem.overstated
        self._consumption, self._room = problem.consumption, problem.room
        self._placer = Placer(
            headroom=problem.headroom,
            nodes=problem.nodes,
            occupancy=problem.occupancy,
            attachments=problem.attachments,
            devices=problem.devices,
            domains=problem.domains,
            launch_options=problem.launch_options,
            variants=problem.variants,
            room=problem.room,
        )
        self._causes = PlacementCauses(problem)
        self._left = problem.left
        self._unschedulable = dict(problem.refused)
        self._planned: list[PlannedNode] = []
        self._held_back: list[PendingGroup] = []
        self._placeless: list[PendingGroup] = []
        self._bound = 0.0
        self._weaker: dict[Eligibility, PodConstraints | None] = {}

    def run(self) -> Results:
        """Answer."""
        first = (
            self._reader.pending(pod_class, constraints, pod_class.keys)
            for pod_class, constraints in self._problem.waiting
        )
        self._rounds([self._attainable(pending) for pending in first])
        self._rounds(self._last_tries())
        if 0 < sum(one.number for one in self._planned) <= FEW and not self._expired():
            self._search_locally()
        return self._results()

    def blocking_domains(self) -> dict[str, set[str]]:
        """Return domains that hold back pods left over, which may not go there themselves
        (whatever their volumes say), and in which there is nothing but what this answer makes.
        """
        found: defaultdict[str, set[str]] = defaultdict(set)
        for pending in self._placeless:
            for group, _, universe in self._domains.rules(pending).owned:
                if group.kind is TopologyKind.SPREAD and closable(group.key):
                    own = pending.eligibility.own_eligible & pending.eligibility.tolerated
                    reach = self._launch_options.values(group.key, own)
                    found[group.key] |= set(universe) - group.universe - set(reach)
        return {key: values for key, values in found.items() if values}

    def is_short_of_limits(self) -> bool:
        """Whether limits leave pods over, while some pools had their turn before others."""
        levels = {pool.weight for pool in self._problem.catalog.pools}
        return len(levels) > 1 and any(
            self._causes.spent_limits(one, self._left) for one in self._placeless
        )

    def _rounds(self, waiting: list[PendingGroup]) -> None:
        """Place pods, and those that found no place again with less to ask for."""
        while waiting:
            pod_groups: list[PodGroup] = []
            self._placer.filled.clear()
            planned = len(self._planned)
            failed, held = self._placer.placed(waiting, pod_groups)
            for batch in self._batches(pod_groups):
                failed.extend(
                    self._pack_with_devices(batch) if self._devices.asked else self._pack(batch)
                )
            if failed:
                failed.extend(self._taken_back(planned))
            waiting = [again for pending in failed for again in self._next_relaxation(pending)]
            waiting.extend(held)

    # Packing what is left onto new nodes.

    def _batches(self, pod_groups: Sequence[PodGroup]) -> list[list[PodGroup]]:
        """Bring together what is packed together: everything, unless limits make pods
        compete; then the more important go first. Of what is reserved, too, there is only
        so much: pods that may go nowhere else come before those that would save by it.
        """
        elsewhere = self._variants.reservation_of_variant < 0
        batches: defaultdict[tuple[int, bool], list[PodGroup]] = defaultdict(list)
        for pod_group in pod_groups:
            priority = pod_group.pending.pod_class.priority if len(self._headroom.left) else 0
            batches[priority, not pod_group.eligible[elsewhere].any()].append(pod_group)
        return [batches[rank] for rank in sorted(batches, reverse=True)]

    def _pack(self, pod_groups: Sequence[PodGroup]) -> list[PendingGroup]:
        """Pack pod groups; return the pods that stayed behind."""
        classes = self._problem_builder.classes(pod_groups)
        packing_problem, kinds = self._problem_builder.problem(classes, self._left)
        packing = pack(
            packing_problem, refinements=self._problem.settings.refinements, expired=self._expired
        )
        bound = packing.bound
        if not packing_problem.proves:
            every, _ = self._problem_builder.problem(classes, self._left, proving=True)
            bound = lower_bound(replace(every, demand=packing_problem.demand - packing.left))
        self._left = packing.headroom * self._limit_units
        # What is packed later might have shared the nodes packed before, so that only
        # the greatest of the bounds holds for all.
        self._bound = max(self._bound, bound - self._overstated)
        for opened in packing.opened:
            self._planned.extend(unfolded(opened, int(kinds[opened.kind]), classes))
        return self._left_over(pod_groups)

    def _left_over(self, pod_groups: Sequence[PodGroup]) -> list[PendingGroup]:
        """Return the pods of pod groups that found no node."""
        everyone = [one for whole in pod_groups for one in whole.everyone]
        return [self._placer.withdrawn(one, one.keys) for one in everyone if one.keys]

    def _taken_back(self, first: int) -> list[PendingGroup]:
        """Take pods of this round back, the last first, that those left behind have put in
        the wrong: their spread is uneven now, or nobody came whom they look for.

        `first` is the place of the first node planned in this round. Of pods that share
        their node with certain others all are taken back.
        """
        back: list[PendingGroup] = []
        planned = self._planned[first:]
        found = True
        while found:
            found = False
            for pod_group, index in reversed(self._placer.filled):
                wrong = self._placer.misplaced(pod_group, pod_group.keys)
                if wrong:
                    back.append(self._placer.off_node(pod_group, index, wrong))
                    found = True
            for node in reversed(planned):
                for pod_group, keys in node.members:
                    wrong = self._placer.misplaced(pod_group, keys)
                    if wrong and node.is_bound:
                        back += [self._placer.withdrawn(*member) for member in node.members]
                        node.members.clear()
                        found = True
                        break
                    if wrong:
                        back.append(self._placer.withdrawn(pod_group, keys[-wrong:]))
                        del keys[-wrong:]
                        found = True
        for node in planned:
            if not node.number:
                self._left = self._left + self._consumption[node.kind]
        self._planned[first:] = [node for node in planned if node.number]
        return back

    def _pack_with_devices(self, pod_groups: Sequence[PodGroup]) -> list[PendingGroup]:
        """Pack pod groups of which some need devices, a node's worth of those at a time."""
        # Cutting pods into units is a choice: the bound must hold for any other.
        bound, uncut = self._bound, [one.copy() for one in pod_groups]
        classes = self._problem_builder.classes(uncut)
        devices = self._devices.axes([one[0] for one in classes], self._variants.row_of)
        packing_problem, _ = self._problem_builder.problem(
            classes, self._left, more=devices, proving=True
        )
        ready, without_node = self._devices.units(pod_groups, self._variants, self._room)
        failed = [*self._left_over(without_node), *(self._pack(ready) if ready else ())]
        left = {key for pending in failed for key in pending.keys}
        for one in (part for whole in uncut for part in whole.everyone):
            one.keys = [key for key in one.keys if key not in left]
        demand = np.array([sum(p.units for p in one) for one in classes], dtype=np.int64)
        proven = lower_bound(replace(packing_problem, demand=demand)) - self._overstated
        self._bound = max(bound, proven)
        return failed

    # Going over a small answer once more.

    def _search_locally(self) -> None:
        """Take new nodes apart and put them together again where that is cheaper, across the
        rounds in which they were packed.
        """
        planned = self._planned
        families = Families(planned, self._left_behind(), self._in_all_domains)
        weights = self._reader.weight_of_variant
        # For each weight the kinds that are the best there: it may be the turn of any.
        by_weight = [
            replace(one, eligible=one.eligible & (weights == weight))
            for weight in np.unique(weights).tolist()
            for one in families.classes
        ]
        taken = np.array([one.kind for one in planned], dtype=np.int64)
        freed = self._left + self._consumption[taken].sum(axis=0)
        classes = [[one] for one in (*families.classes, *by_weight)]
        packing_problem, kinds = self._problem_builder.problem(classes, freed, keep=taken)
        rules = [self._domains.rules(one.pending) for one in families.classes]
        search = LocalSearch(
            problem=packing_problem,
            move_rules=MoveRules(
                weight=weights[self._variants.variant_of[kinds]],
                pins=[one.pins for one in families.classes],
                rules=rules,
                bound=[one.is_bound for one in families.classes],
                others=families.others,
                all_rules=list(dict.fromkeys(rules)),
            ),
            pods=families.pods(),
            kinds=np.searchsorted(kinds, taken),
            fixed=np.array([one.is_bound for one in planned]),
        )
        if search.run(families.waiting):
            nodes = search.nodes
            made = np.where(nodes.kind < 0, -1, kinds[nodes.kind])
            self._planned = families.named(made.tolist(), nodes.pods[:, : len(rules)])
            self._left = nodes.headroom * self._limit_units
            for key in (key for one in self._planned for _, keys in one.members for key in keys):
                self._unschedulable.pop(key, None)

    def _left_behind(self) -> list[PodGroup]:
        """Return the pods that found no place, the more important first, in some domains to
        begin with. Not those that claim devices, which are given as nodes are packed.
        """
        found = []
        plain = (one for one in self._placeless if one.pod_class.device_requests is None)
        for pending in sorted(plain, key=lambda one: (one.is_room, one.pod_class.index)):
            keys, eligible = self._domains.rules(pending).keys, pending.eligibility.eligible
            domains = self._launch_options.combinations(eligible, keys)
            fits = len(self._launch_options.fitting_kinds(eligible, pending.size)) > 0
            if fits and domains and pending.number <= FEW and not pending.wants_company:
                pins = tuple(zip(keys, domains[0], strict=True))
                found.append(PodGroup(pending, pins, list(pending.keys), eligible))
        return found

    def _in_all_domains(self, pod_group: PodGroup) -> list[PodGroup]:
        """Return a pod group, first of all as it is, in each combination of domains in which
        nodes can be made for it, of pools of any weight.
        """
        eligible = self._domains.left_open(pod_group.pending.eligibility.eligible)
        keys = tuple(key for key, _ in pod_group.pins)
        found = [pod_group.pins]
        if not pod_group.is_bound:
            everywhere = (
                tuple(zip(keys, one, strict=True))
                for one in self._launch_options.combinations(eligible, keys)
            )
            found += [pins for pins in everywhere if pins != pod_group.pins]
        return [
            replace(
                pod_group,
                pins=pins,
                keys=[],
                unit=1,
                colocated=[],
                needs=None,
                eligible=self._launch_options.pinned(eligible, pins)
                if pod_group.needs is None
                else pod_group.eligible,
            )
            for pins in found
        ]

    # Relaxation, and the answer.

    def _next_relaxation(self, pending: PendingGroup) -> list[PendingGroup]:
        """Return the next thing to try for pods that found no place, or give them up."""
        if self._reader.next_tier(pending):
            return [pending]
        weaker = self._weaker_than(pending)
        if weaker is not None:
            return [self._attainable(weaker)]
        if not self._domains.is_settled and self._domains.rules(pending).spreads:
            self._held_back.append(pending)
            return []
        if len(self._headroom.left):
            self._backfill(pending)
        if pending.number:
            self._placeless.append(pending)
            self._give_up(pending.keys, self._causes.causes(pending, self._left))
        return []

    def _weaker_than(self, pending: PendingGroup) -> PendingGroup | None:
        """Return the pods with one preference given up; None when nothing is left to give up."""
        if pending.eligibility not in self._weaker:
            self._weaker[pending.eligibility] = relaxed(pending.constraints)
        weaker = self._weaker[pending.eligibility]
        return (
            self._reader.pending(pending.pod_class, weaker, pending.keys)
            if weaker is not None
            else None
        )

    def _attainable(self, pending: PendingGroup) -> PendingGroup:
        """Give up what no node that is there or can be bought will ever grant, so that the
        pods are placed beside the others and not after them.
        """
        while not len(
            self._launch_options.fitting_kinds(pending.eligibility.eligible, pending.size)
        ):
            weaker = self._weaker_than(pending) if not pending.eligibility.nodes.any() else None
            if weaker is None:
                break
            pending = weaker
        return pending

    def _last_tries(self) -> list[PendingGroup]:
        """Return pods that a spread held back, to be placed once it is known which domains
        are opened at all: by what is planned, or by these pods themselves.

        Until then a domain counts that anybody might open; one that nobody does holds
        nobody back.
        """
        if not self._held_back:
            return []
        opening = np.zeros(len(self._variants.pool_of_variant), dtype=np.bool_)
        for planned in self._planned:
            opening |= planned.eligible
        for pending in self._held_back:
            opening |= pending.eligibility.own_eligible & pending.eligibility.tolerated
        self._domains.settle(opening)
        return [
            self._reader.pending(one.pod_class, one.constraints, one.keys)
            for one in self._held_back
        ]

    def _backfill(self, pending: PendingGroup) -> None:
        """Put pods that no node may be bought for on those planned for more important ones.

        Only pods that no rule about others speaks of: for those a node is as good as its room.
        """
        if (
            pending.owned
            or pending.counted
            or pending.pod_class.ports
            or pending.pod_class.device_requests
        ):
            return
        asked = pending.size > 0
        for planned in self._planned:
            if not pending.number or not asked.any():
                return
            if not pending.eligibility.eligible[self._variants.variant_of[planned.kind]]:
                continue
            taken = sum(
                (pod_group.pending.size * len(keys) for pod_group, keys in planned.members), 0.0
            )
            spare = (self._room[planned.kind] - taken)[asked] / pending.size[asked]
            count = min(int(np.floor(spare.min())), pending.number)
            if count > 0:
                pod_group = PodGroup(pending, (), [], pending.eligibility.eligible)
                planned.members.append((pod_group, pending.take(count)))

    def _give_up(self, keys: Sequence[str], causes: tuple[str, ...]) -> None:
        for key in keys:
            self._unschedulable[key] = causes

    def _results(self) -> Results:
        writer = NodeClaimWriter(self._problem, self._left)
        new_nodes: list[NewNode] = []
        for planned in self._planned:
            node = writer.written(planned)
            if node is None:
                self._give_up(planned.keys, (TOO_FEW_TYPES,))
            else:
                new_nodes.append(node)
        cost = sum((node.price for node in new_nodes), 0.0)
        existing = sorted(self._placer.existing.items())
        return Results(
            new_nodes=tuple(new_nodes),
            existing_nodes={name: tuple(keys) for name, keys in existing},
            unschedulable=dict(sorted(self._unschedulable.items())),
            cost=cost,
            lower_bound=min(self._bound, cost),
        )
