"""The volume with container images: which device it is, and how AL2023 mounts it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from controller.apis import labels
from controller.apis.karpenter.ec2nodeclass import (
    FAMILY_OF_ALIAS,
    BlockDevice,
    BlockDeviceMapping,
    SelectorTerm,
)
from controller.apis.karpenter.imagesnapshot import SNAPSHOT_FAMILIES
from controller.aws.bootstrap.families import family_of
from controller.aws.bootstrap.imagevolumes import WithImages, mount_script, with_images
from tests.aws.builders import make_node_class

SNAPSHOT = "snap-0123456789abcdef0"


def disk(device: str, **fields: Any) -> BlockDeviceMapping:
    return BlockDeviceMapping(device_name=device, ebs=BlockDevice(**fields))


def made(family: str, settings: str = "", *own: BlockDeviceMapping) -> WithImages:
    node_class = make_node_class(
        ami_selector_terms=[SelectorTerm(alias=f"{family}@latest")],
        block_device_mappings=list(own) or None,
    )
    return with_images(node_class, {labels.IMAGE_SNAPSHOT: SNAPSHOT + settings})


def mappings(images: WithImages) -> list[BlockDeviceMapping]:
    return images.node_class.spec.block_device_mappings or []


@pytest.mark.parametrize("annotations", [{}, {labels.IMAGE_SNAPSHOT: "latest"}])
def test_without_a_valid_snapshot_the_nodeclass_is_unchanged(annotations: dict[str, str]) -> None:
    node_class = make_node_class()
    images = with_images(node_class, annotations)
    assert images.node_class is node_class
    assert images.device == ""


def test_nodes_use_the_snapshot_on_the_families_that_the_nodepools_condition_names() -> None:
    by_alias = {alias: made(alias) for alias in FAMILY_OF_ALIAS}
    used = {FAMILY_OF_ALIAS[alias] for alias, images in by_alias.items() if images.device}
    assert used == set(SNAPSHOT_FAMILIES)
    assert by_alias["al2"].node_class.spec.block_device_mappings is None


def test_al2023_gets_one_more_volume() -> None:
    images = made("al2023", ",volumeSize=100Gi,throughput=600,encrypted=false")
    assert images.device == "/dev/xvdp"
    assert mappings(images) == [
        *family_of(images.node_class).block_devices,
        disk(
            "/dev/xvdp",
            snapshot_id=SNAPSHOT,
            volume_size="100Gi",
            volume_type="gp3",
            throughput=600,
            encrypted=False,
            delete_on_termination=True,
        ),
    ]


def test_the_device_name_on_al2023_is_one_that_the_nodeclass_does_not_use() -> None:
    own = (disk("/dev/xvda"), disk("/dev/xvdp"), disk("/dev/sdo"))
    images = made("al2023", "", *own)
    assert images.device == "/dev/xvdn"
    assert mappings(images)[:3] == list(own)
    every = [disk(f"/dev/sd{letter}") for letter in "fghijklmnop"]
    assert made("al2023", "", *every).device == ""


def test_bottlerockets_data_volume_has_the_size_of_the_snapshot_unless_stated() -> None:
    system, data = mappings(made("bottlerocket"))
    assert system.device_name == "/dev/xvda"
    assert data == disk(
        "/dev/xvdb",
        snapshot_id=SNAPSHOT,
        volume_type="gp3",
        encrypted=True,
        delete_on_termination=True,
    )
    _, sized = mappings(made("bottlerocket", ",volumeSize=100Gi"))
    assert sized.ebs is not None
    assert sized.ebs.volume_size == "100Gi"


def test_bottlerockets_data_volume_keeps_the_settings_of_the_nodeclass() -> None:
    own = disk("/dev/xvdb", volume_size="200Gi", volume_type="gp3", iops=6000, encrypted=True)
    images = made("bottlerocket", ",throughput=600", own)
    assert images.device == "/dev/xvdb"
    assert mappings(images) == [
        disk(
            "/dev/xvdb",
            snapshot_id=SNAPSHOT,
            volume_size="200Gi",
            volume_type="gp3",
            iops=6000,
            throughput=600,
            encrypted=True,
        )
    ]


# The script, with commands that record their calls.

COMMANDS = """\
call() { echo "$*" >> calls; [[ " $FAILING " != *" $1 "* ]]; }
systemctl() { call "$1-$2"; }
mount() {
  call mount || return 1
  touch mounted
  mkdir -p containerd/$CONTENT
  touch containerd/$CONTENT/meta.db
}
umount() { call umount; rm mounted; }
mountpoint() { [ -e mounted ]; }
findmnt() { echo $FILE_SYSTEM; }
blkid() { echo 1234-abcd; }
xfs_growfs() { call xfs_growfs; }
resize2fs() { call resize2fs; }
ctr() { call ctr; }
"""


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    (tmp_path / "device").touch()
    (tmp_path / "pause.tar").touch()
    return tmp_path


def run(machine: Path, **environment: str) -> tuple[list[str], bool]:
    """Run the script; returns the calls of commands, and whether a reboot mounts the volume."""
    script = mount_script("device")
    for path, ours in (
        ("/var/lib/containerd", "containerd"),
        ("/etc/fstab", "fstab"),
        ("/etc/eks/", ""),
        ("-b $device", "-e $device"),
    ):
        assert path in script
        script = script.replace(path, ours)
    content = {"CONTENT": "io.containerd.metadata.v1.bolt", "FILE_SYSTEM": "xfs", "FAILING": ""}
    done = subprocess.run(
        ["bash", "-c", COMMANDS + script],
        cwd=machine,
        env={"PATH": "/usr/bin:/bin", **content, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    assert done.stderr == ""
    table = machine / "fstab"
    is_used = table.exists()
    if is_used:
        assert table.read_text() == (
            "UUID=1234-abcd containerd auto noatime,nofail,x-systemd.before=containerd.service"
            " 0 0\n"
        )
    assert ("images are not used" in done.stdout) is not is_used
    assert (machine / "mounted").exists() is is_used
    return (machine / "calls").read_text().split(), is_used


@pytest.mark.process
@pytest.mark.parametrize(
    ("file_system", "grown"), [("xfs", ["xfs_growfs"]), ("ext4", ["resize2fs"]), ("btrfs", [])]
)
def test_al2023_mounts_the_volume_and_keeps_the_image_of_pause_containers(
    machine: Path, file_system: str, grown: list[str]
) -> None:
    calls, is_used = run(machine, FILE_SYSTEM=file_system)
    assert is_used
    stop, start = "stop-containerd", "start-containerd"
    assert calls == [stop, "mount", *grown, start, "ctr"]


@pytest.mark.process
def test_an_ami_without_an_image_of_pause_containers_needs_none(machine: Path) -> None:
    (machine / "pause.tar").unlink()
    calls, is_used = run(machine)
    assert is_used
    assert "ctr" not in calls


@pytest.mark.process
def test_a_volume_that_cannot_be_resized_is_used(machine: Path) -> None:
    assert run(machine, FAILING="xfs_growfs")[1]


@pytest.mark.process
@pytest.mark.parametrize(
    "environment",
    [
        {"FAILING": "mount"},
        {"FAILING": "start-containerd"},
        {"FAILING": "ctr"},
        {"CONTENT": "home"},
    ],
    ids=str,
)
def test_a_volume_that_containerd_cannot_use_is_left_out(
    machine: Path, environment: dict[str, str]
) -> None:
    calls, is_used = run(machine, **environment)
    assert not is_used
    assert calls[-1] == ("stop-containerd" if environment.get("FAILING") == "mount" else "umount")
