"""Finds a plan: first what the relaxation says, then whatever turns out cheaper.

The relaxation keeps nearly every node whole or lets it go whole; what it splits is rounded,
pods are sent where it has them, and what finds no place is bought for. Then nodes are turned one
by one (one that stays goes, one that goes stays) as long as that is cheaper, and in
company: one is turned against its price, and others after it until the whole pays. Where there is
time left the same begins again from the cluster as it is, in other orders: the cheapest plan
counts.

The search ends by its own count of steps, not by a clock, so that the same cluster gets the same
plan; the clock only breaks it off.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from controller.disruption.model import ClusterModel
from controller.disruption.plan import Plan
from controller.disruption.relaxation import RelaxedPlan
from controller.scheduling.arrays import Indices, Vector

VISITS = 300_000
"""How many nodes are looked at in all turns of a search: about a second."""

LARGE, DEEPER = 500, 5
"""From how many nodes on that is so. Smaller clusters are searched for longer, up to so many times:
there a step from one good plan to the next is worth a larger share of the cost."""

TURNS, IN_VAIN = 200, 10
"""How many times each node is turned, in the mean, in small clusters; and how many times in vain,
one after the other, before it is over."""

PLACEMENTS = 60_000
"""How many times places are looked for in all turns of a search: a second or two. Where every pod
has a size of its own, to turn a node takes a hundred times what it takes where they are alike."""

STARTS = 3
"""From how many plans to begin, at most."""

SWEEPS = 6
COMPANY = 6
"""How many nodes are turned after one that was turned against its price."""

GAIN = 1e-9
"""$/h by which a plan must be cheaper to count as such."""


@dataclass(slots=True)
class _Turns:
    """How many turns are left, and how many times places may be looked for."""

    left: int
    placements: int
    expired: Callable[[], bool]

    def take(self, many: int = 1) -> bool:
        """Take some; whether there were as many."""
        self.left -= many
        return self.left >= 0 and self.placements >= 0 and not self.expired()

    def turned(self, plan: Plan, nodes: list[int]) -> bool:
        """Turn nodes as `_turned` does, and count what that took."""
        before = plan.placements
        done = _turned(plan, nodes)
        self.placements -= plan.placements - before
        return done


def promises(model: ClusterModel, relaxation: RelaxedPlan) -> bool:
    """Whether there is anything to gain, by the relaxation of this model or of a freer one."""
    return float(model.price[model.candidate].sum()) - relaxation.bound >= GAIN


def searched(
    model: ClusterModel,
    evictions: Vector,
    relaxation: RelaxedPlan,
    *,
    expired: Callable[[], bool],
) -> Plan:
    """Return the cheapest plan found; `evictions` (nodes) is what emptying each costs, in $/h."""
    best = Plan(model, evictions, relaxation.room_price)
    if not promises(model, relaxation):
        return best
    nothing = best.cost
    kept = (relaxation.kept >= 0.5) | ~model.candidate
    unchanged = best.mark()
    best.start(kept, relaxation.flow, relaxation.group)
    # What it costs at least to have a node otherwise than the relaxation has it is known: where
    # that is more than all there is to gain, the node need not be looked at.
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
        plan = Plan(model, evictions, relaxation.room_price)
        _descend(plan, order, chance, turns)
        if plan.cost < best.cost - GAIN:
            best = plan
        order = chance.permutation(order)
    return best


def _descend(plan: Plan, order: Indices, chance: np.random.Generator, turns: _Turns) -> None:
    """Turn nodes, in this order at first, until no turn makes the plan cheaper."""
    swept = True
    for _ in range(SWEEPS):
        if not swept:
            break
        swept = False
        for node in order.tolist():
            if not turns.take():
                return
            swept |= turns.turned(plan, [node])
        order = chance.permutation(order)
    vain = 0
    while vain < IN_VAIN * len(order):
        company = chance.choice(order, size=min(COMPANY + 1, len(order)), replace=False)
        if not turns.take(len(company)):
            return
        vain = 0 if turns.turned(plan, company.tolist()) else vain + len(company)
    _exchange(plan, order, turns)


def _exchange(plan: Plan, order: Indices, turns: _Turns) -> None:
    """Let nodes go, or stay, instead of others, as long as that is cheaper."""
    swept = True
    while swept:
        swept = False
        for node in order.tolist():
            others = order[plan.leaving[order] != plan.leaving[node]]
            if not turns.take(1 + len(others)):
                return
            swept |= turns.turned(plan, [node, *others.tolist()])


def _turned(plan: Plan, nodes: list[int]) -> bool:
    """Turn the first of these nodes, and of the others those that make it cheaper, until it is
    cheaper than before; otherwise everything stays as it was.
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
