"""Prices next to nothing: of capacity that is paid for already, or as overlays have them.

A program that weighs prices against one another does not see them, nor what a pod is
worth that such a node could hold. So packing takes them for a little more, in their order.
"""

from __future__ import annotations

import numpy as np

from controller.scheduling.arrays import Vector

PRICE_FLOOR = 1e-4
"""In $/h, the least price that packing reckons with: a tenth of what any machine costs."""


def floored(prices: Vector) -> Vector:
    """Return prices that packing can weigh; what is below the floor comes to lie just above."""
    tiny = prices < PRICE_FLOOR
    top = prices[tiny].max(initial=0.0) or 1.0
    return np.where(tiny, PRICE_FLOOR * (1.0 + np.minimum(prices, top) / (2.0 * top)), prices)


def overstatement(prices: Vector, count: float) -> float:
    """Return by how much a bound on visible prices may be too high, when at most `count` nodes
    cost next to nothing.
    """
    raised = floored(prices) - prices
    return float(raised.max(initial=0.0)) * count
