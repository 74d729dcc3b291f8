"""Search for the cheapest consolidation plan: round the relaxation, then improve it locally.

The relaxation keeps or removes nearly every node whole. The search rounds fractional nodes, places
pods where the relaxation puts them, and buys for pods that find no capacity.

Then it turns nodes one by one (it removes a node that stays, or keeps a node that is removed) as
long as the cost falls. It also turns nodes in company: one node against its price, then others
until the whole pays. In the remaining time the search restarts from the unchanged cluster with
other orders of nodes. The cheapest plan counts.

The search ends after a fixed number of steps, so that equal clusters get equal plans. The clock
only aborts it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from controller.disruption.methods.consolidation.plan import Plan
from controller.disruption.methods.consolidation.relaxation import RelaxedPlan
from controller.disruption.model import ClusterModel
from controller.scheduling.arrays import Indices, Vector

VISITS = 300_000
"""Number of node visits in all turns of a search: about a second."""

LARGE, DEEPER = 500, 5
"""Number of nodes from which `VISITS` applies unscaled, and the largest multiple of it. Smaller
clusters are searched up to `DEEPER` times longer: there, a step from one good plan to the next is a
larger share of the cost."""

TURNS, IN_VAIN = 200, 10
"""The maximum mean number of turns per node in small clusters; and the number of consecutive turns
per node without improvement after which the search ends."""

PLACEMENTS = 60_000
"""Number of searches for a destination in all turns of a search: a second or two. If every pod has
a size of its own, turning a node takes 100 times as long as with equal pods."""

STARTS = 3
"""Maximum number of plans from which the search starts."""

SWEEPS = 6
COMPANY = 6
"""Number of nodes that are turned after one that was turned against its price."""

GAIN = 1e-9
"""Amount in $/h by which a plan must be cheaper to count as an improvement."""


@dataclass(slots=True)
class _Turns:
    """The remaining turns of a search, and its remaining searches for a destination."""

    left: int
    placements: int
    expired: Callable[[], bool]

    def take(self, many: int = 1) -> bool:
        """Take turns from the budget; return whether the search may continue."""
        self.left -= many
        return self.left >= 0 and self.placements >= 0 and not self.expired()

    def try_turn(self, plan: Plan, nodes: list[int]) -> bool:
        """Turn nodes as the function `_try_turns`, and count the searches for a destination."""
        before = plan.placements
        done = _try_turns(plan, nodes)
        self.placements -= plan.placements - before
        return done


def promises(model: ClusterModel, relaxation: RelaxedPlan) -> bool:
    """Return whether consolidation can save anything, by the relaxation.

    The relaxation may be that of this model, or of one with fewer restrictions.
    """
    return float(model.price[model.candidate].sum()) - relaxation.bound >= GAIN


def searched(
    model: ClusterModel,
    evictions: Vector,
    relaxation: RelaxedPlan,
    *,
    expired: Callable[[], bool],
) -> Plan:
    """Return the cheapest plan found.

    `evictions` (nodes) is the cost of emptying each node, in $/h. If `expired` returns true, the
    search stops and returns the best plan so far.
    """
    best = Plan(model, evictions, relaxation.capacity_price)
    if not promises(model, relaxation):
        return best
    nothing = best.cost
    kept = (relaxation.kept >= 0.5) | ~model.candidate
    unchanged = best.mark()
    best.start(kept, relaxation.flow, relaxation.group)
    # The duals bound the cost of treating a node otherwise than the relaxation does. If this bound
    # exceeds the gap between the plan and the relaxation, turning the node cannot pay.
    gap = min(best.cost, nothing) - relaxation.bound
    order = np.flatnonzero(model.candidate & (np.abs(relaxation.gain) < gap))
    nodes = len(model.names)
    visits = VISITS * min(max(LARGE / nodes, 1.0), DEEPER)
    turns = _Turns(min(int(visits / nodes), TURNS * len(order)), PLACEMENTS, expired)
    chance = np.random.default_rng(0)
    _descend(best, order[np.argsort(-np.abs(relaxation.gain[order]), kind="stable")], chance, turns)
    if best.cost > nothing:
        best.undo(unchanged)
    candidates = np.flatnonzero(model.candidate)
    order = candidates[np.argsort(evictions[candidates] / model.price[candidates], kind="stable")]
    for _ in range(STARTS - 1):
        if not turns.take(0):
            break
        plan = Plan(model, evictions, relaxation.capacity_price)
        _descend(plan, order, chance, turns)
        if plan.cost < best.cost - GAIN:
            best = plan
        order = chance.permutation(order)
    return best


def _descend(plan: Plan, order: Indices, chance: np.random.Generator, turns: _Turns) -> None:
    """Turn nodes until no turn makes the plan cheaper.

    The descent has three parts: sweeps over single nodes, first in this `order`, then in random
    orders; random companies, until `IN_VAIN` turns per node in a row find nothing; and exchanges.
    """
    swept = True
    for _ in range(SWEEPS):
        if not swept:
            break
        swept = False
        for node in order.tolist():
            if not turns.take():
                return
            swept |= turns.try_turn(plan, [node])
        order = chance.permutation(order)
    vain = 0
    while vain < IN_VAIN * len(order):
        company = chance.choice(order, size=min(COMPANY + 1, len(order)), replace=False)
        if not turns.take(len(company)):
            return
        vain = 0 if turns.try_turn(plan, company.tolist()) else vain + len(company)
    _exchange(plan, order, turns)


def _exchange(plan: Plan, order: Indices, turns: _Turns) -> None:
    """Turn a node together with nodes of the opposite state, as long as the plan gets cheaper."""
    swept = True
    while swept:
        swept = False
        for node in order.tolist():
            others = order[plan.leaving[order] != plan.leaving[node]]
            if not turns.take(1 + len(others)):
                return
            swept |= turns.try_turn(plan, [node, *others.tolist()])


def _try_turns(plan: Plan, nodes: list[int]) -> bool:
    """Turn the first node, then those of the others that lower the cost, until the whole pays.

    Return whether the plan is cheaper than before. If it is not, the plan stays unchanged.
    """
    before = plan.mark()
    plan.turn(nodes[0])
    for node in nodes[1:]:
        if plan.cost < before[1] - GAIN:
            break
        here = plan.mark()
        plan.turn(node)
        if plan.cost >= here[1] - GAIN:
            plan.undo(here)
    if plan.cost < before[1] - GAIN:
        return True
    plan.undo(before)
    return False
