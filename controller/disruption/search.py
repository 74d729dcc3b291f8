"""Finds a plan: first what the relaxation says, then whatever turns out cheaper.

The relaxation keeps nearly every node whole or lets it go whole; what it splits is rounded,
pods are sent where it has them, and what finds no place is bought for. Then nodes are turned one
by one (one that stays goes, one that goes stays) as long as that is cheaper, and in
company: one is turned against its price, and others after it until the whole pays.

The search ends by its own count of steps, not by a clock, so that the same cluster gets the same
plan; the clock only breaks it off.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from controller.disruption.model import ClusterModel
from controller.disruption.plan import Plan
from controller.disruption.relaxation import RelaxedPlan
from controller.scheduling.arrays import Indices, Vector

VISITS = 300_000
"""How many nodes are looked at in all turns of a search: about a second."""

TURNS, IN_VAIN = 100, 10
"""How many times each node is turned, in the mean, in small clusters; and how many times in vain,
one after the other, before it is over."""

SWEEPS = 6
COMPANY = 6
"""How many nodes are turned after one that was turned against its price."""

GAIN = 1e-9
"""$/h by which a plan must be cheaper to count as such."""


def searched(
    model: ClusterModel,
    evictions: Vector,
    relaxation: RelaxedPlan,
    *,
    expired: Callable[[], bool],
) -> Plan:
    """Return the cheapest plan found; `evictions` (nodes) is what emptying each costs, in $/h."""
    plan = Plan(model, evictions, relaxation.room_price)
    nothing = plan.mark()
    if nothing[1] - relaxation.bound < GAIN:
        return plan
    kept = (relaxation.kept >= 0.5) | ~model.candidate
    plan.start(kept, relaxation.flow, relaxation.group)
    # What it costs at least to have a node otherwise than the relaxation has it is known: where
    # that is more than all there is to gain, the node need not be looked at.
    gap = min(plan.cost, nothing[1]) - relaxation.bound
    order = np.flatnonzero(model.candidate & (np.abs(relaxation.gain) < gap))
    turns = min(VISITS // len(model.names), TURNS * len(order))
    order = order[np.argsort(-np.abs(relaxation.gain[order]), kind="stable")]
    chance = np.random.default_rng(0)
    swept = True
    for _ in range(SWEEPS):
        if not swept:
            break
        swept = False
        for node in order.tolist():
            if turns <= 0 or expired():
                return plan
            turns -= 1
            swept |= _turned(plan, [node])
        chance.shuffle(order)
        if plan.cost > nothing[1]:
            plan.undo(nothing)
    vain = 0
    while turns > 0 and vain < IN_VAIN * len(order) and not expired():
        company = chance.choice(order, size=min(COMPANY + 1, len(order)), replace=False)
        turns -= len(company)
        vain = 0 if _turned(plan, company.tolist()) else vain + len(company)
    _exchange(plan, order, turns, expired)
    return plan


def _exchange(plan: Plan, order: Indices, turns: int, expired: Callable[[], bool]) -> None:
    """Let nodes go, or stay, instead of others, as long as that is cheaper."""
    swept = True
    while swept:
        swept = False
        for node in order.tolist():
            others = order[plan.leaving[order] != plan.leaving[node]]
            turns -= 1 + len(others)
            if turns <= 0 or expired():
                return
            swept |= _turned(plan, [node, *others.tolist()])


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
