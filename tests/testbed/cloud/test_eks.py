"""The cluster, its access entries, Pod Identity associations and add-ons."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
from botocore.exceptions import ClientError

from testbed.cloud import CloudControl
from tests.testbed.cloud.builders import unique
from tests.testbed.cloud.conftest import Aws

CLUSTER = "joiner"
VIEW = "arn:aws:eks::aws:cluster-access-policy/AmazonEKSViewPolicy"


@pytest.fixture(scope="module")
def eks(aws: Aws) -> Any:
    return aws.client("eks")


@pytest.fixture
def role(aws: Aws) -> str:
    made = aws.client("iam").create_role(RoleName=unique("role"), AssumeRolePolicyDocument="{}")
    return str(made["Role"]["Arn"])


def test_describecluster_returns_what_a_node_needs_to_join(eks: Any, ec2: Any) -> None:
    cluster = eks.describe_cluster(name=CLUSTER)["cluster"]

    assert cluster["status"] == "ACTIVE"
    assert cluster["version"] == "1.37"
    assert cluster["endpoint"] == "https://127.0.0.1:6443"
    assert cluster["certificateAuthority"]["data"] == "dGVzdGJlZA=="
    assert cluster["kubernetesNetworkConfig"]["serviceIpv4Cidr"] == "10.0.0.0/16"
    assert cluster["identity"]["oidc"]["issuer"] == "https://oidc.testbed.local/id/JOINER"
    assert cluster["accessConfig"]["authenticationMode"] == "API_AND_CONFIG_MAP"
    network = cluster["resourcesVpcConfig"]
    subnets = ec2.describe_subnets(SubnetIds=network["subnetIds"])["Subnets"]
    assert {s["VpcId"] for s in subnets} == {network["vpcId"]}
    assert {s["AvailabilityZone"] for s in subnets} == {f"us-west-2{z}" for z in "abc"}
    kinds = {name_of(s).split("-")[1] for s in subnets}
    assert kinds == {"private", "public", "intra"}
    assert all(s["AvailableIpAddressCount"] > 16000 for s in subnets if "private" in name_of(s))
    assert {s["MapPublicIpOnLaunch"] for s in subnets if "public" in name_of(s)} == {True}
    [group] = ec2.describe_security_groups(GroupIds=[network["clusterSecurityGroupId"]])[
        "SecurityGroups"
    ]
    assert group["VpcId"] == network["vpcId"]


def name_of(subnet: Mapping[str, Any]) -> str:
    return str(next(tag["Value"] for tag in subnet["Tags"] if tag["Key"] == "Name"))


def test_a_cluster_that_does_not_exist_is_not_found(eks: Any) -> None:
    with pytest.raises(eks.exceptions.ResourceNotFoundException):
        eks.describe_cluster(name="elsewhere")


def test_the_pod_identity_agent_is_active(eks: Any) -> None:
    assert "eks-pod-identity-agent" in eks.list_addons(clusterName=CLUSTER)["addons"]

    described = eks.describe_addon(clusterName=CLUSTER, addonName="eks-pod-identity-agent")["addon"]

    assert described["status"] == "ACTIVE"


@pytest.mark.parametrize(
    ("kind", "groups"),
    [
        ("EC2_LINUX", ["system:nodes"]),
        ("EC2_WINDOWS", ["eks:kube-proxy-windows", "system:nodes"]),
    ],
)
def test_an_access_entry_for_nodes_maps_the_role_to_node_names(
    eks: Any, role: str, control: CloudControl, kind: str, groups: list[str]
) -> None:
    made = eks.create_access_entry(
        clusterName=CLUSTER, principalArn=role, type=kind, tags={"team": "trees"}
    )["accessEntry"]

    assert made["username"] == "system:node:{{EC2PrivateDNSName}}"
    assert made["kubernetesGroups"] == groups
    assert eks.describe_access_entry(clusterName=CLUSTER, principalArn=role)["accessEntry"] == made
    assert role in eks.list_access_entries(clusterName=CLUSTER)["accessEntries"]
    [seen] = [each for each in control.access_entries() if each["principalArn"] == role]
    assert seen["type"] == kind
    with pytest.raises(eks.exceptions.ResourceInUseException):
        eks.create_access_entry(clusterName=CLUSTER, principalArn=role)

    eks.delete_access_entry(clusterName=CLUSTER, principalArn=role)

    with pytest.raises(eks.exceptions.ResourceNotFoundException):
        eks.describe_access_entry(clusterName=CLUSTER, principalArn=role)
    with pytest.raises(eks.exceptions.ResourceNotFoundException):
        eks.delete_access_entry(clusterName=CLUSTER, principalArn=role)


def test_an_access_entry_grants_no_access_to_a_role_created_again(
    aws: Aws, eks: Any, role: str, control: CloudControl
) -> None:
    iam, name = aws.client("iam"), role.rpartition("/")[2]
    eks.create_access_entry(clusterName=CLUSTER, principalArn=role, type="EC2_LINUX")
    iam.delete_role(RoleName=name)
    iam.create_role(RoleName=name, AssumeRolePolicyDocument="{}")

    assert role in eks.list_access_entries(clusterName=CLUSTER)["accessEntries"]
    assert role not in [each["principalArn"] for each in control.access_entries()]

    eks.delete_access_entry(clusterName=CLUSTER, principalArn=role)
    eks.create_access_entry(clusterName=CLUSTER, principalArn=role, type="EC2_LINUX")
    assert role in [each["principalArn"] for each in control.access_entries()]


def test_an_access_entry_needs_a_principal_that_exists(eks: Any) -> None:
    nobody = "arn:aws:iam::123456789012:role/nobody"

    with pytest.raises(eks.exceptions.InvalidParameterException, match="invalid principal"):
        eks.create_access_entry(clusterName=CLUSTER, principalArn=nobody)


def test_a_standard_access_entry_has_groups_and_policies(eks: Any, role: str) -> None:
    eks.create_access_entry(
        clusterName=CLUSTER, principalArn=role, kubernetesGroups=["viewers"], username="ann"
    )
    eks.update_access_entry(clusterName=CLUSTER, principalArn=role, kubernetesGroups=["editors"])

    entry = eks.describe_access_entry(clusterName=CLUSTER, principalArn=role)["accessEntry"]
    assert (entry["type"], entry["username"]) == ("STANDARD", "ann")
    assert entry["kubernetesGroups"] == ["editors"]

    scope = {"type": "namespace", "namespaces": ["default"]}
    eks.associate_access_policy(
        clusterName=CLUSTER, principalArn=role, policyArn=VIEW, accessScope=scope
    )
    listed = eks.list_associated_access_policies(clusterName=CLUSTER, principalArn=role)
    assert [p["policyArn"] for p in listed["associatedAccessPolicies"]] == [VIEW]
    assert listed["associatedAccessPolicies"][0]["accessScope"] == scope
    eks.disassociate_access_policy(clusterName=CLUSTER, principalArn=role, policyArn=VIEW)
    listed = eks.list_associated_access_policies(clusterName=CLUSTER, principalArn=role)
    assert listed["associatedAccessPolicies"] == []
    eks.delete_access_entry(clusterName=CLUSTER, principalArn=role)


def test_a_pod_identity_association_exists_from_creation_to_deletion(
    eks: Any, role: str, control: CloudControl
) -> None:
    account = {"namespace": "kube-system", "serviceAccount": unique("account")}
    made = eks.create_pod_identity_association(
        clusterName=CLUSTER, roleArn=role, tags={"team": "trees"}, **account
    )["association"]
    identity = made["associationId"]

    assert made["associationArn"].endswith(f"podidentityassociation/{CLUSTER}/{identity}")
    described = eks.describe_pod_identity_association(clusterName=CLUSTER, associationId=identity)
    assert described["association"] == made
    [listed] = eks.list_pod_identity_associations(clusterName=CLUSTER, **account)["associations"]
    assert listed["associationId"] == identity
    association = {**account, "clusterName": CLUSTER, "roleArn": role, "isSeen": True}
    assert association in control.pod_identity_associations()
    with pytest.raises(eks.exceptions.ResourceInUseException):
        eks.create_pod_identity_association(clusterName=CLUSTER, roleArn=role, **account)

    eks.delete_pod_identity_association(clusterName=CLUSTER, associationId=identity)

    with pytest.raises(eks.exceptions.ResourceNotFoundException):
        eks.describe_pod_identity_association(clusterName=CLUSTER, associationId=identity)


def test_tags_of_eks_resources_can_be_changed(eks: Any, role: str) -> None:
    arn = eks.create_access_entry(clusterName=CLUSTER, principalArn=role)["accessEntry"][
        "accessEntryArn"
    ]

    eks.tag_resource(resourceArn=arn, tags={"a": "1", "b": "2"})
    eks.untag_resource(resourceArn=arn, tagKeys=["a"])

    assert eks.list_tags_for_resource(resourceArn=arn)["tags"] == {"b": "2"}
    with pytest.raises(ClientError, match="NotFoundException"):
        eks.tag_resource(resourceArn=f"{arn}x", tags={"a": "1"})


def test_a_zonal_shift_is_listed_for_the_cluster(aws: Aws, eks: Any, control: CloudControl) -> None:
    arc, arn = aws.client("arc-zonal-shift"), eks.describe_cluster(name=CLUSTER)["cluster"]["arn"]
    assert arc.get_managed_resource(resourceIdentifier=arn)["zonalShifts"] == []

    control.shift_zone("usw2-az2")

    [shift] = arc.get_managed_resource(resourceIdentifier=arn)["zonalShifts"]
    assert (shift["awayFrom"], shift["appliedStatus"]) == ("usw2-az2", "APPLIED")
    control.shift_zone("usw2-az2", active=False)
    assert arc.get_managed_resource(resourceIdentifier=arn)["zonalShifts"] == []


def test_a_zonal_shift_is_started_and_canceled(aws: Aws, eks: Any) -> None:
    arc, arn = aws.client("arc-zonal-shift"), eks.describe_cluster(name=CLUSTER)["cluster"]["arn"]
    order = {"resourceIdentifier": arn, "awayFrom": "usw2-az2", "comment": "a test"}

    started = arc.start_zonal_shift(**order, expiresIn="90m")

    assert started["status"] == "ACTIVE"
    assert started["expiryTime"] - started["startTime"] > timedelta(minutes=89)
    [shift] = arc.get_managed_resource(resourceIdentifier=arn)["zonalShifts"]
    assert (shift["awayFrom"], shift["appliedStatus"]) == ("usw2-az2", "APPLIED")
    with pytest.raises(arc.exceptions.ConflictException):
        arc.start_zonal_shift(**order, expiresIn="1h")
    canceled = arc.cancel_zonal_shift(zonalShiftId=started["zonalShiftId"])
    assert canceled["status"] == "CANCELED"
    assert arc.get_managed_resource(resourceIdentifier=arn)["zonalShifts"] == []
    with pytest.raises(arc.exceptions.ResourceNotFoundException):
        arc.cancel_zonal_shift(zonalShiftId=started["zonalShiftId"])


@pytest.mark.parametrize(
    "wrong", [{"awayFrom": "us-west-2a"}, {"expiresIn": "soon"}], ids=["zone", "duration"]
)
def test_a_zonal_shift_needs_a_zone_id_and_a_duration(
    aws: Aws, eks: Any, wrong: dict[str, str]
) -> None:
    arc, arn = aws.client("arc-zonal-shift"), eks.describe_cluster(name=CLUSTER)["cluster"]["arn"]
    order = {"resourceIdentifier": arn, "awayFrom": "usw2-az2", "expiresIn": "1h", "comment": "a"}

    with pytest.raises(arc.exceptions.ValidationException):
        arc.start_zonal_shift(**{**order, **wrong})


def test_an_add_on_is_installed_changed_and_removed(eks: Any) -> None:
    name = {"clusterName": CLUSTER, "addonName": "metrics-server"}
    eks.create_addon(**name, addonVersion="v0.8.0-eksbuild.1", tags={"team": "trees"})
    with pytest.raises(eks.exceptions.ResourceInUseException):
        eks.create_addon(**name)

    eks.update_addon(**name, addonVersion="v0.8.1-eksbuild.1")

    described = eks.describe_addon(**name)["addon"]
    assert (described["status"], described["addonVersion"]) == ("ACTIVE", "v0.8.1-eksbuild.1")
    assert described["tags"] == {"team": "trees"}
    eks.delete_addon(**name)
    with pytest.raises(eks.exceptions.ResourceNotFoundException):
        eks.describe_addon(**name)


def test_a_cluster_in_config_map_mode_refuses_access_entries_until_its_mode_changes(
    eks: Any, role: str, control: CloudControl
) -> None:
    entry = {"clusterName": CLUSTER, "principalArn": role}
    control.set_authentication_mode("CONFIG_MAP")
    for ask in (eks.create_access_entry, eks.describe_access_entry):
        with pytest.raises(ClientError, match="InvalidRequestException"):
            ask(**entry)

    on = {"authenticationMode": "API_AND_CONFIG_MAP"}
    eks.update_cluster_config(name=CLUSTER, accessConfig=on)

    eks.create_access_entry(**entry)
    eks.delete_access_entry(**entry)
    with pytest.raises(ClientError, match="Unsupported authentication mode update"):
        eks.update_cluster_config(name=CLUSTER, accessConfig={"authenticationMode": "CONFIG_MAP"})


def test_the_clusters_security_group_is_tagged_as_eks_tags_it(eks: Any, ec2: Any) -> None:
    network = eks.describe_cluster(name=CLUSTER)["cluster"]["resourcesVpcConfig"]
    (group,) = ec2.describe_security_groups(GroupIds=[network["clusterSecurityGroupId"]])[
        "SecurityGroups"
    ]

    tags = {tag["Key"]: tag["Value"] for tag in group["Tags"]}
    assert tags["kubernetes.io/cluster/joiner"] == "owned"
    assert tags["aws:eks:cluster-name"] == CLUSTER
