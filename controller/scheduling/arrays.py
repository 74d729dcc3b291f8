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
    indices and inverse, but equal rows are not sorted.
    """
    every = rows.tobytes()
    width = rows.itemsize * (rows.size // max(len(rows), 1))
    starts = range(0, width * len(rows), max(width, 1)) if width else [0] * len(rows)
    parts = [every[start : start + width] for start in starts]
    number = {part: index for index, part in enumerate(dict.fromkeys(parts))}
    groups = np.array([number[part] for part in parts], dtype=np.int64)
    _, first = np.unique(groups, return_index=True)
    _, order, index = np.unique(rows[first], axis=0, return_index=True, return_inverse=True)
    return first[order].astype(np.int64), index.reshape(-1)[groups].astype(np.int64)
