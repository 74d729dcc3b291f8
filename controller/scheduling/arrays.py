"""The array types of a solve, and the axis that turns amounts by resource name into arrays.

The axes of an array are named where it is made, for example classes × node types.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from controller.constraints.resources import Resources

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Indices = npt.NDArray[np.int64]
Counts = npt.NDArray[np.int32]
"""For large arrays of small numbers that are read as a whole; half the size of `Indices`."""


def run_starts(ordered: npt.NDArray[Any]) -> Mask:
    """Mark where each run of equal values, or of equal rows, begins."""
    begins = np.ones(len(ordered), dtype=np.bool_)
    changes = ordered[1:] != ordered[:-1]
    begins[1:] = changes.any(axis=1) if ordered.ndim > 1 else changes
    return begins


def distinct_rows(rows: npt.NDArray[Any]) -> tuple[Indices, Indices]:
    """Return where each distinct row first occurs, and for each row the number of its distinct row.

    Distinct rows are numbered in ascending order. Equivalent to `numpy.unique(rows, axis=0)` with
    indices and inverse, which compares rows as structured values and takes up to ten times as long.
    """
    order = np.lexsort(rows.T[::-1]) if rows.shape[1] else np.arange(len(rows))
    begins = run_starts(rows[order])
    number = np.empty(len(rows), dtype=np.int64)
    number[order] = begins.cumsum() - 1
    return order[begins], number


MOST = 2.0**62
"""The greatest amount of a resource, in thousandths of its unit; it fits into 64 bits."""


@dataclass(frozen=True, slots=True)
class ResourceAxis:
    """The resources along an array axis, by name.

    Amounts are in thousandths of the resource's unit: millicores, and thousandths of a byte.

    The catalog has an axis of all resources that instance types have. A solve has an axis of the
    resources that its pods request.
    """

    names: tuple[str, ...]

    def __contains__(self, name: object) -> bool:
        """Whether a resource is on the axis."""
        return name in self.names

    def vector(self, amounts: Resources) -> Vector:
        """Return amounts along the axis; resources that are not on it are ignored."""
        return np.array([amounts.get(name, 0) for name in self.names], dtype=np.float64)

    def vectors(self, lists: Iterable[Resources]) -> list[Vector]:
        """Return the vector of each list of resources, in their order.

        The same object is converted once and gives the same vector: most pods with equal requests
        share one.
        """
        known: dict[int, tuple[Resources, Vector]] = {}
        vectors = []
        for amounts in lists:
            if id(amounts) not in known:
                # Keep a reference to the object, so that no other object gets its id meanwhile.
                known[id(amounts)] = amounts, self.vector(amounts)
            vectors.append(known[id(amounts)][1])
        return vectors

    def matrix(self, lists: Sequence[Resources]) -> Matrix:
        """Return lists of resources along the axis; lists × names."""
        return np.array(
            [[amounts.get(name, 0) for name in self.names] for amounts in lists], dtype=np.float64
        ).reshape(len(lists), len(self.names))

    def amounts(self, vector: Vector) -> dict[str, int]:
        """Return the non-zero amounts by name: the inverse of `vector`.

        An amount beyond `MOST`, such as one that no float can hold, is `MOST`.
        """
        named = zip(self.names, np.minimum(vector, MOST).astype(int).tolist(), strict=True)
        return {name: amount for name, amount in named if amount}

    def column(self, matrix: Matrix, name: str) -> Vector:
        """Return one resource of an array along this axis; zeros if it is not on the axis."""
        if name not in self.names:
            return np.zeros(len(matrix))
        values: Vector = matrix[:, self.names.index(name)]
        return values

    def project(self, matrix: Matrix, axis: ResourceAxis) -> Matrix:
        """Return an array along this axis, converted to another axis."""
        projection = np.zeros((len(matrix), len(axis.names)))
        for index, name in enumerate(axis.names):
            projection[:, index] = self.column(matrix, name)
        return projection
