"""Buy new nodes for pod groups: formulation, packing and lower bound in one step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from controller.scheduling.arrays import Indices, Matrix, Vector
from controller.scheduling.catalog.variants import Variants
from controller.scheduling.dra.deviceallocator import DeviceAllocator
from controller.scheduling.packing.formulation import PackingClass, ProblemBuilder, overstatement
from controller.scheduling.packing.packer import Packing, pack
from controller.scheduling.packing.plannednodes import PlannedNode, planned_copies
from controller.scheduling.packing.pricing import lower_bound
from controller.scheduling.packing.problem import PackingProblem
from controller.scheduling.pods.groups import PodGroup
from controller.scheduling.reporter import Reporter

WORTH_OF_MOVABLE_NODES = 0.05
"""Additional cost that is accepted to keep pods that pin their node (must not be evicted) apart
from movable pods, per $ of nodes that then have only movable pods. Consolidation can remove these
nodes later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Purchase:
    """Nodes that were bought together.

    `left`: limits, the remaining amounts, in thousandths of the resource's unit; of reservations,
    in instances. `bound`: a lower bound on the cost of any nodes for the same pods, in $/h.
    `remaining`: the pod groups with pods without a node. `is_apart`: whether pods that pin their
    node have nodes of their own. `is_cheapest`: whether no other nodes for these pods cost less.
    """

    planned: list[PlannedNode]
    left: Vector
    bound: float
    remaining: list[PodGroup]
    is_apart: bool = False
    is_cheapest: bool = False


@dataclass(frozen=True, slots=True)
class _Packed:
    """The packing of pod groups, before the pods are taken from their groups."""

    pod_groups: Sequence[PodGroup]
    left: Vector
    classes: Sequence[PackingClass]
    problem: PackingProblem
    node_types: Indices
    packing: Packing

    @property
    def pinned_cost(self) -> float:
        """The price of the nodes with pods that pin their node, in $/h.

        Such pods are the first of their class, so they go to the first nodes that have the class.
        """
        groups, cost = self.pod_groups, 0.0
        left = np.array(
            [
                sum(groups[index].units for index in each.members if groups[index].pins_node)
                for each in self.classes
            ]
        )
        for opened in self.packing.opened:
            for _ in range(opened.copies):
                taken = np.minimum(left, opened.pods)
                if taken.any():
                    cost += float(self.problem.prices[opened.node_type])
                    left -= taken
        return cost


@dataclass(frozen=True, slots=True, kw_only=True)
class Purchaser:
    """Buys the cheapest nodes, with at most `refinements` improvements of each packing.

    Packing raises very low prices (`raise_to_floor`). `price_overstatement` is the greatest amount
    by which the total price in packing exceeds the true price, in $/h.
    """

    builder: ProblemBuilder
    limit_units: Vector
    price_overstatement: float
    refinements: int
    expired: Callable[[], bool]
    reporter: Reporter

    def buy(self, pod_groups: Sequence[PodGroup], left: Vector) -> Purchase:
        """Buy nodes within the remaining limits; pods that get a node leave their pod groups.

        Pods that pin their node get nodes apart from movable pods, so that consolidation can remove
        more nodes later. If that costs too much (`WORTH_OF_MOVABLE_NODES`), or not all pods get a
        node, all pods share nodes.
        """
        pinning = [pod_group for pod_group in pod_groups if pod_group.pins_node]
        movable = [pod_group for pod_group in pod_groups if not pod_group.pins_node]
        together = self._pack([*pinning, *movable], left)
        if not (pinning and movable) or together.packing.left.any() or self.expired():
            return self._purchase(together, [together])
        first = self._pack(pinning, left)
        second = self._pack(movable, first.packing.headroom * self.limit_units)
        all_fit = not (first.packing.left.any() or second.packing.left.any())
        more = first.packing.cost + second.packing.cost - together.packing.cost
        movable_nodes = together.pinned_cost - first.packing.cost
        is_apart = all_fit and more <= movable_nodes * WORTH_OF_MOVABLE_NODES
        return self._purchase(together, [first, second] if is_apart else [together])

    def _pack(self, pod_groups: Sequence[PodGroup], left: Vector) -> _Packed:
        """Choose nodes; the pods stay in their groups until `_take_planned` is called."""
        classes = self.builder.classes(pod_groups)
        problem, node_types = self.builder.problem(classes, left)
        packing = pack(
            problem, refinements=self.refinements, expired=self.expired, reporter=self.reporter
        )
        return _Packed(pod_groups, left, classes, problem, node_types, packing)

    def _purchase(self, together: _Packed, parts: Sequence[_Packed]) -> Purchase:
        """Buy the nodes of the parts; `together` has all their pods."""
        return Purchase(
            planned=[node for part in parts for node in _take_planned(part)],
            left=parts[-1].packing.headroom * self.limit_units,
            bound=self._bound(together) - self.price_overstatement,
            remaining=[group for part in parts for group in _with_pods_left(part.pod_groups)],
            is_apart=len(parts) > 1,
            is_cheapest=len(parts) == 1 and together.packing.is_cheapest,
        )

    def _bound(self, packed: _Packed) -> float:
        """Return a lower bound on the cost of any nodes for the pods that get one, in $/h."""
        packing, problem = packed.packing, packed.problem
        if problem.proves:
            return packing.bound
        if self.expired():
            return 0.0  # The caller is out of time: skip the proof.
        every, _ = self.builder.problem(packed.classes, packed.left, proving=True)
        return lower_bound(replace(every, demand=problem.demand - packing.left))

    def buy_with_devices(
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
        # The bound must hold for any units that the pods could be cut into, so it is computed for
        # the pods before that.
        classes = self.builder.classes(pod_groups)
        pods_before = [(pod_group.unit, list(pod_group.keys)) for pod_group in pod_groups]
        axes = devices.nodes.axes(
            [pod_groups[packing_class.members[0]] for packing_class in classes], variants.row_of
        )
        problem, _ = self.builder.problem(classes, left, more=axes, proving=True)
        ready, without_node = devices.nodes.units(pod_groups, variants, capacity)
        no_purchase = Purchase(planned=[], left=left, bound=0.0, remaining=[])
        purchase = self.buy(ready, left) if ready else no_purchase
        remaining = [*_with_pods_left(without_node), *purchase.remaining]
        left_out = {key for pod_group in remaining for key in pod_group.keys}
        placed = [sum(key not in left_out for key in keys) // unit for unit, keys in pods_before]
        demand = [
            sum(placed[index] for index in packing_class.members) for packing_class in classes
        ]
        bound = lower_bound(replace(problem, demand=np.array(demand, dtype=np.int64)))
        return replace(purchase, bound=bound - self.price_overstatement, remaining=remaining)


def _take_planned(packed: _Packed) -> Iterator[PlannedNode]:
    """Take the pods of the chosen nodes from their groups, and yield the nodes."""
    groups = packed.pod_groups
    members = [[groups[index] for index in each.members] for each in packed.classes]
    for opened in packed.packing.opened:
        yield from planned_copies(opened, int(packed.node_types[opened.node_type]), members)


def _with_pods_left(pod_groups: Sequence[PodGroup]) -> list[PodGroup]:
    """Return the pod groups that have pods left, including those colocated with them."""
    return [pod_group for whole in pod_groups for pod_group in whole.all_groups if pod_group.keys]


def price_overstatement(variants: Variants, pods: int) -> float:
    """Return the greatest excess of the total price in packing over the true price, in $/h.

    There are at most as many new nodes as pods, and at most as many reserved nodes as reserved
    instances.
    """
    reservation_of_node_type = variants.reservation_of_variant[variants.variant_of]
    reserved = sum(count for _, count in variants.catalog.reservations)
    of_instances = overstatement(variants.price, reserved)
    return of_instances + overstatement(variants.price[reservation_of_node_type < 0], pods)
