"""The engine and the aws stand-in against the test cloud."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from botocore.stub import Stubber

from testbed.cloud import Cloud, CloudControl
from testbed.environment import CHECKOUT
from testbed.plugins.awsprovider import eks, sdktypes
from testbed.plugins.awsprovider.provider import RESOURCES, AwsProvider
from testbed.plugins.engine import Changes, EngineError
from testbed.plugins.provider import PartialFailureError, Proposal, ProviderError, Work
from tests.administrator import client
from tests.testbed.plugins.conftest import EngineOn

IMAGE = "/aws/service/eks/optimized-ami/1.37/amazon-linux-2023/x86_64/standard/recommended/image_id"
SECRET = "a-word-nobody-may-read"
MADE = re.compile(r"\baws\.([a-z0-9]+)\.([A-Z]\w+)\(")
"""A resource as a program makes it: `aws.iam.Role(`."""
TOKEN = re.compile(r"aws:([a-z0-9]+)/\w+:(\w+)")


def stand_in(cloud: Cloud) -> AwsProvider:
    """The provider itself, without an engine."""
    provider = AwsProvider()
    services = ("ec2", "ecr", "eks", "events", "iam", "sqs", "ssm", "sts")
    provider.configure(
        {
            "accessKey": "testing",
            "secretKey": "testing",
            "region": cloud.region,
            "endpoints": [dict.fromkeys(services, cloud.url)],
        }
    )
    return provider


def settings(cloud: Cloud, **more: str) -> dict[str, str]:
    return {
        "endpoint": cloud.url,
        "cluster": cloud.cluster_name,
        "image": IMAGE,
        "subnets": json.dumps(subnets(cloud)),
        **more,
    }


def subnets(cloud: Cloud) -> list[str]:
    every = client(cloud.url, "ec2").describe_subnets()["Subnets"]
    return sorted(subnet["SubnetId"] for subnet in every if subnet["DefaultForAz"])


def test_up_creates_everything_and_destroy_leaves_nothing(
    engine_on: EngineOn, cloud: Cloud
) -> None:
    control = CloudControl(cloud.url)
    engine = engine_on("cloud")

    forecast = engine.preview("dev", settings(cloud))
    assert control.leftovers() == {}

    made = engine.up("dev", settings(cloud))
    assert made == forecast
    outputs = engine.outputs("dev")
    assert outputs["account"] == "123456789012"
    assert outputs["cluster_endpoint"] == cloud.cluster_endpoint
    assert outputs["zone"].startswith("us-west-2")
    assert len(set(outputs["vpc"])) == 1
    assert outputs["image"].startswith("ami-")
    assert outputs["known"] == outputs["role_arn"]
    role = client(cloud.url, "iam").get_role(RoleName=outputs["role_name"])["Role"]
    assert {"Key": "project", "Value": "region"} in role["Tags"]
    entries = client(cloud.url, "eks").list_access_entries(clusterName=cloud.cluster_name)
    assert outputs["role_arn"] in entries["accessEntries"]

    assert not engine.up("dev", settings(cloud)).any
    assert not engine.refresh("dev").any

    engine.destroy("dev")
    assert control.leftovers() == {}
    assert control.unimplemented_calls() == {}

    engine.remove_stack("dev")
    assert not engine.stack_exists("dev")


def test_a_changed_setting_updates_in_place_or_replaces_as_aws_demands(
    engine_on: EngineOn, cloud: Cloud
) -> None:
    engine = engine_on("cloud")
    engine.up("dev", settings(cloud))
    before = engine.outputs("dev")

    updated = engine.up("dev", settings(cloud, retention="600", purpose="other"))
    after = engine.outputs("dev")
    assert updated.update >= 3
    assert updated.create == updated.replace == updated.delete == 0
    assert after["role_arn"] == before["role_arn"]
    attributes = client(cloud.url, "sqs").get_queue_attributes(
        QueueUrl=after["queue_url"], AttributeNames=["All"]
    )["Attributes"]
    assert attributes["MessageRetentionPeriod"] == "600"
    assert "sqs:SendMessage" in attributes["Policy"]

    replaced = engine.up(
        "dev", settings(cloud, retention="600", purpose="other", path="/nodes/", queue="renamed")
    )
    after = engine.outputs("dev")
    assert replaced.replace >= 4  # role, queue, and those that name them
    assert after["role_path"] == "/nodes/"
    assert after["role_arn"] != before["role_arn"]
    assert client(cloud.url, "sqs").list_queues()["QueueUrls"] == [after["queue_url"]]

    assert not engine.up(
        "dev", settings(cloud, retention="600", purpose="other", path="/nodes/", queue="renamed")
    ).any
    engine.destroy("dev")
    assert CloudControl(cloud.url).leftovers() == {}


def test_refresh_shows_drift_and_up_corrects_it(engine_on: EngineOn, cloud: Cloud) -> None:
    engine = engine_on("cloud")
    engine.up("dev", settings(cloud))
    outputs = engine.outputs("dev")
    iam, sqs, ec2 = (client(cloud.url, service) for service in ("iam", "sqs", "ec2"))

    iam.tag_role(RoleName=outputs["role_name"], Tags=[{"Key": "purpose", "Value": "hijacked"}])
    sqs.set_queue_attributes(
        QueueUrl=outputs["queue_url"], Attributes={"MessageRetentionPeriod": "900"}
    )
    ec2.delete_tags(Resources=subnets(cloud)[:1], Tags=[{"Key": "karpenter.sh/discovery"}])

    drift = engine.refresh("dev")
    assert (drift.update, drift.delete) == (2, 1)

    mended = engine.up("dev", settings(cloud))
    assert (mended.update, mended.create) == (2, 1)
    assert not engine.refresh("dev").any


def test_a_secret_is_nowhere_in_state_or_output(engine_on: EngineOn, cloud: Cloud) -> None:
    said: list[str] = []
    engine = engine_on("cloud", show=said.append)

    engine.preview("dev", settings(cloud), secrets={"token": SECRET})
    engine.up("dev", settings(cloud), secrets={"token": SECRET})
    engine.refresh("dev")
    engine.up("dev", settings(cloud, purpose="other"), secrets={"token": SECRET})

    role = client(cloud.url, "iam").get_role(RoleName=engine.outputs("dev")["role_name"])["Role"]
    assert {"Key": "token", "Value": SECRET} in role["Tags"]
    assert SECRET not in json.dumps(engine.state("dev"))
    assert SECRET not in "\n".join(said)
    assert all(
        SECRET not in path.read_text(errors="ignore")
        for folder in ("state", "stacks")
        for path in (engine.directory / folder).rglob("*")
        if path.is_file()
    )


def test_a_partly_created_resource_is_recorded_and_completed_by_the_next_up(
    engine_on: EngineOn, cloud: Cloud
) -> None:
    control = CloudControl(cloud.url)
    engine = engine_on("cloud")
    control.order_fault(
        service="iam", action="AddRoleToInstanceProfile", code="AccessDenied", status=403
    )

    with pytest.raises(EngineError, match="AccessDenied"):
        engine.up("dev", settings(cloud))
    names = [resource["urn"] for resource in engine.state("dev")["deployment"]["resources"]]
    assert any("InstanceProfile::node" in name for name in names)

    engine.up("dev", settings(cloud))
    profiles = client(cloud.url, "iam").list_instance_profiles()["InstanceProfiles"]
    assert [len(profile["Roles"]) for profile in profiles] == [1]
    engine.destroy("dev")
    assert control.leftovers() == {}


def test_every_resource_can_be_imported_by_its_id_alone(engine_on: EngineOn, cloud: Cloud) -> None:
    engine = engine_on("cloud")
    engine.up("dev", settings(cloud))
    provider = stand_in(cloud)
    mine = [
        resource
        for resource in engine.state("dev")["deployment"]["resources"]
        if resource["type"].startswith("aws:")
    ]
    assert len({resource["type"] for resource in mine}) == 14

    for resource in mine:
        identity = resource["id"]
        if resource["type"].endswith(":PodIdentityAssociation"):
            identity = f"{cloud.cluster_name},{identity}"
        work = Work(type=resource["type"], identity=identity, report=print)
        imported = provider.read(work, {}, {})
        assert imported is not None, resource["urn"]
        assert set(imported.inputs) - {"__defaults"}, resource["urn"]


def lead_a_life(
    provider: AwsProvider, type_: str, inputs: dict[str, Any], changed: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Create, find, change and delete a resource; return its outputs before and after."""
    proposal = Proposal(type=type_, name="one", old={}, new=inputs)
    old = provider.check(proposal).inputs
    created = provider.create(Work(type=type_, report=print), old)
    work = Work(type=type_, identity=created.identity, report=print)
    refreshed = provider.read(work, created.outputs, old)
    assert refreshed is not None
    assert refreshed.inputs == old, "what was just made has drifted"
    new = {**old, **changed}
    after = provider.update(work, created.outputs, old, new)
    provider.delete(work, after)
    assert provider.read(work, after, new) is None
    provider.delete(work, after)  # a second deletion has no effect
    return created.outputs, after


PLACE = {"clusterName": "joiner", "addonName": "vpc-cni"}
ADDON = {
    **PLACE,
    "addonArn": "arn:aws:eks:us-west-2:123456789012:addon/joiner/vpc-cni/1",
    "addonVersion": "v1",
}
ON_ADDON = Work(type="aws:eks/addon:Addon", identity="joiner:vpc-cni", report=print)


def addon(status: str, **more: str) -> dict[str, Any]:
    return {"addon": {**ADDON, "status": status, **more}}


def test_the_provider_waits_until_an_addon_is_active_and_until_it_is_gone(cloud: Cloud) -> None:
    provider = stand_in(cloud)

    with Stubber(provider.session.client("eks")) as aws:
        aws.add_response("create_addon", {}, PLACE)
        for status in ("CREATING", "DEGRADED", "ACTIVE", "ACTIVE"):
            aws.add_response("describe_addon", addon(status), PLACE)
        aws.add_response("update_addon", {}, {**PLACE, "addonVersion": "v2"})
        for _ in range(3):
            aws.add_response("describe_addon", addon("ACTIVE", addonVersion="v2"), PLACE)
        aws.add_response("delete_addon", {}, {**PLACE, "preserve": False})
        aws.add_response("describe_addon", addon("DELETING"), PLACE)
        aws.add_client_error("describe_addon", "ResourceNotFoundException")

        created = provider.create(ON_ADDON, PLACE)
        assert (created.identity, created.outputs["addonVersion"]) == ("joiner:vpc-cni", "v1")
        updated = provider.update(ON_ADDON, created.outputs, PLACE, {**PLACE, "addonVersion": "v2"})
        assert updated["addonVersion"] == "v2"
        provider.delete(ON_ADDON, updated)
        aws.assert_no_pending_responses()


def test_a_degraded_addon_fails_when_it_is_created_too_slowly_or_deleted(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eks, "ADDON_SECONDS", 0)
    provider = stand_in(cloud)

    with Stubber(provider.session.client("eks")) as aws:
        aws.add_response("create_addon", {}, PLACE)
        aws.add_response("describe_addon", addon("DEGRADED"), PLACE)
        aws.add_response("delete_addon", {}, {**PLACE, "preserve": False})
        aws.add_response("describe_addon", addon("DEGRADED"), PLACE)

        with pytest.raises(PartialFailureError, match="timeout, is DEGRADED"):
            provider.create(ON_ADDON, PLACE)
        with pytest.raises(ProviderError, match="unexpected state 'DEGRADED'"):
            provider.delete(ON_ADDON, PLACE)


def make(provider: AwsProvider, type_: str, inputs: dict[str, Any]) -> tuple[Work, Any, Any]:
    """Create a resource; return it with its inputs and outputs."""
    checked = provider.check(Proposal(type=type_, name="one", old={}, new=inputs))
    assert not checked.faults
    created = provider.create(Work(type=type_, report=print), checked.inputs)
    work = Work(type=type_, identity=created.identity, report=print)
    return work, checked.inputs, created.outputs


ENTRY = "aws:eks/accessEntry:AccessEntry"
ROLE = "aws:iam/role:Role"
TRUST = json.dumps({"Version": "2012-10-17", "Statement": []})
UNSEEN = "The specified principalArn is invalid: invalid principal"


@pytest.mark.parametrize(
    ("message", "is_retried"),
    [(UNSEEN, True), ("Role provided in the request does not exist", False)],
)
def test_each_type_retries_only_its_own_errors(
    cloud: Cloud, message: str, is_retried: bool
) -> None:
    provider = stand_in(cloud)
    _, _, role = make(provider, ROLE, {"assumeRolePolicy": TRUST})
    entry = {"clusterName": "joiner", "principalArn": role["arn"]}
    CloudControl(cloud.url).order_fault(
        service="eks",
        action="CreateAccessEntry",
        code="InvalidParameterException",
        message=message,
        times=3,
    )

    if is_retried:
        make(provider, ENTRY, entry)
    else:
        with pytest.raises(ProviderError, match=message):
            make(provider, ENTRY, entry)


def test_no_error_of_a_node_group_is_retried(cloud: Cloud) -> None:
    retried = {token: kind.retried for token, kind in RESOURCES.items() if kind.retried}

    assert {token.rpartition(":")[2] for token in retried} == {
        "AccessEntry", "Cluster", "FargateProfile", "PodIdentityAssociation",
    }  # fmt: skip
    with pytest.raises(ProviderError, match="Following required service principals"):
        make(
            stand_in(cloud),
            "aws:eks/nodeGroup:NodeGroup",
            {
                "clusterName": "joiner",
                "nodeRoleArn": "arn:aws:iam::123456789012:role/nobody",
                "subnetIds": subnets(cloud),
                "scalingConfig": {"minSize": 1, "maxSize": 1, "desiredSize": 1},
            },
        )


def test_a_change_of_tags_alone_does_not_update_an_access_entry(cloud: Cloud) -> None:
    provider, control = stand_in(cloud), CloudControl(cloud.url)
    _, _, role = make(provider, ROLE, {"assumeRolePolicy": TRUST})
    place = {"clusterName": "joiner", "principalArn": role["arn"]}
    work, old, state = make(provider, ENTRY, {**place, "kubernetesGroups": ["viewers"]})
    control.clear_calls()

    provider.update(work, state, old, {**old, "tags": {"team": "a"}})
    without_groups = {key: value for key, value in old.items() if key != "kubernetesGroups"}
    baseline = provider.baseline(ENTRY, state, old, without_groups)

    called = {action for actions in control.calls().values() for action in actions}
    assert "eks:TagResource" in called
    assert "eks:UpdateAccessEntry" not in called
    assert baseline == without_groups, "removed groups are no change"


def test_a_queue_is_read_until_it_is_stable_and_until_it_is_gone(cloud: Cloud) -> None:
    provider, control = stand_in(cloud), CloudControl(cloud.url)
    deleted = "AWS.SimpleQueueService.QueueDeletedRecently"
    control.order_fault(service="sqs", action="CreateQueue", code=deleted, times=2)

    work, _, state = make(provider, "aws:sqs/queue:Queue", {"name": "events"})

    def reads() -> int:
        actions = [actions for actions in control.calls().values() if actions]
        return sum(each.get("sqs:GetQueueAttributes", 0) for each in actions)

    assert reads() == 6 + 1
    control.clear_calls()
    provider.delete(work, state)
    assert reads() == 15


def test_a_refresh_adds_the_policies_of_a_role_and_a_deletion_then_detaches_all(
    cloud: Cloud,
) -> None:
    provider = stand_in(cloud)
    work, inputs, state = make(provider, ROLE, {"name": "node", "assumeRolePolicy": TRUST})
    arn = "arn:aws:iam::aws:policy/AmazonEKSWorkerNodePolicy"
    client(cloud.url, "iam").attach_role_policy(RoleName="node", PolicyArn=arn)

    refreshed = provider.read(work, state, inputs)

    assert refreshed is not None
    assert state["managedPolicyArns"] == []
    assert refreshed.outputs["managedPolicyArns"] == [arn]
    assert refreshed.inputs == inputs
    with pytest.raises(ProviderError, match="DeleteConflict"):
        provider.delete(work, state)
    provider.delete(work, refreshed.outputs)


def test_an_instance_profile_loses_a_role_that_is_gone_when_it_is_read(cloud: Cloud) -> None:
    provider = stand_in(cloud)
    make(provider, ROLE, {"name": "node", "assumeRolePolicy": TRUST})
    type_ = "aws:iam/instanceProfile:InstanceProfile"
    work, inputs, state = make(provider, type_, {"name": "node", "role": "node"})
    CloudControl(cloud.url).order_fault(service="iam", action="GetRole", code="NoSuchEntity")

    with pytest.raises(ProviderError, match="attached to IAM Instance Profile"):
        provider.read(work, state, inputs)

    again = provider.read(work, state, inputs)
    assert again is not None
    assert again.outputs["role"] is None


def test_a_tag_whose_value_others_changed_stays(cloud: Cloud) -> None:
    provider, ec2 = stand_in(cloud), client(cloud.url, "ec2")
    subnet = subnets(cloud)[0]
    inputs = {"resourceId": subnet, "key": "team", "value": "ours"}
    work, _, state = make(provider, "aws:ec2/tag:Tag", inputs)
    ec2.create_tags(Resources=[subnet], Tags=[{"Key": "team", "Value": "theirs"}])

    provider.delete(work, state)

    (described,) = ec2.describe_subnets(SubnetIds=[subnet])["Subnets"]
    assert {"Key": "team", "Value": "theirs"} in described["Tags"]


def test_a_tag_that_ec2_does_not_show_at_once_is_an_error(cloud: Cloud) -> None:
    cloud.world.settings.tagging = 60.0
    inputs = {"resourceId": subnets(cloud)[0], "key": "team", "value": "ours"}

    with pytest.raises(PartialFailureError, match="empty result") as failed:
        make(stand_in(cloud), "aws:ec2/tag:Tag", inputs)

    assert failed.value.identity == f"{inputs['resourceId']},team"


def test_a_target_that_eventbridge_refuses_is_an_error(cloud: Cloud) -> None:
    provider = stand_in(cloud)
    inputs = {"rule": "r", "arn": "arn:aws:sqs:us-west-2:123456789012:gone", "targetId": "t"}
    failed = {"TargetId": "t", "ErrorCode": "ResourceNotFoundException", "ErrorMessage": "no queue"}

    with Stubber(provider.session.client("events")) as aws:
        aws.add_response("put_targets", {"FailedEntryCount": 1, "FailedEntries": [failed]})
        with pytest.raises(ProviderError, match="no queue"):
            make(provider, "aws:cloudwatch/eventTarget:EventTarget", inputs)


CLUSTER = "aws:eks/cluster:Cluster"
KEYS = [f"arn:aws:kms:us-west-2:123456789012:key/{name}" for name in "ab"]


def encrypted(key: str) -> dict[str, Any]:
    return {"encryptionConfig": {"provider": {"keyArn": key}, "resources": ["secrets"]}}


@pytest.fixture
def on_cluster(cloud: Cloud) -> tuple[AwsProvider, Work, dict[str, Any], dict[str, Any]]:
    """The provider, and the cluster of the cloud as a resource with its inputs and state."""
    provider = stand_in(cloud)
    work = Work(type=CLUSTER, identity=cloud.cluster_name, report=print)
    imported = provider.read(work, {}, {})
    assert imported is not None
    return provider, work, imported.inputs, imported.outputs


def test_a_clusters_encryption_is_added_in_place_and_removed_by_a_replacement(
    cloud: Cloud, on_cluster: tuple[AwsProvider, Work, dict[str, Any], dict[str, Any]]
) -> None:
    provider, work, plain, state = on_cluster
    one, other = ({**plain, **encrypted(key)} for key in KEYS)
    path = "encryptionConfig.provider.keyArn"

    assert not provider.must_replace(CLUSTER, "encryptionConfig", plain, one)
    assert not provider.must_replace(CLUSTER, path, one, other)
    assert provider.must_replace(CLUSTER, "encryptionConfig", one, plain)
    provider.update(work, state, plain, one)
    provider.update(work, state, one, other)

    described = client(cloud.url, "eks").describe_cluster(name=cloud.cluster_name)["cluster"]
    assert described["encryptionConfig"][0]["provider"]["keyArn"] == KEYS[0]


def test_a_cluster_is_updated_one_setting_after_another(
    on_cluster: tuple[AwsProvider, Work, dict[str, Any], dict[str, Any]],
) -> None:
    provider, work, inputs, state = on_cluster
    network = {**inputs["vpcConfig"], "publicAccessCidrs": ["203.0.113.0/24"]}
    network |= {"endpointPublicAccess": True}
    old = {**inputs, "vpcConfig": network, "version": "1.36"}
    closed = {key: value for key, value in network.items() if key != "publicAccessCidrs"}
    new = {
        **old,
        "vpcConfig": closed | {"endpointPublicAccess": False},
        "version": "1.37",
        "deletionProtection": True,
        "upgradePolicy": {"supportType": "STANDARD"},
        **encrypted(KEYS[0]),
    }
    sent: list[tuple[str, dict[str, Any]]] = []
    events = provider.session.client("eks").meta.events
    events.register(
        "provide-client-params.eks.*",
        lambda params, model, **_: sent.append((model.name, params)),
    )

    provider.update(work, {**state, "vpcConfig": network}, old, new)

    calls = [(name, params) for name, params in sent if name.startswith(("Update", "Associate"))]
    assert [name for name, _ in calls] == [
        "UpdateClusterVersion", "UpdateClusterConfig", "AssociateEncryptionConfig",
        "UpdateClusterConfig", "UpdateClusterConfig",
    ]  # fmt: skip
    named = {"clientRequestToken", "name"}
    assert [set(params) - named for name, params in calls if name == "UpdateClusterConfig"] == [
        {"deletionProtection"}, {"upgradePolicy"}, {"resourcesVpcConfig"},
    ]  # fmt: skip
    endpoint = calls[-1][1]["resourcesVpcConfig"]
    assert endpoint["endpointPublicAccess"] is False
    assert endpoint["publicAccessCidrs"] == ["203.0.113.0/24"], "the former CIDRs are sent again"
    assert sum(name == "DescribeUpdate" for name, _ in sent) == len(calls)


def test_a_subnet_and_a_route_have_ipv6_blocks() -> None:
    with Cloud(has_cluster=False) as cloud:
        provider, ec2 = stand_in(cloud), client(cloud.url, "ec2")
        dual = {"cidrBlock": "10.0.0.0/16", "assignGeneratedIpv6CidrBlock": True}
        vpc, _, network = make(provider, "aws:ec2/vpc:Vpc", dual)
        block = network["ipv6CidrBlock"].replace("/56", "/64")
        place = {"vpcId": vpc.identity, "availabilityZone": "us-west-2a"}
        ipv6 = {"ipv6CidrBlock": block, "assignIpv6AddressOnCreation": True}
        _, _, subnet = make(
            provider, "aws:ec2/subnet:Subnet", {**place, **ipv6, "cidrBlock": "10.0.0.0/24"}
        )
        gateway, _, _ = make(
            provider,
            "aws:ec2/egressOnlyInternetGateway:EgressOnlyInternetGateway",
            {"vpcId": vpc.identity},
        )
        table, _, _ = make(provider, "aws:ec2/routeTable:RouteTable", {"vpcId": vpc.identity})
        way = {"destinationIpv6CidrBlock": "::/0", "egressOnlyGatewayId": gateway.identity}
        route, inputs, state = make(
            provider, "aws:ec2/route:Route", {**way, "routeTableId": table.identity}
        )

        assert (subnet["ipv6CidrBlock"], subnet["assignIpv6AddressOnCreation"]) == (block, True)
        found = provider.read(route, state, inputs)
        assert found is not None
        assert found.inputs == inputs
        (described,) = ec2.describe_route_tables(RouteTableIds=[table.identity])["RouteTables"]
        assert any(
            each.get("EgressOnlyInternetGatewayId") == gateway.identity
            for each in described["Routes"]
        )


def test_nat_gateways_are_found_by_their_tags(cloud: Cloud) -> None:
    provider, ec2 = stand_in(cloud), client(cloud.url, "ec2")
    for team in "ab":
        address = ec2.allocate_address(Domain="vpc")["AllocationId"]
        inputs = {"allocationId": address, "subnetId": subnets(cloud)[0], "tags": {"team": team}}
        make(provider, "aws:ec2/natGateway:NatGateway", inputs)

    filters = [{"Name": "tag:team", "Values": ["b"]}]
    (found,) = ec2.describe_nat_gateways(Filters=filters)["NatGateways"]

    assert {"Key": "team", "Value": "b"} in found["Tags"]
    assert (
        ec2.describe_nat_gateways(Filters=[{"Name": "tag-key", "Values": ["x"]}])["NatGateways"]
        == []
    )


def test_a_repository_is_created_and_deleted(cloud: Cloud) -> None:
    before, after = lead_a_life(
        stand_in(cloud),
        "aws:ecr/repository:Repository",
        {"imageScanningConfiguration": {"scanOnPush": False}, "forceDelete": True},
        {
            "imageScanningConfiguration": {"scanOnPush": True},
            "imageTagMutability": "IMMUTABLE",
            "tags": {"a": "b"},
        },
    )

    assert before["repositoryUrl"].endswith(before["name"])
    assert after["imageScanningConfiguration"] == {"scanOnPush": True}
    assert after["imageTagMutability"] == "IMMUTABLE"


def test_a_role_is_created_and_deleted_with_its_attachments(cloud: Cloud) -> None:
    trust = {"Version": "2012-10-17", "Statement": []}
    managed = "arn:aws:iam::aws:policy/AmazonEKSWorkerNodePolicy"
    before, after = lead_a_life(
        stand_in(cloud),
        "aws:iam/role:Role",
        {
            "namePrefix": "node-",
            "assumeRolePolicy": json.dumps(trust, indent=2),
            "managedPolicyArns": [managed],
        },
        {"description": "of nodes", "maxSessionDuration": 7200, "managedPolicyArns": []},
    )

    assert before["name"].startswith("node-")
    assert after["description"] == "of nodes"
    assert CloudControl(cloud.url).leftovers() == {}


def test_what_the_stand_in_provider_does_not_support_is_refused_by_name(cloud: Cloud) -> None:
    provider = stand_in(cloud)

    with pytest.raises(ProviderError, match="aws:s3/bucket:Bucket"):
        provider.read(Work(type="aws:s3/bucket:Bucket", identity="b", report=print), {}, {})
    with pytest.raises(ProviderError, match="getBucket"):
        provider.invoke("aws:s3/getBucket:getBucket", {})
    assert [fault.property for fault in provider.check_settings({"assumeRoles": [{}]})] == [
        "assumeRoles"
    ]


def test_endpoint_services_of_china_are_found_by_their_full_names_only() -> None:
    function = "aws:ec2/getVpcEndpointService:getVpcEndpointService"
    name = "cn.com.amazonaws.cn-north-1.ecr.api"
    named = [{"name": "service-name", "values": [name.removeprefix("cn."), name]}]

    with Cloud(region="cn-north-1", has_cluster=False) as cloud:
        provider = stand_in(cloud)
        with pytest.raises(ProviderError, match=r"'com\..*ecr\.api' does not exist"):
            provider.invoke(function, {"service": "ecr.api", "serviceType": "Interface"})
        found = provider.invoke(function, {"filters": named, "serviceType": "Interface"})

    assert found["serviceName"] == name


def test_credentials_are_checked_unless_a_setting_disables_it(cloud: Cloud) -> None:
    wrong = {"accessKey": "AKIANOBODY", "secretKey": "x", "region": cloud.region}
    endpoints = {"endpoints": [{"sts": cloud.url}]}

    AwsProvider().configure({**wrong, **endpoints, "skipCredentialsValidation": True})
    with pytest.raises(ProviderError, match="InvalidClientTokenId"):
        AwsProvider().configure({**wrong, **endpoints})


def test_the_environment_supplies_missing_settings(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", cloud.url)
    monkeypatch.setenv("AWS_REGION", cloud.region)
    monkeypatch.setenv("AWS_DEFAULT_REGION", cloud.region)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    provider = AwsProvider()
    provider.configure({})

    caller = provider.invoke("aws:index/getCallerIdentity:getCallerIdentity", {})

    assert caller["accountId"] == "123456789012"


def test_an_error_of_aws_is_shown_with_its_message_and_a_next_step(
    engine_on: EngineOn, cloud: Cloud
) -> None:
    CloudControl(cloud.url).order_fault(
        service="sqs", action="CreateQueue", code="AccessDenied", message="not you", status=403
    )

    with pytest.raises(EngineError, match="not you") as failure:
        engine_on("cloud").up("dev", settings(cloud))

    assert "Traceback" not in str(failure.value)
    assert "Next: " in str(failure.value)


def test_a_change_count_reports_whether_there_are_changes() -> None:
    assert Changes(replace=1).any
    assert not Changes(unchanged=17).any


@pytest.mark.parametrize(
    ("type_", "inputs", "property_", "words"),
    [
        ("aws:iam/role:Role", {}, "assumeRolePolicy", "is required"),
        ("aws:sqs/queue:Queue", {"delaySeconds": "soon"}, "delaySeconds", "expected a number"),
        ("aws:sqs/queue:Queue", {"size": 3}, "size", "there is no such input"),
        ("aws:sqs/queue:Queue", {"tags": ["a"]}, "tags", "expected a map"),
        (
            "aws:sqs/queue:Queue",
            {"kmsMasterKeyId": "key", "sqsManagedSseEnabled": True},
            "kmsMasterKeyId",
            "conflicts with sqsManagedSseEnabled",
        ),
        (
            "aws:iam/role:Role",
            {"name": "a", "namePrefix": "a", "assumeRolePolicy": "{}"},
            "name",
            "conflicts with namePrefix",
        ),
        (
            "aws:eks/cluster:Cluster",
            {"roleArn": "arn", "vpcConfig": {"subnets": ["subnet-1"]}},
            "vpcConfig.subnetIds",
            "is required",
        ),
        (
            "aws:eks/nodeGroup:NodeGroup",
            {
                "clusterName": "joiner",
                "nodeRoleArn": "arn",
                "subnetIds": ["subnet-1"],
                "scalingConfig": {"minSize": 1, "maxSize": 2, "desiredSize": "two"},
            },
            "scalingConfig.desiredSize",
            "expected a number",
        ),
    ],
)
def test_inputs_equal_those_of_the_sdk(
    cloud: Cloud, type_: str, inputs: dict[str, Any], property_: str, words: str
) -> None:
    checked = stand_in(cloud).check(Proposal(type=type_, name="a", old={}, new=inputs))

    assert any(f.property == property_ and words in f.reason for f in checked.faults)


def test_every_type_exists_in_the_sdk(cloud: Cloud) -> None:
    for token, kind in RESOURCES.items():
        _, members, _ = sdktypes.forms(RESOURCES)[token]
        fixed = {path.partition(".")[0] for path in kind.fixed}
        assert fixed <= {*members, *kind.computed}, token
        assert set(kind.defaults) <= set(members), token


def test_every_used_type_names_the_source_of_its_replacement_rules() -> None:
    programs = [
        *(CHECKOUT / "infra").rglob("*.py"),
        *(CHECKOUT / "examples").rglob("*.py"),
    ]
    made = {kind for program in programs for kind in MADE.findall(program.read_text())}

    assert ("iam", "Role") in made
    assert made <= {kind for token in RESOURCES for kind in TOKEN.findall(token)}
    for kind in RESOURCES.values():
        assert re.fullmatch(r"(ec2|ecr|eks|events|iam|sqs)/[a-z0-9_]+\.go", kind.source), kind


@pytest.mark.parametrize(
    ("token", "kept"), [("aws:ec2/tag:Tag", "value"), ("aws:sqs/queuePolicy:QueuePolicy", "policy")]
)
def test_only_a_tags_value_and_a_queues_policy_change_in_place(
    cloud: Cloud, token: str, kept: str
) -> None:
    provider = stand_in(cloud)
    _, inputs, _ = sdktypes.forms(RESOURCES)[token]

    assert {name for name in inputs if not provider.must_replace(token, name, {}, {})} == {kept}
