"""Preference prices: pods give up preferences if that saves more than the preferences are worth.

Consolidation keeps preferences unless the annotation `joiner.dev/preference-price` of the pod, or
of its node's NodePool, sets a price in $/h. The cluster is then evaluated a second time as if such
pods had no preferences. Each pod that moves then costs its preference price in addition to its
eviction, even if its new node happens to satisfy the preferences.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from msgspec import structs

from controller.apis import labels
from controller.apis.karpenter.annotations import amount
from controller.apis.karpenter.nodepool import NodePool
from controller.apis.kubernetes.meta import with_fields
from controller.apis.kubernetes.pods import Affinity, Pod
from controller.disruption.commands import Candidate
from controller.disruption.problem import DisruptionProblem
from controller.scheduling.pods.preferences import SCHEDULE_ANYWAY
from controller.scheduling.settings import IGNORE


@dataclass(frozen=True, slots=True)
class PreferencePrices:
    """The cluster in which some pods give up their preferences, each for a price.

    `problem` and `candidates` have these pods without preferences, `originals` the unchanged
    candidates by name. `prices` are in $/h, by pod key.
    """

    problem: DisruptionProblem
    candidates: tuple[Candidate, ...]
    prices: Mapping[str, float]
    originals: Mapping[str, Candidate]

    def price_of(self, candidate: Candidate) -> float:
        """Return the price of the preferences that the pods of a node give up, in $/h."""
        return sum(self.prices.get(pod.key, 0.0) for pod in candidate.moving)

    def restore(self, candidates: Iterable[Candidate]) -> tuple[Candidate, ...]:
        """Return the candidates with their original pods."""
        return tuple(self.originals[candidate.name] for candidate in candidates)

    def number(self, candidate: Candidate) -> int:
        """Return how many pods of a node give up preferences."""
        return sum(pod.key in self.prices for pod in candidate.moving)


def preference_prices(
    problem: DisruptionProblem, candidates: Sequence[Candidate]
) -> PreferencePrices | None:
    """Return the prices of these candidates' preferences, and the cluster without them.

    None if no pod has a price for preferences, or if PREFERENCE_POLICY is Ignore.
    """
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
    return PreferencePrices(
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
    """Return the price of the pod's preferences in $/h; None if the pod must keep them.

    A pod keeps its preferences if the annotation is missing or is not an amount.
    """
    of_pool = pool.metadata.annotations.get(labels.PREFERENCE_PRICE)
    return amount(pod.metadata.annotations.get(labels.PREFERENCE_PRICE, of_pool))


def without_preferences(pod: Pod) -> Pod:
    """Return the pod with only its required constraints; the same object if nothing changes."""
    spec = pod.spec
    spreads = [
        spread
        for spread in spec.topology_spread_constraints
        if spread.when_unsatisfiable != SCHEDULE_ANYWAY
    ]
    affinity = None if spec.affinity is None else _without_preferences(spec.affinity)
    if affinity == spec.affinity and len(spreads) == len(spec.topology_spread_constraints):
        return pod
    return with_fields(pod, "spec", affinity=affinity, topology_spread_constraints=spreads)


def _without_preferences(affinity: Affinity) -> Affinity:
    fields = ("node_affinity", "pod_affinity", "pod_anti_affinity")
    return structs.replace(
        affinity,
        **{
            field: structs.replace(stated, preferred=[])
            for field in fields
            if (stated := getattr(affinity, field)) is not None
        },
    )
