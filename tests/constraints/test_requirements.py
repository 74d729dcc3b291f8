"""The algebra of requirements holds for every combination of operators."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.apis.kubernetes.taints import Requirement
from controller.constraints import requirements
from controller.constraints.requirements import ValueSet, value_set

VALUES = ["1", "2", "3", "7", "a", "b"]


def _sets() -> st.SearchStrategy[ValueSet]:
    named = st.builds(
        value_set, st.sampled_from(["In", "NotIn"]), st.lists(st.sampled_from(VALUES), min_size=1)
    )
    bare = st.builds(value_set, st.sampled_from(["Exists", "DoesNotExist"]), st.just([]))
    bounds = st.builds(
        value_set,
        st.sampled_from(["Gt", "Gte", "Lt", "Lte"]),
        st.sampled_from(["0", "1", "2", "5"]).map(lambda value: [value]),
    )
    return st.one_of(named, bare, bounds)


@given(_sets(), _sets(), st.sampled_from(VALUES))
def test_an_intersection_has_exactly_the_values_both_have(
    one: ValueSet, other: ValueSet, value: str
) -> None:
    assert one.intersection(other).has(value) == (one.has(value) and other.has(value))


@given(_sets(), _sets())
def test_a_label_may_be_absent_only_if_both_allow_it(one: ValueSet, other: ValueSet) -> None:
    both = one.intersection(other)

    assert both.allows_absence == (one.allows_absence and other.allows_absence)


@given(_sets(), _sets())
def test_intersection_is_commutative(one: ValueSet, other: ValueSet) -> None:
    assert one.intersection(other) == other.intersection(one)
    assert one.meets(other) == other.meets(one)


@given(_sets(), _sets(), _sets())
def test_intersection_is_associative(one: ValueSet, other: ValueSet, third: ValueSet) -> None:
    left = one.intersection(other).intersection(third)
    right = one.intersection(other.intersection(third))

    assert {v for v in VALUES if left.has(v)} == {v for v in VALUES if right.has(v)}
    assert left.allows_absence == right.allows_absence


@given(_sets(), st.sampled_from([*VALUES, ""]))
def test_labels_match_requirements_as_in_kubernetes(allowed: ValueSet, value: str) -> None:
    values = {"key": value} if value else {}

    expected = allowed.has(value) if value else allowed.allows_absence
    assert requirements.met_by_labels({"key": allowed}, values) == expected


@given(_sets(), _sets())
def test_a_written_value_parses_to_the_same_value(one: ValueSet, other: ValueSet) -> None:
    allowed = one.intersection(other)
    terms = requirements.as_terms({"key": allowed})

    again = requirements.read(terms)["key"]
    assert all(again.has(value) == allowed.has(value) for value in VALUES)
    assert again.allows_absence == allowed.allows_absence


@given(_sets())
def test_a_chosen_value_is_allowed(allowed: ValueSet) -> None:
    value = requirements.any_value(allowed)

    assert value is None or allowed.has(value)


def test_all_terms_of_one_label_apply() -> None:
    needed = requirements.read(
        [
            Requirement(key="cpu", operator="Gt", values=["2"]),
            Requirement(key="cpu", operator="Lt", values=["8"]),
            Requirement(key="cpu", operator="NotIn", values=["4"]),
        ]
    )

    assert [value for value in "23458" if needed["cpu"].has(value)] == ["3", "5"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (value_set("In", ["a"]), value_set("In", ["b"])),
        (value_set("In", ["a"]), value_set("NotIn", ["a"])),
        (value_set("In", ["a"]), value_set("Gt", ["5"])),
        (value_set("Gt", ["5"]), value_set("Lt", ["5"])),
        (value_set("DoesNotExist", []), value_set("In", ["a"])),
        (value_set("DoesNotExist", []), value_set("Exists", [])),
    ],
)
def test_no_node_meets_sets_that_contradict_each_other(one: ValueSet, other: ValueSet) -> None:
    both = requirements.conjunction({"key": one}, {"key": other})

    assert not requirements.is_possible(both)
    assert not requirements.met_by_labels(both, {})
    assert not requirements.met_by_labels(both, {"key": "a"})
    assert requirements.contradiction({"key": one}, {"key": other}) == ("key", one, other)


@pytest.mark.parametrize("value", ["1_000", "1" + 20 * "0", "x1", ""])
def test_values_that_kube_scheduler_does_not_read_as_integers_are_within_no_bounds(
    value: str,
) -> None:
    assert not value_set("Gt", ["5"]).has(value)


def test_the_greatest_bound_is_written_and_read() -> None:
    needed = {"key": value_set("Gt", [str(2**63 - 1)])}

    assert requirements.read(requirements.as_terms(needed)) == needed


@pytest.mark.parametrize(
    ("operator", "values", "words"),
    [
        ("Near", [], "Near"),
        ("Gt", [], "exactly one integer"),
        ("Lt", ["x"], "exactly one integer"),
        ("Lt", ["1_000"], "exactly one integer"),
        ("Lt", ["1" + 20 * "0"], "exactly one integer"),
    ],
)
def test_a_malformed_term_is_refused_with_the_reason(
    operator: str, values: list[str], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        value_set(operator, values)


def test_only_labels_that_the_cloud_sets_may_be_undefined() -> None:
    wanted = requirements.one_of("x")

    assert requirements.meets(None, wanted, key="topology.kubernetes.io/zone")
    assert not requirements.meets(None, wanted, key="team")
    assert requirements.meets(None, value_set("NotIn", ["x"]), key="team")
