from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from moto.ec2.models.instance_types import INSTANCE_TYPES

from controller.apis import labels
from controller.apis.karpenter.ec2nodeclass import (
    BlockDevice,
    BlockDeviceMapping,
    EC2NodeClass,
    EnclaveOptions,
    NetworkInterface,
    SelectorTerm,
)
from controller.apis.kubernetes.quantities import parse
from controller.apis.kubernetes.taints import Requirement
from controller.aws.bootstrap.families import AL2023, WINDOWS2022
from controller.aws.instancetypes.branchinterfaces.__main__ import read as read_limits
from controller.aws.instancetypes.branchinterfaces.__main__ import render
from controller.aws.instancetypes.catalogue import (
    InstanceTypeInfo,
    Limits,
    attachable_volumes,
    attachments_with_efa,
    capacity,
    eni_pods,
    ephemeral_storage,
    instance_type_info,
    kube_reserved,
    overhead,
    pods,
    requirements,
    reserved_cpu,
    supports,
)
from controller.cloudprovider.instancetypes import ATTACHABLE_VOLUMES
from tests.aws.builders import make_node_class

LIMITS = Limits()
AWS = "karpenter.k8s.aws/"
THREE = [
    NetworkInterface(network_card_index=0, device_index=number, interface_type="interface")
    for number in range(3)
]


def known(name: str) -> InstanceTypeInfo:
    return instance_type_info(INSTANCE_TYPES[name])


def alias(name: str) -> dict[str, Any]:
    return {"ami_selector_terms": [SelectorTerm(alias=f"{name}@latest")]}


# The EKS images carry the same numbers in their eni-max-pods list.
@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("t3.micro", 4),
        ("t3.medium", 17),
        ("m5.large", 29),
        ("m5.xlarge", 58),
        ("m5.4xlarge", 234),
        ("m5.24xlarge", 737),
        ("c5.large", 29),
        ("r5.2xlarge", 58),
        ("m6g.large", 29),
        ("t2.small", 11),
    ],
)
def test_max_pods_follows_the_addresses_of_the_network_interfaces(name: str, count: int) -> None:
    assert eni_pods(known(name)) == count


@pytest.mark.parametrize(
    ("spec", "limits", "count"),
    [
        pytest.param({}, Limits(reserved_enis=1), 20, id="an interface is reserved"),
        pytest.param({"kubelet": {"maxPods": 110}}, LIMITS, 110, id="maxPods wins"),
        pytest.param({"kubelet": {"podsPerCore": 4}}, LIMITS, 8, id="podsPerCore lowers it"),
        pytest.param({"kubelet": {"podsPerCore": 40}}, LIMITS, 29, id="podsPerCore never raises"),
        pytest.param(
            {**alias("bottlerocket"), "kubelet": {"podsPerCore": 4}},
            LIMITS,
            29,
            id="Bottlerocket knows no podsPerCore",
        ),
        pytest.param(alias("windows2022"), LIMITS, 110, id="Windows is not limited by interfaces"),
    ],
)
def test_max_pods_follows_the_nodeclass_and_the_settings(
    spec: dict[str, Any], limits: Limits, count: int
) -> None:
    assert pods(known("m5.large"), make_node_class(**spec), limits) == count


# What AWS's max-pods-calculator.sh answers with --cni-prefix-delegation-enabled.
@pytest.mark.parametrize(
    ("name", "count"),
    [
        pytest.param("t3.micro", 34, id="fewer addresses than pods"),
        pytest.param("m5.large", 110, id="small"),
        pytest.param("m5.4xlarge", 110, id="fewer than its addresses alone would allow"),
        pytest.param("m5.24xlarge", 250, id="above 30 vCPUs"),
        pytest.param("t2.small", 11, id="not on Nitro"),
    ],
)
def test_max_pods_with_prefix_delegation_is_as_aws_advises(name: str, count: int) -> None:
    assert pods(known(name), make_node_class(), Limits(prefix_delegation=True)) == count


@pytest.mark.parametrize(
    ("name", "spec", "limits", "count"),
    [
        pytest.param("t3.micro", {}, Limits(reserved_enis=1), 18, id="an interface is reserved"),
        pytest.param("m5.large", {"kubelet": {"maxPods": 200}}, LIMITS, 200, id="maxPods wins"),
        pytest.param("m5.large", {"kubelet": {"podsPerCore": 10}}, LIMITS, 20, id="podsPerCore"),
        pytest.param("m5.large", alias("windows2022"), LIMITS, 110, id="Windows"),
    ],
)
def test_max_pods_with_prefix_delegation_follows_the_nodeclass_and_the_settings(
    name: str, spec: dict[str, Any], limits: Limits, count: int
) -> None:
    with_prefixes = dataclasses.replace(limits, prefix_delegation=True)
    assert pods(known(name), make_node_class(**spec), with_prefixes) == count


def test_prefix_delegation_does_not_change_the_reserved_memory() -> None:
    of_addresses, of_prefixes = (
        kube_reserved(known("m5.large"), make_node_class(), Limits(prefix_delegation=by_prefixes))
        for by_prefixes in (False, True)
    )
    assert of_addresses == of_prefixes


@pytest.mark.parametrize(
    ("name", "memory"), [("m5.large", "7577Mi"), ("m6g.large", "7518Mi"), ("c5.large", "3788Mi")]
)
def test_memory_excludes_the_share_of_hypervisor_and_firmware(name: str, memory: str) -> None:
    assert capacity(known(name), make_node_class(), LIMITS)["memory"] == parse(memory)


@pytest.mark.parametrize(
    ("cpus", "reserved"), [(1, 60), (2, 70), (4, 80), (8, 90), (16, 110), (64, 230)]
)
def test_cpu_is_reserved_by_bands(cpus: int, reserved: int) -> None:
    assert reserved_cpu(cpus * 1000) == reserved


def test_overhead_is_reservation_and_eviction_threshold() -> None:
    node_class = make_node_class()
    whole = capacity(known("m5.large"), node_class, LIMITS)
    assert overhead(known("m5.large"), node_class, LIMITS, whole) == {
        "cpu": 70,
        # 11 MiB for each of 29 pods, 255 MiB, and 100 MiB that must stay free.
        "memory": parse("674Mi"),
        # 1 GiB and a tenth of 20 GiB.
        "ephemeral-storage": parse("3Gi"),
    }


def test_user_reservations_replace_the_formula_key_by_key() -> None:
    node_class = make_node_class(
        kubelet={
            "kubeReserved": {"cpu": "200m"},
            "systemReserved": {"cpu": "100m"},
            "evictionHard": {"memory.available": "10%", "nodefs.available": "100%"},
        }
    )
    whole = {"cpu": 2000, "memory": parse("1000Mi"), "ephemeral-storage": parse("20Gi")}
    reserved = overhead(known("m5.large"), node_class, LIMITS, whole)
    assert reserved["cpu"] == 300
    assert reserved["memory"] == parse("574Mi") + parse("100Mi")
    assert reserved["ephemeral-storage"] == parse("1Gi")


def disk(name: str, size: str, *, root: bool = False) -> BlockDeviceMapping:
    return BlockDeviceMapping(device_name=name, ebs=BlockDevice(volume_size=size), root_volume=root)


@pytest.mark.parametrize(
    ("name", "spec", "storage"),
    [
        pytest.param("m5.large", {}, "20Gi", id="the family's own disk"),
        pytest.param(
            "m5d.large", {"instance_store_policy": "RAID0"}, "75G", id="the instance's own disks"
        ),
        pytest.param(
            "m5.large", {"instance_store_policy": "RAID0"}, "20Gi", id="which it may not have"
        ),
        pytest.param(
            "m5.large",
            {"block_device_mappings": [disk("/dev/xvda", "50Gi")]},
            "50Gi",
            id="the device that images use",
        ),
        pytest.param(
            "m5.large",
            {"block_device_mappings": [disk("/dev/a", "9Gi", root=True), disk("/dev/xvda", "5Gi")]},
            "9Gi",
            id="the one called root",
        ),
        pytest.param(
            "m5.large",
            {
                "ami_family": "Custom",
                "block_device_mappings": [disk("/dev/a", "9Gi"), disk("/dev/b", "7Gi")],
            },
            "7Gi",
            id="the last of an unknown image",
        ),
        pytest.param("m5.large", alias("windows2022"), "50Gi", id="Windows"),
    ],
)
def test_ephemeral_storage_is_computed_from(name: str, spec: dict[str, Any], storage: str) -> None:
    resources = capacity(known(name), make_node_class(**spec), LIMITS)
    assert resources["ephemeral-storage"] == parse(storage)


@pytest.mark.parametrize(
    ("name", "spec", "count"),
    [
        ("m7i.large", {}, 31),  # dedicated: 32, less the root volume
        ("m7i.48xlarge", {}, 127),
        ("m5.large", {}, 25),  # shared: 27, less the root volume and the second interface
        (
            "m5.large",
            {"network_interfaces": THREE},
            24,
        ),
        (
            "m7i.large",
            {"network_interfaces": THREE},
            31,
        ),
        ("m5.large", alias("bottlerocket"), 24),  # two volumes
        ("t2.micro", {}, 39),  # Xen: network interfaces do not count
    ],
)
def test_a_node_attaches_the_volumes_that_ec2_allows_less_its_own(
    name: str, spec: dict[str, Any], count: int
) -> None:
    assert attachable_volumes(known(name), make_node_class(**spec)) == count


def test_a_type_without_a_stated_limit_has_that_of_the_ebs_csi_driver() -> None:
    described = {**INSTANCE_TYPES["m5.large"], "EbsInfo": {"EbsOptimizedSupport": "unsupported"}}

    info = instance_type_info(described)

    assert attachable_volumes(info, make_node_class()) == ATTACHABLE_VOLUMES


@pytest.mark.parametrize(
    ("name", "resources"),
    [
        ("g4dn.xlarge", {"nvidia.com/gpu": 1}),
        ("p4d.24xlarge", {"nvidia.com/gpu": 8, "vpc.amazonaws.com/efa": 4}),
        ("inf2.xlarge", {"aws.amazon.com/neuron": 1, "aws.amazon.com/neuroncore": 2}),
        ("inf1.24xlarge", {"aws.amazon.com/neuron": 16, "aws.amazon.com/neuroncore": 64}),
    ],
)
def test_devices_become_extended_resources(name: str, resources: dict[str, int]) -> None:
    offered = capacity(known(name), make_node_class(), LIMITS)
    assert {k: offered[k] // 1000 for k in resources} == resources


@pytest.mark.parametrize(
    ("name", "count"),
    [
        pytest.param("m5.large", 9, id="as the table says"),
        pytest.param("t3.large", None, id="no trunk interface"),
        pytest.param("m5.made-up", None, id="newer than the table"),
    ],
)
def test_pods_with_security_groups_of_their_own_need_branch_interfaces(
    name: str, count: int | None
) -> None:
    made = instance_type_info({**INSTANCE_TYPES["m5.large"], "InstanceType": name})
    offered = capacity(made, make_node_class(), LIMITS)
    assert offered.get("vpc.amazonaws.com/pod-eni") == (count and count * 1000)


def test_branch_interfaces_are_read_from_the_table_of_the_vpc_resource_controller() -> None:
    text = """var Limits = map[string]*VPCLimits{
\t"m5.large": {
\t\tInterface:               3,
\t\tIsTrunkingCompatible:    true,
\t\tBranchInterface:         9,
\t\tHypervisor:  "nitro",
\t},
\t"t2.small": {
\t\tIsTrunkingCompatible:    false,
\t\tBranchInterface:         0,
\t},
"""
    limits = read_limits(text)
    assert limits == {"m5": {"large": 9}}
    assert json.loads(render("a release", limits)) == {"source": "a release", "limits": limits}


@pytest.mark.parametrize(
    ("manufacturer", "resource"),
    [("NVIDIA", "nvidia.com/gpu"), ("AMD", "amd.com/gpu"), ("Habana", "habana.ai/gaudi")],
)
def test_a_gpu_is_the_extended_resource_of_its_vendor(manufacturer: str, resource: str) -> None:
    gpus = [{"Name": "X", "Manufacturer": manufacturer, "Count": 8}]
    made = instance_type_info({**INSTANCE_TYPES["m5.large"], "GpuInfo": {"Gpus": gpus}})
    assert capacity(made, make_node_class(), LIMITS)[resource] == 8000


@pytest.mark.parametrize("name", ["g6f.large", "g6f.4xlarge", "gr6f.4xlarge"])
def test_a_fractional_gpu_is_not_counted_as_a_gpu(name: str) -> None:
    assert "nvidia.com/gpu" not in capacity(known(name), make_node_class(), LIMITS)
    counting = known(name).counting_shares
    assert capacity(counting, make_node_class(), LIMITS)["nvidia.com/gpu"] == 1000
    whole = known("g6.xlarge")
    assert whole.counting_shares == whole


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("m5n.24xlarge", [(0, 0, "efa")]),
        ("p4d.24xlarge", [(0, 0, "efa"), (1, 1, "efa"), (2, 1, "efa"), (3, 1, "efa")]),
        # Each of its cards takes one interface.
        ("hpc6id.32xlarge", [(0, 0, "efa"), (1, 0, "efa")]),
        # Both cards support EFA, the instance has one interface.
        ("i7ie.48xlarge", [(0, 0, "efa")]),
        # The first card does not support EFA.
        (
            "p6-b300.48xlarge",
            [(0, 0, "interface"), *((card, 1, "efa") for card in range(1, 17))],
        ),
    ],
)
def test_efa_interfaces_are_on_cards_that_support_them(
    name: str, expected: list[tuple[int, int, str]]
) -> None:
    attached = attachments_with_efa(known(name))

    assert [(each.card, each.device, each.kind) for each in attached] == expected


def test_every_type_gets_all_its_efa_interfaces() -> None:
    for name, described in INSTANCE_TYPES.items():
        most = (described["NetworkInfo"].get("EfaInfo") or {}).get("MaximumEfaInterfaces", 0)
        attached = attachments_with_efa(known(name))
        listed = described["NetworkInfo"]["NetworkCards"]
        cards = {card["NetworkCardIndex"]: card for card in listed}
        assert [each.kind for each in attached].count("efa") == most, name
        assert all(each.kind in cards[each.card]["InterfaceTypes"] for each in attached), name
        assert all(
            each.device < cards[each.card]["MaximumNetworkInterfaces"] for each in attached
        ), name


def test_a_listed_efa_interface_needs_a_card_that_supports_it() -> None:
    def listing(card: int) -> EC2NodeClass:
        primary = NetworkInterface(network_card_index=0, device_index=0, interface_type="interface")
        efa = NetworkInterface(network_card_index=card, device_index=1, interface_type="efa-only")
        return make_node_class(network_interfaces=[primary, efa])

    assert supports(known("p6-b300.48xlarge"), listing(1))
    assert not supports(known("p6-b300.48xlarge"), listing(0))
    assert supports(known("p5.48xlarge"), listing(0))


def test_an_empty_list_of_interfaces_has_no_efa_devices() -> None:
    node_class = make_node_class(network_interfaces=[])
    assert "vpc.amazonaws.com/efa" not in capacity(known("p4d.24xlarge"), node_class, LIMITS)


@pytest.mark.parametrize(
    ("name", "mbps"),
    [
        ("g6e.48xlarge", "400000"),
        ("g6e.24xlarge", "200000"),
        ("c6in.32xlarge", "200000"),
        ("p4d.24xlarge", "400000"),
        ("p5.48xlarge", "3200000"),
        ("p6-b300.48xlarge", "6400000"),
        ("trn2.48xlarge", "3200000"),
        ("m5.large", "750"),
        ("m5.4xlarge", "5000"),
    ],
)
def test_the_network_bandwidth_is_that_of_the_instance(name: str, mbps: str) -> None:
    assert labels_of(name)[f"{labels.AWS_GROUP}/instance-network-bandwidth"].values == [mbps]


@pytest.mark.parametrize("name", ["r8gb.48xlarge", "c8gn.48xlarge"])
def test_what_ec2_describes_of_an_instance_counts_both_ebs_cards(name: str) -> None:
    described = INSTANCE_TYPES[name]["EbsInfo"]
    assert described["MaximumEbsCards"] == 2
    of_cards = sum(card["MaximumBandwidthInMbps"] for card in described["EbsCards"])
    assert labels_of(name)[f"{labels.AWS_GROUP}/instance-ebs-bandwidth"].values == [str(of_cards)]
    root = 1
    assert attachable_volumes(known(name), make_node_class()) == 128 - root


@pytest.mark.parametrize("name", ["x1e.32xlarge", "d2.8xlarge", "h1.16xlarge", "i2.8xlarge"])
def test_a_raid_has_only_nvme_instance_stores(name: str) -> None:
    node_class = make_node_class(instance_store_policy="RAID0")
    assert ephemeral_storage(known(name), node_class) == parse("20Gi")
    assert ephemeral_storage(known("m5d.large"), node_class) == parse("75G")
    assert ephemeral_storage(known("d3.xlarge"), node_class) == parse("5940G")


@pytest.mark.parametrize(
    ("spec", "ipv6", "supported"),
    [
        ({}, False, {"m5.large", "t2.large", "m4.large", "m5.metal"}),
        ({}, True, {"m5.large", "m5.metal"}),
        ({"ip_prefix_count": 1}, False, {"m5.large", "m5.metal"}),
    ],
)
def test_prefixes_and_ipv6_need_nitro_types(
    spec: dict[str, Any], ipv6: bool, supported: set[str]
) -> None:
    node_class = make_node_class(**spec)
    names = ("m5.large", "t2.large", "m4.large", "m5.metal")
    assert {n for n in names if supports(known(n), node_class, ipv6=ipv6)} == supported


def test_the_number_of_efa_devices_follows_the_network_cards() -> None:
    listed = [
        NetworkInterface(network_card_index=0, device_index=0, interface_type="interface"),
        NetworkInterface(network_card_index=0, device_index=1, interface_type="efa-only"),
    ]
    node_class = make_node_class(network_interfaces=listed)
    resources = capacity(known("p4d.24xlarge"), node_class, LIMITS)
    assert resources["vpc.amazonaws.com/efa"] == 1000
    # The interface without addresses replaces one that has addresses.
    without = capacity(known("p4d.24xlarge"), make_node_class(), LIMITS)["pods"]
    assert without - resources["pods"] == 49_000


def labels_of(name: str, family: Any = AL2023) -> dict[str, Requirement]:
    terms = requirements(
        known(name), family, region="us-west-2", zones=("us-west-2a",), reserved=()
    )
    return {r.key: r for r in terms}


def test_an_instance_type_has_its_labels() -> None:
    terms = labels_of("m5.large")
    single = {k: r.values[0] for k, r in terms.items() if len(r.values) == 1}
    assert (
        single.items()
        >= {
            "node.kubernetes.io/instance-type": "m5.large",
            "kubernetes.io/arch": "amd64",
            "kubernetes.io/os": "linux",
            "topology.kubernetes.io/region": "us-west-2",
            f"{AWS}instance-category": "m",
            f"{AWS}instance-family": "m5",
            f"{AWS}instance-generation": "5",
            f"{AWS}instance-size": "large",
            f"{AWS}instance-cpu": "2",
            f"{AWS}instance-cpu-manufacturer": "intel",
            f"{AWS}instance-cpu-sustained-clock-speed-mhz": "3100",
            f"{AWS}instance-memory": "8192",
            f"{AWS}instance-ebs-bandwidth": "4750",
            f"{AWS}instance-network-bandwidth": "750",
            f"{AWS}instance-hypervisor": "nitro",
            f"{AWS}instance-encryption-in-transit-supported": "false",
            f"{AWS}nitro-sandbox": "false",
            f"{AWS}instance-capability-flex": "false",
        }.items()
    )
    assert terms["karpenter.sh/capacity-type"].values == ["on-demand", "spot"]
    for absent in ("instance-gpu-count", "instance-accelerator-count", "instance-local-nvme"):
        assert terms[f"{AWS}{absent}"].operator == "DoesNotExist"
    assert terms["node.kubernetes.io/windows-build"].operator == "DoesNotExist"


@pytest.mark.parametrize(
    ("name", "label", "value"),
    [
        ("g4dn.xlarge", "instance-gpu-name", "t4"),
        ("g4dn.xlarge", "instance-gpu-manufacturer", "nvidia"),
        ("g4dn.xlarge", "instance-gpu-memory", "16384"),
        ("g4dn.xlarge", "instance-local-nvme", "125"),
        ("inf2.xlarge", "instance-accelerator-name", "inferentia2"),
        ("inf2.xlarge", "instance-accelerator-manufacturer", "aws"),
        ("inf2.xlarge", "instance-accelerator-count", "1"),
        ("m7i-flex.large", "instance-capability-flex", "true"),
        ("m7i-flex.large", "instance-generation", "7"),
        ("u-6tb1.112xlarge", "instance-category", "u"),
        ("u-6tb1.112xlarge", "instance-generation", "1"),
        ("m6g.large", "instance-cpu-manufacturer", "aws"),
    ],
)
def test_special_instance_types_have_their_labels(name: str, label: str, value: str) -> None:
    assert labels_of(name)[f"{AWS}{label}"].values == [value]


def test_windows_nodes_have_the_label_of_their_build() -> None:
    terms = labels_of("m5.large", WINDOWS2022)
    assert terms["kubernetes.io/os"].values == ["windows"]
    assert terms["node.kubernetes.io/windows-build"].values == ["10.0.20348"]


@pytest.mark.parametrize(
    ("name", "spec"),
    [
        pytest.param("a1.large", {}, id="AL2023 does not run on a1"),
        pytest.param("m6g.large", alias("windows2022"), id="Windows does not run on Arm"),
    ],
)
def test_a_nodeclass_excludes_incompatible_instance_types(name: str, spec: dict[str, Any]) -> None:
    assert not supports(known(name), make_node_class(**spec))
    assert supports(known("m5.large"), make_node_class(**spec))


def test_a_nodeclass_with_enclaves_uses_only_types_that_support_them() -> None:
    with_enclaves = make_node_class(enclave_options=EnclaveOptions(enabled=True))
    able = dataclasses.replace(known("m5.large"), enclaves=True)
    unable = dataclasses.replace(able, enclaves=False)

    assert supports(able, with_enclaves)
    assert not supports(unable, with_enclaves)
    assert supports(unable, make_node_class(enclave_options=EnclaveOptions(enabled=False)))


def test_every_type_of_ec2_can_be_read() -> None:
    node_class = make_node_class()
    for described in INSTANCE_TYPES.values():
        hardware = instance_type_info(described)
        if hardware.architectures:
            whole = capacity(hardware, node_class, LIMITS)
            assert whole["cpu"] > 0
            assert overhead(hardware, node_class, LIMITS, whole)["memory"] < whole["memory"]
