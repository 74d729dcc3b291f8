"""From pod groups to the problem that is packed."""

from __future__ import annotations

from collections.abc import Sequence

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
        firsts = [[part.pending for part in one[0].everyone] for one in classes]
        # A spread over nodes counts those who come before its owners, or among them: pods
        # that others are counted in the domains of, and owners of such spreads. The others
        # come last, when nobody minds any more.
        early = [
            any(part.pins for part in one)
            or any(
                group.per_node and group.kind is TopologyKind.SPREAD
                for pending in pending_groups
                for group in pending.owned
            )
            for one, pending_groups in zip(classes, firsts, strict=True)
        ]
        rules: list[tuple[list[bool], list[bool], float, bool]] = []
        for group in self._groups.all:
            if not group.per_node or group.kind is TopologyKind.AFFINITY:
                continue
            owned = [
                any(group in pending.owned for pending in pending_groups)
                for pending_groups in firsts
            ]
            if any(owned):
                repels = group.kind is TopologyKind.ANTI_AFFINITY
                counted = [
                    (repels or first)
                    and any(group in pending.counted for pending in pending_groups)
                    for first, pending_groups in zip(early, firsts, strict=True)
                ]
                rules.append((owned, counted, float(group.max_skew), repels))
        ports = [
            tuple(p for pending in pending_groups for p in pending.pod_class.ports)
            for pending_groups in firsts
        ]
        for owners, others in clashes(ports):
            rules.append((owners, others, 1.0, True))
        width = len(classes)
        return NodeRules(
            owned=np.array([one[0] for one in rules], dtype=np.bool_).reshape(len(rules), width),
            counted=np.array([one[1] for one in rules], dtype=np.bool_).reshape(len(rules), width),
            limit=np.array([one[2] for one in rules], dtype=np.float64),
            repels=np.array([one[3] for one in rules], dtype=np.bool_),
        )


def clashes(ports: Sequence[tuple[HostPort, ...]]) -> list[tuple[list[bool], list[bool]]]:
    """Return, per host port, which classes take it and which cannot be beside them."""
    found = []
    for port in sorted({port for taken in ports for port in taken}):
        owners = [port in taken for taken in ports]
        others = [hostports.conflict((port,), taken) for taken in ports]
        found.append((owners, others))
    return found
