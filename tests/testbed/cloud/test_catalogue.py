"""Instance types, offerings, prices and images."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from botocore.exceptions import ClientError

from testbed.cloud import CloudControl
from tests.testbed.cloud.builders import Region, unique
from tests.testbed.cloud.conftest import Aws

ON_DEMAND = {
    "regionCode": "us-west-2",
    "serviceCode": "AmazonEC2",
    "preInstalledSw": "NA",
    "operatingSystem": "Linux",
    "capacitystatus": "Used",
    "marketoption": "OnDemand",
}


def listed(client: Any, operation: str, member: str, **arguments: Any) -> list[Any]:
    pages = client.get_paginator(operation).paginate(**arguments)
    return [each for page in pages for each in page[member]]


def test_only_types_offered_in_the_region_are_listed_in_pages(ec2: Any) -> None:
    filters = [
        {"Name": "supported-virtualization-type", "Values": ["hvm"]},
        {"Name": "processor-info.supported-architecture", "Values": ["x86_64", "arm64"]},
    ]

    first = ec2.describe_instance_types(Filters=filters, MaxResults=100)
    everything = listed(ec2, "describe_instance_types", "InstanceTypes", Filters=filters)

    assert len(first["InstanceTypes"]) == 100
    assert first["NextToken"]
    names = [each["InstanceType"] for each in everything]
    assert len(set(names)) == len(names) > 1000
    offered = listed(ec2, "describe_instance_type_offerings", "InstanceTypeOfferings")
    assert set(names) <= {each["InstanceType"] for each in offered}


def test_an_instance_type_has_the_fields_from_which_a_node_is_computed(ec2: Any) -> None:
    [described] = ec2.describe_instance_types(InstanceTypes=["m5.large"])["InstanceTypes"]

    assert described["VCpuInfo"]["DefaultVCpus"] == 2
    assert described["MemoryInfo"]["SizeInMiB"] == 8192
    assert described["NetworkInfo"]["MaximumNetworkInterfaces"] == 3
    assert described["NetworkInfo"]["Ipv4AddressesPerInterface"] == 10
    assert described["ProcessorInfo"]["SupportedArchitectures"] == ["x86_64"]
    assert described["SupportedUsageClasses"] == ["on-demand", "spot"]
    assert described["BareMetal"] is False


def test_types_are_filtered_by_glob_and_boolean(ec2: Any) -> None:
    by_glob = [{"Name": "instance-type", "Values": ["m5.*"]}]
    metal = [*by_glob, {"Name": "bare-metal", "Values": ["true"]}]

    names = {
        each["InstanceType"]
        for each in ec2.describe_instance_types(Filters=by_glob)["InstanceTypes"]
    }

    assert "m5.large" in names
    assert all(name.startswith("m5.") for name in names)
    [described] = ec2.describe_instance_types(Filters=metal)["InstanceTypes"]
    assert described["InstanceType"] == "m5.metal"


def test_an_unknown_type_is_named(ec2: Any) -> None:
    with pytest.raises(ClientError, match=r"InvalidInstanceType\b.*m5\.huge"):
        ec2.describe_instance_types(InstanceTypes=["m5.large", "m5.huge"])


def test_offerings_differ_by_zone(ec2: Any) -> None:
    by_zone = listed(
        ec2,
        "describe_instance_type_offerings",
        "InstanceTypeOfferings",
        LocationType="availability-zone",
        Filters=[{"Name": "instance-type", "Values": ["m5.large", "p3dn.24xlarge"]}],
    )

    zones: dict[str, set[str]] = {}
    for each in by_zone:
        zones.setdefault(each["InstanceType"], set()).add(each["Location"])
    assert {"us-west-2a", "us-west-2b", "us-west-2c"} <= zones["m5.large"]
    assert "us-west-2a" not in zones["p3dn.24xlarge"]


def on_demand_prices(aws: Aws, **changes: str) -> dict[str, float]:
    filters = [
        {"Type": "TERM_MATCH", "Field": field, "Value": value}
        for field, value in {**ON_DEMAND, **changes}.items()
    ]
    products = listed(
        aws.client("pricing"),
        "get_products",
        "PriceList",
        ServiceCode="AmazonEC2",
        Filters=filters,
    )
    prices = {}
    for product in map(json.loads, products):
        [term] = product["terms"]["OnDemand"].values()
        [dimension] = term["priceDimensions"].values()
        name = product["product"]["attributes"]["instanceType"]
        prices[name] = float(dimension["pricePerUnit"]["USD"])
    return prices


def test_on_demand_prices_are_listed_for_shared_and_for_bare_metal(aws: Aws) -> None:
    shared = on_demand_prices(aws, tenancy="Shared", productFamily="Compute Instance")
    metal = on_demand_prices(
        aws, tenancy="Dedicated", productFamily="Compute Instance (bare metal)"
    )

    assert len(shared) > 1000
    assert "m5.metal" in metal
    assert "m5.metal" not in shared
    assert min(shared.values()) > 0


def test_on_demand_prices_are_those_that_aws_publishes(aws: Aws) -> None:
    prices = on_demand_prices(aws, tenancy="Shared", productFamily="Compute Instance")

    published = {
        "t3.nano": 0.0052,
        "m5.large": 0.096,
        "m6g.large": 0.077,
        "m7i.large": 0.1008,
        "c5.large": 0.085,
        "r5.large": 0.126,
        "g4dn.xlarge": 0.526,
        "g5.xlarge": 1.006,
    }
    assert {name: prices[name] for name in published} == pytest.approx(published)


def test_spot_is_cheaper_than_on_demand_and_consistent_across_apis(
    aws: Aws, ec2: Any, control: CloudControl
) -> None:
    on_demand = on_demand_prices(aws, tenancy="Shared", productFamily="Compute Instance")
    history = listed(
        ec2,
        "describe_spot_price_history",
        "SpotPriceHistory",
        ProductDescriptions=["Linux/UNIX", "Linux/UNIX (Amazon VPC)"],
    )

    spot = {(r["InstanceType"], r["AvailabilityZone"]): float(r["SpotPrice"]) for r in history}
    assert len(spot) == len(history) > 3000
    for (name, zone), price in spot.items():
        if name in on_demand:
            assert 0.24 < price / on_demand[name] < 0.61, (name, zone)
    assert spot["m5.large", "us-west-2b"] == control.price(
        instance_type="m5.large", zone="us-west-2b", capacity_type="spot"
    )
    again = ec2.describe_spot_price_history(
        InstanceTypes=["m5.large"],
        AvailabilityZone="us-west-2b",
        ProductDescriptions=["Linux/UNIX"],
    )["SpotPriceHistory"]
    assert [float(row["SpotPrice"]) for row in again] == [spot["m5.large", "us-west-2b"]]


@pytest.mark.parametrize(
    ("parameter", "architecture"),
    [
        ("eks/optimized-ami/1.37/amazon-linux-2023/x86_64/standard/recommended", "x86_64"),
        ("eks/optimized-ami/1.37/amazon-linux-2023/arm64/standard/recommended", "arm64"),
        ("eks/optimized-ami/1.37/amazon-linux-2023/x86_64/nvidia/recommended", "x86_64"),
        ("eks/optimized-ami/1.37/amazon-linux-2023/x86_64/neuron/recommended", "x86_64"),
        (
            "eks/optimized-ami/1.37/amazon-linux-2023/x86_64/standard"
            "/amazon-eks-node-al2023-x86_64-standard-1.37-v20261015",
            "x86_64",
        ),
        ("bottlerocket/aws-k8s-1.37/arm64/latest", "arm64"),
        ("bottlerocket/aws-k8s-1.37-nvidia/x86_64/1.51.0", "x86_64"),
        (
            "ami-windows-latest/Windows_Server-2025-English-Core-EKS_Optimized-1.37",
            "x86_64",
        ),
    ],
)
def test_ami_parameters_name_existing_amis(
    aws: Aws, ec2: Any, parameter: str, architecture: str
) -> None:
    name = f"/aws/service/{parameter}/image_id"
    identity = aws.client("ssm").get_parameter(Name=name)["Parameter"]["Value"]

    [image] = ec2.describe_images(ImageIds=[identity])["Images"]
    assert image["Architecture"] == architecture
    assert image["State"] == "available"
    assert image["CreationDate"] < image["DeprecationTime"]


def test_amazon_linux_2_ended_with_1_32(aws: Aws) -> None:
    name = "/aws/service/eks/optimized-ami/1.37/amazon-linux-2/recommended/image_id"

    with pytest.raises(ClientError, match="ParameterNotFound"):
        aws.client("ssm").get_parameter(Name=name)


def test_amis_are_found_by_name_owner_and_architecture(ec2: Any) -> None:
    filters = [
        {"Name": "name", "Values": ["amazon-eks-node-al2023-*-standard-1.37-*"]},
        {"Name": "architecture", "Values": ["arm64"]},
    ]
    images = ec2.describe_images(Owners=["amazon"], Filters=filters)["Images"]

    assert len(images) == 2
    assert len({image["CreationDate"] for image in images}) == 2
    assert ec2.describe_images(Owners=["self"], Filters=filters)["Images"] == []


def test_a_new_release_becomes_the_recommended_one(
    aws: Aws, ec2: Any, control: CloudControl
) -> None:
    root = "/aws/service/eks/optimized-ami/1.37/amazon-linux-2023/x86_64/standard"
    ssm = aws.client("ssm")
    before = ssm.get_parameter(Name=f"{root}/recommended/image_id")["Parameter"]["Value"]

    published = control.publish_images("20261120")

    after = ssm.get_parameter(Name=f"{root}/recommended/image_id")["Parameter"]["Value"]
    assert after != before
    assert after in published
    [image] = ec2.describe_images(ImageIds=[after])["Images"]
    assert image["Name"].endswith("v20261120")


def test_a_copied_image_belongs_to_the_account_and_can_be_deprecated(aws: Aws, ec2: Any) -> None:
    tags = [{"Key": "copy", "Value": unique("image")}]
    copy = ec2.copy_image(
        SourceImageId=Region(aws).image(),
        SourceRegion="us-west-2",
        Name=unique("copy"),
        TagSpecifications=[{"ResourceType": "image", "Tags": tags}],
    )["ImageId"]
    ec2.enable_image_deprecation(ImageId=copy, DeprecateAt=datetime(2026, 11, 1, tzinfo=UTC))

    filters = [{"Name": "tag:copy", "Values": [tags[0]["Value"]]}]
    [image] = ec2.describe_images(Filters=filters)["Images"]
    assert image["ImageId"] == copy
    assert image["DeprecationTime"] == "2026-11-01T00:00:00.000Z"
    assert [own["ImageId"] for own in ec2.describe_images(Owners=["self"])["Images"]] == [copy]
