"""Explains why a candidate stays: what it would cost to replace only this node."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import numpy as np

from controller.apis.wording import with_count
from controller.disruption.commands import Candidate
from controller.disruption.methods.consolidation.balance import LEAST_SCORE
from controller.disruption.methods.consolidation.evaluation import NEGLIGIBLE, Evaluator
from controller.disruption.methods.consolidation.plan import Plan
from controller.disruption.methods.consolidation.planning import ClusterEstimate
from controller.disruption.methods.consolidation.relaxation import FRAGMENTATION
from controller.disruption.methods.consolidation.replacements import SPOT_TO_SPOT_TYPES
from controller.disruption.simulation import Group

NOWHERE = "Not all pods would schedule on other nodes"

SPOT_AGAIN = "SpotToSpotConsolidation is disabled, can't replace a spot node with a spot node"

NOT_CHEAPER_FOR_SURE = (
    "Can't replace with a cheaper node: the replacement might cost as much as this node"
)

TOO_FEW_TYPES = (
    f"SpotToSpotConsolidation requires {SPOT_TO_SPOT_TYPES} instance types that are cheaper than "
    "this spot node: fewer are available, or the replacement might cost as much"
)


class Staying:
    """Explains for one cluster why each candidate is not consolidated.

    `unbalanced` collects, as groups of one, the nodes that only the policy Balanced keeps.
    """

    def __init__(self, evaluator: Evaluator, estimate: ClusterEstimate | None) -> None:
        self._weighing, self._outlook = evaluator, estimate
        self.unbalanced: list[Group] = []

    @cached_property
    def _alone(self) -> tuple[Plan, Mapping[str, float]] | None:
        """The plan that disrupts no node, and the value of each node's pods in $/h.

        None if there is no estimate of the cluster.
        """
        if self._outlook is None:
            return None
        model, relaxation = self._outlook.model, self._outlook.relaxation
        anywhere = (self._weighing.model or model).worth_new * FRAGMENTATION
        worth = model.present @ np.minimum(relaxation.values, anywhere)
        # The rules of spot-to-spot replacement are not applied here: `why` checks them last.
        free = self._weighing.model or model
        plan = Plan(free, self._outlook.evictions, relaxation.capacity_price)
        return plan, dict(zip(model.names, worth.tolist(), strict=True))

    def why(self, candidate: Candidate) -> str:
        """Return the reason why this node is not consolidated by itself."""
        if self._alone is None:
            return NOWHERE
        plan, worth_of = self._alone
        node, worth = plan.model.index_of[candidate.name], worth_of[candidate.name]
        costs = self._weighing.costs[candidate.name]
        if not plan.model.candidate[node]:
            return NOWHERE
        if worth >= candidate.price:
            return _nothing_cheaper(candidate, worth)
        before = plan.mark()
        plan.flip(node)
        cost = plan.price_of_bought()
        plan.undo(before)
        if not np.isfinite(cost):
            return NOWHERE
        saving = candidate.price - cost
        if saving <= NEGLIGIBLE:
            return _nothing_cheaper(candidate, cost)
        group = Group(leaving=(candidate,))
        if cost == 0.0 and not self._weighing.balance.approves(group):
            self.unbalanced.append(group)
            return (
                f"Rejected by the Balanced policy of NodePool {candidate.pool}: the share of the "
                "pool's cost that it saves is too small for the share of the pool's disruption "
                f"cost (ratio below {LEAST_SCORE})"
            )
        if saving <= costs:
            return (
                f"The saving of {saving:.4f} $/h is less than the cost of evicting "
                f"{with_count(len(candidate.moving), 'pod')}, {costs:.4f} $/h while the saving "
                "lasts"
            )
        if not candidate.is_spot:
            return NOT_CHEAPER_FOR_SURE
        return TOO_FEW_TYPES if self._weighing.problem.settings.spot_to_spot else SPOT_AGAIN


def _nothing_cheaper(candidate: Candidate, cost: float) -> str:
    return (
        f"Can't replace with a cheaper node: this node costs {candidate.price:.4f} $/h, capacity "
        f"elsewhere for {with_count(len(candidate.moving), 'pod')} costs {cost:.4f} $/h"
    )
