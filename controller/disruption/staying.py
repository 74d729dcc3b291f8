"""Why a node stays that might go: what its own removal would come to, in words."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import numpy as np

from controller.disruption.commands import Candidate
from controller.disruption.plan import Plan
from controller.disruption.planning import Outlook
from controller.disruption.relaxation import HOLES
from controller.disruption.simulation import Group
from controller.disruption.weighing import NEGLIGIBLE, Weighing

NOWHERE = "some of its pods would find no other place"

SPOT_AGAIN = "the nodes in its place might cost as much, or it is spot and would be again"


class Staying:
    """One cluster, asked why each of its nodes stays. `unbalanced` are those, as groups, that stay
    for nothing but the balance of their pools, of the nodes that were asked about.
    """

    def __init__(self, weighing: Weighing, outlook: Outlook | None) -> None:
        self._weighing, self._outlook = weighing, outlook
        self.unbalanced: list[Group] = []

    @cached_property
    def _alone(self) -> tuple[Plan, Mapping[str, float]] | None:
        """What says of a node that stays what its own removal would come to: a plan in which
        everybody stays, and what the pods of each node are worth.
        """
        if self._outlook is None:
            return None
        model, relaxation = self._outlook.model, self._outlook.relaxation
        anywhere = (self._weighing.model or model).worth_new * HOLES
        worth = model.present @ np.minimum(relaxation.values, anywhere)
        plan = Plan(model, self._outlook.evictions, relaxation.room_price)
        return plan, dict(zip(model.names, worth.tolist(), strict=True))

    def why(self, candidate: Candidate) -> str:
        """Say what the node's own removal would come to."""
        if self._alone is None:
            return NOWHERE
        plan, worth_of = self._alone
        node, worth = plan.model.places[candidate.name], worth_of[candidate.name]
        moved, costs = len(candidate.moving), self._weighing.costs[candidate.name]
        if not plan.model.candidate[node]:
            return NOWHERE
        if worth >= candidate.price:
            return _nothing_cheaper(candidate, worth)
        if candidate.is_spot and not self._weighing.problem.settings.spot_to_spot:
            return SPOT_AGAIN
        before = plan.mark()
        plan.turn(node)
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
            return f"the balance of NodePool {candidate.pool} is against it: it saves too little"
        if saving <= costs:
            return (
                f"it would save {saving:.4f} $/h, less than moving {moved} pods costs "
                f"({costs:.4f} $/h until it pays)"
            )
        return SPOT_AGAIN


def _nothing_cheaper(candidate: Candidate, cost: float) -> str:
    return (
        f"nothing cheaper was found: its {len(candidate.moving)} pods would cost "
        f"{cost:.4f} $/h elsewhere, the node costs {candidate.price:.4f} $/h"
    )
