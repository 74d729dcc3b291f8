"""The rendered pages of docs/reference are what the code says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from controller.apis import appliers, labels
from controller.apis.kinds import DISRUPTION
from infra.deployment import controller
from infra.manifestchecks import schema_faults
from testbed.environment import CHECKOUT
from tests.docs import annotated, pictures, references

NO_NAMES = {labels.GROUP, labels.AWS_GROUP, labels.ON_DEMAND, labels.SPOT, labels.RESERVED}


@pytest.mark.parametrize("path", references.FILES, ids=lambda path: path.name)
def test_a_page_equals_the_rendered_one(path: Path) -> None:
    assert (CHECKOUT / path).read_text() == references.FILES[path](), "make reference"


def test_the_picture_of_constraints_shows_every_pod_of_each_case() -> None:
    drawn = ElementTree.fromstring(references.FILES[Path("docs/images/constraints.svg")]())
    squares = [each for each in drawn if each.get("width") == str(pictures.POD)]

    assert len(squares) == len(pictures.CASES) * pictures.PODS


def _paths(schema: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, field in schema.get("properties", {}).items():
        yield f"{prefix}{name}"
        yield from _paths(field.get("items", field), f"{prefix}{name}.")


def _used(value: Any, prefix: str = "") -> Iterator[str]:
    for item in value if isinstance(value, list) else [value]:
        for name, inner in item.items() if isinstance(item, dict) else ():
            yield f"{prefix}{name}"
            yield from _used(inner, f"{prefix}{name}.")


@pytest.mark.parametrize("wire", annotated.examples(), ids=lambda wire: wire["kind"])
def test_an_annotated_manifest_has_every_field_and_is_valid(wire: dict[str, Any]) -> None:
    alternatives = wire.pop(annotated.ALTERNATIVES, [])
    used = {path for spec in (wire["spec"], *alternatives) for path in _used(spec)}

    fields = set(_paths(annotated.spec_schemas()[wire["kind"]]))

    assert {path for path in fields if not path.endswith(".timeAdded")} <= used
    assert list(schema_faults(wire["kind"], wire)) == []
    for alternative in alternatives:
        faults = schema_faults(wire["kind"], wire | {"spec": wire["spec"] | alternative})
        assert {fault.constraint for fault in faults} <= {"rule"}, alternative


def test_every_kind_that_users_write_has_an_annotated_manifest() -> None:
    assert {wire["kind"] for wire in annotated.examples()} == (
        annotated.spec_schemas().keys() - {DISRUPTION.name}
    )


def test_the_page_of_labels_lists_exactly_the_names_in_the_code() -> None:
    own = {value for key, value in vars(labels).items() if key.isupper() and type(value) is str}
    used = own | labels.WELL_KNOWN | {appliers.STACK, controller.IDENTITY_ANNOTATION}

    said = [name for section in references.known_labels().values() for name in section]

    assert set(said) == used - NO_NAMES
