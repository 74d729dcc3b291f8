"""The test cloud enforces the controller's policies, by resource and condition."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

import boto3
import pytest
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import ClientError

from testbed.cloud import Cloud, CloudControl
from tests.testbed.cloud.builders import Region, allow, document, pairs, token, unique
from tests.testbed.cloud.conftest import Aws

POD_IDENTITY = "pods.eks.amazonaws.com"
OWNED = {
    "kubernetes.io/cluster/joiner": "owned",
    "eks:eks-cluster-name": "joiner",
    "karpenter.sh/nodepool": "default",
}
TRUSTS_PODS = {
    "Effect": "Allow",
    "Principal": {"Service": POD_IDENTITY},
    "Action": ["sts:AssumeRole", "sts:TagSession"],
}


@pytest.fixture(scope="module")
def region(aws: Aws) -> Region:
    return Region(aws)


@dataclass(frozen=True)
class Workload:
    """A service account, the role it is bound to, and how it gets credentials."""

    aws: Aws
    role: str
    role_arn: str
    service_account: str

    def grant(self, *statements: Any) -> None:
        self.aws.client("iam").put_role_policy(
            RoleName=self.role, PolicyName="granted", PolicyDocument=document(*statements)
        )

    def ask(self, *, audience: str = POD_IDENTITY) -> dict[str, Any]:
        subject = f"system:serviceaccount:kube-system:{self.service_account}"
        return ask_agent(self.aws.url, token(subject, audience=audience))

    def signed(self) -> Aws:
        answer = self.ask()
        return self.aws.signed_by(
            (answer["AccessKeyId"], answer["SecretAccessKey"], answer["Token"])
        )


def ask_agent(url: str, authorization: str) -> dict[str, Any]:
    request = urllib.request.Request(
        f"{url}/v1/credentials", headers={"Authorization": authorization}
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        credentials: dict[str, Any] = json.load(answer)
        return credentials


def make_workload(aws: Aws, *, trust: Any = TRUSTS_PODS, associate: bool = True) -> Workload:
    name = unique("controller")
    role = aws.client("iam").create_role(RoleName=name, AssumeRolePolicyDocument=document(trust))
    arn = role["Role"]["Arn"]
    if associate:
        aws.client("eks").create_pod_identity_association(
            clusterName="joiner", namespace="kube-system", serviceAccount=name, roleArn=arn
        )
    return Workload(aws, name, arn, name)


@pytest.fixture
def workload(aws: Aws) -> Workload:
    return make_workload(aws)


def denial_of(error: pytest.ExceptionInfo[ClientError]) -> tuple[str, str]:
    answer = error.value.response["Error"]
    return answer["Code"], answer["Message"]


def test_a_role_session_has_exactly_the_permissions_of_its_policy(
    workload: Workload, control: CloudControl
) -> None:
    workload.grant(allow("ec2:DescribeInstances"))
    ec2 = workload.signed().client("ec2")

    ec2.describe_instances()
    with pytest.raises(ClientError) as denied:
        ec2.describe_subnets()

    code, message = denial_of(denied)
    assert code == "UnauthorizedOperation"
    assert f"assumed-role/{workload.role}/" in message
    assert "ec2:DescribeSubnets on resource: *" in message
    assert control.denied_calls()[-1]["action"] == "ec2:DescribeSubnets"
    mine = next(v for k, v in control.calls().items() if f"/{workload.role}/" in k)
    assert mine == {"ec2:DescribeInstances": 1, "ec2:DescribeSubnets": 1}


def test_the_permissions_that_a_role_used_are_recorded(
    workload: Workload, region: Region, control: CloudControl
) -> None:
    workload.grant(*launching_statements(), allow("ec2:DescribeImages"))
    template = own_template(region)

    workload.signed().client("ec2").create_fleet(**region.fleet(template=template, tags=OWNED))

    used = control.rights()[workload.role_arn]
    assert sorted(used) == ["ec2:CreateFleet", "ec2:CreateTags", "ec2:RunInstances"]
    assert f"arn:aws:ec2:us-west-2::image/{region.image()}" in used["ec2:RunInstances"]


def test_getcalleridentity_needs_no_permission(workload: Workload) -> None:
    identity = workload.signed().client("sts").get_caller_identity()

    assert f"assumed-role/{workload.role}/" in identity["Arn"]


def test_a_policy_takes_effect_at_once_and_an_explicit_deny_wins(workload: Workload) -> None:
    ec2 = workload.signed().client("ec2")
    with pytest.raises(ClientError, match="UnauthorizedOperation"):
        ec2.describe_instances()

    workload.grant(allow("ec2:Describe*"))
    ec2.describe_instances()

    workload.grant(allow("ec2:*"), {**allow("ec2:DescribeInstances"), "Effect": "Deny"})
    with pytest.raises(ClientError, match="explicit deny"):
        ec2.describe_instances()


def test_permissions_consider_a_tag_that_is_not_visible_yet(
    cloud: Cloud, workload: Workload, region: Region, ec2: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cloud.world.settings, "tagging", 3600.0)
    (instance,) = region.launch()
    ec2.create_tags(Resources=[instance], Tags=pairs({"team": "web"}))
    mine = {"StringEquals": {"aws:ResourceTag/team": "web"}}
    workload.grant(allow("ec2:TerminateInstances", Condition=mine))

    workload.signed().client("ec2").terminate_instances(InstanceIds=[instance])

    cloud.world.timers.make_all_due()


def test_an_attached_managed_policy_applies_in_its_default_version(
    aws: Aws, workload: Workload
) -> None:
    iam = aws.client("iam")
    policy = iam.create_policy(
        PolicyName=unique("policy"), PolicyDocument=document(allow("ssm:GetParameter"))
    )["Policy"]["Arn"]
    iam.attach_role_policy(RoleName=workload.role, PolicyArn=policy)
    name = "/aws/service/bottlerocket/aws-k8s-1.37/x86_64/latest/image_id"

    workload.signed().client("ssm").get_parameter(Name=name)
    iam.create_policy_version(
        PolicyArn=policy,
        PolicyDocument=document(allow("ssm:GetParameter", "arn:aws:ssm:*::parameter/other/*")),
        SetAsDefault=True,
    )

    with pytest.raises(ClientError, match="AccessDenied"):
        workload.signed().client("ssm").get_parameter(Name=name)


def launching_statements() -> list[dict[str, Any]]:
    """The rights that a provisioner needs to launch instances."""
    here = "arn:aws:ec2:us-west-2"
    shared = [f"{here}::image/*", f"{here}:*:subnet/*", f"{here}:*:security-group/*"]
    made = [
        f"{here}:*:{kind}/*"
        for kind in ("fleet", "instance", "volume", "network-interface", "spot-instances-request")
    ]
    tagged = {
        "StringEquals": {
            "aws:RequestTag/kubernetes.io/cluster/joiner": "owned",
            "aws:RequestTag/eks:eks-cluster-name": "joiner",
        },
        "StringLike": {"aws:RequestTag/karpenter.sh/nodepool": "*"},
    }
    templates = {
        "StringEquals": {"aws:ResourceTag/kubernetes.io/cluster/joiner": "owned"},
        "StringLike": {"aws:ResourceTag/karpenter.sh/nodepool": "*"},
    }
    launch = ["ec2:RunInstances", "ec2:CreateFleet"]
    creating = {"StringEquals": {**tagged["StringEquals"]}, "StringLike": tagged["StringLike"]}
    creating["StringEquals"]["ec2:CreateAction"] = [
        "RunInstances",
        "CreateFleet",
        "CreateLaunchTemplate",
    ]  # type: ignore[assignment]
    return [
        allow(launch, shared),
        allow(launch, f"{here}:*:launch-template/*", Condition=templates),
        allow(
            [*launch, "ec2:CreateLaunchTemplate"],
            [*made, f"{here}:*:launch-template/*"],
            Condition=tagged,
        ),
        allow("ec2:CreateTags", [*made, f"{here}:*:launch-template/*"], Condition=creating),
    ]


def own_template(region: Region, tags: dict[str, str] = OWNED, **data: Any) -> str:
    specifications = [
        {"ResourceType": kind, "Tags": pairs(OWNED)}
        for kind in ("network-interface", "spot-instances-request")
    ]
    return region.make_template(tags=tags, TagSpecifications=specifications, **data)


def test_a_fleet_needs_its_tags_on_everything_it_creates(
    workload: Workload, region: Region
) -> None:
    workload.grant(*launching_statements())
    ec2 = workload.signed().client("ec2")
    template = own_template(region)

    made = ec2.create_fleet(**region.fleet(template=template, tags=OWNED, capacity_type="spot"))
    assert len(made["Instances"]) == 1

    foreign = {**OWNED, "kubernetes.io/cluster/joiner": "shared"}
    with pytest.raises(ClientError) as denied:
        ec2.create_fleet(**region.fleet(template=template, tags=foreign))
    code, message = denial_of(denied)
    assert code == "UnauthorizedOperation"
    assert "ec2:CreateFleet on resource: arn:aws:ec2:us-west-2:123456789012:fleet/*" in message


def test_a_dry_run_of_a_fleet_needs_no_permission_to_run_instances(
    workload: Workload, region: Region
) -> None:
    forbidden = {"Effect": "Deny", "Action": "ec2:RunInstances", "Resource": "*"}
    workload.grant(*launching_statements(), forbidden)
    ec2 = workload.signed().client("ec2")
    fleet = region.fleet(template=own_template(region), tags=OWNED)

    with pytest.raises(ClientError, match="DryRunOperation"):
        ec2.create_fleet(**fleet, DryRun=True)
    with pytest.raises(ClientError, match="UnauthorizedOperation"):
        ec2.create_fleet(**fleet)


def test_a_launch_template_of_another_owner_cannot_be_launched(
    workload: Workload, region: Region
) -> None:
    workload.grant(*launching_statements())
    template = own_template(region, tags={"owner": "another"})

    with pytest.raises(ClientError, match=r"UnauthorizedOperation.*launch-template/lt-"):
        workload.signed().client("ec2").create_fleet(**region.fleet(template=template, tags=OWNED))


def test_a_launch_template_may_be_created_only_with_the_owners_tags(
    workload: Workload, region: Region
) -> None:
    workload.grant(*launching_statements())
    ec2 = workload.signed().client("ec2")

    def make(tags: dict[str, str]) -> None:
        ec2.create_launch_template(
            LaunchTemplateName=unique("owned"),
            LaunchTemplateData={"ImageId": region.image()},
            TagSpecifications=[{"ResourceType": "launch-template", "Tags": pairs(tags)}],
        )

    make(OWNED)
    with pytest.raises(ClientError, match="UnauthorizedOperation"):
        make({"team": "trees"})


def test_a_node_role_must_be_passable_to_ec2(aws: Aws, workload: Workload, region: Region) -> None:
    iam = aws.client("iam")
    role, profile = unique("node"), unique("profile")
    role_arn = iam.create_role(RoleName=role, AssumeRolePolicyDocument="{}")["Role"]["Arn"]
    iam.create_instance_profile(InstanceProfileName=profile)
    iam.add_role_to_instance_profile(InstanceProfileName=profile, RoleName=role)
    template = own_template(region, IamInstanceProfile={"Name": profile})
    arguments = region.fleet(template=template, tags=OWNED)

    workload.grant(*launching_statements())
    with pytest.raises(ClientError, match=f"iam:PassRole on resource: {role_arn}"):
        workload.signed().client("ec2").create_fleet(**arguments)

    to_ec2 = {"StringEquals": {"iam:PassedToService": "ec2.amazonaws.com"}}
    workload.grant(*launching_statements(), allow("iam:PassRole", role_arn, Condition=to_ec2))
    assert workload.signed().client("ec2").create_fleet(**arguments)["Instances"]


def test_only_instances_of_the_cluster_can_be_terminated(
    workload: Workload, region: Region
) -> None:
    owned = {"StringEquals": {"aws:ResourceTag/eks:eks-cluster-name": "joiner"}}
    workload.grant(allow("ec2:TerminateInstances", "arn:aws:ec2:*:*:instance/*", Condition=owned))
    [own], [foreign] = region.launch(tags=OWNED), region.launch(tags={"owner": "another"})
    ec2 = workload.signed().client("ec2")

    with pytest.raises(ClientError, match=f"instance/{foreign}"):
        ec2.terminate_instances(InstanceIds=[own, foreign])
    ec2.terminate_instances(InstanceIds=[own])


def test_tags_after_launch_are_limited_to_the_keys_that_the_policy_lists(
    workload: Workload, region: Region
) -> None:
    condition = {
        "StringEquals": {"aws:ResourceTag/eks:eks-cluster-name": "joiner"},
        "ForAllValues:StringEquals": {"aws:TagKeys": ["karpenter.sh/nodeclaim", "Name"]},
    }
    workload.grant(allow("ec2:CreateTags", "arn:aws:ec2:*:*:instance/*", Condition=condition))
    [identity] = region.launch(tags=OWNED)
    ec2 = workload.signed().client("ec2")

    ec2.create_tags(Resources=[identity], Tags=pairs({"Name": "node-1"}))
    with pytest.raises(ClientError, match="UnauthorizedOperation"):
        ec2.create_tags(Resources=[identity], Tags=pairs({"Name": "node-1", "other": "x"}))


def test_instance_profiles_are_guarded_by_their_tags(aws: Aws, workload: Workload) -> None:
    requested = {"StringEquals": {"aws:RequestTag/eks:eks-cluster-name": "joiner"}}
    held = {"StringEquals": {"aws:ResourceTag/eks:eks-cluster-name": "joiner"}}
    profiles = "arn:aws:iam::123456789012:instance-profile/*"
    workload.grant(
        allow(
            ["iam:CreateInstanceProfile", "iam:TagInstanceProfile"], profiles, Condition=requested
        ),
        allow("iam:DeleteInstanceProfile", profiles, Condition=held),
    )
    iam = workload.signed().client("iam")
    own, foreign = unique("own"), unique("foreign")
    aws.client("iam").create_instance_profile(InstanceProfileName=foreign)

    iam.create_instance_profile(
        InstanceProfileName=own, Path="/karpenter/", Tags=pairs({"eks:eks-cluster-name": "joiner"})
    )
    iam.delete_instance_profile(InstanceProfileName=own)
    with pytest.raises(ClientError, match="AccessDenied"):
        iam.create_instance_profile(InstanceProfileName=unique("untagged"))
    with pytest.raises(ClientError, match="AccessDenied"):
        iam.delete_instance_profile(InstanceProfileName=foreign)


def test_a_queue_and_a_cluster_are_named_by_their_arns(aws: Aws, workload: Workload) -> None:
    own, other = unique("queue"), unique("queue")
    sqs = aws.client("sqs")
    url, other_url = (sqs.create_queue(QueueName=name)["QueueUrl"] for name in (own, other))
    workload.grant(
        allow(
            ["sqs:ReceiveMessage", "sqs:GetQueueUrl"], f"arn:aws:sqs:us-west-2:123456789012:{own}"
        ),
        allow("eks:DescribeCluster", "arn:aws:eks:us-west-2:123456789012:cluster/joiner"),
    )
    signed = workload.signed()

    assert signed.client("sqs").get_queue_url(QueueName=own)["QueueUrl"] == url
    signed.client("sqs").receive_message(QueueUrl=url)
    signed.client("eks").describe_cluster(name="joiner")
    with pytest.raises(ClientError, match="AccessDenied"):
        signed.client("sqs").receive_message(QueueUrl=other_url)
    with pytest.raises(ClientError, match="AccessDenied"):
        signed.client("eks").list_access_entries(clusterName="joiner")


def test_a_queue_that_denies_plain_http_accepts_the_loopback_endpoint(
    aws: Aws, workload: Workload
) -> None:
    name = unique("queue")
    arn = f"arn:aws:sqs:us-west-2:123456789012:{name}"
    insecure = {
        "Effect": "Deny",
        "Principal": "*",
        "Action": "sqs:*",
        "Resource": arn,
        "Condition": {"Bool": {"aws:SecureTransport": "false"}},
    }
    url = aws.client("sqs").create_queue(QueueName=name, Attributes={"Policy": document(insecure)})[
        "QueueUrl"
    ]
    workload.grant(allow("sqs:ReceiveMessage", arn))

    aws.client("sqs").send_message(QueueUrl=url, MessageBody="hello")
    (message,) = workload.signed().client("sqs").receive_message(QueueUrl=url)["Messages"]
    assert message["Body"] == "hello"


def test_the_requested_region_is_a_condition(workload: Workload) -> None:
    here = {"StringEquals": {"aws:RequestedRegion": "us-west-2"}}
    workload.grant(allow("ec2:DescribeInstances", Condition=here))
    signed = workload.signed()

    signed.client("ec2").describe_instances()
    with pytest.raises(ClientError, match="UnauthorizedOperation"):
        signed.client("ec2", "us-east-1").describe_instances()


def test_a_permissions_boundary_limits_permissions(aws: Aws, workload: Workload) -> None:
    iam = aws.client("iam")
    boundary = iam.create_policy(
        PolicyName=unique("boundary"), PolicyDocument=document(allow("ssm:*"))
    )["Policy"]["Arn"]
    iam.put_role_permissions_boundary(RoleName=workload.role, PermissionsBoundary=boundary)
    workload.grant(allow("*"))

    with pytest.raises(ClientError, match="boundary"):
        workload.signed().client("ec2").describe_instances()


@pytest.mark.parametrize(
    ("service", "act", "code"),
    [
        ("ec2", lambda c: c.describe_instances(), "AuthFailure"),
        ("iam", lambda c: c.list_roles(), "InvalidClientTokenId"),
        ("sts", lambda c: c.get_caller_identity(), "InvalidClientTokenId"),
        ("ssm", lambda c: c.get_parameter(Name="x"), "UnrecognizedClientException"),
    ],
)
def test_unknown_access_keys_are_refused(aws: Aws, service: str, act: Any, code: str) -> None:
    stranger = aws.signed_by(("AKIANOBODY", "secret", None)).client(service)

    with pytest.raises(ClientError) as refused:
        act(stranger)

    assert refused.value.response["Error"]["Code"] == code


# ---------------------------------------------------------------- handing out credentials


def test_pod_identity_hands_out_credentials_of_the_associated_role(workload: Workload) -> None:
    answer = workload.ask()

    assert set(answer) >= {"AccessKeyId", "SecretAccessKey", "Token", "Expiration"}
    workload.grant(allow("sts:GetCallerIdentity"))
    identity = workload.signed().client("sts").get_caller_identity()
    assert identity["Arn"].startswith(
        f"arn:aws:sts::123456789012:assumed-role/{workload.role}/eks-joiner-"
    )


def test_botocore_takes_its_credentials_from_the_agent(
    aws: Aws, workload: Workload, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    held = tmp_path / "token"
    subject = f"system:serviceaccount:kube-system:{workload.service_account}"
    held.write_text(token(subject, audience=POD_IDENTITY))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{aws.url}/v1/credentials")
    monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(held))
    workload.grant(allow("sts:GetCallerIdentity"))

    session = boto3.session.Session(region_name="us-west-2")

    identity = session.client("sts", endpoint_url=aws.url).get_caller_identity()
    assert f":assumed-role/{workload.role}/" in identity["Arn"]


@pytest.fixture
def unassociated(aws: Aws) -> Workload:
    return make_workload(aws, associate=False)


def test_a_service_account_without_an_association_gets_no_credentials(
    unassociated: Workload,
) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        unassociated.ask()
    assert refused.value.code == 404


def test_the_agent_of_an_isolated_network_needs_an_endpoint(
    cloud: Cloud, aws: Aws, workload: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    ec2 = aws.client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.77.0.0/16")["Vpc"]["VpcId"]
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.77.0.0/24")["Subnet"]["SubnetId"]
    network = cloud.world.clusters.described["joiner"]["resourcesVpcConfig"]
    monkeypatch.setitem(network, "subnetIds", [subnet])

    with pytest.raises(urllib.error.HTTPError) as refused:
        workload.ask()
    assert "does not reach eks-auth" in refused.value.read().decode()

    ec2.create_vpc_endpoint(
        VpcId=vpc, ServiceName="com.amazonaws.us-west-2.eks-auth", VpcEndpointType="Interface"
    )
    assert workload.ask()["AccessKeyId"]


def test_a_token_for_another_audience_gets_no_credentials(workload: Workload) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        workload.ask(audience="sts.amazonaws.com")
    assert refused.value.code == 403


def test_a_role_that_does_not_trust_pods_is_not_assumed(aws: Aws) -> None:
    without_tags = {**TRUSTS_PODS, "Action": "sts:AssumeRole"}
    for trust in ({**TRUSTS_PODS, "Principal": {"Service": "ec2.amazonaws.com"}}, without_tags):
        with pytest.raises(urllib.error.HTTPError) as refused:
            make_workload(aws, trust=trust).ask()
        assert refused.value.code == 403


def web_identity(aws: Aws, workload: Workload, subject: str, **changes: Any) -> dict[str, Any]:
    sts = boto3.client(
        "sts",
        region_name="us-west-2",
        endpoint_url=aws.url,
        config=Config(signature_version=UNSIGNED, retries={"total_max_attempts": 1}),
    )
    answer: dict[str, Any] = sts.assume_role_with_web_identity(
        RoleArn=workload.role_arn,
        RoleSessionName="controller",
        WebIdentityToken=token(subject, **{"audience": "sts.amazonaws.com", **changes}),
    )["Credentials"]
    return answer


def trusts_subject(subject: str) -> dict[str, Any]:
    issuer = "oidc.testbed.local/id/JOINER"
    return {
        "Effect": "Allow",
        "Principal": {"Federated": f"arn:aws:iam::123456789012:oidc-provider/{issuer}"},
        "Action": "sts:AssumeRoleWithWebIdentity",
        "Condition": {
            "StringEquals": {f"{issuer}:sub": subject, f"{issuer}:aud": "sts.amazonaws.com"}
        },
    }


def test_a_web_identity_token_is_exchanged_for_the_role_that_trusts_it(aws: Aws) -> None:
    subject = "system:serviceaccount:kube-system:karpenter"
    workload = make_workload(aws, trust=trusts_subject(subject), associate=False)
    workload.grant(allow("sts:GetCallerIdentity"))

    issued = web_identity(aws, workload, subject)

    keys = (issued["AccessKeyId"], issued["SecretAccessKey"], issued["SessionToken"])
    identity = aws.signed_by(keys).client("sts").get_caller_identity()
    assert identity["Arn"].endswith(f":assumed-role/{workload.role}/controller")


@pytest.mark.parametrize(
    ("subject", "changes", "code"),
    [
        ("system:serviceaccount:default:karpenter", {}, "AccessDenied"),
        (
            "system:serviceaccount:kube-system:karpenter",
            {"issuer": "https://elsewhere.example"},
            "InvalidIdentityToken",
        ),
        (
            "system:serviceaccount:kube-system:karpenter",
            {"audience": "other"},
            "InvalidIdentityToken",
        ),
        (
            "system:serviceaccount:kube-system:karpenter",
            {"expires": 1.0},
            "InvalidIdentityToken",
        ),
    ],
)
def test_a_web_identity_token_of_another_subject_is_refused(
    aws: Aws, subject: str, changes: dict[str, Any], code: str
) -> None:
    trusted = trusts_subject("system:serviceaccount:kube-system:karpenter")
    workload = make_workload(aws, trust=trusted, associate=False)

    with pytest.raises(ClientError) as refused:
        web_identity(aws, workload, subject, **changes)

    assert refused.value.response["Error"]["Code"] == code
