"""Equal rows are numbered as NumPy numbers them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from controller.scheduling.arrays import distinct_rows
from controller.scheduling.resourceaxis import ResourceAxis


@pytest.mark.parametrize(
    "shape",
    [
        pytest.param((0, 3), id="no rows"),
        pytest.param((1, 1), id="one row"),
        pytest.param((40, 2), id="many equal rows"),
        pytest.param((40, 9), id="few equal rows"),
    ],
)
@pytest.mark.parametrize("form", ["int64", "uint8", "float64"])
def test_rows_are_numbered_in_ascending_order(shape: tuple[int, int], form: str) -> None:
    rows: npt.NDArray[Any] = np.random.default_rng(0).integers(0, 3, shape).astype(form)

    first, place = distinct_rows(rows)

    _, expected_first, expected_place = np.unique(
        rows, axis=0, return_index=True, return_inverse=True
    )
    assert first.tolist() == expected_first.tolist()
    assert place.tolist() == expected_place.reshape(-1).tolist()


def test_negative_zero_equals_zero() -> None:
    first, place = distinct_rows(np.array([[0.0], [1.0], [-0.0]]))

    assert first.tolist() == [0, 1]
    assert place.tolist() == [0, 1, 0]


def test_requests_of_an_object_are_parsed_once() -> None:
    asked, same = {"cpu": 500, "memory": 2}, {"cpu": 500, "memory": 2}
    axis = ResourceAxis(("memory", "cpu", "pods"))

    vectors = axis.vectors([asked, {"pods": 1}, asked, same])

    assert [vector.tolist() for vector in vectors] == [
        [2, 500, 0],
        [0, 0, 1],
        [2, 500, 0],
        [2, 500, 0],
    ]
    assert vectors[2] is vectors[0]
