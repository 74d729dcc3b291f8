"""The offerings of NodePools reach the solver unchanged, and each instance type once."""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Sequence

import msgspec
import pytest

from controller.apis import labels
from controller.apis.kubernetes.devices import DynamicResources, ResourceSliceTemplate
from controller.cloudprovider.fake import make_instance_type
from controller.cloudprovider.instancetypes import InstanceType, Offering, Surcharges
from controller.manager.solver import offers, solving
from controller.manager.solver.offers import OfferWriter
from controller.scheduling.settings import Settings
from controller.state.snapshot import Snapshot
from tests.builders import make_nodepool, make_pod

SOLD = tuple(make_instance_type(f"m{n}.large") for n in range(1, 30))


def of_pools(
    count: int, sold: tuple[InstanceType, ...] = SOLD
) -> dict[str, Sequence[InstanceType]]:
    return {f"pool-{number}": sold for number in range(count)}


def test_instance_types_survive_the_transfer() -> None:
    plain = SOLD[0]
    reserved = Offering(
        {labels.ZONE: "us-west-2a", labels.CAPACITY_TYPE: labels.RESERVED}, 0.01,
        reservation_capacity=3, surcharges=Surcharges(0.02, 0.005, 0.1),
    )  # fmt: skip
    closed = Offering({labels.ZONE: "us-west-2b"}, 0.3, available=False, price_overlaid=True)
    odd = dataclasses.replace(
        plain,
        offerings=(*plain.offerings, reserved, closed),
        overhead={"cpu": 100},
        capacity_overlaid=True,
        dynamic_resources=DynamicResources(resource_slice_templates=[ResourceSliceTemplate()]),
    )
    sold = {"open": SOLD, "odd": (odd, plain), "shut": ()}

    assert offers.read(OfferWriter().encode(sold)) == sold


def test_equal_instance_types_of_pools_are_one_object_after_the_transfer() -> None:
    own = (*SOLD[:-1], make_instance_type("m29.large", price=7.0))

    types = offers.read(OfferWriter().encode({**of_pools(8), "own": own}))

    distinct = {id(instance_type) for sold in types.values() for instance_type in sold}
    assert len(distinct) == len(SOLD) + 1
    assert len({id(types[f"pool-{number}"]) for number in range(8)}) == 1


def test_shared_labels_and_zones_of_types_stay_shared_after_the_transfer() -> None:
    shared, place = SOLD[0].requirements, SOLD[0].offerings[0].requirements
    sold = tuple(
        dataclasses.replace(instance_type, requirements=shared, offerings=(Offering(place, price),))
        for price, instance_type in enumerate(SOLD)
    )

    (types,) = offers.read(OfferWriter().encode(of_pools(1, sold))).values()

    assert len(
        {id(requirement) for instance_type in types for requirement in instance_type.requirements}
    ) == len(shared)
    assert (
        len(
            {
                id(offering.requirements)
                for instance_type in types
                for offering in instance_type.offerings
            }
        )
        == 1
    )


def test_another_pool_adds_only_its_name_to_the_transfer() -> None:
    one, nine = (OfferWriter().encode(of_pools(count)) for count in (1, 9))
    assert len(nine) - len(one) <= 8 * len("pool-0" + "nn")


def test_unchanged_instance_types_are_not_written_again() -> None:
    writer = OfferWriter()
    first = writer.encode(of_pools(9))
    assert writer.encode(of_pools(9)) is first


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param(of_pools(2, SOLD[1:]), id="a type that is gone"),
        pytest.param(of_pools(2, (make_instance_type("m1.large", price=9.0),)), id="a price"),
        pytest.param(of_pools(3), id="a pool more"),
        pytest.param(of_pools(1), id="a pool less"),
        pytest.param({"other": SOLD, "pool-1": SOLD}, id="another pool"),
        pytest.param({"pool-0": SOLD, "pool-1": ()}, id="a pool that is sold nothing"),
        pytest.param({}, id="no pool"),
    ],
)
def test_changed_instance_types_are_written(changed: dict[str, Sequence[InstanceType]]) -> None:
    writer = OfferWriter()
    writer.encode(of_pools(2))
    assert offers.read(writer.encode(changed)) == changed


def test_former_instance_types_are_freed_before_new_ones_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left: list[int] = []
    read = offers.read

    def counted(written: bytes) -> dict[str, tuple[InstanceType, ...]]:
        gc.collect()
        left.append(sum(isinstance(o, InstanceType) and o.name == OLD for o in gc.get_objects()))
        return read(written)

    monkeypatch.setattr(offers, "read", counted)
    pool = make_nodepool()
    question = msgspec.msgpack.encode(((make_pod("web"),), Snapshot(node_pools=(pool,))))
    written = [
        OfferWriter().encode({pool.metadata.name: (make_instance_type(name),)})
        for name in (OLD, "new.large")
    ]

    bought = [solving.schedule(question, 0, offer, Settings(), 30.0) for offer in written]

    assert [results and results.new_nodes[0].instance_types for results in bought] == [
        (OLD,),
        ("new.large",),
    ]
    assert left == [0, 0]


OLD = "old.large"
