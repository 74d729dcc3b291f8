"""The policy Balanced: a saving must be worth its disturbance, measured against the whole pool.

A command is good for a pool when its share of what the pool costs is at least half its share of
what disturbing the whole pool would cost.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from controller.apis.pods import Pod
from controller.disruption.commands import Verdict
from controller.disruption.costs import eviction_cost
from controller.disruption.prices import node_price
from controller.disruption.problem import DisruptionProblem
from controller.disruption.simulation import Group
from controller.state.pods import is_reschedulable

BALANCED = "Balanced"
LEAST_SCORE = 0.5


@dataclass(frozen=True, slots=True)
class Totals:
    """What each pool costs in $/h, and what disturbing all of it would cost, by its name."""

    price: Mapping[str, float]
    disturbance: Mapping[str, float]

    @classmethod
    def of(cls, problem: DisruptionProblem) -> Totals:
        """Add up the balanced pools: all of their nodes, those that may not go as well."""
        snapshot, pools = problem.snapshot, problem.node_pools.items()
        types = {
            name: {kind.name: kind for kind in snapshot.instance_types.get(name, ())}
            for name, pool in pools
            if pool.spec.disruption.consolidation_policy == BALANCED
        }
        if not types:
            return cls({}, {})
        moving: defaultdict[str, list[Pod]] = defaultdict(list)
        for pod in snapshot.pods:
            if is_reschedulable(pod):
                moving[pod.spec.node_name].append(pod)
        price, disturbance = dict.fromkeys(types, 0.0), dict.fromkeys(types, 0.0)
        for node in snapshot.nodes:
            if node.managed and node.node_pool in types:
                price[node.node_pool] += node_price(node, types[node.node_pool]) or 0.0
                disturbance[node.node_pool] += _disturbance(moving[node.name])
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
        disturbed = sum(_disturbance(candidate.moving) for candidate in mine) / disturbance
        saved = group.saving * share / price
        return saved / disturbed if disturbed else 0.0


def _disturbance(moving: Iterable[Pod]) -> float:
    """Return what disturbing a node costs: one for the node, and what evicting each pod does."""
    return 1.0 + sum(max(eviction_cost(pod), 0.0) for pod in moving)
