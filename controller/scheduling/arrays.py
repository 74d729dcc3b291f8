"""The array types of a solve. Axes are named where an array is made, as classes × node types."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Indices = npt.NDArray[np.int64]
Counts = npt.NDArray[np.int32]
"""For large arrays of small numbers that are read as a whole; half the size of `Indices`."""


def distinct_rows(rows: npt.NDArray[Any]) -> tuple[Indices, Indices]:
    """Return the index of the first occurrence of each distinct row, and the number of each row.

    Distinct rows are numbered in ascending order. Equivalent to `numpy.unique(rows, axis=0)` with
    indices and inverse, which compares rows as structured values and takes up to ten times as long.
    """
    order = np.lexsort(rows.T[::-1]) if rows.shape[1] else np.arange(len(rows))
    ordered = rows[order]
    begins = np.ones(len(rows), dtype=np.bool_)
    begins[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    number = np.empty(len(rows), dtype=np.int64)
    number[order] = np.cumsum(begins) - 1
    return order[begins], number
