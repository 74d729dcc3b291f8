"""Buy new nodes for pod groups: formulation, packing and lower bound in one step."""

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
    """Nodes that were bought together.

    `left`: limits, what they still allow, in their own units. `bound`: a lower bound on the cost of
    any nodes for the same pods, in $/h. `remaining`: the pod groups with pods without a node.
    """

    planned: list[PlannedNode]
    left: Vector
    bound: float
    remaining: list[PodGroup]


@dataclass(frozen=True, slots=True, kw_only=True)
class Purchaser:
    """Buys the cheapest nodes, with at most `refinements` improvements of each answer.

    `overstated` is how far the prices used in packing can exceed the true ones in total, in $/h.
    """

    builder: ProblemBuilder
    limit_units: Vector
    overstated: float
    refinements: int
    expired: Callable[[], bool]
    reporter: Reporter

    def bought(self, pod_groups: Sequence[PodGroup], left: Vector) -> Purchase:
        """Buy nodes within the remaining limits; pods that get a node leave their groups."""
        classes = self.builder.classes(pod_groups)
        problem, node_types = self.builder.problem(classes, left)
        packing = pack(
            problem, refinements=self.refinements, expired=self.expired, reporter=self.reporter
        )
        bound = packing.bound
        if not problem.proves and self.expired():
            bound = 0.0  # The caller is out of time: skip the proof.
        elif not problem.proves:
            every, _ = self.builder.problem(classes, left, proving=True)
            bound = lower_bound(replace(every, demand=problem.demand - packing.left))
        members = [
            [pod_groups[index] for index in packing_class.members] for packing_class in classes
        ]
        planned = [
            node
            for opened in packing.opened
            for node in unfolded(opened, int(node_types[opened.node_type]), members)
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
        capacity: Matrix,
    ) -> Purchase:
        """Buy nodes for pod groups, some of which request devices.

        Pods that request devices are cut into units of one node's worth each. `capacity` is node
        types × the solve's resources: the allocatable capacity of the node types of `variants`.
        """
        # The way pods are cut into units is a choice. The bound must hold for any other choice, so
        # it is computed for the uncut pods.
        classes = self.builder.classes(pod_groups)
        uncut = [(pod_group.unit, list(pod_group.keys)) for pod_group in pod_groups]
        axes = devices.axes(
            [pod_groups[packing_class.members[0]] for packing_class in classes], variants.row_of
        )
        problem, _ = self.builder.problem(classes, left, more=axes, proving=True)
        ready, without_node = devices.units(pod_groups, variants, capacity)
        nothing = Purchase(planned=[], left=left, bound=0.0, remaining=[])
        purchase = self.bought(ready, left) if ready else nothing
        remaining = [*_remaining(without_node), *purchase.remaining]
        lost = {key for pod_group in remaining for key in pod_group.keys}
        placed = [sum(key not in lost for key in keys) // unit for unit, keys in uncut]
        demand = [
            sum(placed[index] for index in packing_class.members) for packing_class in classes
        ]
        bound = lower_bound(replace(problem, demand=np.array(demand, dtype=np.int64)))
        return replace(purchase, bound=bound - self.overstated, remaining=remaining)


def _remaining(pod_groups: Sequence[PodGroup]) -> list[PodGroup]:
    """Return the pod groups that have pods left, including those colocated with them."""
    return [pod_group for whole in pod_groups for pod_group in whole.everyone if pod_group.keys]


def overstated(variants: Variants, pods: int) -> float:
    """Return how far the prices used in packing can exceed the true prices in total, in $/h.

    There are at most as many new nodes as pods, and at most as many reserved nodes as reserved
    instances.
    """
    held = variants.reservation_of_variant[variants.variant_of]
    reserved = sum(count for _, count in variants.catalog.reservations)
    of_instances = overstatement(variants.price, reserved)
    return of_instances + overstatement(variants.price[held < 0], pods)
