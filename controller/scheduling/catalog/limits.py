"""The remaining limits of NodePools and capacity reservations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from controller.apis.kubernetes.quantities import MILLI
from controller.constraints import resources
from controller.scheduling.arrays import Mask, Matrix, Vector
from controller.scheduling.catalog.offerings import Catalog
from controller.scheduling.catalog.variants import Variants


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitHeadroom:
    """The limits of NodePools as arrays, with one column per pool and limited resource.

    `names`: the pool and the resource of each limit. `per_row`: catalog rows × limits, the amount
    that one node of the row uses. `left`: limits, the remaining amounts, never below 0. Amounts are
    in thousandths of the resource's unit.
    """

    names: tuple[tuple[str, str], ...]
    per_row: Matrix
    left: Vector


@dataclass(frozen=True, slots=True, kw_only=True)
class PurchaseLimits:
    """Limits on purchases: first the limits of NodePools, then the capacity reservations.

    `consumption`: node types × limits, the amount that one node uses; of its reservation, 1
    instance. `left`: limits, the amounts before the first purchase. `units`: limits, the factor by
    which linear programs divide a limit's amounts.
    """

    consumption: Matrix
    left: Vector
    units: Vector

    def admit_one(self, left: Vector) -> Mask:
        """Mark the node types of which the remaining amounts `left` admit one node."""
        return np.asarray((self.consumption <= left).all(axis=1))


def purchase_limits(variants: Variants, headroom: LimitHeadroom) -> PurchaseLimits:
    """Return the limits of NodePools and reservations for the node types of these variants."""
    reservations = variants.catalog.reservations
    reservation_of_node_type = variants.reservation_of_variant[variants.variant_of]
    reserved = reservation_of_node_type[:, None] == np.arange(len(reservations))[None]
    of_pools = headroom.per_row[variants.row_of]
    consumption = np.concatenate([of_pools, reserved], axis=1).astype(np.float64)
    counts = np.array([count for _, count in reservations], dtype=np.float64)
    # Memory is counted in thousandths of bytes, but linear programs are accurate only for numbers
    # near 1. The units are powers of two, so that scaling and unscaling are exact.
    largest = consumption.max(axis=0, initial=1.0)
    return PurchaseLimits(
        consumption=consumption,
        left=np.concatenate([headroom.left, counts]),
        units=np.exp2(np.floor(np.log2(largest))),
    )


def headroom_of(catalog: Catalog, used: Mapping[str, Mapping[str, int]]) -> LimitHeadroom:
    """Return the remaining amount of every limit.

    `used` is the usage by NodePool and resource name, in thousandths of the resource's unit.
    """
    names = [
        (number, pool.name, name)
        for number, pool in enumerate(catalog.pools)
        for name in sorted(pool.limits)
    ]
    per_row = np.zeros((len(catalog.pool_of_row), len(names)))
    left = np.zeros(len(names))
    for index, (number, pool_name, name) in enumerate(names):
        inside = catalog.pool_of_row == number
        per_row[inside, index] = _consumption(catalog, name)[inside]
        limit = catalog.pools[number].limits[name]
        left[index] = limit - used.get(pool_name, {}).get(name, 0)
    return LimitHeadroom(
        names=tuple((pool, name) for _, pool, name in names),
        per_row=per_row,
        # After a limit is lowered, nodes may use more than it. Nothing is left of it then. A
        # negative amount would exclude the nodes of all NodePools, since each uses at least 0.
        left=np.maximum(left, 0),
    )


def _consumption(catalog: Catalog, name: str) -> Vector:
    """Return the amount of this resource that one node of each row uses (rows)."""
    if name == resources.NODES:
        return np.full(len(catalog.pool_of_row), float(MILLI))
    return catalog.axis.column(catalog.capacity, name)
