"""Which nodes a change of NodePools would make drift, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from controller.apis.karpenter.nodepool import NodePool
from controller.disruption import candidates
from controller.disruption.advice.nodepools import Pools
from controller.disruption.methods.drift import (
    REQUIREMENTS_DRIFTED,
    difference,
    excluded_labels,
    has_drifted,
    is_static,
)
from controller.disruption.problem import DisruptionProblem


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftingNode:
    """A node that would drift, with the `reason` of its condition `Drifted`.

    `why` describes the difference to its NodePool.
    """

    node: str
    node_pool: str
    reason: str
    why: str
    is_static: bool = False


def drifting_nodes(problem: DisruptionProblem, before: Pools) -> list[DriftingNode]:
    """Return the nodes that match their NodePool in `before`, but not their NodePool now."""
    return list(_find_drifting_nodes(problem, before))


def _find_drifting_nodes(problem: DisruptionProblem, before: Pools) -> Iterator[DriftingNode]:
    for name, candidate in sorted(candidates.initialized_nodes(problem).items()):
        pool, old = candidate.node_pool, before.get(candidate.pool)
        types = problem.snapshot.instance_types.get(candidate.pool, ())
        if (
            old is None
            or has_drifted(candidate)
            or difference(candidate.claim, old, types) is not None
        ):
            continue
        reason = difference(candidate.claim, pool, types)
        if reason is not None:
            is_required = reason == REQUIREMENTS_DRIFTED
            yield DriftingNode(
                node=name,
                node_pool=candidate.pool,
                reason=reason,
                why=_excluded_text(excluded_labels(candidate.claim, pool, types))
                if is_required
                else _changed_fields(old, pool),
                is_static=is_static(candidate),
            )


def _excluded_text(excluded: Mapping[str, str | None]) -> str:
    named = [
        f"a node without {key}" if value is None else f"{key}={value}"
        for key, value in excluded.items()
    ]
    return f"{', '.join(named)} is no longer allowed"


def _changed_fields(old: NodePool, new: NodePool) -> str:
    """Return the fields of the template that differ, without the requirements."""
    then, now = old.spec.template, new.spec.template
    fields = {
        "labels": (then.metadata.labels, now.metadata.labels),
        "annotations": (then.metadata.annotations, now.metadata.annotations),
        "nodeClassRef": (then.spec.node_class_ref, now.spec.node_class_ref),
        "taints": (then.spec.taints, now.spec.taints),
        "startupTaints": (then.spec.startup_taints, now.spec.startup_taints),
        "terminationGracePeriod": (
            then.spec.termination_grace_period,
            now.spec.termination_grace_period,
        ),
        "expireAfter": (then.spec.expire_after, now.spec.expire_after),
    }
    return f"changed: {', '.join(name for name, (a, b) in fields.items() if a != b)}"
