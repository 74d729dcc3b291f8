"""Search for the cheapest consolidation plan: round the relaxation, then improve it locally.

The relaxation keeps or removes nearly every node whole. The search rounds fractional nodes, places
pods where the relaxation places them, and plans new nodes for pods that do not fit.

Then it flips nodes one by one (it removes a node that stays, or keeps a node that is removed) as
long as the cost falls. It also makes compound moves: it flips a node although the cost rises, then
other nodes until the cost is below that of the start. Then the search restarts from the unchanged
cluster with other orders of nodes, and the cheapest plan is used.

The search ends after a fixed number of flips, so that equal clusters get equal plans, or earlier if
the time limit is reached.
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
"""The number of flips in a search is this, divided by the number of nodes: about a second."""

LARGE, DEEPER = 500, 5
"""The number of nodes from which `VISITS` applies unscaled, and the largest multiple of it. Smaller
clusters are searched up to `DEEPER` times longer, because one node is a larger share of their
cost."""

FLIPS, FUTILE = 200, 10
"""The maximum number of flips per node; and the number of consecutive flips per node without
improvement after which compound moves end."""

PLACEMENTS = 60_000
"""The number of searches for a destination in all flips: one to two seconds. If all pods differ in
size, a flip takes 100 times as long as with equal pods."""

STARTS = 3
"""The maximum number of plans from which the search starts."""

SWEEPS = 6
COMPOUND = 6
"""The number of nodes in a compound move, besides the first one."""

GAIN = 1e-9
"""The amount in $/h by which a plan must be cheaper to count as an improvement."""


@dataclass(slots=True)
class _FlipBudget:
    """The flips and the searches for a destination that a search has left."""

    left: int
    placements: int
    expired: Callable[[], bool]

    def take(self, many: int = 1) -> bool:
        """Subtract flips from the budget; return whether the search may continue."""
        self.left -= many
        return self.left >= 0 and self.placements >= 0 and not self.expired()

    def try_flip(self, plan: Plan, nodes: list[int]) -> bool:
        """Call the function `_try_flips`, and subtract its searches for a destination."""
        before = plan.placements
        done = _try_flips(plan, nodes)
        self.placements -= plan.placements - before
        return done


def promises(model: ClusterModel, relaxation: RelaxedPlan) -> bool:
    """Return whether consolidation can save anything according to the relaxation.

    The relaxation may be that of this model, or of one with fewer restrictions.
    """
    return float(model.price[model.candidate].sum()) - relaxation.bound >= GAIN


def search_plan(
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
    # The duals give a lower bound on the cost of treating a node otherwise than the relaxation
    # does. If it exceeds the gap between the plan and the relaxation, flipping the node cannot pay.
    gap = min(best.cost, nothing) - relaxation.bound
    order = np.flatnonzero(model.candidate & (np.abs(relaxation.gain) < gap))
    nodes = len(model.names)
    visits = VISITS * min(max(LARGE / nodes, 1.0), DEEPER)
    flips = _FlipBudget(min(int(visits / nodes), FLIPS * len(order)), PLACEMENTS, expired)
    chance = np.random.default_rng(0)
    _descend(best, order[np.argsort(-np.abs(relaxation.gain[order]), kind="stable")], chance, flips)
    if best.cost > nothing:
        best.undo(unchanged)
    candidates = np.flatnonzero(model.candidate)
    order = candidates[np.argsort(evictions[candidates] / model.price[candidates], kind="stable")]
    for _ in range(STARTS - 1):
        if not flips.take(0):
            break
        plan = Plan(model, evictions, relaxation.capacity_price)
        _descend(plan, order, chance, flips)
        if plan.cost < best.cost - GAIN:
            best = plan
        order = chance.permutation(order)
    return best


def _descend(plan: Plan, order: Indices, chance: np.random.Generator, flips: _FlipBudget) -> None:
    """Flip nodes until no flip makes the plan cheaper.

    The descent has three parts: sweeps over single nodes, first in this `order`, then in random
    orders; compound moves of random nodes, until `FUTILE` consecutive flips per node do not lower
    the cost; and swaps.
    """
    swept = True
    for _ in range(SWEEPS):
        if not swept:
            break
        swept = False
        for node in order.tolist():
            if not flips.take():
                return
            swept |= flips.try_flip(plan, [node])
        order = chance.permutation(order)
    futile = 0
    while futile < FUTILE * len(order):
        chosen = chance.choice(order, size=min(COMPOUND + 1, len(order)), replace=False)
        if not flips.take(len(chosen)):
            return
        futile = 0 if flips.try_flip(plan, chosen.tolist()) else futile + len(chosen)
    _swap(plan, order, flips)


def _swap(plan: Plan, order: Indices, flips: _FlipBudget) -> None:
    """Flip a node together with nodes of the opposite state, as long as the plan gets cheaper."""
    swept = True
    while swept:
        swept = False
        for node in order.tolist():
            others = order[plan.leaving[order] != plan.leaving[node]]
            if not flips.take(1 + len(others)):
                return
            swept |= flips.try_flip(plan, [node, *others.tolist()])


def _try_flips(plan: Plan, nodes: list[int]) -> bool:
    """Flip the first node, then other nodes that lower the cost, until the plan is cheaper.

    Return whether the plan is cheaper than before. If it is not, the plan stays unchanged.
    """
    before = plan.mark()
    plan.flip(nodes[0])
    for node in nodes[1:]:
        if plan.cost < before[1] - GAIN:
            break
        here = plan.mark()
        plan.flip(node)
        if plan.cost >= here[1] - GAIN:
            plan.undo(here)
    if plan.cost < before[1] - GAIN:
        return True
    plan.undo(before)
    return False
