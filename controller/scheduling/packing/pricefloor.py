"""Raise prices near zero, such as those of reserved capacity or of a NodeOverlay.

Linear programs cannot compare prices near zero. So packing uses slightly higher prices in the same
order.
"""

from __future__ import annotations

import numpy as np

from controller.scheduling.arrays import Vector

PRICE_FLOOR = 1e-4
"""The least price in packing, in $/h: a tenth of the price of the cheapest instance type."""


def raise_to_floor(prices: Vector) -> Vector:
    """Return prices for packing; prices below the floor become values just above it, in order."""
    tiny = prices < PRICE_FLOOR
    top = prices[tiny].max(initial=0.0) or 1.0
    return np.where(tiny, PRICE_FLOOR * (1.0 + np.minimum(prices, top) / (2.0 * top)), prices)


def overstatement(prices: Vector, count: float) -> float:
    """Return the greatest error of a lower bound on the cost at raised prices, in $/h.

    `count` is the greatest number of nodes with a price below the floor.
    """
    raised = raise_to_floor(prices) - prices
    return float(raised.max(initial=0.0)) * count
