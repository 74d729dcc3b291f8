"""Overlays correct what types cost and hold."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from controller.apis import labels
from controller.apis.nodeoverlay import NodeOverlay
from controller.state.overlays import overlaid
from tests.builders import make_nodepool, make_type


def _overlay(name: str, **spec: Any) -> NodeOverlay:
    return msgspec.convert({"metadata": {"name": name}, "spec": spec}, NodeOverlay)


ANY: list[dict[str, Any]] = []
SPOT = [{"key": labels.CAPACITY_TYPE, "operator": "In", "values": ["spot"]}]


@pytest.mark.parametrize(
    ("spec", "price"),
    [
        ({"price": "0.5"}, 0.5),
        ({"priceAdjustment": "+0.1"}, 1.1),
        ({"priceAdjustment": "-10%"}, 0.9),
        ({"priceAdjustment": "-5"}, 0.0),
    ],
)
def test_a_price_is_replaced_or_changed(spec: dict[str, Any], price: float) -> None:
    (found,) = overlaid(
        [make_type("t", price=1.0)], [_overlay("o", requirements=ANY, **spec)], pool=make_nodepool()
    )

    assert found.offerings[0].price == pytest.approx(price)


def test_only_the_offerings_it_names_change() -> None:
    one = make_type("t", price=1.0, capacity_types=("spot", "on-demand"), spot_discount=0)

    (found,) = overlaid([one], [_overlay("o", requirements=SPOT, price="2")], pool=make_nodepool())

    assert {(o.capacity_type, o.price) for o in found.offerings} == {("spot", 2), ("on-demand", 1)}


def test_the_heaviest_overlay_wins() -> None:
    overlays = [
        _overlay("a", requirements=ANY, price="3", weight=1),
        _overlay("b", requirements=ANY, price="4", weight=9),
    ]

    (found,) = overlaid([make_type("t")], overlays, pool=make_nodepool())

    assert found.offerings[0].price == 4


def test_capacity_is_added_resource_by_resource() -> None:
    overlay = _overlay("o", requirements=ANY, capacity={"example.com/disk": "2"})

    (found,) = overlaid([make_type("t")], [overlay], pool=make_nodepool())

    assert found.capacity["example.com/disk"] == 2000
