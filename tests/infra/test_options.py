"""The stack's settings of names, rights, pods and subnets, and their effects."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pulumi
import pulumi_aws as aws
import pytest
import yaml

from infra.cluster.ekscluster import EksCluster
from infra.clusterapi import ClusterLocation
from infra.config.forms import ConfigError, IpFamily
from infra.config.reading import parse
from infra.joiner import Joiner, JoinerArgs
from infra.policies import Place, ipv6_cni
from testbed.cloud.iam.policies import evaluate
from tests.infra.test_config import ENOUGH
from tests.infra.test_program import (
    ACCOUNT,
    MARKER,
    SAMPLES,
    SETTINGS,
    STACK,
    Made,
    _program,
    have_every_name,
    made_by,
    run,
    standard,
    tagged,
)

pytestmark = pytest.mark.usefixtures("entries")

STATEMENT = {"Effect": "Allow", "Action": "s3:GetObject", "Resource": "*"}
KEY = f"arn:aws:kms:us-west-2:{ACCOUNT}:key/1234"
AWS_POLICY = "arn:aws:iam::aws:policy"
CLUSTER_TAG = "kubernetes.io/cluster/joiner"
BOUNDARY = "arn:aws:iam::aws:policy/PowerUserAccess"
OWN_POLICY = f"arn:aws:iam::{ACCOUNT}:policy/secrets"
OWN_PARAMETERS = "arn:aws:ssm:us-west-2:210987654321:parameter/shared/*"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
TERMS = [{"matchExpressions": [{"key": "a", "operator": "Exists"}]}, {"matchFields": []}]

OF_IAM = {
    "iamPath": "/platform/",
    "namePrefix": "Acme",
    "permissionsBoundary": BOUNDARY,
    "controllerStatements": json.dumps([STATEMENT]),
    "nodeStatements": json.dumps([STATEMENT]),
    "nodePolicies": json.dumps([OWN_POLICY]),
    "queueKey": KEY,
    "imageParameters": f"/golden/*, {OWN_PARAMETERS}",
}
"""Settings of roles and policies that do not affect one another."""

OF_PODS = {
    "extraLabels": '{"team": "platform"}',
    "podAnnotations": '{"example.com/owner": "me"}',
    "env": '{"HTTPS_PROXY": "http://proxy:3128"}',
    "nodeSelector": '{"pool": "system"}',
    "tolerations": '[{"key": "system", "operator": "Exists"}]',
    "imagePullSecrets": "registry",
    "metricsDiscovery": "annotations",
    "affinity": json.dumps(
        {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": TERMS}}, "podAntiAffinity": {}}
    ),
}
"""Settings of the controller's pods that do not affect one another."""


def template_of(made: Made) -> dict[str, Any]:
    template: dict[str, Any] = made.one("kubernetes:apps/v1:Deployment")["spec"]["template"]
    return template


def policies_of(made: Made) -> dict[str, str]:
    """Text of every policy that stands for itself or in a role, by the end of its title."""
    inputs = {**made.of("aws:iam/policy:Policy"), **made.of("aws:iam/rolePolicy:RolePolicy")}
    return {name: policy["policy"] for name, policy in inputs.items()}


def test_existing_roles_and_queue_are_used_and_not_created() -> None:
    made = run(
        nodeRole="existing",
        nodeRoleName="nodes",
        controllerRole="existing",
        controllerRoleName="controller",
        queue="existing",
        queueName="events",
        instanceProfileName="profile",
    )

    for kind in ("iam/role:Role", "iam/policy:Policy", "sqs/queue:Queue"):
        assert not made.of(f"aws:{kind}"), kind
    assert not made.of("aws:iam/rolePolicyAttachment:RolePolicyAttachment")
    assert not made.of("aws:iam/instanceProfile:InstanceProfile")
    assert not made.of("aws:cloudwatch/eventRule:EventRule")
    entry = made.one("aws:eks/accessEntry:AccessEntry")
    assert entry["principalArn"] == f"arn:aws:iam::{ACCOUNT}:role/theirs/nodes"
    association = made.one("aws:eks/podIdentityAssociation:PodIdentityAssociation")
    assert association["roleArn"].endswith("role/theirs/controller")
    variables = {entry["name"]: entry.get("value") for entry in _container(made)["env"]}
    assert variables["INTERRUPTION_QUEUE"] == "events"
    node_class = made.one("kubernetes:karpenter.k8s.aws/v1:EC2NodeClass")
    assert node_class["spec"]["instanceProfile"] == "profile"
    assert "role" not in node_class["spec"]


def _container(made: Made) -> dict[str, Any]:
    (container,) = template_of(made)["spec"]["containers"]
    return dict(container)


def test_an_existing_object_in_use_is_not_a_name_conflict(entries: Any) -> None:
    have_every_name(entries, {"team": "network"})
    with pytest.raises(ConfigError) as refused:
        run(nodeRole="existing", controllerRole="existing", queue="existing")

    said = "\n".join(refused.value.problems)
    assert "an instance profile" in said
    for kind in ("a role ", "a policy ", "a queue ", "EventBridge"):
        assert kind not in said


def test_paths_prefixes_and_boundaries_apply_to_everything_in_iam() -> None:
    made = standard(**OF_IAM)

    roles = made.of("aws:iam/role:Role").values()
    assert {role["name"] for role in roles} == {"AcmeNodeRole-joiner", "AcmeControllerRole-joiner"}
    assert {role["permissionsBoundary"] for role in roles} == {BOUNDARY}
    assert all(
        policy["name"].startswith("AcmeController")
        for policy in made.of("aws:iam/policy:Policy").values()
    )
    for kind in ("role:Role", "policy:Policy", "instanceProfile:InstanceProfile"):
        assert {one["path"] for one in made.of(f"aws:iam/{kind}").values()} == {"/platform/"}


def test_own_statements_and_policies_are_added() -> None:
    made = standard(**OF_IAM)

    texts = policies_of(made)
    extra = {
        title: json.loads(text)["Statement"] for title, text in texts.items() if "Extra" in title
    }
    assert extra == {"joiner-controller-Extra": [STATEMENT], "joiner-node-Extra": [STATEMENT]}
    attached = made.of("aws:iam/rolePolicyAttachment:RolePolicyAttachment").values()
    assert OWN_POLICY in {one["policyArn"] for one in attached}


def test_an_encrypted_queue_grants_the_controller_its_kms_key() -> None:
    made = standard(**OF_IAM)

    queue = made.one("aws:sqs/queue:Queue")
    assert queue["kmsMasterKeyId"] == KEY
    assert "sqsManagedSseEnabled" not in queue
    decryption = json.loads(policies_of(made)["joiner-controller-Interruption"])
    assert evaluate([decryption], action="kms:Decrypt", resource=KEY, context={}).allowed
    assert not evaluate([decryption], action="kms:Decrypt", resource=KEY + "5", context={}).allowed


def test_nodes_of_an_ipv6_cluster_may_assign_ipv6_addresses() -> None:
    def program() -> None:
        cluster = EksCluster.found(ClusterLocation("joiner", "us-west-2"))
        cluster = dataclasses.replace(cluster, ip_family="ipv6")
        Joiner("a", JoinerArgs(cluster=cluster, image="joiner:1"))

    made = made_by(program, {})

    attached = made.of("aws:iam/rolePolicyAttachment:RolePolicyAttachment")
    assert "a-node-AmazonEKSWorkerNodePolicy" in attached
    assert "a-node-AmazonEKS_CNI_Policy" not in attached
    assert "ec2:AssignIpv6Addresses" in policies_of(made)["a-node-IPv6"]
    document = ipv6_cni(Place("aws", "us-west-2", ACCOUNT, "joiner"))
    interface = f"arn:aws:ec2:us-west-2:{ACCOUNT}:network-interface/eni-1"
    instance = f"arn:aws:ec2:us-west-2:{ACCOUNT}:instance/i-1"
    for resource, allowed in ((interface, True), (instance, False)):
        asked = evaluate([document], action="ec2:CreateTags", resource=resource, context={})
        assert asked.allowed is allowed


def test_too_many_ssm_parameters_for_a_policy_are_refused_with_a_message() -> None:
    parameters = [f"/golden/{'a' * 90}{number}" for number in range(60)]

    with pytest.raises(ConfigError, match=r"ImageParameters has .* IAM allows 6,144"):
        run(imageParameters=json.dumps(parameters))


def test_the_component_has_the_same_policy_quotas() -> None:
    def program() -> None:
        cluster = EksCluster.found(ClusterLocation("joiner", "us-west-2"))
        policy = f"{AWS_POLICY}/AmazonEKSWorkerNodePolicy"
        Joiner("a", JoinerArgs(cluster=cluster, image="joiner:1", node_policies=[policy]))

    with pytest.raises(ConfigError, match="always attached to the node role"):
        made_by(program, {})


@pytest.mark.parametrize(
    ("stated", "actual", "words"),
    [("ipv6", "ipv6", ""), ("ipv4", "ipv6", "set ip_family='ipv6'"), ("ipv4", None, "")],
)
def test_a_program_states_the_ip_family_of_its_cluster(
    stated: IpFamily, actual: str | None, words: str
) -> None:
    def program() -> None:
        cluster = aws.eks.Cluster(
            "c",
            role_arn="role",
            vpc_config={"subnet_ids": []},
            kubernetes_network_config={"ip_family": actual} if actual else None,
        )
        known = EksCluster.of(cluster, subnet_ids=(), ip_family=stated)
        assert known.ip_family == stated
        pulumi.export("endpoint", known.endpoint)

    if words:
        with pytest.raises(ConfigError, match=words):
            made_by(program, {})
    else:
        assert made_by(program, {}).one("aws:eks/cluster:Cluster")


def test_added_pod_labels_and_annotations_keep_the_default_ones() -> None:
    made = standard(**OF_PODS)
    template = template_of(made)
    pod, metadata = template["spec"], template["metadata"]

    assert metadata["labels"]["team"] == "platform"
    assert metadata["annotations"]["example.com/owner"] == "me"
    assert metadata["annotations"]["prometheus.io/port"] == "8080"
    assert metadata["annotations"]["joiner.dev/identity"]
    assert {"name": "HTTPS_PROXY", "value": "http://proxy:3128"} in pod["containers"][0]["env"]
    assert pod["nodeSelector"] == {"kubernetes.io/os": "linux", "pool": "system"}
    assert [toleration["key"] for toleration in pod["tolerations"]] == [
        "CriticalAddonsOnly",
        "system",
    ]
    assert pod["imagePullSecrets"] == [{"name": "registry"}]
    deployment = made.one("kubernetes:apps/v1:Deployment")
    assert deployment["metadata"]["labels"]["team"] == "platform"
    assert "team" not in deployment["spec"]["selector"]["matchLabels"]
    assert made.one("kubernetes:core/v1:Service")["metadata"]["labels"]["team"] == "platform"


def test_a_custom_affinity_still_excludes_nodes_that_joiner_launches() -> None:
    asked = template_of(standard(**OF_PODS))["spec"]["affinity"]
    ours = template_of(standard())["spec"]["affinity"]

    not_ours = {"key": "karpenter.k8s.aws/ec2nodeclass", "operator": "DoesNotExist"}
    for term in asked["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]:
        assert not_ours in term["matchExpressions"]
    assert asked["podAntiAffinity"] == {}
    assert ours["podAntiAffinity"][REQUIRED]
    # Nodes of EKS Auto Mode have a NodePool, and the controller may run there.
    assert ours["nodeAffinity"][REQUIRED]["nodeSelectorTerms"] == [{"matchExpressions": [not_ours]}]


@pytest.mark.parametrize(
    ("field", "placeholder"),
    [("role", "${WINDOWS_NODE_ROLE}"), ("instanceProfile", "${WINDOWS_INSTANCE_PROFILE}")],
)
def test_windows_nodes_have_their_own_role_and_access_entry(
    tmp_path: Path, field: str, placeholder: str
) -> None:
    (tmp_path / "class.yaml").write_text(
        "apiVersion: karpenter.k8s.aws/v1\nkind: EC2NodeClass\nmetadata: {name: windows}\n"
        f"spec:\n  {field}: {placeholder}\n  amiSelectorTerms: [{{alias: windows2022@latest}}]\n"
        "  subnetSelectorTerms: [{id: subnet-0123}]\n"
        "  securityGroupSelectorTerms: [{id: sg-0123}]\n"
    )

    made = run(windowsNodes="true", nodePools=str(tmp_path))

    entries = made.of("aws:eks/accessEntry:AccessEntry").values()
    assert {entry["type"]: entry["principalArn"].rpartition("/")[2] for entry in entries} == {
        "EC2_LINUX": "KarpenterNodeRole-joiner",
        "EC2_WINDOWS": "KarpenterWindowsNodeRole-joiner",
    }
    passing = policies_of(made)["joiner-controller-IAMIntegration"]
    assert "KarpenterWindowsNodeRole-joiner" in passing
    assert "KarpenterNodeRole-joiner" in passing
    node_class = made.one("kubernetes:karpenter.k8s.aws/v1:EC2NodeClass")
    assert node_class["spec"][field] == "KarpenterWindowsNodeRole-joiner"


def test_a_namespace_and_a_service_monitor_are_created_on_request() -> None:
    made = run(namespace="karpenter", createNamespace="true", metricsDiscovery="service-monitor")

    assert made.one("kubernetes:core/v1:Namespace")["metadata"]["name"] == "karpenter"
    monitor = made.one("kubernetes:monitoring.coreos.com/v1:ServiceMonitor")
    assert monitor["spec"]["endpoints"] == [{"port": "http-metrics", "path": "/metrics"}]
    assert not standard().of("kubernetes:core/v1:Namespace")
    assert not standard().of("kubernetes:monitoring.coreos.com/v1:ServiceMonitor")


@pytest.mark.parametrize(
    ("settings", "profiles"),
    [("{}", "given"), ('{"ISOLATED_VPC": "true"}', "managed")],
    ids=["by default", "in an isolated VPC"],
)
def test_the_default_class_uses_the_stacks_instance_profile(settings: str, profiles: str) -> None:
    made = run(settings=settings, instanceProfiles=profiles)

    spec = made.one("kubernetes:karpenter.k8s.aws/v1:EC2NodeClass")["spec"]
    assert spec["instanceProfile"] == "KarpenterNodeRole-joiner"
    assert "role" not in spec


def test_the_controllers_only_iam_permission_is_to_pass_the_node_role() -> None:
    rights = _iam_rights(standard())

    assert rights == {"iam:PassRole": ["joiner-controller-IAMIntegration"]}


def test_if_the_controller_creates_profiles_it_has_permissions_and_classes_name_the_role() -> None:
    made = run(instanceProfiles="managed")

    rights = _iam_rights(made)
    assert rights.pop("iam:PassRole") == ["joiner-controller-IAMIntegration"]
    assert "iam:CreateInstanceProfile" in rights
    assert {title for titles in rights.values() for title in titles} == {
        "joiner-controller-InstanceProfiles"
    }
    spec = made.one("kubernetes:karpenter.k8s.aws/v1:EC2NodeClass")["spec"]
    assert spec["role"] == "KarpenterNodeRole-joiner"
    assert "instanceProfile" not in spec


def _iam_rights(made: Made) -> dict[str, list[str]]:
    """Each right in IAM, and the policies that grant it."""
    rights: dict[str, list[str]] = {}
    for title, text in policies_of(made).items():
        for statement in json.loads(text)["Statement"]:
            for action in statement["Action"]:
                if action.startswith(("iam:", "*")):
                    rights.setdefault(action, []).append(title)
    return rights


def test_custom_ssm_parameters_may_be_read() -> None:
    made = standard(**OF_IAM)

    document = json.loads(policies_of(made)["joiner-controller-ImageParameters"])
    (statement,) = document["Statement"]
    assert statement["Action"] == ["ssm:GetParameter"]
    assert statement["Resource"] == [
        f"arn:aws:ssm:us-west-2:{ACCOUNT}:parameter/golden/*",
        OWN_PARAMETERS,
    ]
    assert "joiner-controller-ImageParameters" not in policies_of(standard())


@pytest.mark.parametrize(
    "region", ["us-west-2", "us-gov-east-1", "cn-northwest-1", "eusc-de-east-1", "us-isob-east-1"]
)
def test_regions_of_every_partition_are_accepted(region: str) -> None:
    assert parse(ENOUGH | {"region": region}).region == region


@pytest.mark.parametrize(
    ("key", "value", "instead"),
    [
        ("profile", "prod", "export AWS_PROFILE=prod"),
        ("assumeRoles", '[{"roleArn": "x"}]', "role_arn"),
        ("accessKey", "secret", "AWS_ACCESS_KEY_ID"),
        ("defaultTags", "{}", "joiner:tags"),
        ("maxRetries", "3", "environment variables of the AWS SDK"),
        ("forbiddenAccountIds", f'["{ACCOUNT}"]', f"excludes the account {ACCOUNT}"),
        ("allowedAccountIds", '["210987654321"]', f"excludes the account {ACCOUNT}"),
    ],
)
def test_settings_of_the_aws_provider_are_applied_or_refused_by_name(
    key: str, value: str, instead: str
) -> None:
    settings = {f"joiner:{name}": text for name, text in SETTINGS.items()}

    with pytest.raises(ConfigError, match=rf"aws:{key}.*{instead}") as refused:
        made_by(_program, {**settings, f"aws:{key}": value})

    assert "secret" not in str(refused.value)


def test_the_allowed_account_is_accepted() -> None:
    settings = {f"joiner:{name}": text for name, text in SETTINGS.items()}

    made = made_by(_program, {**settings, "aws:allowedAccountIds": f'["{ACCOUNT}"]'})

    assert made.of("aws:iam/role:Role")


@pytest.mark.parametrize("value", ["owned", "shared"])
def test_the_tag_that_eks_sets_is_not_changed(value: str) -> None:
    tags = tagged(run(held={CLUSTER_TAG: value}, clusterTags="true"))

    assert not any(key == CLUSTER_TAG for _, key, _ in tags)
    assert ("subnet-1", "karpenter.sh/discovery", "joiner") in tags


def test_clusters_that_share_subnets_have_different_discovery_tags() -> None:
    held = {"karpenter.sh/discovery": "other", "joiner.dev/discovery/other": "another"}
    with pytest.raises(ConfigError, match="set joiner:discoveryTagKey"):
        run(held=held)

    made = run(held=held, discoveryTagKey="joiner.dev/nodes-of")

    assert tagged(made) == {
        (identity, key, value)
        for identity in ("subnet-1", "subnet-2", "sg-1")
        for key, value in (("joiner.dev/nodes-of", "joiner"), (MARKER, STACK))
    }
    spec = made.one("kubernetes:karpenter.k8s.aws/v1:EC2NodeClass")["spec"]
    assert spec["subnetSelectorTerms"] == [{"tags": {"joiner.dev/nodes-of": "joiner"}}]


def test_a_buffer_and_its_pod_template_are_created(tmp_path: Path) -> None:
    (tmp_path / "buffer.yaml").write_text((SAMPLES / "capacity-buffer.yaml").read_text())

    made = run(nodePools=str(tmp_path))

    template = made.one("kubernetes:core/v1:PodTemplate")
    (wire, _) = yaml.safe_load_all((SAMPLES / "capacity-buffer.yaml").read_text())
    assert template["template"] == wire["template"]
    assert made.one("kubernetes:autoscaling.x-k8s.io/v1beta1:CapacityBuffer")["spec"]["replicas"]


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("iamPath", "platform", "a path of IAM"),
        ("namePrefix", "a b", "1 to 20 letters"),
        ("queueKey", "alias/x", "the ARN of a KMS key"),
        ("nodePolicies", "AdministratorAccess", "a list of ARNs of IAM policies"),
        ("controllerStatements", '[{"Effect": "Maybe"}]', "a list of IAM statements"),
        ("nodeStatements", '["x"]', "a list of IAM statements"),
        ("nodePolicies", f"{AWS_POLICY}/AmazonEKSWorkerNodePolicy", "always attached"),
        ("nodePolicies", f"{AWS_POLICY}/Read, {AWS_POLICY}/Read", "Read is listed more than once"),
        (
            "nodePolicies",
            ", ".join(f"{AWS_POLICY}/Read{number}" for number in range(7)),
            "lists 7 policies; allowed are 6",
        ),
        ("controllerStatements", json.dumps([STATEMENT] * 110), "allowed are 6,144"),
        ("nodeStatements", json.dumps([STATEMENT] * 180), "allowed are 9,240"),
        (
            "nodeStatements",
            '[{"Effect": "Allow", "Action": "*", "Resource": "*"}]',
            "allows *: name the actions",
        ),
        (
            "controllerStatements",
            '[{"Effect": "Allow", "Action": ["s3:Get", "iam:*"], "Resource": ["*"]}]',
            "iam:* on all resources",
        ),
        ("tolerations", "{}", "a list of maps"),
        ("affinity", "[]", "an affinity"),
        ("affinity", '{"nodeAffinity": "x"}', "an affinity"),
        (
            "affinity",
            '{"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": []}}',
            "an affinity",
        ),
        ("imagePullSecrets", '["A B"]', "a list of names of Secrets"),
        ("metricsDiscovery", "push", "none or annotations or service-monitor"),
        ("env", '{"BATCH_IDLE_DURATION": "1s"}', "joiner:settings"),
        ("discoveryTagKey", "aws:x", "1 to 128 letters"),
        ("region", "moon", "an AWS region"),
    ],
)
def test_an_invalid_value_is_named(key: str, value: str, allowed: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse(ENOUGH | {key: value})

    (problem,) = refused.value.problems
    assert f"joiner:{key}" in problem
    assert allowed in problem
