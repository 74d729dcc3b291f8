"""The engine and the aws stand-in against the test cloud."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from botocore.stub import Stubber

from testbed.cloud import Cloud, CloudControl
from testbed.environment import CHECKOUT
from testbed.plugins.awsprovider import sdktypes
from testbed.plugins.awsprovider.provider import RESOURCES, AwsProvider
from testbed.plugins.engine import Changes, EngineError
from testbed.plugins.provider import Proposal, ProviderError, Work
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


def test_the_provider_waits_until_an_addon_is_active(cloud: Cloud) -> None:
    place = {"clusterName": "joiner", "addonName": "vpc-cni"}
    arn = "arn:aws:eks:us-west-2:123456789012:addon/joiner/vpc-cni/1"
    described = {**place, "addonArn": arn, "addonVersion": "v1", "status": "ACTIVE"}
    provider = stand_in(cloud)

    with Stubber(provider.session.client("eks")) as aws:
        aws.add_response("create_addon", {}, {**place, "tags": {}})
        creating = {"addon": {**described, "status": "CREATING"}}
        for answer in (creating, {"addon": described}, {"addon": described}):
            aws.add_response("describe_addon", answer, place)
        aws.add_response("update_addon", {}, {**place, "addonVersion": "v2"})
        for _ in range(3):
            aws.add_response("describe_addon", {"addon": {**described, "addonVersion": "v2"}})
        aws.add_response("delete_addon", {}, {**place, "preserve": False})

        work = Work(type="aws:eks/addon:Addon", identity="joiner:vpc-cni", report=print)
        created = provider.create(work, place)
        assert (created.identity, created.outputs["addonVersion"]) == ("joiner:vpc-cni", "v1")
        updated = provider.update(work, created.outputs, place, {**place, "addonVersion": "v2"})
        assert updated["addonVersion"] == "v2"
        provider.delete(work, updated)
        aws.assert_no_pending_responses()


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
