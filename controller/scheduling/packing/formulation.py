"""Formulate the packing problem of pod groups as arrays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from controller.constraints import hostports
from controller.constraints.hostports import HostPort
from controller.scheduling.arrays import Indices, Mask, Matrix, Vector, distinct_rows
from controller.scheduling.catalog.limits import PurchaseLimits
from controller.scheduling.catalog.variants import Variants
from controller.scheduling.packing.paretofront import NO_NODE_TYPES, remove_dominated
from controller.scheduling.packing.problem import NodeRules, PackingProblem
from controller.scheduling.pods.groups import PendingGroup, PodGroup
from controller.scheduling.topology.groups import TopologyGroup, TopologyType
from controller.scheduling.topology.rules import limit

PRICE_FLOOR = 1e-4
"""The least price in packing, in $/h: a tenth of the price of the cheapest instance type.

Linear programs cannot compare prices near zero, such as those of reserved capacity or of a
NodeOverlay. So packing uses slightly higher prices in the same order."""

PENALTY_FACTOR = 10.0
"""Penalty for leaving a unit without a node, as a multiple of the price of the cheapest node type
that can hold it."""

MAX_CLASS_PENALTY = 1e-3
"""Extra penalty for the class with the most pending units, as a multiple of the price of the
cheapest node type that can hold it; smaller classes get a proportional part. So if limits leave
pods without a node, pods of the largest classes are the last of them, which keeps spreads even."""


@dataclass(frozen=True, slots=True)
class UnitPart:
    """The pods of one pod group in a unit, and their rules about sharing a node.

    `owned` are the topology groups that the pods state, `counted` the topology groups that count
    them, `ports` their host ports. A unit has `number` of these pods.
    """

    owned: tuple[TopologyGroup, ...]
    counted: tuple[TopologyGroup, ...]
    ports: tuple[HostPort, ...]
    number: int


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class PackingClass:
    """Pod groups that are interchangeable for packing, at the time of formulation.

    `members` are the indices of the pod groups, and `units` is the number of their units without a
    node. One unit requests `size`, may be on the `eligible` variants and consists of `parts`.
    Spreads over nodes count only classes that are placed early (`is_early`): with pins, or with
    such a spread of their own. A node holds at most one `exclusive` unit, because of its devices.
    """

    members: tuple[int, ...]
    units: int
    size: Vector
    eligible: Mask
    parts: tuple[UnitPart, ...]
    is_early: bool
    exclusive: bool

    @classmethod
    def of(cls, pod_groups: Sequence[PodGroup], members: Iterable[int]) -> PackingClass:
        """Return the class of the pod groups with these indices."""
        indices = tuple(members)
        equal = [pod_groups[index] for index in indices]
        first = equal[0]
        parts = tuple(
            UnitPart(part.pending.owned, part.pending.counted, part.pending.ports, number)
            for part, number in first.members
        )
        return cls(
            members=indices,
            units=sum(pod_group.units for pod_group in equal),
            size=first.size,
            eligible=first.eligible,
            parts=parts,
            is_early=any(pod_group.pins for pod_group in equal) or _spreads_over_nodes(parts),
            exclusive=first.needs is not None,
        )


def each_apart(pod_groups: Sequence[PodGroup]) -> list[PackingClass]:
    """Return one class per pod group, even if pod groups are equal."""
    return [PackingClass.of(pod_groups, [index]) for index in range(len(pod_groups))]


@dataclass
class ProblemBuilder:
    """Formulates packing problems from pod groups, variants and limits.

    `capacity` is node types × the solve's resources: allocatable capacity.
    """

    variants: Variants
    groups: Sequence[TopologyGroup]
    capacity: Matrix
    limits: PurchaseLimits

    def __post_init__(self) -> None:
        self._prices = raise_to_floor(self.variants.price)
        self._per_node: dict[
            tuple[tuple[TopologyGroup, ...], ...], tuple[tuple[int, ...], ...]
        ] = {}

    def classes(self, pod_groups: Sequence[PodGroup]) -> list[PackingClass]:
        """Return the pod groups as classes of interchangeable ones."""
        members: dict[tuple[object, ...], list[int]] = {}
        for index, pod_group in enumerate(pod_groups):
            sharing_keys = tuple(
                self._sharing_key(part.pending, number) for part, number in pod_group.members
            )
            needs = tuple(sorted(pod_group.needs.items())) if pod_group.needs is not None else None
            key = (pod_group.size.tobytes(), pod_group.eligible.tobytes(), sharing_keys, needs)
            members.setdefault(key, []).append(index)
        return [PackingClass.of(pod_groups, indices) for indices in members.values()]

    def _sharing_key(self, pending: PendingGroup, number: int) -> tuple[object, ...]:
        """Return a key that is equal for pods with the same rules about sharing a node."""
        groups = (pending.owned, pending.counted)
        indices = self._per_node.get(groups)
        if indices is None:
            owned, counted = ([group.index for group in part if group.per_node] for part in groups)
            indices = self._per_node[groups] = tuple(owned), tuple(counted)
        device_requests = pending.pod_class.device_requests
        number = number if indices[1] else 0  # Only rules that count the pods depend on it.
        return indices, number, pending.ports, device_requests and device_requests.signature

    def problem(
        self,
        classes: Sequence[PackingClass],
        left: Vector,
        keep: Indices = NO_NODE_TYPES,
        more: tuple[Matrix, Matrix] | None = None,
        proving: bool = False,
    ) -> tuple[PackingProblem, Indices]:
        """Return the packing problem of these classes, and the indices of its node types.

        Args:
            classes: the packing classes, with the numbers of their units.
            left: the remaining amount of each limit.
            keep: indices of node types that the problem must contain.
            more: amounts of further resources that classes request (classes × further) and that
                node types have (node types × further). By default there is one further resource,
                which only `exclusive` classes request and of which each node has one.
            proving: keep every node type that could lower the cost, so that a lower bound on this
                problem holds for all node types.

        """
        variants = self.variants
        sizes, capacity = (
            np.stack([packing_class.size for packing_class in classes]),
            self.capacity,
        )
        if more is None and any(packing_class.exclusive for packing_class in classes):
            units = np.array([[float(packing_class.exclusive)] for packing_class in classes])
            more = units, np.ones((len(capacity), 1))
        if more is not None:
            sizes, capacity = np.hstack((sizes, more[0])), np.hstack((capacity, more[1]))
        labelled = np.stack([packing_class.eligible for packing_class in classes])[
            :, variants.variant_of
        ]
        allowed = labelled & _holds(sizes, capacity)
        consumption = self.limits.consumption
        allowed &= (consumption <= left).all(axis=1)
        packable, undominated = remove_dominated(
            allowed, labelled, variants.price, capacity, consumption
        )
        node_types = undominated if proving else packable
        if len(keep):
            node_types = np.union1d(node_types, keep)
        demand = np.array([packing_class.units for packing_class in classes], dtype=np.int64)
        allowed = allowed[:, node_types]
        prices = self._prices[node_types]
        problem = PackingProblem(
            demand=demand,
            sizes=sizes,
            penalty=_penalty(demand, allowed, prices, limited=bool(len(left))),
            prices=prices,
            capacity=capacity[node_types],
            allowed=allowed,
            labelled=labelled[:, node_types],
            rules=self._node_rules(classes, proving=proving),
            consumption=consumption[node_types] / self.limits.units,
            headroom=left / self.limits.units,
            proves=proving
            or (len(packable) == len(undominated) and not _counts_larger_units(classes)),
        )
        return problem, node_types

    def _node_rules(self, classes: Sequence[PackingClass], *, proving: bool) -> NodeRules:
        """Return the rules about sharing a node as arrays: topology groups first, then host ports.

        Topology groups that no class owns are left out, and so is pod affinity by hostname, which
        placement handles.
        """
        owned_groups = {
            group
            for packing_class in classes
            for part in packing_class.parts
            for group in part.owned
        }
        rules = [
            _node_rule(group, classes, proving=proving)
            for group in self.groups
            if group.per_node and group.type is not TopologyType.AFFINITY and group in owned_groups
        ]
        ports = [
            tuple(port for part in packing_class.parts for port in part.ports)
            for packing_class in classes
        ]
        rules += [
            _NodeRule(owned=owners, counted=others, limit=1.0, repels=True)
            for owners, others in port_conflicts(ports)
        ]
        shape = (len(rules), len(classes))
        return NodeRules(
            owned=np.array([rule.owned for rule in rules], dtype=np.bool_).reshape(shape),
            counted=np.array([rule.counted for rule in rules], dtype=np.bool_).reshape(shape),
            limit=np.array([rule.limit for rule in rules], dtype=np.float64),
            repels=np.array([rule.repels for rule in rules], dtype=np.bool_),
        )


def _holds(sizes: Matrix, capacity: Matrix) -> Mask:
    """Mark the node types on which one unit of a class fits by its size; classes × node types."""
    first, which = distinct_rows(sizes)
    distinct = sizes[first]
    holds = np.ones((len(distinct), len(capacity)), dtype=np.bool_)
    for r in range(sizes.shape[1]):
        holds &= capacity[None, :, r] >= distinct[:, r, None]
    return holds[which]


def _penalty(demand: Indices, allowed: Mask, prices: Vector, *, limited: bool) -> Vector:
    """Return the penalty for leaving a unit of each class without a node, in $/h."""
    least = np.where(allowed, prices, np.inf).min(axis=1, initial=np.inf)
    class_penalty = MAX_CLASS_PENALTY * demand / demand.max(initial=1) if limited else 0.0
    penalty: Vector = (PENALTY_FACTOR + class_penalty) * np.where(np.isfinite(least), least, 1.0)
    return penalty


@dataclass(frozen=True, slots=True, kw_only=True)
class _NodeRule:
    """One of the `NodeRules`; `owned` and `counted` are over classes."""

    owned: list[bool]
    counted: list[bool]
    limit: float
    repels: bool


def _spreads_over_nodes(parts: Sequence[UnitPart]) -> bool:
    """Whether pods of a unit own a spread over nodes.

    Such a spread counts the pods that are placed before its owners or together with them: pods
    whose domains were chosen (pins) because topology groups count them, and owners of such spreads.
    All others are placed last, when their number on a node no longer affects any spread.
    """
    return any(
        group.per_node and group.type is TopologyType.SPREAD
        for part in parts
        for group in part.owned
    )


def _node_rule(
    group: TopologyGroup, classes: Sequence[PackingClass], *, proving: bool
) -> _NodeRule:
    """Return the rule of a topology group.

    The group counts pods, but packing counts units. So that no node holds too many pods, every unit
    counts as the largest one, unless a node holds only one of them. A lower bound must not
    overstate the cost, so there every unit counts as one pod.
    """
    repels = group.type is TopologyType.ANTI_AFFINITY
    counted = [
        sum(part.number for part in packing_class.parts if group in part.counted)
        if repels or packing_class.is_early
        else 0
        for packing_class in classes
    ]
    always_alone = all(
        packing_class.exclusive or not number
        for packing_class, number in zip(classes, counted, strict=True)
    )
    largest = 1 if proving or always_alone else max(1, *counted)
    return _NodeRule(
        owned=[
            any(group in part.owned for part in packing_class.parts) for packing_class in classes
        ],
        counted=[number > 0 for number in counted],
        limit=max(limit(group, own=True) // largest, 1.0),
        repels=repels,
    )


def _counts_larger_units(classes: Sequence[PackingClass]) -> bool:
    """Whether a spread over nodes counts pods of a unit that has more than one pod."""
    return any(
        group.per_node and group.type is TopologyType.SPREAD
        for packing_class in classes
        if not packing_class.exclusive and sum(part.number for part in packing_class.parts) > 1
        for part in packing_class.parts
        for group in part.counted
    )


def port_conflicts(ports: Sequence[tuple[HostPort, ...]]) -> list[tuple[list[bool], list[bool]]]:
    """Return, per host port, which classes use it and which classes conflict with it."""
    pairs = []
    for port in sorted({port for taken in ports for port in taken}):
        owners = [port in taken for taken in ports]
        others = [hostports.conflict((port,), taken) for taken in ports]
        pairs.append((owners, others))
    return pairs


def raise_to_floor(prices: Vector) -> Vector:
    """Return prices for packing, in $/h; those below `PRICE_FLOOR` become values just above it.

    The order of the prices stays the same.
    """
    tiny = prices < PRICE_FLOOR
    if not tiny.any():
        return prices
    top = prices[tiny].max(initial=0.0) or 1.0
    return np.where(tiny, PRICE_FLOOR * (1.0 + np.minimum(prices, top) / (2.0 * top)), prices)


def overstatement(prices: Vector, count: float) -> float:
    """Return the greatest error of a lower bound on the cost at raised prices, in $/h.

    `count` is the greatest number of nodes with a price below the floor.
    """
    raised = raise_to_floor(prices) - prices
    return float(raised.max(initial=0.0)) * count
