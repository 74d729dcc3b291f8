from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from controller.apis import labels
from controller.apis.karpenter.ec2nodeclass import MetadataOptions
from controller.apis.karpenter.nodeclaim import NodeClaimStatus
from controller.apis.kubernetes import conditions
from controller.apis.kubernetes.quantities import parse
from controller.apis.kubernetes.taints import Requirement, Taint
from controller.aws.instancetypes.offerings import image_for
from controller.aws.instancetypes.surcharges import HOURS_A_MONTH
from controller.aws.provider import AWSCloudProvider
from controller.aws.session import Session
from controller.cloudprovider.errors import (
    CloudProviderError,
    CreateError,
    InsufficientCapacityError,
    NodeClassNotReadyError,
    NodeClassUnknownError,
    ThrottledError,
)
from controller.options import Options
from testbed.nodes.userdata import parse_user_data
from tests.aws.builders import (
    CLUSTER,
    LINUX,
    ON_DEMAND,
    POOL,
    ROLE,
    SPOT,
    Clock,
    make_claim,
    make_node_class,
    make_pool,
    ready,
    within,
)
from tests.aws.conftest import FAMILIES, MANY_FAMILIES, Region
from tests.builders import changed, needs

Start = Callable[[], AWSCloudProvider]

M5 = within("karpenter.k8s.aws/instance-family", "m5")
M5_LARGE = within(labels.INSTANCE_TYPE, "m5.large")
WITH_FRACTIONS = pytest.mark.parametrize(
    "families", [f"{FAMILIES} g6 g6f"], indirect=True, ids=["and fractional GPUs"]
)


async def test_a_claim_launches_the_cheapest_instance_that_satisfies_it(
    provider: AWSCloudProvider, region: Region
) -> None:
    claim = make_claim(ON_DEMAND, M5, requests={"cpu": "3"})

    instance = await provider.launch(claim, await ready(provider))

    (launched,) = region.instances()
    assert instance.provider_id == f"aws:///{launched.zone}/{launched.instance_id}"
    assert (instance.instance_type, instance.capacity_type) == ("m5.xlarge", "on-demand")
    assert launched.capacity_type == "on-demand"
    assert instance.image_id == launched.image_id


async def test_image_pulls_are_parallel_where_the_nodepool_asks_for_it(
    provider: AWSCloudProvider, region: Region
) -> None:
    node_class = await ready(provider)
    fast = make_claim(ON_DEMAND, M5_LARGE, annotations={labels.FAST_IMAGE_PULL: "true"})

    await provider.launch(make_claim(ON_DEMAND, M5_LARGE), node_class)
    await provider.launch(fast, node_class)

    assert ["FastImagePull: true" in one.user_data for one in region.instances()] == [False, True]


async def test_nodes_start_with_the_images_of_the_snapshot_that_the_nodepool_names(
    provider: AWSCloudProvider, region: Region
) -> None:
    node_class = await ready(provider)
    annotations = {labels.IMAGE_SNAPSHOT: "snap-0123456789abcdef0,volumeSize=100Gi"}
    plain = await provider.launch(make_claim(ON_DEMAND, M5_LARGE), node_class)

    cached = await provider.launch(
        make_claim(ON_DEMAND, M5_LARGE, annotations=annotations), node_class
    )

    before, after = region.instances()
    root, images = region.launch_template(after)["BlockDeviceMappings"]
    assert [root] == region.launch_template(before)["BlockDeviceMappings"]
    assert images == {
        "DeviceName": "/dev/xvdp",
        "Ebs": {
            "SnapshotId": "snap-0123456789abcdef0",
            "VolumeSize": 100,
            "VolumeType": "gp3",
            "Encrypted": True,
            "DeleteOnTermination": True,
        },
    }
    assert "device=/dev/xvdp" in after.user_data
    assert "containerd" not in before.user_data
    assert cached.capacity == plain.capacity
    assert cached.annotations == plain.annotations, "the EC2NodeClass has the same hash"


async def test_an_invalid_snapshot_changes_nothing(
    provider: AWSCloudProvider, region: Region
) -> None:
    node_class = await ready(provider)
    invalid = make_claim(ON_DEMAND, M5_LARGE, annotations={labels.IMAGE_SNAPSHOT: "latest"})

    await provider.launch(make_claim(ON_DEMAND, M5_LARGE), node_class)
    await provider.launch(invalid, node_class)

    before, after = (region.launch_template(each) for each in region.instances())
    assert before == after


async def test_the_volume_with_images_is_part_of_the_nodes_price(
    provider: AWSCloudProvider,
) -> None:
    node_class = await ready(provider)
    annotations = {labels.IMAGE_SNAPSHOT: "snap-0123456789abcdef0,volumeSize=100Gi"}
    with_images = changed(
        make_pool(), spec={"template": {"metadata": {"annotations": annotations}}}
    )

    plain = await provider.instance_types(node_class, make_pool())
    cached = await provider.instance_types(node_class, with_images)

    assert plain is await provider.instance_types(node_class)
    for before, after in zip(plain, cached, strict=True):
        assert before.capacity == after.capacity
        for offering, dearer in zip(before.offerings, after.offerings, strict=True):
            extra = dearer.surcharges.volumes - offering.surcharges.volumes
            assert extra == pytest.approx(8.0 / HOURS_A_MONTH)


async def test_overlays_of_prices_and_capacities_decide_what_is_launched(
    provider: AWSCloudProvider, region: Region
) -> None:
    node_class = await ready(provider)
    corrected = [
        replace(
            instance_type,
            capacity={**instance_type.capacity, "example.com/disk": 2000},
            capacity_overlaid=True,
        )
        if instance_type.name == "m5.2xlarge"
        else instance_type
        for instance_type in await provider.instance_types(node_class)
    ]
    claim = make_claim(ON_DEMAND, M5, requests={"cpu": "1", "example.com/disk": "1"})

    with pytest.raises(InsufficientCapacityError):
        await provider.launch(claim, node_class)
    instance = await provider.launch(claim, node_class, corrected)

    assert [launched.instance_type for launched in region.instances()] == ["m5.2xlarge"]
    assert instance.allocatable["example.com/disk"] == "2"


async def test_a_launch_returns_the_labels_and_capacity_of_its_node(
    provider: AWSCloudProvider,
) -> None:
    instance = await provider.launch(make_claim(ON_DEMAND, M5_LARGE), await ready(provider))

    assert instance.labels[labels.INSTANCE_TYPE] == "m5.large"
    assert instance.labels[labels.ARCH] == "amd64"
    assert instance.labels[labels.OS] == "linux"
    assert instance.labels[labels.ZONE] == instance.zone
    assert instance.labels[labels.ZONE_ID].startswith("usw2-az")
    assert instance.labels[labels.REGION] == "us-west-2"
    assert instance.labels[labels.CAPACITY_TYPE] == "on-demand"
    assert instance.labels["karpenter.k8s.aws/instance-category"] == "m"
    assert instance.labels["karpenter.k8s.aws/instance-tenancy"] == "default"
    assert instance.labels[labels.NODEPOOL] == POOL
    assert not any("capacity-reservation" in name for name in instance.labels)
    assert instance.annotations == {
        labels.NODECLASS_HASH: "1",
        labels.NODECLASS_HASH_VERSION: "v6",
        labels.INSTANCE_PROFILE_NAME: ROLE,
    }
    assert instance.capacity == {
        "cpu": "2",
        "memory": "7577Mi",
        "pods": "29",
        "ephemeral-storage": "20Gi",
        "vpc.amazonaws.com/pod-eni": "9",
    }
    assert instance.allocatable["cpu"] == "1930m"
    assert instance.allocatable["memory"] == "6903Mi"


async def test_an_instance_has_its_ownership_tags_from_its_launch(
    provider: AWSCloudProvider, region: Region
) -> None:
    claim = make_claim(ON_DEMAND, M5_LARGE)

    await provider.launch(claim, await ready(provider, tags={"team": "payments"}))

    (launched,) = region.instances()
    assert (
        launched.tags.items()
        >= {
            "team": "payments",
            f"kubernetes.io/cluster/{CLUSTER}": "owned",
            "eks:eks-cluster-name": CLUSTER,
            "joiner.dev/installation": CLUSTER,
            "karpenter.sh/nodepool": POOL,
            "karpenter.k8s.aws/ec2nodeclass": "default",
            "karpenter.sh/nodeclaim": claim.metadata.name,
        }.items()
    )
    ec2 = region.client("ec2")
    (volume,) = ec2.describe_volumes(
        Filters=[{"Name": "attachment.instance-id", "Values": [launched.instance_id]}]
    )["Volumes"]
    assert {t["Key"]: t["Value"] for t in volume["Tags"]}["joiner.dev/installation"] == CLUSTER


async def test_the_user_data_lets_the_instance_join(
    provider: AWSCloudProvider, region: Region
) -> None:
    claim = make_claim(
        ON_DEMAND, M5_LARGE, taints=[Taint(key="team", value="a", effect="NoSchedule")]
    )

    await provider.launch(claim, await ready(provider))

    bootstrap = parse_user_data(region.instances()[0].user_data)
    assert bootstrap.cluster_name == CLUSTER
    assert bootstrap.labels == {
        "karpenter.k8s.aws/ec2nodeclass": "default",
        "karpenter.sh/capacity-type": "on-demand",
        "karpenter.sh/do-not-sync-taints": "true",
        "karpenter.sh/nodepool": POOL,
        "team": "a",
    }
    assert [(t["key"], t["value"], t["effect"]) for t in bootstrap.taints] == [
        ("team", "a", "NoSchedule"),
        ("karpenter.sh/unregistered", "", "NoExecute"),
    ]
    assert bootstrap.max_pods == 29


async def test_with_prefix_delegation_the_kubelets_max_pods_equals_that_of_the_engine(
    session: Session, region: Region
) -> None:
    options = Options(cluster_name=CLUSTER, prefix_delegation=True)
    provider = AWSCloudProvider(options, aws=session, cluster_dns="10.100.0.10")

    launched = await provider.launch(make_claim(ON_DEMAND, M5_LARGE), await ready(provider))

    assert launched.capacity["pods"] == "110"
    assert parse_user_data(region.instances()[0].user_data).max_pods == 110


async def test_the_launch_template_has_the_settings_of_the_nodeclass(
    provider: AWSCloudProvider, region: Region
) -> None:
    node_class = await ready(
        provider, metadata_options=MetadataOptions(http_put_response_hop_limit=2)
    )

    await provider.launch(make_claim(SPOT, M5_LARGE), node_class)

    (launched,) = region.instances()
    content = region.launch_template(launched)
    assert content["MetadataOptions"]["HttpPutResponseHopLimit"] == 2
    assert content["MetadataOptions"]["HttpTokens"] == "required"
    assert content["IamInstanceProfile"] == {"Name": ROLE}
    assert content["BlockDeviceMappings"][0]["Ebs"]["VolumeSize"] == 20
    assert content["BlockDeviceMappings"][0]["Ebs"]["Encrypted"] is True
    assert content["NetworkInterfaces"][0]["Groups"] == list(launched.security_group_ids)
    kinds = {s["ResourceType"] for s in content["TagSpecifications"]}
    assert kinds == {"network-interface", "spot-instances-request"}
    assert b"NodeConfig" in base64.b64decode(content["UserData"])


async def test_spot_is_launched_if_both_capacity_types_are_allowed(
    provider: AWSCloudProvider,
) -> None:
    instance = await provider.launch(make_claim(M5), await ready(provider))
    assert instance.capacity_type == "spot"


async def test_without_spot_capacity_the_next_attempt_is_on_demand(
    provider: AWSCloudProvider, region: Region
) -> None:
    node_class = await ready(provider)
    region.control.set_capacity(capacity_type="spot", available=0)
    with pytest.raises(InsufficientCapacityError):
        await provider.launch(make_claim(M5_LARGE), node_class)

    instance = await provider.launch(make_claim(M5_LARGE), node_class)

    assert instance.capacity_type == "on-demand"
    (known,) = [t for t in await provider.instance_types(node_class) if t.name == "m5.large"]
    assert {o.capacity_type for o in known.offerings if not o.available} == {"spot"}


async def test_a_capacity_pool_without_capacity_is_skipped_in_the_same_launch(
    provider: AWSCloudProvider, region: Region
) -> None:
    node_class = await ready(provider)
    region.control.set_capacity(capacity_type="on-demand", instance_type="m5.large", available=0)

    instance = await provider.launch(make_claim(ON_DEMAND, M5), node_class)

    assert instance.instance_type == "m5.xlarge"
    known = {t.name: t for t in await provider.instance_types(node_class)}["m5.large"]
    assert not any(o.available for o in known.offerings if o.capacity_type == "on-demand")
    assert any(o.available for o in known.offerings if o.capacity_type == "spot")


async def test_a_claim_without_a_compatible_type_fails_with_insufficient_capacity(
    provider: AWSCloudProvider, region: Region
) -> None:
    with pytest.raises(InsufficientCapacityError):
        await provider.launch(make_claim(within(labels.ZONE, "us-west-2z")), await ready(provider))
    assert region.instances() == []


async def test_a_required_zone_is_respected(provider: AWSCloudProvider) -> None:
    claim = make_claim(within(labels.ZONE, "us-west-2b"), LINUX)
    instance = await provider.launch(claim, await ready(provider))
    assert instance.zone == "us-west-2b"


async def test_arm_instances_launch_with_arm_amis(
    provider: AWSCloudProvider, region: Region
) -> None:
    claim = make_claim(within(labels.ARCH, "arm64"))
    instance = await provider.launch(claim, await ready(provider))
    assert instance.labels[labels.ARCH] == "arm64"
    assert "arm64" in region.instances()[0].image_name


async def test_gpu_types_are_launched_only_for_claims_that_request_a_gpu(
    provider: AWSCloudProvider, region: Region
) -> None:
    node_class = await ready(provider)
    plain = await provider.launch(make_claim(ON_DEMAND), node_class)
    assert "nvidia.com/gpu" not in plain.capacity

    gpu = await provider.launch(
        make_claim(ON_DEMAND, requests={"nvidia.com/gpu": "1", "cpu": "1"}), node_class
    )

    assert int(gpu.capacity["nvidia.com/gpu"]) >= 1
    images = {i.instance_type: i.image_name for i in region.instances()}
    assert "nvidia" in images[gpu.instance_type]


@WITH_FRACTIONS
async def test_fractional_gpu_types_are_launched_only_if_requested_by_name(
    provider: AWSCloudProvider, region: Region
) -> None:
    node_class = await ready(provider)
    gpu = {"nvidia.com/gpu": "1", "cpu": "1"}
    nvidia = within("karpenter.k8s.aws/instance-gpu-manufacturer", "nvidia")
    family = within("karpenter.k8s.aws/instance-family", "g6f")

    whole = await provider.launch(make_claim(ON_DEMAND, nvidia, requests=gpu), node_class)
    assert not whole.instance_type.startswith("g6f")
    share = await provider.launch(make_claim(ON_DEMAND, family, requests=gpu), node_class)

    assert share.instance_type == "g6f.large"
    assert share.labels["karpenter.k8s.aws/instance-gpu-count"] == "1"
    images = {i.instance_type: i.image_name for i in region.instances()}
    assert "nvidia" in images["g6f.large"]
    (joining,) = [m for m in region.as_kubelets_see_them() if m.type == "g6f.large"]
    assert joining.extended_resources == {"nvidia.com/gpu": 1}, "its device plugin sees a device"


@WITH_FRACTIONS
async def test_only_pools_that_name_fractional_gpus_are_offered_them(
    provider: AWSCloudProvider,
) -> None:
    node_class = await ready(provider)

    async def gpus(*requirements: Requirement) -> dict[str, int]:
        pool = make_pool(*requirements)
        types = await provider.instance_types(node_class, pool)
        assert await provider.instance_types(node_class, pool) is types
        return {t.name: t.capacity.get("nvidia.com/gpu", 0) // 1000 for t in types}

    seen = await gpus(within("karpenter.k8s.aws/instance-category", "g"))
    assert (seen["g6f.large"], seen["g6.xlarge"]) == (0, 1)
    seen = await gpus(within(labels.INSTANCE_TYPE, "g6f.large", "g6.xlarge"))
    assert (seen["g6f.large"], seen["g6f.xlarge"], seen["g6.xlarge"]) == (1, 0, 1)


async def test_a_pod_without_a_gpu_request_gets_no_fractional_gpu_type_if_another_fits(
    provider: AWSCloudProvider,
) -> None:
    either = within(labels.INSTANCE_TYPE, "g6f.large", "m5.24xlarge")
    plain = await provider.launch(make_claim(ON_DEMAND, either), await ready(provider))
    assert plain.instance_type == "m5.24xlarge"


async def test_unmet_min_values_prevent_the_launch(provider: AWSCloudProvider) -> None:
    family = within("karpenter.k8s.aws/instance-family", "m5", "c5", min_values=2)
    large = within("karpenter.k8s.aws/instance-size", "large")
    node_class = await ready(provider)
    await provider.launch(make_claim(family, large), node_class)
    with pytest.raises(InsufficientCapacityError, match="has minValues 2, but only"):
        await provider.launch(make_claim(family, M5_LARGE), node_class)


# Each launch happens once.


async def test_a_claim_is_launched_once(provider: AWSCloudProvider, region: Region) -> None:
    node_class, claim = await ready(provider), make_claim(M5)
    first = await provider.launch(claim, node_class)
    assert (await provider.launch(claim, node_class)).provider_id == first.provider_id
    assert len(region.instances()) == 1


async def test_a_controller_that_stopped_after_the_launch_finds_its_instance(
    provider: AWSCloudProvider, start: Start, region: Region
) -> None:
    node_class, claim = await ready(provider), make_claim(M5)
    before = await provider.launch(claim, node_class)

    after = start()
    again = await after.launch(claim, await ready(after))

    assert again.provider_id == before.provider_id
    assert again.labels == before.labels
    assert len(region.instances()) == 1


async def test_the_instance_is_found_by_its_tag_if_the_request_has_changed(
    provider: AWSCloudProvider, start: Start, region: Region
) -> None:
    created = datetime.now(UTC) - timedelta(seconds=5)
    claim = make_claim(M5, creation_timestamp=created)
    before = await provider.launch(claim, await ready(provider))

    after = start()
    node_class = await ready(after)
    after.mark_unavailable("m5.large", before.zone, "spot")
    again = await after.launch(claim, node_class)

    assert again.provider_id == before.provider_id
    assert again.labels[labels.INSTANCE_TYPE] == before.instance_type
    assert len(region.instances()) == 1


async def test_a_lost_response_does_not_launch_twice(
    provider: AWSCloudProvider, region: Region
) -> None:
    node_class, claim = await ready(provider), make_claim(M5)
    region.control.order_fault(action="CreateFleet", code="InternalError", status=500, after=True)

    with pytest.raises(CreateError):
        await provider.launch(claim, node_class)
    instance = await provider.launch(claim, node_class)

    assert [i.instance_id for i in region.instances()] == [instance.provider_id.rpartition("/")[2]]


@pytest.mark.parametrize("crashed", [False, True], ids=["same process", "after a crash"])
async def test_a_failed_launch_can_be_retried(
    provider: AWSCloudProvider, start: Start, clock: Clock, region: Region, crashed: bool
) -> None:
    node_class, claim = await ready(provider), make_claim(ON_DEMAND, M5_LARGE)
    region.control.set_capacity(capacity_type="on-demand", available=0)
    with pytest.raises(InsufficientCapacityError):
        await provider.launch(claim, node_class)
    region.control.set_capacity(capacity_type="on-demand", available=None)
    if crashed:
        provider = start()
        # EC2 has already answered the first client token, and repeats that answer.
        node_class = await ready(provider)
        with pytest.raises(InsufficientCapacityError):
            await provider.launch(claim, node_class)

    clock.advance(181)
    await provider.launch(claim, node_class)

    assert len(region.instances()) == 1


async def test_a_launch_without_an_instance_is_retried_once_ec2_is_consistent(
    provider: AWSCloudProvider, start: Start, clock: Clock, region: Region
) -> None:
    claim = make_claim(M5)
    lost = await provider.launch(claim, await ready(provider))
    region.client("ec2").terminate_instances(InstanceIds=[lost.provider_id.rpartition("/")[2]])
    after = start()
    node_class = await ready(after)
    after.mark_unavailable("m5.large", lost.zone, "spot")

    for _ in range(2):
        with pytest.raises(CloudProviderError) as raised:
            await after.launch(claim, node_class)
        assert raised.value.reason == "LaunchInDoubt"
        clock.advance(21)

    await after.launch(claim, node_class)
    assert len(region.instances()) == 1


# Reasons of failed launches.


async def test_a_throttled_launch_is_reported_as_throttled(
    provider: AWSCloudProvider, region: Region
) -> None:
    node_class = await ready(provider)
    region.control.order_fault(action="CreateFleet", code="RequestLimitExceeded", status=503)
    with pytest.raises(ThrottledError):
        await provider.launch(make_claim(M5), node_class)


async def test_a_missing_permission_is_named(provider: AWSCloudProvider, region: Region) -> None:
    node_class = await ready(provider)
    region.control.order_fault(
        action="CreateFleet",
        code="UnauthorizedOperation",
        message="no identity-based policy allows the ec2:CreateFleet action",
        status=403,
    )
    with pytest.raises(CreateError) as raised:
        await provider.launch(make_claim(M5), node_class)
    assert raised.value.reason == "UnauthorizedNoIdentityPolicy"


async def test_a_class_that_is_not_ready_launches_nothing(provider: AWSCloudProvider) -> None:
    with pytest.raises(NodeClassUnknownError) as raised:
        await provider.launch(make_claim(), make_node_class())
    assert raised.value.reason == "NodeClassReadinessUnknown"
    broken = await ready(provider, tags={"eks:eks-cluster-name": "other"})
    with pytest.raises(NodeClassNotReadyError):
        await provider.launch(make_claim(), broken)


async def test_a_subnet_that_is_full_is_avoided(provider: AWSCloudProvider, region: Region) -> None:
    node_class = await ready(provider)
    (full,) = [s.id for s in node_class.status.subnets if s.zone == "us-west-2a"]
    region.control.set_free_addresses(full, 0)
    here = within(labels.ZONE, "us-west-2a")
    with pytest.raises(InsufficientCapacityError):
        await provider.launch(make_claim(M5, here), node_class)

    known = await provider.instance_types(node_class)

    assert not any(o.available for t in known for o in t.offerings if o.zone == "us-west-2a")
    assert (await provider.launch(make_claim(M5), node_class)).zone != "us-west-2a"
    region.control.set_free_addresses(full, 16000)


async def test_a_subnet_without_free_addresses_is_reported_before_a_launch_fails(
    provider: AWSCloudProvider, region: Region, clock: Clock
) -> None:
    full = (await ready(provider)).status.subnets[0]
    region.control.set_free_addresses(full.id, 0)
    clock.advance(61)
    node_class = await ready(provider)

    condition_found = conditions.find(node_class.status.conditions, "AddressesLeft")
    assert condition_found is not None
    assert (condition_found.status, condition_found.reason) == ("False", "SubnetsFull")
    assert condition_found.message.startswith(
        "1 of 3 subnets have no free IP addresses, so no nodes are launched there: "
        f"{full.id} ({full.zone})"
    )
    assert conditions.is_true(node_class.status.conditions, "Ready")
    known = await provider.instance_types(node_class)
    assert full.zone not in {o.zone for t in known for o in t.offerings if o.available}
    region.control.clear_calls()
    with pytest.raises(InsufficientCapacityError):
        await provider.launch(make_claim(M5, within(labels.ZONE, full.zone)), node_class)
    assert not any("ec2:CreateFleet" in made for made in region.control.calls().values())

    region.control.set_free_addresses(full.id, 16000)
    clock.advance(61)
    mended = await ready(provider)
    assert conditions.find(mended.status.conditions, "AddressesLeft") is None


async def test_a_deleted_launch_template_is_created_again(
    provider: AWSCloudProvider, region: Region
) -> None:
    node_class = await ready(provider)
    await provider.launch(make_claim(M5), node_class)
    ec2 = region.client("ec2")
    for template in ec2.describe_launch_templates()["LaunchTemplates"]:
        ec2.delete_launch_template(LaunchTemplateId=template["LaunchTemplateId"])

    await provider.launch(make_claim(M5), node_class)

    assert len(region.instances()) == 2


async def test_an_unreachable_cloud_does_not_delete_the_claim(
    region: Region, options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    nowhere = Session(region="us-west-2", attempts=1)
    with pytest.raises(CloudProviderError) as raised:
        await AWSCloudProvider(options, aws=nowhere).start()
    nowhere.close()
    assert raised.value.reason == "CloudUnreachable"


async def test_the_first_node_of_a_type_corrects_its_memory_capacity(
    provider: AWSCloudProvider,
) -> None:
    node_class = await ready(provider)
    before = {t.name: t for t in await provider.instance_types(node_class)}
    large = before["m5.large"]
    image = image_for(large, node_class.status.amis)
    assert image is not None
    claim = make_claim(M5)
    seen = changed(
        claim,
        metadata={"labels": {**claim.metadata.labels, labels.INSTANCE_TYPE: "m5.large"}},
        status=NodeClaimStatus(image_id=image.id),
    )

    for memory in ("7900Mi", "7800Mi", "7850Mi"):
        provider.record_capacity(seen, {"cpu": "2", "memory": memory})

    after = {t.name: t for t in await provider.instance_types(node_class)}
    assert after["m5.large"].capacity["memory"] == parse("7800Mi")
    assert after["m5.large"].capacity["cpu"] == large.capacity["cpu"]
    assert after["m5.large"].offerings == large.offerings
    assert after["m5.xlarge"] == before["m5.xlarge"]


async def test_a_node_with_another_ami_does_not_correct_the_capacity(
    provider: AWSCloudProvider,
) -> None:
    node_class = await ready(provider)
    before = await provider.instance_types(node_class)
    claim = make_claim(M5)
    other = changed(
        claim,
        metadata={"labels": {**claim.metadata.labels, labels.INSTANCE_TYPE: "m5.large"}},
        status=NodeClaimStatus(image_id="ami-unrelated"),
    )

    provider.record_capacity(other, {"memory": "1Gi"})

    assert [t.capacity for t in await provider.instance_types(node_class)] == [
        t.capacity for t in before
    ]


@pytest.mark.parametrize("families", [MANY_FAMILIES], indirect=True, ids=["many families"])
async def test_dearer_types_are_offered_if_min_values_needs_their_values(
    provider: AWSCloudProvider,
) -> None:
    """The 60 cheapest types are all that a request would have otherwise."""
    most = needs("karpenter.k8s.aws/instance-family", "Exists", min_values=24)

    instance = await provider.launch(
        make_claim(ON_DEMAND, LINUX, most, requests={"cpu": "100m"}), await ready(provider)
    )

    assert instance.capacity_type == "on-demand"
