"""What pods give up of what they prefer, when that saves what keeping it is worth.

A preference binds in consolidation unless somebody has put a price to it: the annotation
`joiner.dev/preference-price` of a pod, else of the NodePool of its node, in $/h. The cluster is
then weighed a second time as if such pods had no preferences, where each that moves costs its
price beside what moving it costs. Whether it finds what it prefers at its new place is not asked:
nothing is given up for less than was said.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from msgspec import structs

from controller.apis import labels
from controller.apis.nodepool import NodePool
from controller.apis.pods import Affinity, Pod
from controller.disruption.commands import Candidate
from controller.disruption.problem import DisruptionProblem
from controller.scheduling.pods.preferences import SCHEDULE_ANYWAY
from controller.scheduling.settings import IGNORE


@dataclass(frozen=True, slots=True)
class Concession:
    """The cluster in which pods do without what they prefer, for these prices in $/h, by pod.

    `originals` are its candidates as they are, by name.
    """

    problem: DisruptionProblem
    candidates: tuple[Candidate, ...]
    prices: Mapping[str, float]
    originals: Mapping[str, Candidate]

    def price_of(self, candidate: Candidate) -> float:
        """Return what the pods of a node give up, in $/h."""
        return sum(self.prices.get(pod.key, 0.0) for pod in candidate.moving)

    def restored(self, candidates: Iterable[Candidate]) -> tuple[Candidate, ...]:
        """Return candidates as they are."""
        return tuple(self.originals[candidate.name] for candidate in candidates)

    def number(self, candidate: Candidate) -> int:
        """Return how many pods of a node give something up."""
        return sum(pod.key in self.prices for pod in candidate.moving)


def concession(problem: DisruptionProblem, candidates: Sequence[Candidate]) -> Concession | None:
    """Return what is conceded by pods of these candidates; None when nobody concedes anything."""
    if problem.scheduling.preference_policy == IGNORE:
        return None
    prices: dict[str, float] = {}
    undemanding: dict[str, Pod] = {}
    for candidate in candidates:
        for pod in candidate.moving:
            price = _price(pod, candidate.node_pool)
            if price is None:
                continue
            without = without_preferences(pod)
            if without is not pod:
                prices[pod.key], undemanding[pod.key] = price, without
    if not prices:
        return None
    snapshot = problem.snapshot
    return Concession(
        replace(problem, snapshot=replace(snapshot, pods=_each(snapshot.pods, undemanding))),
        tuple(
            replace(candidate, pods=_each(candidate.pods, undemanding)) for candidate in candidates
        ),
        prices,
        {candidate.name: candidate for candidate in candidates},
    )


def _each(pods: Sequence[Pod], undemanding: Mapping[str, Pod]) -> tuple[Pod, ...]:
    return tuple(undemanding.get(pod.key, pod) for pod in pods)


def _price(pod: Pod, pool: NodePool) -> float | None:
    """Return the price of the pod's preferences; None where they bind, as they do when what is
    said is no amount.
    """
    said = pod.metadata.annotations.get(
        labels.PREFERENCE_PRICE, pool.metadata.annotations.get(labels.PREFERENCE_PRICE)
    )
    try:
        price = math.nan if said is None else float(said)
    except ValueError:
        return None
    return price if 0.0 <= price < math.inf else None


def without_preferences(pod: Pod) -> Pod:
    """Return the pod with only what it needs of other pods, domains and nodes; itself when it
    prefers nothing.
    """
    spec = pod.spec
    spreads = [
        spread
        for spread in spec.topology_spread_constraints
        if spread.when_unsatisfiable != SCHEDULE_ANYWAY
    ]
    affinity = None if spec.affinity is None else _needed(spec.affinity)
    if affinity == spec.affinity and len(spreads) == len(spec.topology_spread_constraints):
        return pod
    spec = structs.replace(spec, affinity=affinity, topology_spread_constraints=spreads)
    return structs.replace(pod, spec=spec)


def _needed(affinity: Affinity) -> Affinity:
    kinds = ("node_affinity", "pod_affinity", "pod_anti_affinity")
    return structs.replace(
        affinity,
        **{
            kind: structs.replace(stated, preferred=[])
            for kind in kinds
            if (stated := getattr(affinity, kind)) is not None
        },
    )
