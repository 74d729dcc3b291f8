"""What AWS bills for a node besides its instance."""

from __future__ import annotations

from typing import Any

import pytest

from controller.apis.karpenter.ec2nodeclass import BlockDevice, BlockDeviceMapping, SelectorTerm
from controller.aws.instancetypes.pricelist import shipped_volumes
from controller.aws.instancetypes.surcharges import HOURS_A_MONTH, VolumePrices, surcharges
from controller.cloudprovider.instancetypes import Surcharges
from tests.aws.builders import make_node_class

PRICES = VolumePrices(shipped_volumes("us-west-2"))


def volume(**fields: Any) -> BlockDevice:
    return BlockDevice(**fields)


def of_class(
    *public: str, region: str = "us-west-2", prices: VolumePrices = PRICES, **spec: Any
) -> dict[str, Surcharges]:
    return surcharges(
        make_node_class(**spec),
        zones=("a", "b"),
        public_zones=public,
        prices=prices,
        region=region,
    )


# The price list of EBS in us-west-2, and AWS' own examples of its tiers.
@pytest.mark.parametrize(
    ("fields", "monthly"),
    [
        ({"volume_type": "gp3", "volume_size": "100Gi"}, 8.0),
        ({"volume_type": "gp3", "volume_size": "100Gi", "iops": 3000, "throughput": 125}, 8.0),
        ({"volume_type": "gp3", "volume_size": "100Gi", "iops": 4000}, 13.0),
        ({"volume_type": "gp3", "volume_size": "100Gi", "throughput": 225}, 12.0),
        ({"volume_type": "gp2", "volume_size": "100Gi"}, 10.0),
        ({"volume_size": "100Gi"}, 10.0),
        ({"volume_type": "io1", "volume_size": "100Gi", "iops": 1000}, 77.5),
        ({"volume_type": "io2", "volume_size": "100Gi", "iops": 32_000}, 2092.5),
        ({"volume_type": "io2", "volume_size": "100Gi", "iops": 42_000}, 2547.5),
        ({"volume_type": "io2", "volume_size": "100Gi", "iops": 74_000}, 3867.0),
        ({"volume_type": "st1", "volume_size": "500Gi"}, 22.5),
        ({"volume_type": "sc1", "volume_size": "500Gi"}, 7.5),
        ({"volume_type": "standard", "volume_size": "100Gi"}, 5.0),
        ({"volume_type": "gp3", "volume_size": "20G"}, 1.52),
    ],
)
def test_a_volume_costs_its_size_and_the_performance_above_the_free_share(
    fields: dict[str, Any], monthly: float
) -> None:
    assert PRICES.monthly(volume(**fields)) == pytest.approx(monthly)


@pytest.mark.parametrize(
    ("alias", "mappings", "monthly"),
    [
        ("al2023", None, 1.6),
        ("bottlerocket", None, 1.92),
        ("windows2022", None, 4.0),
        ("al2023", {"/dev/xvda": {"volume_type": "gp3", "volume_size": "100Gi"}}, 8.0),
        # The AMI still provides the root volume of Bottlerocket, and the size that is not stated.
        ("bottlerocket", {"/dev/xvdb": {"volume_type": "gp3", "volume_size": "100Gi"}}, 8.32),
        ("al2023", {"/dev/xvda": {"volume_type": "gp3"}}, 1.6),
        ("al2023", {"/dev/xvdc": {"volume_type": "gp3", "volume_size": "100Gi"}}, 9.6),
    ],
)
def test_a_node_has_the_volumes_of_its_class_and_of_its_image(
    alias: str, mappings: dict[str, dict[str, Any]] | None, monthly: float
) -> None:
    devices = mappings and [
        BlockDeviceMapping(device_name=name, ebs=volume(**fields))
        for name, fields in mappings.items()
    ]
    charged = of_class(
        ami_selector_terms=[SelectorTerm(alias=f"{alias}@latest")], block_device_mappings=devices
    )

    assert charged["a"].volumes == pytest.approx(monthly / HOURS_A_MONTH)
    assert charged["a"] is charged["b"], "offerings share what is equal"


def test_the_price_includes_an_address_only_for_nodes_with_a_public_one() -> None:
    by_subnet = of_class("b")
    assert (by_subnet["a"].address, by_subnet["b"].address) == (0.0, 0.005)
    always = of_class(associate_public_ip_address=True)
    assert {one.address for one in always.values()} == {0.005}
    never = of_class("a", "b", associate_public_ip_address=False)
    assert {one.address for one in never.values()} == {0.0}
    assert of_class("a", region="cn-north-1")["a"].address == 0.0


@pytest.mark.parametrize("home", ["eu-central-1", "us-gov-west-1", "ap-southeast-9"])
def test_every_region_has_shipped_volume_prices(home: str) -> None:
    prices = VolumePrices(shipped_volumes(home))
    assert prices.monthly(volume(volume_type="gp3", volume_size="100Gi")) >= 8.0
    assert prices.monthly(volume(volume_type="io2", volume_size="1Gi", iops=1000)) >= 65.0


def test_prices_of_volumes_in_china_are_unknown_until_they_are_read() -> None:
    assert not shipped_volumes("cn-north-1")
    assert of_class(prices=VolumePrices({}))["a"].volumes == 0.0
