"""The Node of a running EC2 instance. Pure functions: instance and user data in, manifest out.

Capacity of the Node:

* Memory: the kernel and the hypervisor reserve part of the nominal memory, so a kubelet sees
  less. Real instances show 2 % to 8 % less. Here it is 6 % for every instance type, so that
  Karpenter's default estimate of 7.5 % (vmMemoryOverheadPercent) is safe, as intended.
* Pods: the limit in the user data, else the limit of the type's network interfaces.
* Extended resources, such as GPUs: present at registration, as if their device plugin already
  ran.
* Huge pages: those of 2 MiB that a script in the user data reserves. They are no longer part of the
  allocatable memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from math import ceil

import msgspec

from testbed.kube.client import Object
from testbed.kube.quantities import GIBIBYTE, MEBIBYTE, format_cpu, format_memory, parse_quantity
from testbed.nodes.userdata import Bootstrap, Dialect
from testbed.processes import binaries

KWOK_NODE = "kwok.x-k8s.io/node"
KWOK_STATUS = "kwok.x-k8s.io/status"
UNINITIALIZED = "node.cloudprovider.kubernetes.io/uninitialized"
SHUTDOWN = "node.cloudprovider.kubernetes.io/shutdown"
NOT_READY = "node.kubernetes.io/not-ready"

VISIBLE_MEMORY = Fraction(94, 100)

ARCHITECTURES = {"x86_64": "amd64", "arm64": "arm64"}
HUGE_PAGES = "hugepages-2Mi"
HUGE_PAGE = 2 * MEBIBYTE

GONE = frozenset({"terminated"})
SILENT = frozenset({"shutting-down", "stopping", "stopped"})


class Instance(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One EC2 instance, as the test cloud's control API describes it."""

    id: str = msgspec.field(name="instanceId")
    state: str  # pending, running, shutting-down, terminated, stopping, stopped
    reboots: int = 0
    type: str = msgspec.field(name="instanceType")
    zone: str
    zone_id: str = ""
    reaches_out: bool = True
    """Whether the instance can reach EKS and a registry from its subnet."""

    private_ip: str
    private_dns_name: str
    user_data: str = ""
    image_name: str = ""
    architecture: str = "x86_64"
    role_arn: str | None = None
    cpu: int
    memory_mib: int = msgspec.field(name="memoryMiB")
    eni_pods: int = msgspec.field(name="maxPods")
    storage_gib: int = msgspec.field(name="storageGiB", default=20)
    local_storage_gb: int = msgspec.field(name="localStorageGB", default=0)
    extended_resources: Mapping[str, int] = msgspec.field(default_factory=dict)

    @property
    def provider_id(self) -> str:
        """The provider ID of the instance's Node."""
        return f"aws:///{self.zone}/{self.id}"

    @property
    def machine_id(self) -> str:
        """The machine ID of the instance's Node."""
        # kwok writes IDs back without quotes, so one of only digits would become a number.
        return f"ec2{self.id.removeprefix('i-')}"

    @property
    def boot_id(self) -> str:
        """The boot ID of the instance's Node, which changes with each reboot."""
        return f"{self.machine_id}-{self.reboots}" if self.reboots else self.machine_id

    @property
    def region(self) -> str:
        """The region of the instance's zone."""
        return self.zone.rstrip("abcdefghijklmnopqrstuvwxyz")


class Listing(msgspec.Struct, frozen=True):
    """Every instance, and the revision of the last change: the answer of `/testbed/instances`."""

    revision: int
    instances: list[Instance]


def registered_node(instance: Instance, orders: Bootstrap) -> Object:
    """Return the Node that the kubelet registers: not ready, and not initialized by the cloud.

    `orders` is the kubelet configuration from the instance's user data.
    """
    capacity = _capacity(instance, orders)
    architecture = ARCHITECTURES[instance.architecture]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": instance.private_dns_name,
            "labels": {
                "beta.kubernetes.io/arch": architecture,
                "beta.kubernetes.io/os": "linux",
                "kubernetes.io/arch": architecture,
                "kubernetes.io/hostname": instance.private_dns_name,
                "kubernetes.io/os": "linux",
                **orders.labels,
            },
            "annotations": {
                "volumes.kubernetes.io/controller-managed-attach-detach": "true",
                KWOK_NODE: "fake",
            },
        },
        "spec": {
            "providerID": instance.provider_id,
            "taints": [
                {"key": UNINITIALIZED, "value": "true", "effect": "NoSchedule"},
                {"key": NOT_READY, "effect": "NoSchedule"},
                *orders.taints,
            ],
        },
        "status": {
            "addresses": [
                {"type": "InternalIP", "address": instance.private_ip},
                {"type": "InternalDNS", "address": instance.private_dns_name},
                {"type": "Hostname", "address": instance.private_dns_name},
            ],
            "capacity": {name: _quantity_text(name, amount) for name, amount in capacity.items()},
            "allocatable": {
                name: _quantity_text(name, amount)
                for name, amount in _allocatable(instance, orders, capacity).items()
            },
            "conditions": [
                {
                    "type": "Ready",
                    "status": "False",
                    "reason": "KubeletNotReady",
                    "message": "the container runtime's network is not ready",
                }
            ],
            "nodeInfo": _node_info(instance, orders, architecture),
        },
    }


def cloud_labels(instance: Instance) -> dict[str, str]:
    """Return the labels that the AWS cloud controller manager adds to a Node."""
    labels = {
        "beta.kubernetes.io/instance-type": instance.type,
        "failure-domain.beta.kubernetes.io/region": instance.region,
        "failure-domain.beta.kubernetes.io/zone": instance.zone,
        "node.kubernetes.io/instance-type": instance.type,
        "topology.kubernetes.io/region": instance.region,
        "topology.kubernetes.io/zone": instance.zone,
    }
    if instance.zone_id:
        labels["topology.k8s.aws/zone-id"] = instance.zone_id
    return labels


def _node_info(instance: Instance, orders: Bootstrap, architecture: str) -> Object:
    return {
        "architecture": architecture,
        "bootID": instance.boot_id,
        "containerRuntimeVersion": "containerd://2.1.5",
        "kernelVersion": "6.12.0",
        "kubeProxyVersion": "",
        "kubeletVersion": f"{binaries.kubernetes_version()}-eks-testbed",
        "machineID": instance.machine_id,
        "operatingSystem": "linux",
        "osImage": f"{orders.dialect} (testbed)",
        "systemUUID": instance.machine_id,
    }


def _capacity(instance: Instance, orders: Bootstrap) -> dict[str, Fraction]:
    memory = instance.memory_mib * MEBIBYTE * VISIBLE_MEMORY
    storage = Fraction(instance.storage_gib * GIBIBYTE)
    if orders.local_storage and instance.local_storage_gb:
        storage = Fraction(instance.local_storage_gb * 10**9)
    return {
        "cpu": Fraction(instance.cpu),
        "memory": Fraction(int(memory / 1024) * 1024),
        "ephemeral-storage": storage,
        "pods": Fraction(_pods(instance, orders)),
        **({HUGE_PAGES: Fraction(orders.huge_pages * HUGE_PAGE)} if orders.huge_pages else {}),
        **{name: Fraction(count) for name, count in instance.extended_resources.items()},
    }


def _pods(instance: Instance, orders: Bootstrap) -> int:
    most = instance.eni_pods if orders.max_pods is None else orders.max_pods
    if orders.pods_per_core:
        return min(most, orders.pods_per_core * instance.cpu)
    return most


def _allocatable(
    instance: Instance, orders: Bootstrap, capacity: Mapping[str, Fraction]
) -> dict[str, Fraction]:
    kube = _kube_reserved(instance, orders)
    system = {name: parse_quantity(text) for name, text in orders.system_reserved.items()}
    evicted = _eviction_thresholds(orders, capacity)
    system["memory"] = system.get("memory", Fraction(0)) + capacity.get(HUGE_PAGES, Fraction(0))
    return {
        name: max(
            amount
            - kube.get(name, Fraction(0))
            - system.get(name, Fraction(0))
            - evicted.get(name, Fraction(0)),
            Fraction(0),
        )
        for name, amount in capacity.items()
    }


def _kube_reserved(instance: Instance, orders: Bootstrap) -> dict[str, Fraction]:
    asked = {name: parse_quantity(text) for name, text in orders.kube_reserved.items()}
    if asked and orders.dialect is Dialect.BOOTSTRAP:
        return asked  # a kubelet flag replaces the whole map of the configuration file
    pods = _pods(instance, orders) if orders.dialect is Dialect.BOTTLEROCKET else instance.eni_pods
    return {
        "cpu": _reserved_cpu(instance.cpu),
        "memory": Fraction((11 * pods + 255) * MEBIBYTE),
        "ephemeral-storage": Fraction(GIBIBYTE),
        **asked,
    }


def _reserved_cpu(cores: int) -> Fraction:
    """Reserve 6 % of core 1, 1 % of core 2, 0.5 % of cores 3 and 4, and 0.25 % of the others."""
    bands = ((1, Fraction(60)), (1, Fraction(10)), (2, Fraction(5)), (cores, Fraction(5, 2)))
    millicores, left = 0, cores
    for width, each in bands:
        taken = min(width, left)
        millicores += int(taken * each)
        left -= taken
    return Fraction(millicores, 1000)


def _eviction_thresholds(
    orders: Bootstrap, capacity: Mapping[str, Fraction]
) -> dict[str, Fraction]:
    thresholds = {"memory.available": "100Mi", "nodefs.available": "10%"}
    if orders.eviction_hard and orders.dialect is Dialect.BOOTSTRAP:
        thresholds = {}
    thresholds.update(orders.eviction_hard)
    signals = {"memory.available": "memory", "nodefs.available": "ephemeral-storage"}
    return {
        signals[signal]: _threshold(text, capacity[signals[signal]])
        for signal, text in thresholds.items()
        if signal in signals
    }


def _threshold(text: str, whole: Fraction) -> Fraction:
    if not text.endswith("%"):
        return parse_quantity(text)
    percent = parse_quantity(text[:-1])
    # The kubelet treats 100 % (and 0 %) as no threshold.
    return Fraction(0) if percent == 100 else Fraction(ceil(whole * percent / 100))


def _quantity_text(name: str, amount: Fraction) -> str:
    if name == "cpu":
        return str(int(amount)) if amount.denominator == 1 else format_cpu(amount)
    if name in ("memory", "ephemeral-storage", HUGE_PAGES):
        return format_memory(amount)
    return str(int(amount))
