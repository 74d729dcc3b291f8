"""A pod's preferences, and the order in which they are relaxed.

All constraints listed in a `PodConstraints` bind. If they cannot be met, `relax` returns the next
weaker constraints.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from controller.apis.kubernetes.pods import (
    PodAffinityTerm,
    PodSpec,
    PreferredSchedulingTerm,
    TopologySpreadConstraint,
    WeightedPodAffinityTerm,
)
from controller.apis.kubernetes.taints import Toleration
from controller.constraints import requirements
from controller.constraints.requirements import Requirements
from controller.constraints.taints import TOLERATE_PREFERENCES
from controller.scheduling.pods.nodeaffinity import required_alternatives
from controller.scheduling.settings import IGNORE

SCHEDULE_ANYWAY = "ScheduleAnyway"

Weighted = TypeVar("Weighted", PreferredSchedulingTerm, WeightedPodAffinityTerm)


@dataclass(frozen=True, slots=True)
class PodConstraints:
    """A pod's requirements, and its preferences that have not been relaxed yet.

    * `strict`: the alternatives of node selector and required affinity, of which a node must meet
      one.
    * `preferred_*`: the preferences that still bind, heaviest first.
    * `anyway`: the `ScheduleAnyway` spread constraints that still bind.
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
    def preferred(self) -> Requirements:
        """The heaviest node preference that still binds; empty if there is none."""
        if not self.preferred_nodes:
            return {}
        return requirements.read(self.preferred_nodes[0].preference.match_expressions)

    @property
    def alternatives(self) -> tuple[Requirements, ...]:
        """The strict alternatives, each combined with the heaviest node preference."""
        if not self.preferred_nodes:
            return self.strict
        preference = self.preferred
        return tuple(
            requirements.conjunction(alternative, preference) for alternative in self.strict
        )

    @property
    def preferred_affinity_terms(self) -> tuple[PodAffinityTerm, ...]:
        """The preferred pod affinity terms that have not been relaxed."""
        return tuple(weighted.pod_affinity_term for weighted in self.preferred_affinities)

    @property
    def preferred_anti_affinity_terms(self) -> tuple[PodAffinityTerm, ...]:
        """The preferred pod anti-affinity terms that have not been relaxed."""
        return tuple(weighted.pod_affinity_term for weighted in self.preferred_anti_affinities)

    @property
    def binding_spreads(self) -> tuple[TopologySpreadConstraint, ...]:
        """Every spread constraint that still binds."""
        return self.spreads + self.anyway

    @property
    def avoids_soft_taints(self) -> bool:
        """Whether the pod still avoids nodes with PreferNoSchedule taints."""
        return TOLERATE_PREFERENCES not in self.tolerations


def initial_constraints(spec: PodSpec, *, policy: str, soft_taints: bool) -> PodConstraints:
    """Return a pod's constraints: all preferences bind, or none if the policy is `Ignore`.

    Args:
        spec: The pod's spec.
        policy: The preference policy, `Respect` or `Ignore`.
        soft_taints: Whether any pool has a PreferNoSchedule taint.

    Raises:
        ValueError: a node preference is malformed. kube-scheduler then fails to score nodes for the
            pod.

    """
    affinity = spec.affinity
    pod_affinity = affinity.pod_affinity if affinity is not None else None
    pod_anti_affinity = affinity.pod_anti_affinity if affinity is not None else None
    nodes = affinity.node_affinity if affinity is not None else None
    preferred_nodes = _heaviest_first(nodes.preferred if nodes is not None else ())
    for term in preferred_nodes:
        requirements.read(term.preference.match_expressions)
    hard = tuple(
        constraint
        for constraint in spec.topology_spread_constraints
        if constraint.when_unsatisfiable != SCHEDULE_ANYWAY
    )
    tolerations = tuple(spec.tolerations)
    constraints = PodConstraints(
        strict=required_alternatives(spec),
        tolerations=tolerations if soft_taints else (*tolerations, TOLERATE_PREFERENCES),
        affinities=tuple(pod_affinity.required) if pod_affinity is not None else (),
        anti_affinities=tuple(pod_anti_affinity.required) if pod_anti_affinity is not None else (),
        spreads=hard,
    )
    if policy == IGNORE:
        return constraints
    return replace(
        constraints,
        preferred_nodes=preferred_nodes,
        preferred_affinities=_heaviest_first(
            pod_affinity.preferred if pod_affinity is not None else ()
        ),
        preferred_anti_affinities=_heaviest_first(
            pod_anti_affinity.preferred if pod_anti_affinity is not None else ()
        ),
        anyway=tuple(
            constraint
            for constraint in spec.topology_spread_constraints
            if constraint.when_unsatisfiable == SCHEDULE_ANYWAY
        ),
    )


@dataclass(frozen=True, slots=True)
class Relaxed:
    """Weaker constraints, and a description of the relaxed preference (`given_up`)."""

    constraints: PodConstraints
    given_up: str


def relax(constraints: PodConstraints) -> Relaxed | None:
    """Return the constraints with the next preference relaxed, or None if none is left.

    The order is the same as in Karpenter. Karpenter also drops alternatives of required affinity;
    Joiner considers all alternatives from the start.
    """
    if pod_affinity := constraints.preferred_affinities:
        return Relaxed(
            replace(constraints, preferred_affinities=pod_affinity[1:]), "a preferred pod affinity"
        )
    if pod_anti_affinity := constraints.preferred_anti_affinities:
        return Relaxed(
            replace(constraints, preferred_anti_affinities=pod_anti_affinity[1:]),
            "a preferred pod anti-affinity",
        )
    if nodes := constraints.preferred_nodes:
        return Relaxed(replace(constraints, preferred_nodes=nodes[1:]), "a preferred node affinity")
    if anyway := constraints.anyway:
        return Relaxed(replace(constraints, anyway=anyway[1:]), f"a {SCHEDULE_ANYWAY} spread")
    if constraints.avoids_soft_taints:
        return Relaxed(tolerating_soft_taints(constraints), "nodes without PreferNoSchedule taints")
    return None


def tolerating_soft_taints(constraints: PodConstraints) -> PodConstraints:
    """Return the constraints with a toleration for all PreferNoSchedule taints."""
    return replace(constraints, tolerations=(*constraints.tolerations, TOLERATE_PREFERENCES))


def without_preferences(constraints: PodConstraints) -> PodConstraints:
    """Return the constraints with all preferences relaxed."""
    weaker = relax(constraints)
    return constraints if weaker is None else without_preferences(weaker.constraints)


def _heaviest_first(terms: Sequence[Weighted]) -> tuple[Weighted, ...]:
    return tuple(sorted(terms, key=lambda weighted: -weighted.weight))
