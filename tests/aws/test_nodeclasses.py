from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from controller.apis.karpenter.ec2nodeclass import (
    LAUNCH_SUCCEEDED,
    READY_WHEN,
    EC2NodeClass,
    NetworkInterface,
    PlacementGroupSelector,
    SelectorTerm,
)
from controller.apis.karpenter.nodeclasscauses import causes, explain
from controller.apis.kubernetes.conditions import LONGEST_MESSAGE, Condition, find
from controller.aws.cluster import ClusterFacts
from controller.aws.nodeclass.amis import CUSTOM_PERIOD
from controller.aws.nodeclass.instanceprofiles import FIRST_RETRY
from controller.aws.provider import AWSCloudProvider
from controller.cloudprovider.errors import (
    CloudProviderError,
    NodeClassNotReadyError,
    ThrottledError,
)
from tests.aws.builders import CLUSTER, NOW, ROLE, Clock, make_claim, make_node_class, ready
from tests.aws.conftest import FAMILIES, Region
from tests.builders import changed, make_nodeclass


def condition(node_class: EC2NodeClass, kind: str) -> Condition:
    held = find(node_class.status.conditions, kind)
    assert held is not None
    return held


async def test_a_nodeclass_with_all_resources_is_ready(provider: AWSCloudProvider) -> None:
    node_class = await ready(provider)
    assert condition(node_class, "Ready").is_true, node_class.status.conditions
    status = node_class.status
    assert {s.zone for s in status.subnets} == {"us-west-2a", "us-west-2b", "us-west-2c"}
    assert all(s.zone_id.startswith("usw2-az") for s in status.subnets)
    assert [g.name for g in status.security_groups] == [f"eks-cluster-sg-{CLUSTER}"]
    assert status.instance_profile == ROLE
    assert {c.type for c in status.conditions} == {*READY_WHEN, "Ready"}


def test_the_causes_are_the_conditions_that_ready_depends_on() -> None:
    known = [
        Condition(type="SubnetsReady", status="True"),
        Condition(type="InstanceProfileReady", status="False", message="create the profile"),
        Condition(type=LAUNCH_SUCCEEDED, status="False", message="a warning"),
        Condition(type="Ready", status="False", message="any text"),
    ]

    node_class = changed(make_nodeclass(), status={"conditions": known})

    assert causes(node_class) == "InstanceProfileReady=False: create the profile"


async def test_a_second_reconciliation_changes_nothing(provider: AWSCloudProvider) -> None:
    first = await ready(provider)
    again = await provider.resolve(first, now=NOW + timedelta(minutes=1))
    assert again.status == first.status


@pytest.mark.parametrize(
    ("spec", "kind", "reason", "says"),
    [
        pytest.param(
            {"subnet_selector_terms": [SelectorTerm(tags={"zone": "none"})]},
            "SubnetsReady",
            "SubnetsNotFound",
            "SubnetSelector did not match any Subnets; spec.subnetSelectorTerms: tag zone=none",
            id="no subnet",
        ),
        pytest.param(
            {"security_group_selector_terms": [SelectorTerm(name="none")]},
            "SecurityGroupsReady",
            "SecurityGroupsNotFound",
            "SecurityGroupSelector did not match any SecurityGroups; "
            "spec.securityGroupSelectorTerms: name none",
            id="no security group",
        ),
        pytest.param(
            {"ami_family": "AL2023", "ami_selector_terms": [SelectorTerm(id="ami-0bad")]},
            "AMIsReady",
            "AMINotFound",
            "AMISelector did not match any AMIs; spec.amiSelectorTerms: id ami-0bad",
            id="no image",
        ),
        pytest.param(
            {"ami_selector_terms": [SelectorTerm(alias="al2@latest")]},
            "AMIsReady",
            "UnsupportedAlias",
            "use al2023@latest",
            id="an alias without images for this version",
        ),
        pytest.param(
            {"role": "Nobody"},
            "InstanceProfileReady",
            "InstanceProfileNotReady",
            "spec.role: IAM role 'Nobody' does not exist",
            id="no role",
        ),
        pytest.param(
            {"placement_group_selector": PlacementGroupSelector(name="none")},
            "PlacementGroupReady",
            "PlacementGroupNotFound",
            "none",
            id="no placement group",
        ),
        pytest.param(
            {"placement_group_selector": PlacementGroupSelector(id="pg-0123456789abcdef0")},
            "PlacementGroupReady",
            "PlacementGroupNotFound",
            "pg-0123456789abcdef0",
            id="no placement group of that id",
        ),
        pytest.param(
            {"tags": {"karpenter.sh/nodepool": "mine"}},
            "ValidationSucceeded",
            "TagValidationFailed",
            "'karpenter.sh/nodepool'",
            id="a tag of ours",
        ),
        pytest.param(
            {"kubelet": {"kubeReserved": {"cpu": "-1"}}},
            "ValidationSucceeded",
            "InvalidKubeletConfiguration",
            'spec.kubelet.kubeReserved[cpu]: "-1" can\'t be a negative resource quantity',
            id="a kubelet setting out of range",
        ),
        pytest.param(
            {"kubelet": {"authentication": {"webhook": {"cacheTtl": "1m"}}}},
            "ValidationSucceeded",
            "InvalidKubeletConfiguration",
            'spec.kubelet: unknown field "authentication.webhook.cacheTtl"',
            id="a kubelet setting that does not exist",
        ),
        pytest.param(
            {"kubelet": {"imageGCHighThresholdPercent": -10, "evictionHard": {"memory": "5%"}}},
            "ValidationSucceeded",
            "InvalidKubeletConfiguration",
            "; spec.kubelet.imageGCHighThresholdPercent: -10 must be between 0 and 100",
            id="two kubelet settings, each with a mistake",
        ),
        pytest.param(
            {
                "ami_selector_terms": [SelectorTerm(alias="bottlerocket@latest")],
                "kubelet": {"podsPerCore": 4},
            },
            "ValidationSucceeded",
            "UnsupportedKubeletConfiguration",
            "podsPerCore",
            id="a kubelet setting the family does not take",
        ),
        pytest.param(
            {
                "ami_selector_terms": [SelectorTerm(alias="bottlerocket@latest")],
                "user_data": "echo hello",
            },
            "ValidationSucceeded",
            "InvalidUserData",
            "not TOML",
            id="user data in the wrong language",
        ),
    ],
)
async def test_a_nodeclass_without_a_resource_reports_what_to_change(
    provider: AWSCloudProvider, spec: dict[str, Any], kind: str, reason: str, says: str
) -> None:
    node_class = await ready(provider, **spec)
    held = condition(node_class, kind)
    assert (held.status, held.reason) == ("False", reason)
    assert says in explain(node_class, held)
    assert f"{kind}=False: {explain(node_class, held)}" == causes(node_class)
    assert condition(node_class, "Ready").is_false
    if kind != "ValidationSucceeded":
        assert condition(node_class, "ValidationSucceeded").reason == "DependenciesNotReady"


async def test_no_instance_is_launched_with_invalid_kubelet_settings(
    provider: AWSCloudProvider, region: Region
) -> None:
    node_class = await ready(provider, kubelet={"evictionHard": ["5%"], "maxPods": -1})

    with pytest.raises(NodeClassNotReadyError, match="evictionHard"):
        await provider.instance_types(node_class)
    with pytest.raises(NodeClassNotReadyError, match="default is not ready"):
        await provider.launch(make_claim(), node_class)
    assert region.as_kubelets_see_them() == []


async def test_thousands_of_mistakes_fit_into_the_condition(provider: AWSCloudProvider) -> None:
    node_class = await ready(provider, kubelet={f"unknown{n}": n for n in range(2000)})

    message = condition(node_class, "ValidationSucceeded").message

    assert message.startswith('spec.kubelet: unknown field "unknown0"')
    assert len(message) == LONGEST_MESSAGE


@pytest.mark.parametrize(
    ("spec", "kind", "message"),
    [
        (
            {"subnet_selector_terms": [SelectorTerm(tags={"zone": "none"})]},
            "SubnetsReady",
            "SubnetSelector did not match any Subnets",
        ),
        (
            {"security_group_selector_terms": [SelectorTerm(name="none")]},
            "SecurityGroupsReady",
            "SecurityGroupSelector did not match any SecurityGroups",
        ),
        (
            {"ami_family": "AL2023", "ami_selector_terms": [SelectorTerm(id="ami-0bad")]},
            "AMIsReady",
            "AMISelector did not match any AMIs",
        ),
    ],
)
async def test_a_selector_without_matches_has_karpenters_messages(
    provider: AWSCloudProvider, spec: dict[str, Any], kind: str, message: str
) -> None:
    node_class = await ready(provider, **spec)

    assert condition(node_class, kind).message == message
    assert condition(node_class, "Ready").message == f"ValidationSucceeded=False, {kind}=False"


async def test_ready_names_a_failed_validation_as_karpenter_does(
    provider: AWSCloudProvider,
) -> None:
    node_class = await ready(provider, kubelet={"maxPods": -1})

    assert condition(node_class, "Ready").message == "ValidationSucceeded=False"


NAMELESS = SelectorTerm()
"""What CEL lets pass as `name: ""` or `tags: {}`: without a filter EC2 lists everything."""


@pytest.mark.parametrize(
    ("spec", "kind", "reason"),
    [
        ({"subnet_selector_terms": [NAMELESS]}, "SubnetsReady", "SubnetsNotFound"),
        (
            {"security_group_selector_terms": [NAMELESS]},
            "SecurityGroupsReady",
            "SecurityGroupsNotFound",
        ),
        (
            {"ami_family": "AL2023", "ami_selector_terms": [SelectorTerm(owner="amazon")]},
            "AMIsReady",
            "AMINotFound",
        ),
        ({"ami_family": "AL2023", "ami_selector_terms": [NAMELESS]}, "AMIsReady", "AMINotFound"),
    ],
)
async def test_an_empty_selector_term_selects_nothing(
    provider: AWSCloudProvider, spec: dict[str, Any], kind: str, reason: str
) -> None:
    node_class = await ready(provider, **spec)
    held = condition(node_class, kind)
    assert (held.status, held.reason) == ("False", reason)
    message = explain(node_class, held)
    assert "owner amazon" in message or "an empty term" in message


async def test_a_reservation_is_used_only_if_a_term_selects_it(
    provider: AWSCloudProvider, region: Region
) -> None:
    ec2 = region.client("ec2")
    made = ec2.create_capacity_reservation(
        InstanceType="m5.large",
        InstancePlatform="Linux/UNIX",
        AvailabilityZone="us-west-2a",
        InstanceCount=1,
    )["CapacityReservation"]["CapacityReservationId"]

    node_class = await ready(provider, capacity_reservation_selector_terms=[NAMELESS])

    ec2.cancel_capacity_reservation(CapacityReservationId=made)
    assert node_class.status.capacity_reservations == []


@pytest.mark.parametrize(
    ("action", "code", "spec", "kind", "reason", "field"),
    [
        (
            "DescribePlacementGroups",
            "InvalidParameterValue",
            {"placement_group_selector": PlacementGroupSelector(id="pg-0")},
            "PlacementGroupReady",
            "PlacementGroupResolutionFailed",
            "spec.placementGroupSelector",
        ),
        (
            "DescribeImages",
            "InvalidUserID.Malformed",
            {
                "ami_family": "AL2023",
                "ami_selector_terms": [SelectorTerm(name="mine", owner="amzon")],
            },
            "AMIsReady",
            "AMIResolutionFailed",
            "spec.amiSelectorTerms",
        ),
        (
            "GetParameter",
            "ValidationException",
            {
                "ami_family": "AL2023",
                "ami_selector_terms": [SelectorTerm(ssm_parameter="my image")],
            },
            "AMIsReady",
            "AMIResolutionFailed",
            "spec.amiSelectorTerms",
        ),
        (
            "DescribeCapacityReservations",
            "InvalidCapacityReservationId.Malformed",
            {"capacity_reservation_selector_terms": [SelectorTerm(id="cr-zz")]},
            "CapacityReservationsReady",
            "CapacityReservationResolutionFailed",
            "spec.capacityReservationSelectorTerms",
        ),
        (
            "GetInstanceProfile",
            "ValidationError",
            {"role": "my role"},
            "InstanceProfileReady",
            "InstanceProfileNotReady",
            "spec.role",
        ),
    ],
)
async def test_a_nodeclass_reports_a_value_that_aws_refuses(
    provider: AWSCloudProvider,
    region: Region,
    action: str,
    code: str,
    spec: dict[str, Any],
    kind: str,
    reason: str,
    field: str,
) -> None:
    region.control.order_fault(action=action, code=code, status=400, times=None)

    held = condition(await ready(provider, **spec), kind)

    assert (held.status, held.reason) == ("False", reason)
    assert field in held.message
    assert code in held.message


@pytest.mark.parametrize("code", ["ExpiredToken", "InvalidClientTokenId", "OptInRequired"])
async def test_refused_credentials_do_not_change_a_nodeclass(
    provider: AWSCloudProvider, region: Region, code: str
) -> None:
    region.control.order_fault(action="DescribeSubnets", code=code, status=400, times=None)

    with pytest.raises(CloudProviderError, match=code):
        await ready(provider)


@pytest.mark.parametrize(
    ("action", "kind", "reason"),
    [
        ("DescribeSubnets", "SubnetsReady", "Unauthorized"),
        ("DescribeSecurityGroups", "SecurityGroupsReady", "Unauthorized"),
        ("DescribeImages", "AMIsReady", "Unauthorized"),
        ("CreateFleet", "ValidationSucceeded", "CreateFleetAuthCheckFailed"),
        ("RunInstances", "ValidationSucceeded", "RunInstancesAuthCheckFailed"),
        ("CreateLaunchTemplate", "ValidationSucceeded", "CreateLaunchTemplateAuthCheckFailed"),
    ],
)
async def test_a_missing_permission_is_named_in_the_condition(
    provider: AWSCloudProvider, region: Region, action: str, kind: str, reason: str
) -> None:
    region.control.order_fault(
        service="ec2", action=action, code="UnauthorizedOperation", status=403, times=None
    )
    # A user's tag makes a launch template that no other test has made.
    held = condition(await ready(provider, tags={"for": action}), kind)
    assert (held.status, held.reason) == ("False", reason)
    assert f"ec2:{action}" in held.message


async def test_throttling_does_not_change_a_nodeclass(
    provider: AWSCloudProvider, region: Region, clock: Clock
) -> None:
    await ready(provider)
    clock.advance(61)
    region.control.order_fault(action="DescribeSubnets", code="RequestLimitExceeded", status=503)
    with pytest.raises(ThrottledError):
        await ready(provider)


async def test_user_data_that_is_too_long_is_reported_before_a_launch(
    provider: AWSCloudProvider,
) -> None:
    held = condition(await ready(provider, user_data="x" * 17000), "ValidationSucceeded")
    assert (held.status, held.reason) == ("False", "UserDataSizeLimitExceeded")


async def test_a_validated_nodeclass_is_not_validated_again_for_half_an_hour(
    provider: AWSCloudProvider, region: Region, clock: Clock
) -> None:
    await ready(provider)
    region.control.clear_calls()
    await ready(provider)
    assert "ec2:RunInstances" not in next(iter(region.control.calls().values()), {})
    clock.advance(1801)
    await ready(provider)
    assert region.control.calls()
    (calls,) = region.control.calls().values()
    assert calls["ec2:RunInstances"] == 1


# Images.


async def test_an_alias_selects_an_ami_for_each_architecture_and_variant(
    provider: AWSCloudProvider,
) -> None:
    amis = (await ready(provider)).status.amis
    assert len(amis) == 5
    assert {a.name.split("-al2023-")[1].split("-1.37")[0] for a in amis} == {
        "x86_64-standard",
        "x86_64-nvidia",
        "x86_64-neuron",
        "arm64-standard",
        "arm64-nvidia",
    }
    assert all("v20261105" in a.name for a in amis)


async def test_a_pinned_version_selects_that_ami(provider: AWSCloudProvider) -> None:
    node_class = await ready(provider, ami_selector_terms=[SelectorTerm(alias="al2023@v20261015")])
    assert {a.name.rpartition("-")[2] for a in node_class.status.amis} == {"v20261015"}


async def test_of_amis_for_the_same_instance_types_the_newest_is_used(
    provider: AWSCloudProvider,
) -> None:
    term = SelectorTerm(name="amazon-eks-node-al2023-*-standard-1.37-*", owner="amazon")
    node_class = await ready(provider, ami_family="AL2023", ami_selector_terms=[term])
    assert [a.name for a in node_class.status.amis] == [
        name for name in (a.name for a in node_class.status.amis) if name.endswith("v20261105")
    ]
    assert len(node_class.status.amis) == 2


@pytest.mark.parametrize(
    ("alias", "images"),
    [("bottlerocket@latest", 5), ("windows2022@latest", 1), ("windows2025@latest", 1)],
)
async def test_a_nodeclass_of_every_ami_family_becomes_ready(
    provider: AWSCloudProvider, alias: str, images: int
) -> None:
    node_class = await ready(provider, ami_selector_terms=[SelectorTerm(alias=alias)])
    assert condition(node_class, "Ready").is_true, node_class.status.conditions
    assert len(node_class.status.amis) == images


async def test_a_new_ami_release_is_found(
    provider: AWSCloudProvider, region: Region, clock: Clock
) -> None:
    term = SelectorTerm(
        ssm_parameter="/aws/service/eks/optimized-ami/1.37/amazon-linux-2023/x86_64/standard"
        "/recommended/image_id"
    )
    spec = {"ami_family": "AL2023", "ami_selector_terms": [term]}
    (before,) = (await ready(provider, **spec)).status.amis
    published = region.control.publish_images("20261201")
    clock.advance(CUSTOM_PERIOD + 1)
    (after,) = (await ready(provider, **spec)).status.amis
    assert after.id != before.id
    assert after.id in published


async def test_an_ami_is_found_by_any_ssm_parameter_that_the_role_may_read(
    provider: AWSCloudProvider, region: Region
) -> None:
    (plain, *_) = (await ready(provider)).status.amis
    region.client("ssm").put_parameter(Name="/team/image", Value=plain.id, Type="String")
    term = SelectorTerm(ssm_parameter="/team/image")
    spec = {"ami_family": "AL2023", "ami_selector_terms": [term]}

    assert [a.id for a in (await ready(provider, **spec)).status.amis] == [plain.id]


@pytest.mark.parametrize("code", ["ParameterNotFound", "ParameterVersionNotFound"])
async def test_a_missing_ssm_parameter_or_version_is_named(
    provider: AWSCloudProvider, region: Region, code: str
) -> None:
    region.control.order_fault(
        service="ssm", action="GetParameter", code=code, status=400, times=None
    )
    term = SelectorTerm(ssm_parameter="/team/image:7")

    node_class = await ready(provider, ami_family="AL2023", ami_selector_terms=[term])

    held = condition(node_class, "AMIsReady")
    assert (held.status, held.reason) == ("False", "AMINotFound")
    assert "ssmParameter /team/image:7" in explain(node_class, held)


async def test_an_ssm_parameter_without_permission_is_reported(
    provider: AWSCloudProvider, region: Region
) -> None:
    region.control.order_fault(
        service="ssm", action="GetParameter", code="AccessDeniedException", status=400, times=None
    )
    term = SelectorTerm(ssm_parameter="/team/secret")

    node_class = await ready(provider, ami_family="AL2023", ami_selector_terms=[term])

    held = condition(node_class, "AMIsReady")
    assert (held.status, held.reason) == ("False", "Unauthorized")
    assert "authorized to call ssm:GetParameter; allow it in" in held.message
    assert "joiner:imageParameters" in held.message


# Instance profiles.


async def test_a_named_instance_profile_is_not_verified(provider: AWSCloudProvider) -> None:
    node_class = await ready(provider, role=None, instance_profile=ROLE)
    assert node_class.status.instance_profile == ROLE


async def test_if_no_nodeclass_has_a_role_iam_is_never_called(
    provider: AWSCloudProvider, region: Region
) -> None:
    region.control.clear_calls()
    node_class = await ready(provider, role=None, instance_profile=ROLE)
    assert condition(node_class, "Ready").is_true, node_class.status.conditions
    launched = await provider.launch(make_claim(), node_class)
    await provider.collect_profiles()
    await provider.terminate(launched.provider_id)
    await provider.release(node_class)

    called = {operation for made in region.control.calls().values() for operation in made}
    assert "ec2:CreateFleet" in called
    assert not [operation for operation in called if operation.startswith("iam:")]


async def test_without_iam_permissions_the_profile_with_the_roles_name_is_used(
    provider: AWSCloudProvider, region: Region
) -> None:
    region.control.order_fault(
        service="iam", action="GetInstanceProfile", code="AccessDenied", status=403, times=None
    )
    node_class = await ready(provider)
    assert node_class.status.instance_profile == ROLE
    assert condition(node_class, "Ready").is_true, node_class.status.conditions

    region.control.clear_calls()
    assert (await ready(provider)).status.instance_profile == ROLE
    called = {operation for made in region.control.calls().values() for operation in made}
    assert not [operation for operation in called if operation.startswith("iam:")]


async def test_a_denial_of_iam_is_reported_once_and_retried_with_backoff(
    provider: AWSCloudProvider, region: Region, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """EC2 refuses the assumed profile, so the EC2NodeClass is resolved every 10 s."""
    profiles, node_class = provider._profiles, make_node_class(role="Unread")
    region.client("iam").create_role(RoleName="Unread", AssumeRolePolicyDocument="{}")
    region.control.order_fault(service="iam", code="AccessDenied", status=403, times=None)

    asked_after: list[int] = []
    for seconds in range(0, 1200, 10):
        region.control.clear_calls()
        assert await profiles.ensure(node_class) == "Unread"
        assert "set joiner:instanceProfiles" in profiles.remedy(node_class)
        profiles.forget(node_class)
        if any("iam:GetInstanceProfile" in made for made in region.control.calls().values()):
            asked_after.append(seconds)
        clock.advance(10)

    assert asked_after == [0, 10, 30, 70, 150, 310, 610, 910]
    assert caplog.text.count("not authorized to call iam:GetInstanceProfile") == 1

    region.control.clear_faults()
    clock.advance(300)
    assert (await profiles.ensure(node_class)).startswith(f"{CLUSTER}_")
    await profiles.release(node_class)


async def test_a_role_without_a_profile_names_the_setting_that_lets_the_controller_create_one(
    provider: AWSCloudProvider, region: Region, clock: Clock
) -> None:
    iam = region.client("iam")
    iam.create_role(RoleName="Profileless", AssumeRolePolicyDocument="{}")
    region.control.order_fault(service="iam", code="AccessDenied", status=403, times=None)

    node_class = await ready(provider, role="Profileless")

    lacking = condition(node_class, "ValidationSucceeded")
    assert (lacking.status, lacking.reason) == ("False", "InstanceProfileNameInvalid")
    assert "Profileless" in lacking.message
    assert "set joiner:instanceProfiles to managed" in lacking.message
    assert condition(node_class, "Ready").is_false

    region.control.clear_faults()
    clock.advance(FIRST_RETRY)
    granted = await ready(provider, role="Profileless")
    assert condition(granted, "Ready").is_true, granted.status.conditions
    assert granted.status.instance_profile.startswith(f"{CLUSTER}_")
    await provider.release(granted)


async def test_a_missing_profile_is_not_reported_as_a_missing_permission(
    provider: AWSCloudProvider,
) -> None:
    node_class = await ready(provider, role=None, instance_profile="nothing")

    lacking = condition(node_class, "ValidationSucceeded")
    assert (lacking.status, lacking.reason) == ("False", "InstanceProfileNotFound")
    assert lacking.message.startswith('Instance profile "nothing" not found; create it in IAM')


async def test_if_profiles_cannot_be_created_the_message_names_the_setting(
    provider: AWSCloudProvider, region: Region
) -> None:
    region.client("iam").create_role(RoleName="Unmade", AssumeRolePolicyDocument="{}")
    region.control.order_fault(
        service="iam", action="CreateInstanceProfile", code="AccessDenied", status=403, times=None
    )

    lacking = condition(await ready(provider, role="Unmade"), "InstanceProfileReady")

    assert (lacking.status, lacking.reason) == ("False", "InstanceProfileNotReady")
    assert "set joiner:instanceProfiles to managed" in lacking.message


async def test_an_instance_profile_is_created_for_the_nodeclass_and_deleted_with_it(
    provider: AWSCloudProvider, region: Region
) -> None:
    iam = region.client("iam")
    iam.create_role(RoleName="Other", AssumeRolePolicyDocument="{}", Path="/teams/")
    iam.create_instance_profile(InstanceProfileName="Other")

    node_class = await ready(provider, role="/teams/Other")

    name = node_class.status.instance_profile
    assert name.startswith(f"{CLUSTER}_")
    profile = iam.get_instance_profile(InstanceProfileName=name)["InstanceProfile"]
    assert [r["RoleName"] for r in profile["Roles"]] == ["Other"]
    assert profile["Path"] == f"/karpenter/us-west-2/{CLUSTER}/{node_class.metadata.uid}/"
    assert {t["Key"]: t["Value"] for t in profile["Tags"]} == {
        f"kubernetes.io/cluster/{CLUSTER}": "owned",
        "eks:eks-cluster-name": CLUSTER,
        "joiner.dev/installation": CLUSTER,
        "karpenter.k8s.aws/ec2nodeclass": "default",
        "topology.kubernetes.io/region": "us-west-2",
    }

    await provider.release(node_class)

    left = {p["InstanceProfileName"] for p in iam.list_instance_profiles()["InstanceProfiles"]}
    assert left == {ROLE, "Other"}


async def test_the_profile_of_a_former_role_is_deleted_when_no_instance_uses_it(
    provider: AWSCloudProvider, region: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    iam, roles = region.client("iam"), ("Before", "After")
    for role in roles:
        iam.create_role(RoleName=role, AssumeRolePolicyDocument="{}")
    before = await ready(provider, role="Before")
    borne = await provider.launch(make_claim(), before)
    after = await ready(provider, role="After")
    assert after.status.instance_profile != before.status.instance_profile

    def profiles() -> set[str]:
        # Other tests' profiles may be there: the test cloud has one IAM for a process.
        return {
            profile["InstanceProfileName"]
            for profile in iam.list_instance_profiles()["InstanceProfiles"]
            if any(role["RoleName"] in roles for role in profile["Roles"])
        }

    both = {before.status.instance_profile, after.status.instance_profile}
    await provider.collect_profiles()
    assert profiles() == both, "a new profile is left alone"
    monkeypatch.setattr("controller.aws.nodeclass.instanceprofiles.PROTECTED", timedelta(0))
    await provider.collect_profiles()
    assert profiles() == both, "an instance bears it"
    await provider.terminate(borne.provider_id)
    await provider.collect_profiles()
    assert profiles() == {after.status.instance_profile}
    await provider.release(after)


async def test_an_instance_profile_of_another_installation_is_not_deleted(
    provider: AWSCloudProvider, region: Region
) -> None:
    iam = region.client("iam")
    iam.create_role(RoleName="Theirs", AssumeRolePolicyDocument="{}")
    node_class = await ready(provider, role="Theirs")
    iam.create_instance_profile(
        InstanceProfileName=f"{CLUSTER}_theirs",
        Path=f"/karpenter/us-west-2/{CLUSTER}/{node_class.metadata.uid}/",
        Tags=[
            {"Key": "eks:eks-cluster-name", "Value": CLUSTER},
            {"Key": f"kubernetes.io/cluster/{CLUSTER}", "Value": "owned"},
        ],
    )

    await provider.release(node_class)

    left = {p["InstanceProfileName"] for p in iam.list_instance_profiles()["InstanceProfiles"]}
    assert f"{CLUSTER}_theirs" in left
    assert node_class.status.instance_profile not in left
    iam.delete_instance_profile(InstanceProfileName=f"{CLUSTER}_theirs")


async def test_an_instance_profile_that_another_replica_created_is_used(
    provider: AWSCloudProvider, start: Any
) -> None:
    first = await ready(provider)
    second = await ready(start())
    assert first.status.instance_profile == second.status.instance_profile


async def test_network_interfaces_limit_the_instance_types(provider: AWSCloudProvider) -> None:
    interfaces = [
        NetworkInterface(network_card_index=0, device_index=0, interface_type="interface"),
        NetworkInterface(network_card_index=1, device_index=1, interface_type="efa-only"),
    ]
    node_class = await ready(provider, network_interfaces=interfaces)
    names = {t.name for t in await provider.instance_types(node_class)}
    assert "p4d.24xlarge" in names
    assert "m5.large" not in names


@pytest.mark.parametrize("families", [f"{FAMILIES} t2"], indirect=True, ids=["and t2"])
async def test_in_an_ipv6_cluster_only_nitro_types_are_offered(
    provider: AWSCloudProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def types() -> set[str]:
        return {t.name for t in await provider.instance_types(await ready(provider))}

    assert {"t2.small", "m5.large"} <= await types()

    monkeypatch.setattr(ClusterFacts, "is_ipv6", True)

    assert "t2.small" not in await types()
    assert "m5.large" in await types()


async def test_a_class_without_a_found_subnet_has_no_types_yet(provider: AWSCloudProvider) -> None:
    with pytest.raises(CloudProviderError):
        await provider.instance_types(make_node_class())


async def test_a_changed_nodeclass_is_validated_with_its_new_generation(
    provider: AWSCloudProvider,
) -> None:
    node_class = await ready(provider)
    again = await provider.resolve(changed(node_class, metadata={"generation": 2}), now=NOW)
    assert condition(again, "Ready").observed_generation == 2
