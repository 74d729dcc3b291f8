"""The order of nodes in which ReplicaSets should scale down: as Joiner disrupts them.

A ReplicaSet that scales down deletes the pods with the lowest deletion cost first. If these are on
the nodes that disruption removes next, it evicts fewer pods afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from controller.apis.kubernetes.pods import Pod
from controller.disruption.candidates import registered_nodes
from controller.disruption.commands import Candidate, Reason
from controller.disruption.costs import disturbance
from controller.disruption.methods.drift import has_drifted, in_order, is_static
from controller.disruption.methods.emptiness import is_consolidated
from controller.disruption.methods.method import Context
from controller.disruption.problem import DisruptionProblem

LOWEST = -(2**31)
"""The deletion cost of pods on nodes that are being disrupted: the lowest int32."""

RECREATING = frozenset({"ReplicaSet", "Job", "DaemonSet"})
"""Owner kinds that recreate their pods on other nodes.

A node with other pods, outside kube-system, is not ranked.
"""


@dataclass(frozen=True, slots=True)
class Ranking:
    """The nodes in the order in which ReplicaSets should scale down on them, by name.

    `leaving` nodes are being disrupted. `ranked` nodes are disrupted next, in this order. On
    `others`, pods get no deletion cost.
    """

    leaving: tuple[str, ...] = ()
    ranked: tuple[str, ...] = ()
    others: tuple[str, ...] = ()

    def costs(self) -> Iterator[tuple[str, int | None]]:
        """Yield each node with the deletion cost of its pods; None for no deletion cost."""
        yield from ((name, LOWEST) for name in self.leaving)
        count = len(self.ranked)
        yield from ((name, rank - count) for rank, name in enumerate(self.ranked))
        yield from ((name, None) for name in self.others)


def ranking(problem: DisruptionProblem, planned: Sequence[str] = ()) -> Ranking:
    """Return the ranking of Joiner's nodes.

    The order: drifted nodes of dynamic NodePools in the order of their replacement; the `planned`
    nodes of the last consolidation decision; the other nodes unless `consolidateAfter` is Never,
    those of static NodePools included, the highest price per eviction cost first. Each NodePool has
    as many ranked drifted nodes as its budgets allow disruptions for drift, and as many others as
    they allow for underutilization.
    """
    context = Context(problem)
    leaving = tuple(
        state.name
        for state in problem.snapshot.nodes
        if state.managed and state.node is not None and state.deleting
    )
    rank_of = {name: number for number, name in enumerate(planned)}
    suitable = [candidate for candidate in context.survey.admitted if _can_empty(candidate)]
    drifted = in_order(suitable, static=False)
    normal = sorted(
        (one for one in suitable if not has_drifted(one) and _may_consolidate(one)),
        key=lambda one: (rank_of.get(one.name, len(rank_of)), -_worth(one, problem), one.name),
    )
    ranked = tuple(
        candidate.name
        for reason, group in ((Reason.DRIFTED, drifted), (Reason.UNDERUTILIZED, normal))
        for candidate in context.budgets(reason).admit(group)
    )
    known = frozenset((*leaving, *ranked))
    others = (candidate.name for _, candidate in registered_nodes(problem))
    return Ranking(leaving, ranked, tuple(name for name in others if name not in known))


def _may_consolidate(candidate: Candidate) -> bool:
    return is_static(candidate) or is_consolidated(candidate.node_pool)


def _can_empty(candidate: Candidate) -> bool:
    """Return whether a node's price is known and no pod pins it."""
    return candidate.price > 0 and not any(map(_pins, candidate.pods))


def _pins(pod: Pod) -> bool:
    if pod.metadata.namespace == "kube-system":
        return False
    owners = pod.metadata.owner_references
    return not any(owner.controller and owner.kind in RECREATING for owner in owners)


def _worth(candidate: Candidate, problem: DisruptionProblem) -> float:
    """Return the price of a node in $/h per cost of disrupting it, as Karpenter ranks nodes."""
    return candidate.price / (1.0 + disturbance(candidate.moving, problem.settings))


def is_replica(pod: Pod) -> bool:
    """Return whether a ReplicaSet controls the pod: only ReplicaSets read deletion costs."""
    owners = pod.metadata.owner_references
    return any(owner.controller and owner.kind == "ReplicaSet" for owner in owners)
