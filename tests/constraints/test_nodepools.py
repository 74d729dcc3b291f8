"""NodePools that contradict themselves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.apis import labels
from controller.apis.kubernetes.taints import Requirement
from controller.constraints.nodepools import contradiction
from controller.constraints.requirements import value_set
from tests.builders import make_nodepool, needs

TEAM = "example.com/team"
VALUES = ["1", "2", "3", "7", "a", "b"]


@pytest.mark.parametrize(
    ("requirements", "expected"),
    [
        (
            [needs(TEAM, "In", "blue", "green")],
            f"requirement {TEAM} In [blue, green] contradicts label {TEAM}=red",
        ),
        (
            [needs(TEAM, "DoesNotExist")],
            f"requirement {TEAM} DoesNotExist contradicts label {TEAM}=red",
        ),
        (
            [needs(labels.ZONE, "In", "a"), needs(labels.ZONE, "NotIn", "a")],
            f"requirement {labels.ZONE} NotIn [a] contradicts requirement {labels.ZONE} In [a]",
        ),
        (
            [needs(labels.ARCH, "In", "arm64"), needs("beta.kubernetes.io/arch", "In", "amd64")],
            "requirement beta.kubernetes.io/arch In [amd64] contradicts "
            f"requirement {labels.ARCH} In [arm64]",
        ),
        (
            [needs("size", "Gt", "8"), needs("size", "Lt", "4")],
            "requirement size Lt [4] contradicts requirement size Gt [8]",
        ),
        (
            [needs("tier", "In", "a", "b"), needs("tier", "NotIn", "a"), needs("tier", "In", "a")],
            "requirement tier In [a] contradicts requirement tier In [a, b] and "
            "requirement tier NotIn [a]",
        ),
        (
            [needs(labels.EC2NODECLASS, "In", "other")],
            f"requirement {labels.EC2NODECLASS} In [other] contradicts "
            f"label {labels.EC2NODECLASS}=default",
        ),
    ],
)
def test_a_contradiction_names_its_terms(requirements: list[Requirement], expected: str) -> None:
    found = contradiction(make_nodepool(labels={TEAM: "red"}, requirements=requirements))

    assert found.startswith(f"{expected}: ")


def _terms() -> st.SearchStrategy[Requirement]:
    named = st.builds(
        lambda operator, values: needs("k", operator, *values),
        st.sampled_from(["In", "NotIn"]),
        st.lists(st.sampled_from(VALUES), min_size=1),
    )
    bare = st.sampled_from([needs("k", "Exists"), needs("k", "DoesNotExist")])
    bounds = st.builds(needs, st.just("k"), st.sampled_from(["Gt", "Lt"]), st.sampled_from("0125"))
    return st.one_of(named, bare, bounds)


@given(st.lists(_terms(), max_size=4))
def test_a_nodepool_contradicts_itself_if_no_value_meets_all_its_terms(
    terms: list[Requirement],
) -> None:
    sets = [value_set(term.operator, term.values) for term in terms]
    possible = [*VALUES, "4", "5", "0", "-1", "z", "007", "99", "03"]
    can_hold = all(each.allows_absence for each in sets) or any(
        all(each.has(value) for each in sets) for value in possible
    )

    assert bool(contradiction(make_nodepool(requirements=terms))) is not can_hold
