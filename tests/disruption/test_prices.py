"""What replacements may cost, and what they cost."""

from __future__ import annotations

import pytest

from controller.apis import labels
from controller.disruption.offerings import cap_price
from controller.scheduling.results import NewNode
from tests.aws.builders import make_pool
from tests.builders import make_offering, make_type, needs


def test_the_price_of_a_replacement_is_that_of_its_remaining_types() -> None:
    cheap_in_one_zone = [
        make_offering("us-west-2a", "spot", 0.1),
        make_offering("us-west-2b", "spot", 0.9),
    ]
    even = [make_offering("us-west-2a", "spot", 0.2), make_offering("us-west-2b", "spot", 0.3)]
    types = [make_type("cheap", offerings=cheap_in_one_zone), make_type("even", offerings=even)]
    node = NewNode(
        node_pool="general",
        instance_types=("cheap", "even"),
        requirements=(needs(labels.CAPACITY_TYPE, "In", "spot"),),
        price=0.1,
        pods=(),
        requests={},
    )

    left = cap_price(node, below=0.5, types=types, pool=make_pool())

    assert left is not None
    assert left.instance_types == ("even",)
    assert left.price == pytest.approx(0.2)
