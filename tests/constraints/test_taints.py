"""Tolerations match the taints that kube-scheduler lets them match."""

from __future__ import annotations

import pytest

from controller.apis.kubernetes.taints import Taint, Toleration
from controller.constraints.taints import tolerates


def toleration(operator: str, value: str) -> Toleration:
    return Toleration(key="slots", operator=operator, value=value, effect="NoSchedule")


@pytest.mark.parametrize(("operator", "bound"), [("Gt", "5"), ("Lt", "20")])
def test_a_comparison_matches_an_integer_in_its_range(operator: str, bound: str) -> None:
    taint = Taint(key="slots", value="10", effect="NoSchedule")

    assert tolerates(toleration(operator, bound), taint)


@pytest.mark.parametrize("operator", ["Gt", "Lt"])
@pytest.mark.parametrize("value", ["1_0", "010", "-0", "", "ten", "9" * 19])
def test_a_comparison_matches_no_value_that_kube_scheduler_does_not_read_as_an_integer(
    operator: str, value: str
) -> None:
    # All are label values, and so allowed as values of taints.
    taint = Taint(key="slots", value=value, effect="NoSchedule")

    assert not tolerates(toleration(operator, "5" if operator == "Gt" else "20"), taint)
