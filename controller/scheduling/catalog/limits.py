"""What a NodePool may still buy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from controller.apis.quantities import MILLI
from controller.constraints import resources
from controller.scheduling.arrays import Matrix, Vector
from controller.scheduling.catalog.offerings import Catalog


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitHeadroom:
    """Limits as arrays: one column per pool and limited resource.

    `per_row`: catalog rows × limits, what one node of the row uses up; `left`:
    limits, what may still be bought; `names`: pool and resource of each.
    """

    names: tuple[tuple[str, str], ...]
    per_row: Matrix
    left: Vector


def headroom(catalog: Catalog, used: Mapping[str, Mapping[str, int]]) -> LimitHeadroom:
    """Work out what is left of every limit, given what each pool has `used`."""
    names = [
        (number, pool.name, name)
        for number, pool in enumerate(catalog.pools)
        for name in sorted(pool.limits)
    ]
    per_row = np.zeros((len(catalog.pool_of_row), len(names)))
    left = np.zeros(len(names))
    for place, (number, pool_name, name) in enumerate(names):
        inside = catalog.pool_of_row == number
        per_row[inside, place] = _consumed(catalog, name)[inside]
        limit = catalog.pools[number].limits[name]
        left[place] = limit - used.get(pool_name, {}).get(name, 0)
    return LimitHeadroom(
        names=tuple((pool, name) for _, pool, name in names), per_row=per_row, left=left
    )


def _consumed(catalog: Catalog, name: str) -> Vector:
    if name == resources.NODES:
        return np.full(len(catalog.pool_of_row), float(MILLI))
    if name not in catalog.resource_names:
        return np.zeros(len(catalog.pool_of_row))
    column: Vector = catalog.capacity[:, catalog.resource_names.index(name)]
    return column
