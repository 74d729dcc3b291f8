"""The rendered pages of docs/reference are what the code says."""

from __future__ import annotations

import pytest

from controller.apis import appliers, labels
from infra.deployment import controller
from testbed.environment import CHECKOUT
from tests.docs import references

NO_NAMES = {labels.GROUP, labels.AWS_GROUP, labels.ON_DEMAND, labels.SPOT, labels.RESERVED}


@pytest.mark.parametrize("name", references.PAGES)
def test_a_page_equals_the_rendered_one(name: str) -> None:
    page = CHECKOUT / "docs" / "reference" / name

    assert page.read_text() == references.PAGES[name](), "make reference"


def test_the_page_of_labels_lists_exactly_the_names_in_the_code() -> None:
    own = {value for key, value in vars(labels).items() if key.isupper() and type(value) is str}
    used = own | labels.WELL_KNOWN | {appliers.STACK, controller.IDENTITY_ANNOTATION}

    said = [name for section in references.known_labels().values() for name in section]

    assert set(said) == used - NO_NAMES
