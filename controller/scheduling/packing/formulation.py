"""From pod groups to the problem that is packed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from controller.constraints import hostports
from controller.constraints.hostports import HostPort
from controller.scheduling.arrays import Indices, Matrix, Vector
from controller.scheduling.catalog.variants import Variants
from controller.scheduling.packing.paretofront import NO_KINDS, undominated
from controller.scheduling.packing.pricefloor import floored
from controller.scheduling.packing.problem import NodeRules, PackingProblem
from controller.scheduling.pods.groups import PendingGroup, PodGroup
from controller.scheduling.topology.groups import TopologyGroup, TopologyGroups, TopologyKind

LEFT_OUT = 10.0
"""How many times the cheapest node that could hold it alone a pod costs that is left out."""

MOST_WAITING = 1e-3
"""How many such nodes more leaving out the class of which most wait costs: where limits leave pods
over, not those, so that spreads stay even."""


class ProblemBuilder:
    """Brings pod groups, variants and limits into arrays.

    `room` is kinds × the solve's resources; `consumption` kinds × limits, counted in
    `limit_units` (limits).
    """

    def __init__(
        self,
        variants: Variants,
        groups: TopologyGroups,
        *,
        room: Matrix,
        consumption: Matrix,
        limit_units: Vector,
    ) -> None:
        """Nothing has been asked yet."""
        self._variants, self._groups = variants, groups
        self._room, self._prices = room, floored(variants.price)
        self._consumption, self._limit_units = consumption, limit_units
        self._per_node: dict[
            tuple[tuple[TopologyGroup, ...], ...], tuple[tuple[int, ...], ...]
        ] = {}

    def classes(self, pod_groups: Sequence[PodGroup]) -> list[list[PodGroup]]:
        """Bring together the pod groups that packing cannot tell apart."""
        classes: dict[tuple[object, ...], list[PodGroup]] = {}
        for pod_group in pod_groups:
            everyone = tuple(self._sharing(part.pending) for part in pod_group.everyone)
            alike = tuple(sorted(pod_group.needs.items())) if pod_group.needs is not None else None
            key = (pod_group.size.tobytes(), pod_group.eligible.tobytes(), everyone, alike)
            classes.setdefault(key, []).append(pod_group)
        return list(classes.values())

    def _sharing(self, pending: PendingGroup) -> tuple[object, ...]:
        """Return all that decides whom pods may share a node with."""
        stated = (pending.owned, pending.counted)
        known = self._per_node.get(stated)
        if known is None:
            owned, counted = ([one.index for one in part if one.per_node] for part in stated)
            known = self._per_node[stated] = tuple(owned), tuple(counted)
        device_requests = pending.pod_class.device_requests
        return known, pending.pod_class.ports, device_requests and device_requests.signature

    def problem(
        self,
        classes: Sequence[Sequence[PodGroup]],
        left: Vector,
        keep: Indices = NO_KINDS,
        more: tuple[Matrix, Matrix] | None = None,
        proving: bool = False,
    ) -> tuple[PackingProblem, Indices]:
        """Bring classes and kinds into arrays; with the kinds of `variants` that are in it,
        among them those to `keep`. `more` is what classes take and kinds have beyond the solve's
        resources, `left` (limits) what may still be bought. What is asked for `proving` has
        every kind that an answer might be cheaper by.
        """
        variants = self._variants
        sizes, room = np.stack([one[0].size for one in classes]), self._room
        if more is None and any(one[0].needs is not None for one in classes):
            # A node has room for one unit of pods with devices.
            units = np.array([[float(one[0].needs is not None)] for one in classes])
            more = units, np.ones((len(room), 1))
        if more is not None:
            sizes, room = np.hstack((sizes, more[0])), np.hstack((room, more[1]))
        labelled = np.stack([one[0].eligible for one in classes])[:, variants.variant_of]
        distinct, which = np.unique(sizes, axis=0, return_inverse=True)
        holds = np.ones((len(distinct), len(room)), dtype=np.bool_)
        for r in range(sizes.shape[1]):
            holds &= room[None, :, r] >= distinct[:, r, None]
        allowed = labelled & holds[which.reshape(-1)]
        consumption = self._consumption
        allowed &= (consumption <= left).all(axis=1)
        few, every = undominated(allowed, labelled, variants.price, room, consumption)
        kinds = np.union1d(every if proving else few, keep)
        demand = np.array([sum(p.units for p in one) for one in classes], dtype=np.int64)
        allowed = allowed[:, kinds]
        prices = self._prices[kinds]
        alone = np.where(allowed, prices, np.inf).min(axis=1, initial=np.inf)
        waiting = MOST_WAITING * demand / demand.max(initial=1) if len(left) else 0.0
        penalty = (LEFT_OUT + waiting) * np.where(np.isfinite(alone), alone, 1.0)
        problem = PackingProblem(
            demand=demand,
            sizes=sizes,
            penalty=penalty,
            prices=prices,
            room=room[kinds],
            allowed=allowed,
            labelled=labelled[:, kinds],
            rules=self._node_rules(classes),
            consumption=consumption[kinds] / self._limit_units,
            headroom=left / self._limit_units,
            proves=proving or len(few) == len(every),
        )
        return problem, kinds

    def _node_rules(self, classes: Sequence[Sequence[PodGroup]]) -> NodeRules:
        """Bring the rules about sharing a node into arrays: groups first, then host ports."""
        units = [[part.pending for part in one[0].everyone] for one in classes]
        is_early = [_comes_early(one) for one in classes]
        rules = [
            _node_rule(group, units, is_early)
            for group in self._groups.all
            if group.per_node
            and group.kind is not TopologyKind.AFFINITY
            and any(group in pending.owned for unit in units for pending in unit)
        ]
        ports = [
            tuple(port for pending in unit for port in pending.pod_class.ports) for unit in units
        ]
        rules += [
            _NodeRule(owned=owners, counted=others, limit=1.0, repels=True)
            for owners, others in clashes(ports)
        ]
        shape = (len(rules), len(classes))
        return NodeRules(
            owned=np.array([one.owned for one in rules], dtype=np.bool_).reshape(shape),
            counted=np.array([one.counted for one in rules], dtype=np.bool_).reshape(shape),
            limit=np.array([one.limit for one in rules], dtype=np.float64),
            repels=np.array([one.repels for one in rules], dtype=np.bool_),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _NodeRule:
    """One of the `NodeRules`: per class whether it owns the rule and is counted by it."""

    owned: list[bool]
    counted: list[bool]
    limit: float
    repels: bool


def _comes_early(equal: Sequence[PodGroup]) -> bool:
    """Whether a spread over nodes counts the pods of a class.

    It counts those who come before its owners, or among them: pods that others are counted
    in the domains of, and owners of such spreads. The others come last, when nobody minds
    any more.
    """
    return any(pod_group.pins for pod_group in equal) or any(
        group.per_node and group.kind is TopologyKind.SPREAD
        for part in equal[0].everyone
        for group in part.pending.owned
    )


def _node_rule(
    group: TopologyGroup, units: Sequence[Sequence[PendingGroup]], is_early: Sequence[bool]
) -> _NodeRule:
    """Return the rule of a group for classes, by who is in a unit of each."""
    repels = group.kind is TopologyKind.ANTI_AFFINITY
    return _NodeRule(
        owned=[any(group in pending.owned for pending in unit) for unit in units],
        counted=[
            (repels or early) and any(group in pending.counted for pending in unit)
            for early, unit in zip(is_early, units, strict=True)
        ],
        limit=float(group.max_skew),
        repels=repels,
    )


def clashes(ports: Sequence[tuple[HostPort, ...]]) -> list[tuple[list[bool], list[bool]]]:
    """Return, per host port, which classes take it and which cannot be beside them."""
    found = []
    for port in sorted({port for taken in ports for port in taken}):
        owners = [port in taken for taken in ports]
        others = [hostports.conflict((port,), taken) for taken in ports]
        found.append((owners, others))
    return found
