from __future__ import annotations

import pytest

from controller.apis import labels
from controller.apis.karpenter.ec2nodeclass import BlockDevice
from controller.apis.karpenter.hashes import node_pool_hash
from controller.apis.karpenter.imagesnapshot import ImageSnapshotError, image_snapshot
from tests.builders import changed, make_nodepool

SNAPSHOT = "snap-0123456789abcdef0"


def read(value: str) -> BlockDevice | None:
    return image_snapshot({labels.IMAGE_SNAPSHOT: value})


def test_without_the_annotation_there_is_no_snapshot() -> None:
    assert image_snapshot({"team": "a"}) is None


@pytest.mark.parametrize("value", [SNAPSHOT, "snap-01234567", f" {SNAPSHOT} "])
def test_the_id_of_a_snapshot_is_enough(value: str) -> None:
    assert read(value) == BlockDevice(snapshot_id=value.strip())


def test_settings_of_the_volume_follow_the_id() -> None:
    value = (
        f"{SNAPSHOT}, volumeSize=100Gi, volumeType=io2,iops=4000,throughput=600,encrypted=false,"
        "volumeInitializationRate=300,kmsKeyID=arn:aws:kms:us-west-2:111122223333:key/a-b"
    )
    assert read(value) == BlockDevice(
        snapshot_id=SNAPSHOT,
        volume_size="100Gi",
        volume_type="io2",
        iops=4000,
        throughput=600,
        encrypted=False,
        volume_initialization_rate=300,
        kms_key_id="arn:aws:kms:us-west-2:111122223333:key/a-b",
    )


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("", "'' is not the ID of an EBS snapshot"),
        ("ami-0123456789abcdef0", "'ami-0123456789abcdef0' is not the ID"),
        ("snap-$(reboot)", "is not the ID"),
        (f"{SNAPSHOT}=100Gi", "is not the ID"),
        (f"{SNAPSHOT},100Gi", "'100Gi' is not a setting name=value"),
        (f"{SNAPSHOT},iops=1,iops=2", "'iops=2' is not a setting name=value, or repeats one"),
        (f"{SNAPSHOT},size=100Gi", "unknown field `size`"),
        (f"{SNAPSHOT},snapshotID=snap-01234567", "unknown field `snapshotID`"),
        (f"{SNAPSHOT},volumeSize=100", "volumeSize"),
        (f"{SNAPSHOT},volumeType=fast", "volumeType"),
        (f"{SNAPSHOT},iops=many", "iops"),
        (f"{SNAPSHOT},volumeInitializationRate=50", "volumeInitializationRate"),
    ],
)
def test_an_invalid_value_is_refused_with_a_message(value: str, says: str) -> None:
    with pytest.raises(ImageSnapshotError) as refused:
        read(value)
    assert says in str(refused.value)


def test_another_snapshot_is_drift_of_the_nodepool() -> None:
    hashes = {
        node_pool_hash(
            changed(make_nodepool(), spec={"template": {"metadata": {"annotations": annotations}}})
        )
        for annotations in (
            {},
            {labels.IMAGE_SNAPSHOT: SNAPSHOT},
            {labels.IMAGE_SNAPSHOT: f"{SNAPSHOT},volumeSize=100Gi"},
        )
    }
    assert len(hashes) == 3
