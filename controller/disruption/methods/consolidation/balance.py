"""The consolidation policy Balanced: weighs a saving against its disruption of the NodePool.

The policy approves a command if the share of the pool's cost that it saves is at least half the
share of the pool's disruption cost that it causes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from controller.apis.kubernetes.pods import Pod
from controller.disruption import costs
from controller.disruption.commands import Verdict
from controller.disruption.offerings import node_price
from controller.disruption.problem import DisruptionProblem, DisruptionSettings
from controller.disruption.simulation import Group
from controller.state.pods import is_reschedulable

BALANCED = "Balanced"
LEAST_SCORE = 0.5


@dataclass(frozen=True, slots=True)
class Totals:
    """The price of each Balanced NodePool in $/h, and the cost of disrupting all of it.

    Keys are NodePool names. `disturbance` counts 1 for each node, and the eviction costs of its
    pods: 1 for an ordinary pod.
    """

    price: Mapping[str, float]
    disturbance: Mapping[str, float]
    settings: DisruptionSettings

    @classmethod
    def of(cls, problem: DisruptionProblem) -> Totals:
        """Return the totals over all nodes of the Balanced NodePools, blocked ones included."""
        snapshot, pools = problem.snapshot, problem.node_pools.items()
        settings = problem.settings
        types = {
            name: {
                instance_type.name: instance_type
                for instance_type in snapshot.instance_types.get(name, ())
            }
            for name, pool in pools
            if pool.spec.disruption.consolidation_policy == BALANCED
        }
        if not types:
            return cls({}, {}, settings)
        moving: defaultdict[str, list[Pod]] = defaultdict(list)
        for pod in snapshot.pods:
            if is_reschedulable(pod):
                moving[pod.spec.node_name].append(pod)
        price, disturbance = dict.fromkeys(types, 0.0), dict.fromkeys(types, 0.0)
        for node in snapshot.nodes:
            if node.managed and node.node_pool in types:
                price[node.node_pool] += node_price(node, types[node.node_pool]) or 0.0
                disturbance[node.node_pool] += _disturbance(moving[node.name], settings)
        return cls(price, disturbance, settings)

    def approves(self, group: Group) -> bool:
        """Whether every Balanced NodePool of the group's nodes approves the group."""
        return all(verdict.decision == "approved" for verdict in self.verdicts(group))

    def verdicts(self, group: Group) -> list[Verdict]:
        """Return whether the consolidation policy of each affected NodePool approves the group.

        There is one verdict per NodePool of the group's nodes. Policies other than Balanced
        approve every group.
        """
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
        """Return the share of the saving divided by the share of the disruption cost.

        The group's saving is divided among NodePools in proportion to the price of their nodes.
        """
        mine = [candidate for candidate in group.leaving if candidate.pool == pool]
        share = sum(candidate.price for candidate in mine) / group.price if group.price else 0.0
        price, disturbance = self.price.get(pool, 0.0), self.disturbance.get(pool, 0.0)
        if price <= 0 or disturbance <= 0:
            return 0.0
        disturbed = (
            sum(_disturbance(candidate.moving, self.settings) for candidate in mine) / disturbance
        )
        saved = group.saving * share / price
        return saved / disturbed if disturbed else 0.0


def _disturbance(moving: Iterable[Pod], settings: DisruptionSettings) -> float:
    """Return the cost of disrupting a node: 1 for the node, plus the eviction cost of each pod."""
    return 1.0 + costs.disturbance(moving, settings)
