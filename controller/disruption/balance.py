"""The policy Balanced: a saving must be worth its disturbance, measured against the whole pool.

A command is good for a pool when its share of what the pool costs is at least half its share of
what disturbing the whole pool would cost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from controller.disruption.commands import Candidate, Verdict
from controller.disruption.costs import rescheduling_cost
from controller.disruption.simulation import Group

BALANCED = "Balanced"
LEAST_SCORE = 0.5


@dataclass(frozen=True, slots=True)
class Totals:
    """What each pool costs in $/h, and what disturbing all of it would cost, by its name."""

    price: Mapping[str, float]
    disturbance: Mapping[str, float]

    @classmethod
    def of(cls, everyone: Sequence[Candidate]) -> Totals:
        """Add up pools."""
        price: dict[str, float] = {}
        disturbance: dict[str, float] = {}
        for candidate in everyone:
            price[candidate.pool] = price.get(candidate.pool, 0.0) + candidate.price
            disturbance[candidate.pool] = disturbance.get(candidate.pool, 0.0) + _disturbance(
                candidate
            )
        return cls(price, disturbance)

    def approves(self, group: Group) -> bool:
        """Whether every balanced pool among the leaving nodes gains enough."""
        return all(verdict.decision == "approved" for verdict in self.verdicts(group))

    def verdicts(self, group: Group) -> list[Verdict]:
        """Return for each pool among the leaving nodes whether it gains enough."""
        verdicts = []
        for name, pool in {
            candidate.pool: candidate.node_pool for candidate in group.leaving
        }.items():
            policy = pool.spec.disruption.consolidation_policy
            score = self._score(group, name) if policy == BALANCED else None
            gains = score is None or score >= LEAST_SCORE
            verdicts.append(Verdict(name, policy, "approved" if gains else "rejected", score))
        return verdicts

    def _score(self, group: Group, pool: str) -> float:
        """Return the share of the saving over the share of the disturbance; what a group saves
        is divided among pools by what their nodes cost.
        """
        mine = [candidate for candidate in group.leaving if candidate.pool == pool]
        share = sum(candidate.price for candidate in mine) / group.price if group.price else 0.0
        price, disturbance = self.price.get(pool, 0.0), self.disturbance.get(pool, 0.0)
        if price <= 0 or disturbance <= 0:
            return 0.0
        disturbed = sum(map(_disturbance, mine)) / disturbance
        saved = group.saving * share / price
        return saved / disturbed if disturbed else 0.0


def _disturbance(candidate: Candidate) -> float:
    """Return what disturbing a node costs: one for the node, and each pod's eviction cost."""
    return 1.0 + max(rescheduling_cost(candidate.moving), 0.0)
