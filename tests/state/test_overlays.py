"""Overlays change the prices and capacities of instance types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from controller.apis import labels
from controller.apis.karpenter.nodeoverlay import NodeOverlay
from controller.apis.karpenter.nodepool import NodePool
from controller.state.overlays import conflicting_overlays, marks, with_overlays
from tests.builders import make_nodepool, make_type


def _overlay(name: str, **spec: Any) -> NodeOverlay:
    return msgspec.convert({"metadata": {"name": name}, "spec": spec}, NodeOverlay)


def _requires(key: str, *values: str, operator: str = "In") -> list[dict[str, Any]]:
    return [{"key": key, "operator": operator, "values": list(values)}]


ANY: list[dict[str, Any]] = []
SPOT = _requires(labels.CAPACITY_TYPE, "spot")


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
    (corrected,) = with_overlays(
        [make_type("t", price=1.0)], [_overlay("o", requirements=ANY, **spec)], pool=make_nodepool()
    )

    assert corrected.offerings[0].price == pytest.approx(price)


def test_only_the_offerings_it_names_change() -> None:
    instance_type = make_type("t", price=1.0, capacity_types=("spot", "on-demand"), spot_discount=0)

    (corrected,) = with_overlays(
        [instance_type], [_overlay("o", requirements=SPOT, price="2")], pool=make_nodepool()
    )

    assert {(o.capacity_type, o.price) for o in corrected.offerings} == {
        ("spot", 2),
        ("on-demand", 1),
    }


@pytest.mark.parametrize(
    ("requirements", "is_meant"),
    [
        pytest.param(_requires(labels.NODEPOOL, "default"), True, id="its pool"),
        pytest.param(_requires(labels.NODEPOOL, "other"), False, id="another pool"),
        pytest.param(_requires("team", "red"), True, id="a label of the pool"),
        pytest.param(_requires("team", "blue"), False, id="another value of it"),
        pytest.param(_requires(labels.INSTANCE_TYPE, "t"), True, id="its type"),
        pytest.param(_requires("failure-domain.beta.kubernetes.io/zone", "zone-a"), True, id="old"),
        pytest.param(_requires("nobody/knows", "x"), False, id="an unknown label"),
        pytest.param(_requires("nobody/knows", "x", operator="NotIn"), True, id="its absence"),
        pytest.param(
            _requires(f"{labels.AWS_GROUP}/instance-gpu-count", "0", operator="Gt"),
            False,
            id="an attribute the type lacks",
        ),
    ],
)
def test_an_overlay_applies_only_if_all_its_requirements_are_met(
    requirements: list[dict[str, Any]], is_meant: bool
) -> None:
    overlay = _overlay("o", requirements=requirements, price="7")

    (corrected,) = with_overlays(
        [make_type("t", price=1.0)], [overlay], pool=make_nodepool(labels={"team": "red"})
    )

    assert any(offering.price == 7 for offering in corrected.offerings) == is_meant


def test_the_overlay_with_the_highest_weight_applies() -> None:
    overlays = [
        _overlay("a", requirements=ANY, price="3", weight=1),
        _overlay("b", requirements=ANY, price="4", weight=9),
    ]

    (corrected,) = with_overlays([make_type("t")], overlays, pool=make_nodepool())

    assert corrected.offerings[0].price == 4


def test_capacity_is_added_resource_by_resource() -> None:
    light = _overlay("l", requirements=ANY, capacity={"example.com/disk": "2", "example.com/k": 1})
    heavy = _overlay("h", requirements=ANY, capacity={"example.com/disk": "5"}, weight=2)

    (corrected,) = with_overlays([make_type("t")], [light, heavy], pool=make_nodepool())

    assert corrected.capacity["example.com/disk"] == 5000
    assert corrected.capacity["example.com/k"] == 1000
    assert corrected.allocatable["example.com/disk"] == 5000


def test_claims_name_the_overlays_of_their_types() -> None:
    types = [make_type("t"), make_type("u")]
    price = _overlay("p", requirements=_requires(labels.INSTANCE_TYPE, "t"), price="1")
    capacity = _overlay("c", requirements=ANY, capacity={"example.com/disk": "1"})
    pool = make_nodepool()

    t, u = with_overlays(types, [price, capacity], pool=pool)

    assert marks(types) == {}
    assert marks([u]) == {labels.CAPACITY_OVERLAY_APPLIED: "true"}
    assert marks([u, t]) == {
        labels.PRICE_OVERLAY_APPLIED: "true",
        labels.CAPACITY_OVERLAY_APPLIED: "true",
    }


# Contradictions.


def _refused(*overlays: NodeOverlay, pools: Sequence[NodePool] = ()) -> set[str]:
    pools = pools or (make_nodepool(),)
    types = (make_type("t", capacity_types=("spot", "on-demand")), make_type("u"))
    return set(
        conflicting_overlays(
            overlays, pools=pools, instance_types={p.metadata.name: types for p in pools}
        )
    )


def test_of_two_prices_of_equal_weight_the_later_name_applies() -> None:
    assert _refused(
        _overlay("a", requirements=ANY, price="1"), _overlay("b", requirements=SPOT, price="2")
    ) == {"a"}


def test_overlays_of_different_weight_do_not_conflict() -> None:
    assert not _refused(
        _overlay("a", requirements=ANY, price="1", weight=3),
        _overlay("b", requirements=ANY, price="2", weight=4),
    )


def test_overlays_for_different_offerings_or_resources_do_not_conflict() -> None:
    assert not _refused(
        _overlay("t", requirements=_requires(labels.INSTANCE_TYPE, "t"), price="1"),
        _overlay("u", requirements=_requires(labels.INSTANCE_TYPE, "u"), priceAdjustment="+1"),
        _overlay("c", requirements=ANY, capacity={"example.com/disk": "1"}),
        _overlay("d", requirements=ANY, capacity={"example.com/key": "1"}),
    )


def test_two_amounts_of_one_resource_conflict() -> None:
    assert _refused(
        _overlay("c", requirements=ANY, capacity={"example.com/disk": "1"}),
        _overlay("d", requirements=ANY, capacity={"example.com/disk": "2", "example.com/k": "1"}),
    ) == {"c"}


def test_an_overlay_refused_for_one_pool_is_ignored_for_all_pools() -> None:
    pools = (make_nodepool("one"), make_nodepool("two"))

    refused = _refused(
        _overlay("c", requirements=_requires(labels.NODEPOOL, "one"), price="1"),
        _overlay("b", requirements=ANY, price="2"),
        _overlay("a", requirements=_requires(labels.NODEPOOL, "two"), price="3"),
        pools=pools,
    )

    assert refused == {"b"}
