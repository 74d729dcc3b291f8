"""Changes are detected with the path and the kind that the engine shows."""

from __future__ import annotations

from typing import Any

import pytest

from testbed.plugins.codec import UNKNOWN
from testbed.plugins.differences import Difference, Kind, differences, lies_under


@pytest.mark.parametrize(
    ("old", "new", "path", "kind"),
    [
        ({}, {"a": 1}, "a", Kind.ADD),
        ({"a": 1}, {}, "a", Kind.DELETE),
        ({"a": 1}, {"a": 2}, "a", Kind.UPDATE),
        ({"a": {"b": 1}}, {"a": {"b": 2}}, "a.b", Kind.UPDATE),
        ({"a": [1]}, {"a": [1, 2]}, "a[1]", Kind.ADD),
        ({"a": [1, 2]}, {"a": [1]}, "a[1]", Kind.DELETE),
        ({"a": [{"b": 1}]}, {"a": [{"b": 2}]}, "a[0].b", Kind.UPDATE),
        ({"t": {"k8s.io/x": 1}}, {"t": {"k8s.io/x": 2}}, 't["k8s.io/x"]', Kind.UPDATE),
        ({"a": {"b": 1}}, {"a": [1]}, "a", Kind.UPDATE),
        ({"a": 1}, {"a": True}, "a", Kind.UPDATE),
        ({"a": "x"}, {"a": UNKNOWN}, "a", Kind.UPDATE),
    ],
)
def test_each_difference_has_its_path_and_kind(
    old: dict[str, Any], new: dict[str, Any], path: str, kind: Kind
) -> None:
    assert list(differences(old, new)) == [Difference(path, kind)]


@pytest.mark.parametrize("same", [{"a": 1}, {"a": [{"b": None}]}, {"a": 1.0}, {}])
def test_equal_bags_do_not_differ(same: dict[str, Any]) -> None:
    assert not list(differences(same, dict(same)))


def test_numbers_are_compared_by_value() -> None:
    assert not list(differences({"a": 1}, {"a": 1.0}))


def test_internal_values_of_the_provider_are_no_difference() -> None:
    assert not list(differences({"__defaults": ["a"]}, {"__defaults": []}))


def test_a_difference_names_its_property() -> None:
    assert Difference('tags["a.b"]', Kind.ADD).property == "tags"
    assert Difference("spec.containers[0].image", Kind.ADD).property == "spec"


def test_a_path_is_below_itself_and_its_parents_only() -> None:
    assert lies_under("spec.selector", ["spec.selector"])
    assert lies_under("spec.selector.matchLabels", ["spec.selector"])
    assert lies_under("subnets[0]", ["subnets"])
    assert not lies_under("spec.selectors", ["spec.selector"])
