"""Dual prices for kinds that a program leaves out.

A program is solved over the few kinds that matter to it. Any other kind is priced as one of
those, scaled down until the kind is worth no more than it costs: so what follows from the
prices is a feasible dual of the program over all kinds, and bounds its cost, whichever kind
is taken for whichever other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from controller.scheduling.arrays import Indices, Mask, Matrix, Vector, distinct_rows

NOTHING = 1e-15
"""Stands for a worth of nothing, which no budget is too small for, where it is divided by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extension:
    """For each kind the place of the one in the program that it is priced as, by what factor
    those prices are scaled, and what share of their value the classes that it serves keep
    there at least.
    """

    place: Indices
    factor: Vector
    kept: Vector


def extended(
    *,
    priced: Indices,
    worth: Matrix,
    budget: Vector,
    cost: Matrix,
    values: Vector,
    allowed: Mask,
    negligible: float,
) -> Extension:
    """Price every kind as the one of those `priced` (kinds) that fits best.

    `worth` (kinds × priced) is what a node of a kind comes to at the prices of another, of
    which it may come to `budget` (kinds); `cost` (classes × priced) what a pod's part of a node
    does, where its class is worth `values` (classes) and `allowed` (classes × kinds). What
    fits best leaves the classes most of their values; those of a `negligible` value keep
    all of it anywhere.
    """
    factor = np.minimum(budget[:, None] / np.maximum(worth, NOTHING), 1.0)
    some = values[:, None] > negligible
    kept = np.where(some, np.minimum(cost / np.where(some, values[:, None], 1.0), 1.0), 1.0)
    firsts, sign = distinct_rows(np.packbits(allowed, axis=0).T)
    least = [kept[allowed[:, first]].min(axis=0, initial=1.0) for first in firsts]
    quality = factor * np.stack(least)[sign]
    best = quality.argmax(axis=1)
    best[priced] = np.arange(len(priced))
    every = np.arange(len(best))
    return Extension(place=best, factor=factor[every, best], kept=quality[every, best])
