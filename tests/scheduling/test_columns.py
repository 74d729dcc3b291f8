"""Exchanging pods improves fillings of nodes, which stay valid."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from controller.scheduling.arrays import Mask
from controller.scheduling.packing.columns import exchange_pods
from controller.scheduling.packing.problem import NodeRules, PackingProblem


def problem(sizes: list[list[int]], capacity: list[list[int]], bound: list[int]) -> PackingProblem:
    """Build a problem with classes of these sizes on node types; `bound` ones repel others."""
    allowed: Mask = np.ones((len(sizes), len(capacity)), dtype=np.bool_)
    owned = np.array([[index in bound for index in range(len(sizes))]])
    return PackingProblem(
        demand=np.full(len(sizes), 3),
        sizes=np.array(sizes, dtype=np.float64),
        penalty=np.ones(len(sizes)),
        prices=np.ones(len(capacity)),
        capacity=np.array(capacity, dtype=np.float64),
        allowed=allowed,
        labelled=allowed,
        rules=NodeRules(
            owned=owned, counted=owned, limit=np.ones(1), repels=np.ones(1, dtype=np.bool_)
        ),
        consumption=np.zeros((len(capacity), 0)),
        headroom=np.zeros(0),
    )


def test_one_pod_is_exchanged_for_two_of_higher_value() -> None:
    posed = problem([[6, 6], [5, 4], [5, 5]], [[10, 9]], [])
    worth = np.array([0.6, 0.5, 0.55])

    after = exchange_pods(posed, np.array([0]), np.array([[1, 0, 0]]), posed.demand, worth)

    assert after.tolist() == [[0, 1, 1]]


def test_pods_with_sharing_constraints_are_not_exchanged() -> None:
    posed = problem([[6, 6], [5, 4], [5, 5]], [[10, 10]], [0, 2])
    worth = np.array([0.6, 0.5, 0.7])

    after = exchange_pods(
        posed, np.array([0, 0]), np.array([[1, 0, 0], [0, 1, 0]]), posed.demand, worth
    )

    assert after.tolist() == [[1, 0, 0], [0, 2, 0]]


def test_no_column_uses_more_pods_than_exist() -> None:
    posed = problem([[1, 1], [2, 2]], [[9, 9]], [])

    after = exchange_pods(
        posed, np.array([0]), np.array([[0, 0]]), np.array([3, 1]), np.array([0.1, 0.2])
    )

    assert (after <= [3, 1]).all()
    assert after.sum() > 0


@given(st.data())
def test_exchanged_pods_fit_and_have_no_lower_value(data: st.DataObject) -> None:
    pair = st.lists(st.integers(1, 9), min_size=2, max_size=2)
    posed = problem(
        data.draw(st.lists(pair, min_size=3, max_size=3)),
        data.draw(
            st.lists(st.lists(st.integers(9, 30), min_size=2, max_size=2), min_size=2, max_size=2)
        ),
        data.draw(st.lists(st.integers(0, 2), max_size=1)),
    )
    worth = np.array(data.draw(st.lists(st.floats(0.01, 1.0), min_size=3, max_size=3)))
    before = np.zeros((2, 3), dtype=np.int64)
    before[[0, 1], data.draw(st.lists(st.integers(0, 2), min_size=2, max_size=2))] = 1

    after = exchange_pods(posed, np.array([0, 1]), before, posed.demand, worth)

    assert (after @ posed.sizes <= posed.capacity).all()
    assert (after <= posed.demand).all()
    assert (after @ worth >= before @ worth).all()
    ruled = posed.rules.owned[0]
    assert (after[:, ruled] == before[:, ruled]).all()
