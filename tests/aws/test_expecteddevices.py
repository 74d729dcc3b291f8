"""Devices that pods claim before any node has published them: GPUs and EFA interfaces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest
from moto.ec2.models.instance_types import INSTANCE_TYPES

from controller.apis import labels
from controller.apis.karpenter.ec2nodeclass import EC2NodeClass
from controller.apis.kubernetes.conditions import find
from controller.apis.kubernetes.devices import Device, DynamicResources
from controller.aws.instancetypes.expecteddevices import EFA, NVIDIA, PCIE_ROOT, Drivers
from controller.aws.provider import AWSCloudProvider
from controller.aws.session import Session
from controller.cloudprovider.instancetypes import InstanceType
from controller.options import AWSFeatureGates, Options
from tests.aws.builders import CLUSTER, NOW, QUEUE, make_claim, make_node_class, ready, within
from tests.aws.conftest import Region
from tests.builders import changed, make_nodepool
from tests.scheduling.devices import claiming, make_class, make_resource_claim, request, solve

BOTH = Drivers(nvidia=True, efa=True)


def of_driver(resources: DynamicResources, driver: str) -> list[Device]:
    templates = resources.resource_slice_templates
    return [device for t in templates if t.driver == driver for device in t.devices]


def sharing(value: str) -> EC2NodeClass:
    return changed(
        make_node_class(), metadata={"annotations": {labels.NVIDIA_CONSUMABLE_CAPACITY: value}}
    )


def gpu(value: str) -> Device:
    drivers = Drivers(nvidia=True)
    shared = drivers.sharing_of(sharing(value))
    first, *_ = of_driver(drivers.devices("g5.xlarge", shared, efa_interfaces=0), NVIDIA)
    return first


def capacity_of(device: Device) -> Mapping[str, Any]:
    return {name: msgspec.to_builtins(amount) for name, amount in device.capacity.items()}


def devices(name: str, drivers: Drivers = BOTH) -> DynamicResources:
    """Return the expected devices of an instance type that EC2 describes."""
    described = INSTANCE_TYPES[name]["NetworkInfo"].get("EfaInfo") or {}
    return drivers.devices(name, None, efa_interfaces=described.get("MaximumEfaInterfaces", 0))


def test_an_instance_type_has_as_many_devices_as_ec2_describes() -> None:
    compared = 0
    for name, described in INSTANCE_TYPES.items():
        expected = devices(name)
        gpus, efas = of_driver(expected, NVIDIA), of_driver(expected, EFA)
        if gpus and described.get("GpuInfo"):
            counts = [each.get("Count") or 1 for each in described["GpuInfo"]["Gpus"]]
            assert len(gpus) == sum(counts), name
            compared += 1
        if efas:
            assert len(efas) == described["NetworkInfo"]["EfaInfo"]["MaximumEfaInterfaces"], name
            compared += 1
    assert compared > 300


def test_an_efa_interface_whose_location_is_unknown_has_the_other_attributes() -> None:
    (interface,) = of_driver(devices("m5n.24xlarge"), EFA)

    assert msgspec.to_builtins(interface.attributes) == {
        "dra.net/pciVendor": {"string": "Amazon.com, Inc."},
        "dra.net/pciDevice": {"string": "Elastic Fabric Adapter (EFA)"},
        "dra.net/rdma": {"bool": True},
    }


@pytest.mark.parametrize(
    ("name", "count", "product", "memory", "last_root"),
    [
        ("g7.48xlarge", 8, "NVIDIA RTX PRO 4500 Blackwell Server Edition", "32160Mi", "b9"),
        ("g7e.24xlarge", 4, "NVIDIA RTX PRO 6000 Blackwell Server Edition", "95Gi", "55"),
        ("p4d.24xlarge", 8, "NVIDIA A100-SXM4-40GB", "40Gi", "a0"),
    ],
)
def test_the_gpus_of_a_model_have_its_attributes(
    name: str, count: int, product: str, memory: str, last_root: str
) -> None:
    gpus = of_driver(devices(name), NVIDIA)

    assert len(gpus) == count
    assert {gpu.attributes["productName"].string for gpu in gpus} == {product}
    assert {gpu.capacity["memory"].value for gpu in gpus} == {memory}
    assert gpus[-1].attributes[PCIE_ROOT].string == f"pci0000:{last_root}"


def test_shares_of_gpus_are_no_expected_devices() -> None:
    assert not of_driver(devices("g6f.xlarge"), NVIDIA)


def test_a_gpu_has_the_attributes_that_its_driver_publishes() -> None:
    (template,) = devices("g6.12xlarge", Drivers(nvidia=True)).resource_slice_templates
    attributes = [msgspec.to_builtins(device.attributes) for device in template.devices]

    assert (template.driver, template.pool.name) == (NVIDIA, "gpus-g6.12xlarge")
    assert [device.name for device in template.devices] == ["gpu-0", "gpu-1", "gpu-2", "gpu-3"]
    assert attributes[0] == {
        "type": {"string": "gpu"},
        "brand": {"string": "Nvidia"},
        "productName": {"string": "NVIDIA L4"},
        "architecture": {"string": "Ada Lovelace"},
        "cudaComputeCapability": {"version": "8.9.0"},
        "resource.kubernetes.io/pcieRoot": {"string": "pci0000:37"},
    }
    assert [one["resource.kubernetes.io/pcieRoot"]["string"] for one in attributes] == [
        "pci0000:37",
        "pci0000:39",
        "pci0000:3b",
        "pci0000:3d",
    ]
    assert capacity_of(template.devices[0]) == {"memory": {"value": "23034Mi"}}


def test_an_efa_interface_has_its_numa_node_where_the_driver_publishes_it() -> None:
    found = of_driver(devices("p5.48xlarge"), EFA)

    assert len(found) == 32
    assert msgspec.to_builtins(found[31].attributes) == {
        "dra.net/pciVendor": {"string": "Amazon.com, Inc."},
        "dra.net/pciDevice": {"string": "Elastic Fabric Adapter (EFA)"},
        "dra.net/pciSubsystem": {"string": "efa1"},
        "dra.net/rdma": {"bool": True},
        "dra.net/numaNode": {"int": 1},
        "resource.kubernetes.io/pcieRoot": {"string": "pci0000:bb"},
    }
    (single,) = of_driver(devices("g5.8xlarge"), EFA)
    assert "dra.net/numaNode" not in single.attributes


def test_a_driver_without_its_gate_and_an_unlisted_type_have_no_devices() -> None:
    assert not of_driver(devices("p5.48xlarge", Drivers(nvidia=True)), EFA)
    assert not of_driver(devices("p5.48xlarge", Drivers(efa=True)), NVIDIA)
    assert not devices("p5.48xlarge", Drivers()).any
    assert not devices("m5.large").any


@pytest.mark.parametrize(
    ("value", "capacity"),
    [
        (
            "memory",
            {"memory": {"default": "23028Mi", "min": "1Mi", "max": "23028Mi", "step": "1Mi"}},
        ),
        ("unlimited", {"memory": {"default": "0", "min": "0", "max": "23028Mi", "step": "1Mi"}}),
        (
            "4",
            {
                "memory": {"default": "0", "min": "0", "max": "23028Mi", "step": "1Mi"},
                "shares": {"default": 1, "min": 1, "max": 4, "step": 1},
            },
        ),
    ],
)
def test_claims_share_a_gpu_as_the_annotation_says(
    value: str, capacity: Mapping[str, Mapping[str, Any]]
) -> None:
    shared = gpu(value)

    assert shared.allow_multiple_allocations
    assert capacity_of(shared) == {
        name: {
            "value": parts["max"],
            "requestPolicy": {
                "default": parts["default"],
                "validRange": {key: parts[key] for key in ("min", "max", "step")},
            },
        }
        for name, parts in capacity.items()
    }


@pytest.mark.parametrize("value", ["", "disabled", "0", "-1", "half", "1.5", "9" * 30])
def test_without_a_mode_that_shares_it_a_gpu_is_allocated_once(value: str) -> None:
    assert not gpu(value).allow_multiple_allocations


def opened(session: Session, **settings: Any) -> AWSCloudProvider:
    gates = AWSFeatureGates(dra_nvidia_gpu=True, dra_efa=True)
    given = {"aws_feature_gates": gates, "ignore_dra_requests": False, **settings}
    options = Options(cluster_name=CLUSTER, interruption_queue=QUEUE, **given)
    return AWSCloudProvider(options, aws=session, cluster_dns="10.100.0.10")


@pytest.fixture
def provider(region: Region, session: Session) -> AWSCloudProvider:
    return opened(session)


async def test_a_pod_with_only_claims_gets_a_node_with_such_devices(
    provider: AWSCloudProvider,
) -> None:
    types = await provider.instance_types(await ready(provider), make_nodepool())
    large = "device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('30Gi')) > 0"
    training = make_resource_claim(
        "training",
        request(8, name="gpu", of=NVIDIA, where=large),
        request(1, name="efa", of=EFA),
    )
    classes = [make_class(name, f"device.driver == '{name}'") for name in (NVIDIA, EFA)]

    results = solve([claiming("training")], [training], types=types, classes=classes)

    (node,) = results.new_nodes
    assert {name.partition(".")[0] for name in node.instance_types} <= {
        *("g6e", "p3dn", "p4d", "p4de", "p5", "p5e", "p5en", "p6-b200", "p6-b300"),
    }
    assert node.annotations[labels.REQUESTED_DRA_DRIVERS] == "dra.net,gpu.nvidia.com"


async def test_claims_are_ignored_whatever_the_gates_if_the_setting_says_so(
    region: Region, session: Session
) -> None:
    provider = opened(session, ignore_dra_requests=True)
    types = await provider.instance_types(await ready(provider), make_nodepool())

    assert not any(one.dynamic_resources.any for one in types)


async def test_a_changed_annotation_changes_how_gpus_are_shared(
    provider: AWSCloudProvider,
) -> None:
    node_class = await ready(provider)
    alone = await provider.instance_types(node_class, make_nodepool())
    annotations = {**node_class.metadata.annotations, labels.NVIDIA_CONSUMABLE_CAPACITY: "4"}
    shared = await provider.instance_types(
        changed(node_class, metadata={"annotations": annotations}), make_nodepool()
    )

    def are_shared(types: Sequence[InstanceType]) -> set[bool]:
        devices = (d for one in types for d in of_driver(one.dynamic_resources, NVIDIA))
        return {device.allow_multiple_allocations for device in devices}

    assert (are_shared(alone), are_shared(shared)) == ({False}, {True})


@pytest.mark.parametrize(("drivers", "interfaces"), [("", 0), ("gpu.nvidia.com,dra.net", 4)])
async def test_an_instance_has_efa_interfaces_if_its_pods_claim_them(
    provider: AWSCloudProvider, region: Region, drivers: str, interfaces: int
) -> None:
    claim = make_claim(within(labels.INSTANCE_TYPE, "p4d.24xlarge"))
    annotated = changed(claim, metadata={"annotations": {labels.REQUESTED_DRA_DRIVERS: drivers}})

    launched = await provider.launch(annotated, await ready(provider))

    (instance,) = region.instances()
    network = region.launch_template(instance)["NetworkInterfaces"]
    assert [each.get("InterfaceType") for each in network].count("efa") == interfaces
    assert launched.capacity.get("vpc.amazonaws.com/efa", "0") == str(interfaces)


@pytest.mark.parametrize(
    ("value", "gate", "reason", "message"),
    [
        (
            "half",
            True,
            "NVIDIAConsumableCapacityInvalid",
            'annotation karpenter.k8s.aws/nvidia-consumable-capacity, "half" is not one of '
            '"disabled", "memory", "unlimited", or a positive integer share count',
        ),
        (
            "4",
            False,
            "DRADisabled",
            "annotation karpenter.k8s.aws/nvidia-consumable-capacity enables GPU sharing, but the "
            "DRANVIDIAGPU feature gate is disabled. To turn it on, add DRANVIDIAGPU=true to the "
            "setting AWS_FEATURE_GATES",
        ),
        ("4", True, "ValidationSucceeded", ""),
        ("disabled", False, "ValidationSucceeded", ""),
    ],
)
async def test_an_annotation_that_cannot_be_honoured_keeps_the_class_from_launching(
    region: Region, session: Session, value: str, gate: bool, reason: str, message: str
) -> None:
    provider = opened(session, aws_feature_gates=AWSFeatureGates(dra_nvidia_gpu=gate))

    resolved = await provider.resolve(sharing(value), now=NOW)

    validation = find(resolved.status.conditions, "ValidationSucceeded")
    assert validation is not None
    assert (validation.reason, validation.message) == (reason, message)
    assert validation.is_true is not bool(message)
