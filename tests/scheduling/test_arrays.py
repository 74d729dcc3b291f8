"""The arrays of a solve."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from controller.scheduling.arrays import ResourceAxis, distinct_rows

SHAPES = array_shapes(min_dims=2, max_dims=2, min_side=0, max_side=12)
FEW_VALUES = st.sampled_from([0, 1, 2, 200])


@given(
    st.sampled_from(["int64", "uint8", "float64"]).flatmap(
        lambda form: arrays(form, SHAPES, elements=FEW_VALUES)
    )
)
def test_rows_are_numbered_as_numpy_numbers_them(rows: npt.NDArray[Any]) -> None:
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
