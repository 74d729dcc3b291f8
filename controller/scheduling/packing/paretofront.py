"""Select the node types that are worth considering: Pareto fronts and price ladders.

A price ladder divides prices into steps (rungs), and keeps the best node type of each.
"""

from __future__ import annotations

import numpy as np

from controller.scheduling.arrays import Indices, Mask, Matrix, Vector, distinct_rows, run_starts

CHUNK = 64
"""Number of node types that are compared with all others at once; more take memory, fewer time."""

LEAST_PRICE, LEAST_SIZE = 1e-12, 1e-9
"""Replace a price (in $/h) and a size of zero before logarithms are taken."""

MAX_NODE_TYPES = 40
"""Number of node types differing only in size and price above which they are thinned to a ladder of
prices. Little is lost by that: the packer finally changes each node to the cheapest node type that
holds its pods."""

LADDER_STEP = 1.12
"""Factor between the prices of two rungs of a ladder of prices (see `price_ladder`)."""

NO_NODE_TYPES: Indices = np.zeros(0, dtype=np.int64)


def remove_dominated(
    allowed: Mask, labelled: Mask, prices: Vector, capacity: Matrix, consumption: Matrix
) -> tuple[Indices, Indices]:
    """Return the node types for packing, and the node types for a lower bound.

    Among node types that differ only in size and price, a node type is left out of both if another
    is no more expensive, no smaller and uses no more of the limits. If more than `MAX_NODE_TYPES`
    remain, the first result is thinned to a ladder of prices.

    `allowed` and `labelled` are classes × node types, with and without regard to size.
    """
    usable = np.flatnonzero(allowed.any(axis=0))
    _, label_group = distinct_rows(np.packbits(labelled[:, usable], axis=0).T)
    merit = np.concatenate([-prices[:, None], capacity, -consumption], axis=1)
    every, kept = [NO_NODE_TYPES], [NO_NODE_TYPES]
    # Zones often have equal prices; equal sets of node types are compared once.
    fronts: dict[bytes, Indices] = {}
    for number in range(int(label_group.max(initial=-1)) + 1):
        inside = usable[label_group == number]
        ordered = inside[np.argsort(prices[inside], kind="stable")]
        merits = merit[ordered]
        front = fronts.get(key := merits.tobytes())
        if front is None:
            front = fronts[key] = pareto_front(np.arange(len(ordered)), merits)
        best = ordered[front]
        every.append(best)
        kept.append(price_ladder(best, prices, capacity, limit=MAX_NODE_TYPES, step=LADDER_STEP))
    return np.sort(np.concatenate(kept)), np.sort(np.concatenate(every))


def pareto_front(ordered: Indices, merit: Matrix) -> Indices:
    """Return the indices whose merits no other index matches or beats in every column.

    `ordered` has the indices in descending order of the first merit. Of indices with equal merits,
    the first is returned.
    """
    kept = ordered[:0]
    for start in range(0, len(ordered), CHUNK):
        block = ordered[start : start + CHUNK]
        if len(kept):
            block = block[~_no_better(merit[block], merit[kept]).any(axis=1)]
        better = _no_better(merit[block], merit[block])
        # Of node types with equal merits the first stays.
        index = np.arange(len(block))
        better &= (index < index[:, None]) | ~better.T
        kept = np.concatenate([kept, block[~better.any(axis=1)]])
    return kept


def _no_better(merits: Matrix, other: Matrix) -> Mask:
    """Mark, merits × other, where the other is at least as good in every merit."""
    marked = np.ones((len(merits), len(other)), dtype=np.bool_)
    for merit in range(merits.shape[1]):
        marked &= other[None, :, merit] >= merits[:, None, merit]
    return marked


def price_ladder(
    ordered: Indices, prices: Vector, capacity: Matrix, *, limit: int, step: float
) -> Indices:
    """Return node types thinned to a ladder of prices within each ratio of CPU to memory.

    Each rung, a factor `step` wide, keeps the node type with the most CPU and memory per dollar.
    If there are at most `limit` node types, all are returned.
    """
    if len(ordered) <= limit:
        return ordered
    price = np.maximum(prices[ordered], LEAST_PRICE)
    size = np.maximum(capacity[ordered, :2], LEAST_SIZE)
    shape = np.round(2 * np.log2(size[:, 0] / size[:, 1]))
    rung = np.floor(np.log(price) / np.log(step))
    merit = (size / size.max(axis=0)).sum(axis=1) / price
    order = np.lexsort((-merit, rung, shape))
    first = run_starts(np.stack([shape, rung], axis=1)[order])
    return np.sort(ordered[order[first]])
