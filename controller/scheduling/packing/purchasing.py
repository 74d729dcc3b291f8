"""Buying new nodes for pod groups: formulation, packing and the bound, in one step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from controller.scheduling.arrays import Matrix, Vector
from controller.scheduling.catalog.variants import Variants
from controller.scheduling.dra.deviceallocator import DeviceAllocator
from controller.scheduling.packing.formulation import ProblemBuilder
from controller.scheduling.packing.packer import pack
from controller.scheduling.packing.plannednodes import PlannedNode, unfolded
from controller.scheduling.packing.pricefloor import overstatement
from controller.scheduling.packing.pricing import lower_bound
from controller.scheduling.pods.groups import PodGroup
from controller.scheduling.reporter import Reporter


@dataclass(frozen=True, slots=True, kw_only=True)
class Purchase:
    """Nodes bought together.

    `left` is what limits leave after them, in their own units; `bound` what no nodes for the
    same pods cost less than, in $/h. `remaining` are the pod groups with pods that got none.
    """

    planned: list[PlannedNode]
    left: Vector
    bound: float
    remaining: list[PodGroup]


@dataclass(frozen=True, slots=True, kw_only=True)
class Purchaser:
    """Buys nodes by price, with at most so many `refinements` of each answer.

    `overstated` is by how much, in $/h, prices that packing can weigh are above true ones.
    """

    builder: ProblemBuilder
    limit_units: Vector
    overstated: float
    refinements: int
    expired: Callable[[], bool]
    reporter: Reporter

    def bought(self, pod_groups: Sequence[PodGroup], left: Vector) -> Purchase:
        """Buy nodes within what limits have `left`; pods that get one leave their groups."""
        classes = self.builder.classes(pod_groups)
        problem, kinds = self.builder.problem(classes, left)
        packing = pack(
            problem, refinements=self.refinements, expired=self.expired, reporter=self.reporter
        )
        bound = packing.bound
        if not problem.proves and self.expired():
            bound = 0.0  # Whoever is in a hurry waits for an answer, not for what it proves.
        elif not problem.proves:
            every, _ = self.builder.problem(classes, left, proving=True)
            bound = lower_bound(replace(every, demand=problem.demand - packing.left))
        members = [
            [pod_groups[place] for place in packing_class.members] for packing_class in classes
        ]
        planned = [
            node
            for opened in packing.opened
            for node in unfolded(opened, int(kinds[opened.kind]), members)
        ]
        return Purchase(
            planned=planned,
            left=packing.headroom * self.limit_units,
            bound=bound - self.overstated,
            remaining=_remaining(pod_groups),
        )

    def bought_with_devices(
        self,
        pod_groups: Sequence[PodGroup],
        left: Vector,
        *,
        devices: DeviceAllocator,
        variants: Variants,
        room: Matrix,
    ) -> Purchase:
        """Buy nodes for pod groups of which some need devices, a node's worth of those at a time;
        `room` is that of the kinds of the variants (kinds × the solve's resources).
        """
        # Cutting pods into units is a choice: the bound must hold for any other.
        classes = self.builder.classes(pod_groups)
        uncut = [(pod_group.unit, list(pod_group.keys)) for pod_group in pod_groups]
        axes = devices.axes(
            [pod_groups[packing_class.members[0]] for packing_class in classes], variants.row_of
        )
        problem, _ = self.builder.problem(classes, left, more=axes, proving=True)
        ready, without_node = devices.units(pod_groups, variants, room)
        nothing = Purchase(planned=[], left=left, bound=0.0, remaining=[])
        purchase = self.bought(ready, left) if ready else nothing
        remaining = [*_remaining(without_node), *purchase.remaining]
        lost = {key for pod_group in remaining for key in pod_group.keys}
        placed = [sum(key not in lost for key in keys) // unit for unit, keys in uncut]
        demand = [
            sum(placed[place] for place in packing_class.members) for packing_class in classes
        ]
        bound = lower_bound(replace(problem, demand=np.array(demand, dtype=np.int64)))
        return replace(purchase, bound=bound - self.overstated, remaining=remaining)


def _remaining(pod_groups: Sequence[PodGroup]) -> list[PodGroup]:
    """Return the pod groups, and those that go with them, that have pods left."""
    return [pod_group for whole in pod_groups for pod_group in whole.everyone if pod_group.keys]


def overstated(variants: Variants, pods: int) -> float:
    """Return by how much prices that packing can weigh are above true ones, in $/h, on so many
    nodes at most as there are pods, or instances that are reserved.
    """
    held = variants.reservation_of_variant[variants.variant_of]
    reserved = sum(count for _, count in variants.catalog.reservations)
    of_instances = overstatement(variants.price, reserved)
    return of_instances + overstatement(variants.price[held < 0], pods)
