"""AMI families: the defaults of each for block devices, pods and user data."""

from __future__ import annotations

from dataclasses import dataclass

from controller.apis.karpenter.ec2nodeclass import BlockDevice, BlockDeviceMapping, EC2NodeClass


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """An AMI family and its defaults."""

    name: str
    alias: str = ""
    windows_build: str = ""
    ephemeral_device: str = ""
    block_devices: tuple[BlockDeviceMapping, ...] = ()
    eni_limited: bool = True
    """Whether the IP addresses of the network interfaces limit the number of pods."""

    supports_pods_per_core: bool = True
    reserves_for_actual_pods: bool = False
    """Whether reserved memory follows maxPods instead of the number of pods the interfaces allow.
    """

    pods: int = 110
    """Maximum number of pods if the network interfaces do not limit it."""

    @property
    def is_windows(self) -> bool:
        """Whether nodes of the family run Windows."""
        return bool(self.windows_build)


def _disk(device: str, size: str) -> BlockDeviceMapping:
    return BlockDeviceMapping(
        device_name=device,
        ebs=BlockDevice(
            volume_size=size, volume_type="gp3", encrypted=True, delete_on_termination=True
        ),
    )


def _windows(year: str, build: str) -> Family:
    return Family(
        name=f"Windows{year}",
        alias=f"windows{year}",
        windows_build=build,
        ephemeral_device="/dev/sda1",
        block_devices=(_disk("/dev/sda1", "50Gi"),),
        eni_limited=False,
        reserves_for_actual_pods=True,
    )


AL2 = Family(
    name="AL2",
    alias="al2",
    ephemeral_device="/dev/xvda",
    block_devices=(_disk("/dev/xvda", "20Gi"),),
)
AL2023 = Family(
    name="AL2023",
    alias="al2023",
    ephemeral_device="/dev/xvda",
    block_devices=(_disk("/dev/xvda", "20Gi"),),
)
BOTTLEROCKET = Family(
    name="Bottlerocket",
    alias="bottlerocket",
    ephemeral_device="/dev/xvdb",
    block_devices=(_disk("/dev/xvda", "4Gi"), _disk("/dev/xvdb", "20Gi")),
    supports_pods_per_core=False,
    reserves_for_actual_pods=True,
)
WINDOWS2019 = _windows("2019", "10.0.17763")
WINDOWS2022 = _windows("2022", "10.0.20348")
WINDOWS2025 = _windows("2025", "10.0.26100")
CUSTOM = Family(name="Custom")

FAMILIES = {
    f.name: f for f in (AL2, AL2023, BOTTLEROCKET, WINDOWS2019, WINDOWS2022, WINDOWS2025, CUSTOM)
}
_BY_ALIAS = {f.alias: f for f in FAMILIES.values() if f.alias}


def alias_of(node_class: EC2NodeClass) -> tuple[Family, str] | None:
    """Return the AMI family and version of the EC2NodeClass's alias, or None if it has no alias."""
    for term in node_class.spec.ami_selector_terms:
        if term.alias:
            family, _, version = term.alias.partition("@")
            return _BY_ALIAS[family], version
    return None


def family_of(node_class: EC2NodeClass) -> Family:
    """Return the AMI family whose user data and defaults the EC2NodeClass uses."""
    return FAMILIES[node_class.spec.resolved_ami_family]
