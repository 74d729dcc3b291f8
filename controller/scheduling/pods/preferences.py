"""What a pod asks for beyond what it needs, and the order in which it gives that up.

In a `PodConstraints` everything listed binds. When that cannot be met, `relaxed` returns
the next, weaker one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from controller.apis.pods import (
    PodAffinityTerm,
    PodSpec,
    PreferredSchedulingTerm,
    TopologySpreadConstraint,
    WeightedPodAffinityTerm,
)
from controller.apis.taints import Toleration
from controller.constraints import requirements
from controller.constraints.requirements import Requirements
from controller.constraints.taints import TOLERATE_PREFERENCES
from controller.scheduling.pods.nodeaffinity import required_alternatives
from controller.scheduling.settings import IGNORE

SCHEDULE_ANYWAY = "ScheduleAnyway"


@dataclass(frozen=True, slots=True)
class PodConstraints:
    """What a pod needs, and the preferences that it has not given up yet.

    `strict` are the alternatives of selector and required affinity, of which one
    must hold; the `preferred_*` still bind, heaviest first; `anyway` are the spread
    constraints that bind only until they cannot.
    """

    strict: tuple[Requirements, ...]
    tolerations: tuple[Toleration, ...]
    affinities: tuple[PodAffinityTerm, ...]
    anti_affinities: tuple[PodAffinityTerm, ...]
    spreads: tuple[TopologySpreadConstraint, ...]
    preferred_nodes: tuple[PreferredSchedulingTerm, ...] = ()
    preferred_affinities: tuple[WeightedPodAffinityTerm, ...] = ()
    preferred_anti_affinities: tuple[WeightedPodAffinityTerm, ...] = ()
    anyway: tuple[TopologySpreadConstraint, ...] = ()

    @property
    def liked(self) -> Requirements:
        """The heaviest preference about nodes that still binds; empty without one."""
        if not self.preferred_nodes:
            return {}
        return requirements.read(self.preferred_nodes[0].preference.match_expressions)

    @property
    def alternatives(self) -> tuple[Requirements, ...]:
        """The strict alternatives, each with the heaviest preference on top."""
        if not self.preferred_nodes:
            return self.strict
        liked = self.liked
        return tuple(requirements.conjunction(alternative, liked) for alternative in self.strict)

    @property
    def binding_affinities(self) -> tuple[PodAffinityTerm, ...]:
        """Required terms, and those preferred that have not been given up."""
        liked = tuple(weighted.pod_affinity_term for weighted in self.preferred_affinities)
        return self.affinities + liked

    @property
    def binding_anti_affinities(self) -> tuple[PodAffinityTerm, ...]:
        """Required terms, and those preferred that have not been given up."""
        liked = tuple(weighted.pod_affinity_term for weighted in self.preferred_anti_affinities)
        return self.anti_affinities + liked

    @property
    def binding_spreads(self) -> tuple[TopologySpreadConstraint, ...]:
        """Every spread constraint that still binds."""
        return self.spreads + self.anyway

    @property
    def avoids_soft_taints(self) -> bool:
        """Whether the pod still keeps away from PreferNoSchedule."""
        return TOLERATE_PREFERENCES not in self.tolerations


def first_constraints(spec: PodSpec, *, policy: str, soft_taints: bool) -> PodConstraints:
    """Return the constraints among which every preference binds, or none under `Ignore`.

    `soft_taints` says whether any pool has a PreferNoSchedule taint at all.

    Raises:
        ValueError: a requirement is malformed.

    """
    affinity = spec.affinity
    near = affinity.pod_affinity if affinity is not None else None
    far = affinity.pod_anti_affinity if affinity is not None else None
    nodes = affinity.node_affinity if affinity is not None else None
    hard = tuple(
        constraint
        for constraint in spec.topology_spread_constraints
        if constraint.when_unsatisfiable != SCHEDULE_ANYWAY
    )
    tolerations = tuple(spec.tolerations)
    constraints = PodConstraints(
        strict=required_alternatives(spec),
        tolerations=tolerations if soft_taints else (*tolerations, TOLERATE_PREFERENCES),
        affinities=tuple(near.required) if near is not None else (),
        anti_affinities=tuple(far.required) if far is not None else (),
        spreads=hard,
    )
    if policy == IGNORE:
        return constraints
    return replace(
        constraints,
        preferred_nodes=_heaviest_first(nodes.preferred if nodes is not None else ()),
        preferred_affinities=_heaviest_first_terms(near.preferred if near is not None else ()),
        preferred_anti_affinities=_heaviest_first_terms(far.preferred if far is not None else ()),
        anyway=tuple(
            constraint
            for constraint in spec.topology_spread_constraints
            if constraint.when_unsatisfiable == SCHEDULE_ANYWAY
        ),
    )


@dataclass(frozen=True, slots=True)
class Relaxed:
    """Weaker constraints, and what was given up for them, in words."""

    constraints: PodConstraints
    given_up: str


def relaxed(constraints: PodConstraints) -> Relaxed | None:
    """Give up one thing, in Karpenter's order; None when nothing is left to give up.

    Alternatives of required affinity are weighed together from the start, so there
    is none to drop.
    """
    if near := constraints.preferred_affinities:
        return Relaxed(
            replace(constraints, preferred_affinities=near[1:]), "a preferred pod affinity"
        )
    if far := constraints.preferred_anti_affinities:
        return Relaxed(
            replace(constraints, preferred_anti_affinities=far[1:]),
            "a preferred pod anti-affinity",
        )
    if nodes := constraints.preferred_nodes:
        return Relaxed(replace(constraints, preferred_nodes=nodes[1:]), "a preferred node affinity")
    if anyway := constraints.anyway:
        return Relaxed(replace(constraints, anyway=anyway[1:]), f"a {SCHEDULE_ANYWAY} spread")
    if constraints.avoids_soft_taints:
        return Relaxed(bearing_soft_taints(constraints), "nodes without PreferNoSchedule taints")
    return None


def bearing_soft_taints(constraints: PodConstraints) -> PodConstraints:
    """Return them for pods that do not keep away from PreferNoSchedule any more."""
    return replace(constraints, tolerations=(*constraints.tolerations, TOLERATE_PREFERENCES))


def required(constraints: PodConstraints) -> PodConstraints:
    """Return the constraints of which nothing is left to give up."""
    weaker = relaxed(constraints)
    return constraints if weaker is None else required(weaker.constraints)


def _heaviest_first(
    terms: Sequence[PreferredSchedulingTerm],
) -> tuple[PreferredSchedulingTerm, ...]:
    return tuple(sorted(terms, key=lambda weighted: -weighted.weight))


def _heaviest_first_terms(
    terms: Sequence[WeightedPodAffinityTerm],
) -> tuple[WeightedPodAffinityTerm, ...]:
    return tuple(sorted(terms, key=lambda weighted: -weighted.weight))
