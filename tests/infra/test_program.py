"""The whole program with Pulumi's mocks: its resources, their inputs, and their order."""

from __future__ import annotations

import asyncio
import copy
import functools
import json
import runpy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import boto3
import pulumi
import pytest
import yaml
from botocore.exceptions import ClientError, EndpointConnectionError
from pulumi.runtime import mocks as pulumi_mocks
from pulumi.runtime.rpc import unwrap_rpc_secret

from controller.options import Options
from infra import clusterapi, joiner
from infra.config.forms import ConfigError
from infra.guards import ownership
from tests.infra.knownaws import NEW, Account, Entries, connection
from tests.infra.kubeconfigs import kubeconfig_in

pytestmark = pytest.mark.usefixtures("entries")

CHECKOUT = Path(__file__).resolve().parents[2]
ACCOUNT = "123456789012"
ISSUER = "https://oidc.example.com/id/ABC"
CLUSTER: dict[str, Any] = {
    "endpoint": "https://cluster.example.com",
    "certificateAuthority": {"data": "Q0E="},
    "identities": [{"oidcs": [{"issuer": ISSUER}]}],
    "vpcConfig": {"subnetIds": ["subnet-2", "subnet-1"], "clusterSecurityGroupId": "sg-1"},
}
ZONES = [f"us-west-2{letter}" for letter in "dcba"]
STACK = "organization/joiner/dev"
MARKER = "joiner.dev/discovery/joiner"
SETTINGS = {"clusterName": "joiner", "region": "us-west-2", "image": "joiner:1"}
RULES = {
    f"joiner-{event}"
    for event in (
        "health",
        "spot-interruption",
        "rebalance",
        "state-change",
        "reservation-interruption",
    )
}
POLICIES = {
    f"KarpenterController{title}Policy-joiner-us-west-2"
    for title in (
        "NodeLifecycle",
        "LaunchTemplates",
        "IAMIntegration",
        "EKSIntegration",
        "Interruption",
        "ResourceDiscovery",
    )
}
ROLES = {"KarpenterNodeRole-joiner", "KarpenterControllerRole-joiner"}
SAMPLES = Path(__file__).parents[2] / "crds" / "samples"


@dataclass
class Made:
    """Everything the program asked for, by type and name."""

    resources: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    providers: dict[str, str] = field(default_factory=dict)
    imported: dict[tuple[str, str], str] = field(default_factory=dict)
    """The ID by which a resource is imported, by type and name."""

    def of(self, kind: str) -> dict[str, dict[str, Any]]:
        return {name: inputs for token, name, inputs in self.resources if token == kind}

    @property
    def dynamic(self) -> dict[str, dict[str, Any]]:
        """The resources of the program's own dynamic providers, by name."""
        return {
            name: inputs
            for token, name, inputs in self.resources
            if token.startswith("pulumi-python:dynamic/joiner:")
        }

    def one(self, kind: str) -> dict[str, Any]:
        (inputs,) = self.of(kind).values()
        return inputs


ARNS = {
    "aws:iam/role:Role": f"arn:aws:iam::{ACCOUNT}:role/{{}}",
    "aws:sqs/queue:Queue": f"arn:aws:sqs:us-west-2:{ACCOUNT}:{{}}",
}
"""The ARNs that policies name, by type; others look like none of AWS."""

DESTROYED = "organization/joiner/destroyed"
"""A stack without outputs."""

STATE_READS = {
    "pulumi:pulumi:readStackOutputs": "name",
    "pulumi:pulumi:readStackResourceOutputs": "stackName",
}
"""The engine's functions that read the state, and the argument that names the stack."""


class Region(pulumi_mocks.Mocks):
    """An AWS account with one EKS cluster."""

    partition = "aws"

    def __init__(self, tags: Mapping[str, str]) -> None:
        self.made = Made()
        self.tags = dict(tags)

    def new_resource(
        self, args: pulumi_mocks.MockResourceArgs
    ) -> tuple[str | None, dict[Any, Any]]:
        self.made.resources.append((args.typ, args.name, dict(args.inputs)))
        self.made.providers[f"{args.typ} {args.name}"] = args.provider or ""
        if args.resource_id:
            self.made.imported[args.typ, args.name] = args.resource_id
        name = args.inputs.get("name", args.name)
        arn = ARNS.get(args.typ, f"arn:aws:x:us-west-2:{ACCOUNT}:{{}}").format(name)
        extra: dict[str, Any] = {"arn": arn, "url": f"https://sqs/{name}", "name": name}
        if args.typ == "aws:ec2/launchTemplate:LaunchTemplate":
            extra["latestVersion"] = 1
        if args.typ == "aws:ec2/vpc:Vpc":
            extra["ipv6CidrBlock"] = "2600:1f13::/56"
        if args.typ == "aws:eks/cluster:Cluster":
            return name, {**extra, **args.inputs, **CLUSTER}
        if args.typ.startswith("kubernetes:"):
            metadata = {"name": args.name, **(args.inputs.get("metadata") or {})}
            return args.name, {**args.inputs, "metadata": metadata}
        if args.typ == "pulumi:pulumi:StackReference":
            names = {"nodeRole": "RoleOfPlatform", "instanceProfile": "ProfileOfPlatform"}
            is_there = args.inputs["name"] != DESTROYED
            extra |= {"outputs": {"clusterName": "joiner", **names} if is_there else {}}
        return f"{args.name}-id", {**extra, **args.inputs}

    def call(
        self, args: pulumi_mocks.MockCallArgs
    ) -> tuple[dict[Any, Any], list[tuple[str, str]] | None]:
        if args.token in STATE_READS:  # without it, the engine panics
            assert args.args[STATE_READS[args.token]].endswith("/dev")
        answers: dict[str, dict[str, Any]] = {
            "aws:index/getCallerIdentity:getCallerIdentity": {"accountId": ACCOUNT},
            "aws:index/getPartition:getPartition": {"partition": self.partition},
            "aws:index/getAvailabilityZones:getAvailabilityZones": {"names": ZONES},
            "aws:ec2/getVpcEndpointService:getVpcEndpointService": {
                "serviceName": _endpoint_service(args.args)
            },
            "aws:eks/getAddonVersion:getAddonVersion": {
                "version": f"{args.args.get('addonName')} of {args.args.get('kubernetesVersion')}"
            },
            "aws:ssm/getParameter:getParameter": {"insecureValue": args.args.get("name")},
            "aws:eks/getCluster:getCluster": CLUSTER
            | {"certificateAuthorities": [CLUSTER["certificateAuthority"]]},
            **{function: {"outputs": {}} for function in STATE_READS},
        }
        name = args.args.get("name", "")
        answers["aws:iam/getRole:getRole"] = {
            "name": name,
            "arn": f"arn:aws:iam::{ACCOUNT}:role/theirs/{name}",
        }
        answers["aws:sqs/getQueue:getQueue"] = {
            "name": name,
            "arn": f"arn:aws:sqs:us-west-2:{ACCOUNT}:{name}",
        }
        looked_up = {"id": args.args.get("id", ""), "tags": self.tags}
        return answers.get(args.token, looked_up), []


def _endpoint_service(asked: Mapping[str, Any]) -> str:
    """Return the name of the service that is asked for by its short name, or by a filter."""
    short = f"com.amazonaws.us-west-2.{asked.get('service')}"
    return next((str(each["values"][-1]) for each in asked.get("filters") or ()), short)


@pytest.fixture
def known_issuer(account: Account) -> None:
    """Create the cluster's OIDC provider in IAM outside the stack."""
    connection("iam", "us-west-2").create_open_id_connect_provider(Url=ISSUER)


def run(held: Mapping[str, str] | None = None, **settings: str) -> Made:
    """Run the program with these settings; return what it asked for.

    `held` are the tags that subnets and security groups bear already.
    """
    given = {f"joiner:{key}": value for key, value in (SETTINGS | settings).items() if value}
    return made_by(_program, given, held=held)


def standard(**settings: str) -> Made:
    """Return what the program with these settings asks for in an empty account.

    The program runs once for all tests that need the same settings, and each test gets a copy. A
    test that changes the account, or patches what the program uses, calls `run`.
    """
    return copy.deepcopy(_standard(tuple(sorted(settings.items()))))


@functools.cache
def _standard(settings: tuple[tuple[str, str], ...]) -> Made:
    assert Account.current.is_empty, "run the program before the test changes the account"
    return run(None, **dict(settings))


def made_by(
    program: Callable[[], None],
    config: Mapping[str, str],
    *,
    project: str = "joiner",
    held: Mapping[str, str] | None = None,
    secrets: Sequence[str] = (),
) -> Made:
    """Run any program under mocks; return what it asked for."""
    region = Region(held or {})
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    pulumi.runtime.set_mocks(
        region, project=project, stack="dev", preview=False, organization="organization"
    )
    pulumi.runtime.set_all_config(dict(config), list(secrets))
    try:
        # Mocks leave no value unknown, and each value would be searched for unknown ones. The
        # endpoint of a created cluster is the name of no server.
        with (
            patch("pulumi.output.contains_unknowns", lambda _: False),
            patch("infra.cluster.answering._does_answer", lambda _endpoint, _authority: True),
        ):
            pulumi.runtime.test(program)()  # type: ignore[no-untyped-call]
    finally:
        pulumi.runtime.set_all_config({}, [])
        # Do not report what a failed program leaves unfinished. Otherwise a later test prints its
        # traceback, and an `ast.parse` that runs at that moment fails (Python 3.11).
        loop.set_exception_handler(lambda _loop, _context: None)
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.close()
        asyncio.set_event_loop(None)
    return region.made


def _program() -> None:
    runpy.run_path(str(CHECKOUT), run_name="__main__")  # as Pulumi's host runs it


def test_the_state_is_read_again_if_the_engine_is_writing_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    invoke, failures = pulumi.runtime.invoke, ["failed to load checkpoint: EOF"] * 2

    def invoked(token: str, *args: Any, **options: Any) -> object:
        if token == "pulumi:pulumi:readStackOutputs" and failures:
            raise Exception(failures.pop())  # what the SDK raises
        return invoke(token, *args, **options)

    monkeypatch.setattr("pulumi.runtime.invoke", invoked)
    monkeypatch.setattr("time.sleep", lambda _: None)

    assert run().of("aws:iam/role:Role")
    assert not failures


def test_roles_policies_and_profile_have_the_names_of_karpenters_guide() -> None:
    made = standard()

    assert {r["name"] for r in made.of("aws:iam/role:Role").values()} == ROLES
    assert {p["name"] for p in made.of("aws:iam/policy:Policy").values()} == POLICIES
    assert made.one("aws:iam/instanceProfile:InstanceProfile")["role"] == "KarpenterNodeRole-joiner"
    assert len(made.of("aws:iam/rolePolicyAttachment:RolePolicyAttachment")) == 4 + 6


def test_the_region_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-central-1")

    made = run(region="")

    assert made.one("pulumi:providers:aws")["region"] == "eu-central-1"


def test_nodes_of_the_default_pool_have_the_tags_of_the_stack() -> None:
    """An organization may refuse instances and volumes without them."""
    made = standard(tags='{"cost-center": "42"}')

    node_class = made.one("kubernetes:karpenter.k8s.aws/v1:EC2NodeClass")
    assert node_class["spec"]["tags"] == {"cost-center": "42"}
    plain = standard().one("kubernetes:karpenter.k8s.aws/v1:EC2NodeClass")
    assert "tags" not in plain["spec"]


def test_the_controller_assumes_its_role_by_pod_identity() -> None:
    made = standard()

    association = made.one("aws:eks/podIdentityAssociation:PodIdentityAssociation")
    assert (association["namespace"], association["serviceAccount"]) == ("kube-system", "karpenter")
    trust = made.of("aws:iam/role:Role")["joiner-controller"]["assumeRolePolicy"]
    assert "pods.eks.amazonaws.com" in trust
    annotations = made.one("kubernetes:core/v1:ServiceAccount")["metadata"]["annotations"]
    assert "eks.amazonaws.com/role-arn" not in annotations
    assert "joiner-controller-no-association" not in made.dynamic


@pytest.mark.usefixtures("known_issuer")
def test_the_controller_assumes_its_role_by_irsa() -> None:
    made = run(identity="irsa")

    assert not made.of("aws:eks/podIdentityAssociation:PodIdentityAssociation")
    trust = json.loads(made.of("aws:iam/role:Role")["joiner-controller"]["assumeRolePolicy"])
    provider = f"arn:aws:iam::{ACCOUNT}:oidc-provider/oidc.example.com/id/ABC"
    assert trust["Statement"][0]["Principal"] == {"Federated": provider}
    annotations = made.one("kubernetes:core/v1:ServiceAccount")["metadata"]["annotations"]
    assert annotations["eks.amazonaws.com/role-arn"].endswith("KarpenterControllerRole-joiner")
    assert "joiner-controller-no-association" in made.dynamic


def test_a_change_of_identity_or_role_restarts_the_pods() -> None:
    stacks = [standard(), standard(controllerRoleName="other")]
    connection("iam", "us-west-2").create_open_id_connect_provider(Url=ISSUER)
    stacks.append(run(identity="irsa"))

    templates = [made.one("kubernetes:apps/v1:Deployment")["spec"]["template"] for made in stacks]
    assert (
        len({template["metadata"]["annotations"]["joiner.dev/identity"] for template in templates})
        == 3
    )


def test_the_clusters_oidc_provider_is_created_on_request(
    hooks: Mapping[str, Callable[[Any], Any]],
) -> None:
    made = run(identity="irsa", oidcProvider="create")

    provider = made.one("aws:iam/openIdConnectProvider:OpenIdConnectProvider")
    assert provider["url"] == ISSUER
    assert provider["tags"]["joiner.dev/stack"].endswith("/joiner/dev")
    # IAM has one that the stack created earlier, and refuses a second one of the same URL.
    iam = boto3.client("iam")
    tags = [{"Key": key, "Value": value} for key, value in provider["tags"].items()]
    iam.create_open_id_connect_provider(Url=ISSUER, Tags=tags)
    asyncio.run(hooks["joiner-controller-oidc-provider"](None))
    assert iam.list_open_id_connect_providers()["OpenIDConnectProviderList"] == []


@pytest.mark.usefixtures("known_issuer")
def test_an_existing_oidc_provider_is_not_created() -> None:
    with pytest.raises(ConfigError, match=r"='create' .*set joiner:oidcProvider to existing"):
        run(identity="irsa", oidcProvider="create")


def test_a_missing_oidc_provider_is_reported() -> None:
    with pytest.raises(ConfigError, match=r"='existing' .*set joiner:oidcProvider to create"):
        run(identity="irsa")


@pytest.mark.parametrize("kind", ["EC2_LINUX", "EC2_WINDOWS"])
def test_nodes_join_by_an_access_entry(kind: str) -> None:
    assert standard(nodeAccess=kind).one("aws:eks/accessEntry:AccessEntry")["type"] == kind


def test_nodes_join_by_aws_auth_or_without_any_mapping(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joiner, "refuse_unreadable_mapping", lambda location: None)
    mapped, none = run(nodeAccess="aws-auth"), standard(nodeAccess="none")

    dynamic = mapped.dynamic
    assert dynamic["joiner-node-access"]["role_arn"].endswith("KarpenterNodeRole-joiner")
    assert "joiner-node-access" not in none.dynamic
    assert not mapped.of("aws:eks/accessEntry:AccessEntry")


def test_five_rules_send_events_to_a_queue_with_the_clusters_name() -> None:
    made = standard()

    assert made.one("aws:sqs/queue:Queue")["name"] == "joiner"
    assert made.one("aws:sqs/queue:Queue")["messageRetentionSeconds"] == 300
    patterns = [
        json.loads(rule["eventPattern"])
        for rule in made.of("aws:cloudwatch/eventRule:EventRule").values()
    ]
    assert sorted(kind for pattern in patterns for kind in pattern["detail-type"]) == [
        "AWS Health Event",
        "EC2 Capacity Reservation Instance Interruption Warning",
        "EC2 Instance Rebalance Recommendation",
        "EC2 Instance State-change Notification",
        "EC2 Spot Instance Interruption Warning",
    ]
    assert len(made.of("aws:cloudwatch/eventTarget:EventTarget")) == 5


def tagged(made: Made) -> set[tuple[str, str, str]]:
    tags = made.of("aws:ec2/tag:Tag").values()
    return {(tag["resourceId"], tag["key"], tag["value"]) for tag in tags}


def test_the_clusters_subnets_and_security_group_are_tagged_for_discovery() -> None:
    pairs = tagged(standard())

    assert pairs == {
        (identity, key, value)
        for identity in ("subnet-1", "subnet-2", "sg-1")
        for key, value in (("karpenter.sh/discovery", "joiner"), (MARKER, STACK))
    }


def test_the_listed_subnets_and_groups_are_tagged_and_the_cluster_tag_added_on_request() -> None:
    pairs = tagged(run(subnetIds='["subnet-9"]', securityGroupIds='["sg-9"]', clusterTags="true"))

    assert ("subnet-9", "kubernetes.io/cluster/joiner", "shared") in pairs
    assert {identity for identity, _, _ in pairs} == {"subnet-9", "sg-9"}
    assert not tagged(run(discoveryTags="false"))


def test_a_different_existing_discovery_tag_is_not_changed() -> None:
    with pytest.raises(ConfigError, match="subnet-1 has the tag karpenter"):
        run(held={"karpenter.sh/discovery": "other"})


@pytest.mark.parametrize("marker", [{}, {MARKER: "organization/joiner/another"}])
def test_an_equal_discovery_tag_without_our_installation_is_foreign(marker: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="set joiner:discoveryTags to false"):
        run(held={"karpenter.sh/discovery": "joiner", **marker})


def test_mistyped_ids_of_subnets_and_groups_are_named_with_their_setting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(*arguments: Any) -> dict[str, str]:
        raise Exception("invoke of aws:ec2/getSubnet:getSubnet failed: no matching EC2 Subnet")

    monkeypatch.setattr("infra.discovery._tags_of", missing)

    with pytest.raises(ConfigError) as raised:
        run(subnetIds='["subnet-0mistyped"]', securityGroupIds='["sg-9"]')

    subnet, group = raised.value.problems
    assert subnet.startswith("joiner:subnetIds: subnet subnet-0mistyped cannot be read: correct")
    assert "no matching EC2 Subnet" in subnet
    assert group.startswith("joiner:securityGroupIds: security group sg-9 cannot be read")


def test_a_tag_that_the_stack_created_stays_its_own() -> None:
    tags = {"karpenter.sh/discovery": "joiner", MARKER: STACK, "team": "network"}

    assert len(tagged(run(held=tags))) == 6


def test_the_pod_identity_agent_and_the_spot_role_are_created_on_request() -> None:
    made = run(podIdentityAgent="create", spotRole="create")

    assert made.one("aws:eks/addon:Addon")["addonName"] == "eks-pod-identity-agent"
    assert "joiner-node-spot" in made.dynamic
    assert "joiner-node-spot" not in standard().dynamic
    assert not standard().of("aws:eks/addon:Addon")


def test_every_crd_is_installed() -> None:
    definitions = standard().of("kubernetes:apiextensions.k8s.io/v1:CustomResourceDefinition")
    names = {wire["metadata"]["name"] for wire in definitions.values()}

    assert names == {
        "nodepools.karpenter.sh",
        "nodeclaims.karpenter.sh",
        "nodeoverlays.karpenter.sh",
        "ec2nodeclasses.karpenter.k8s.aws",
        "capacitybuffers.autoscaling.x-k8s.io",
        "disruptions.joiner.dev",
    }


def test_two_replicas_run_on_different_nodes_that_joiner_did_not_launch() -> None:
    made = standard()
    wire = made.one("kubernetes:apps/v1:Deployment")
    pod = wire["spec"]["template"]["spec"]
    container = pod["containers"][0]

    assert (wire["metadata"]["name"], wire["metadata"]["namespace"]) == ("karpenter", "kube-system")
    assert wire["spec"]["replicas"] == 2
    assert (
        wire["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/instance"] == "karpenter"
    )
    assert (container["name"], container["image"]) == ("controller", "joiner:1")
    assert container["command"] == ["python", "-m", "controller", "run"]
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert pod["affinity"]["podAntiAffinity"]
    assert made.one("kubernetes:policy/v1:PodDisruptionBudget")["spec"]["maxUnavailable"] == 1
    assert made.one("kubernetes:core/v1:Service")["spec"]["ports"][0]["port"] == 8080


def test_the_controller_gets_its_settings() -> None:
    made = run(settings='{"BATCH_IDLE_DURATION": "2s", "METRICS_PORT": "9090"}')
    container = made.one("kubernetes:apps/v1:Deployment")["spec"]["template"]["spec"]["containers"][
        0
    ]
    environment = {entry["name"]: entry["value"] for entry in container["env"] if "value" in entry}

    options = Options.parse([], environment)

    assert options.cluster_name == "joiner"
    assert options.interruption_queue == "joiner"
    assert options.installation.endswith("/joiner/dev")
    assert environment["BATCH_IDLE_DURATION"] == "2s"
    assert environment["AWS_REGION"] == "us-west-2"
    assert {"containerPort": 9090, "name": "http-metrics", "protocol": "TCP"} in container["ports"]


def test_services_of_the_namespace_set_no_settings_of_the_controller() -> None:
    pod = run().one("kubernetes:apps/v1:Deployment")["spec"]["template"]["spec"]

    assert pod["enableServiceLinks"] is False


def test_the_lease_is_the_only_one_the_controller_may_take() -> None:
    rules = standard().one("kubernetes:rbac.authorization.k8s.io/v1:Role")["rules"]

    (taking,) = [rule for rule in rules if "patch" in rule["verbs"]]
    assert taking["resourceNames"] == ["karpenter-leader-election"]


def test_a_default_pool_exists_and_is_owned_by_the_stack() -> None:
    made = standard()
    pool = made.one("kubernetes:karpenter.sh/v1:NodePool")
    node_class = made.one("kubernetes:karpenter.k8s.aws/v1:EC2NodeClass")

    assert pool["metadata"]["annotations"]["joiner.dev/stack"].endswith("/joiner/dev")
    assert node_class["spec"]["instanceProfile"] == "KarpenterNodeRole-joiner"
    assert not run(defaultNodePool="false").of("kubernetes:karpenter.sh/v1:NodePool")


def test_a_folder_of_yaml_replaces_the_default_pool(tmp_path: Path) -> None:
    (tmp_path / "budgets.yaml").write_text((SAMPLES / "budgets.yaml").read_text())

    pools = run(nodePools=str(tmp_path)).of("kubernetes:karpenter.sh/v1:NodePool")

    assert list(pools) == ["joiner-node-pools-NodePool-budgets"]


def test_variables_of_a_recovery_are_not_stored_in_the_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for option in ("DELETE_UNREACHABLE", "ENABLE_PATCH_FORCE", "UPSERT_EXISTING_OBJECTS"):
        monkeypatch.setenv(f"PULUMI_K8S_{option}", "true")

    provider = run().one("pulumi:providers:kubernetes")

    assert set(provider) == {"clusterIdentifier", "kubeconfig"}


def test_empty_maps_in_the_metadata_of_a_manifest_are_left_out(tmp_path: Path) -> None:
    wires = list(yaml.safe_load_all((SAMPLES / "budgets.yaml").read_text()))
    for wire in wires:
        wire["metadata"] |= {"labels": {}, "annotations": {}}
    (tmp_path / "budgets.yaml").write_text(yaml.safe_dump_all(wires))

    pool = run(nodePools=str(tmp_path)).one("kubernetes:karpenter.sh/v1:NodePool")

    assert set(pool["metadata"]) == {"name", "annotations"}


def test_a_stack_with_only_pools_uses_another_stacks_controller(tmp_path: Path) -> None:
    (tmp_path / "class.yaml").write_text(
        "apiVersion: karpenter.k8s.aws/v1\nkind: EC2NodeClass\nmetadata: {name: team}\n"
        "spec:\n  instanceProfile: ${INSTANCE_PROFILE}\n"
        "  amiSelectorTerms: [{alias: al2023@latest}]\n"
        "  subnetSelectorTerms: [{id: subnet-0123}]\n"
        "  securityGroupSelectorTerms: [{id: sg-0123}]\n"
    )

    made = run(platformStack="organization/joiner/platform", nodePools=str(tmp_path), image="")

    spec = made.one("kubernetes:karpenter.k8s.aws/v1:EC2NodeClass")["spec"]
    assert spec["instanceProfile"] == "ProfileOfPlatform"
    assert not made.of("aws:iam/role:Role")
    assert not made.of("kubernetes:apps/v1:Deployment")
    assert set(made.dynamic) == {"installation", "node-pools-owners"}


def test_a_platform_stack_that_was_destroyed_is_named() -> None:
    with pytest.raises(ConfigError, match=f"the stack {DESTROYED} has no output .*: it was destr"):
        run(platformStack=DESTROYED, image="")


def test_one_endpoint_serves_every_api() -> None:
    provider = run(awsEndpoint="http://127.0.0.1:4566").one("pulumi:providers:aws")

    (endpoints,) = json.loads(provider["endpoints"])
    assert set(endpoints.values()) == {"http://127.0.0.1:4566"}
    assert {"ec2", "eks", "iam", "sqs", "sts", "events"} <= set(endpoints)
    assert json.loads(provider["skipCredentialsValidation"])


def test_without_a_kubeconfig_the_cluster_is_reached_as_by_the_aws_cli() -> None:
    kubeconfig = json.loads(standard().one("pulumi:providers:kubernetes")["kubeconfig"])

    assert kubeconfig["clusters"][0]["cluster"]["server"] == "https://cluster.example.com"
    assert kubeconfig["users"][0]["user"]["exec"]["args"][:4] == [
        "eks",
        "get-token",
        "--cluster-name",
        "joiner",
    ]


def test_a_kubeconfig_is_stored_independently_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kubeconfig_in(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(clusterapi, "CHECKOUT", tmp_path)
    monkeypatch.chdir(tmp_path)

    at_home, in_project = run(kubeconfig=str(tmp_path / "config")), run(kubeconfig="config")

    for made, kept, given in ((at_home, "~/config", "~/config"), (in_project, "config", "config")):
        assert made.one("pulumi:providers:kubernetes")["kubeconfig"].removeprefix("./") == given
        remembered = made.dynamic.values()
        assert {resource["kubeconfig"] for resource in remembered} == {kept}


def test_no_resource_uses_a_default_provider() -> None:
    made = standard()

    unnamed = [
        name
        for name, provider in made.providers.items()
        if name.startswith(("aws:", "kubernetes:")) and not provider
    ]
    assert unnamed == []


def test_invalid_settings_end_the_program_before_anything_is_created() -> None:
    with pytest.raises(ConfigError, match="joiner:replicas"):
        run(replicas="0", identity="root")


def have_every_name(entries: Entries, tags: dict[str, str]) -> None:
    """Make in AWS what bears the names that the program gives."""
    pairs = [{"Key": key, "Value": value} for key, value in tags.items()]
    connection("sqs", "us-west-2").create_queue(QueueName="joiner", tags=tags)
    events, iam = connection("events", "us-west-2"), connection("iam", "us-west-2")
    for rule in RULES:
        events.put_rule(Name=rule, ScheduleExpression="rate(1 day)", Tags=pairs)
    for role in ROLES:
        iam.create_role(RoleName=role, AssumeRolePolicyDocument="{}", Tags=pairs)
    for policy in POLICIES:
        seeing = {"Effect": "Allow", "Action": "ec2:DescribeInstances", "Resource": "*"}
        document = json.dumps({"Version": "2012-10-17", "Statement": [seeing]})
        iam.create_policy(PolicyName=policy, PolicyDocument=document, Tags=pairs)
    iam.create_instance_profile(InstanceProfileName="KarpenterNodeRole-joiner", Tags=pairs)
    entries.tags[f"arn:aws:iam::{ACCOUNT}:role/KarpenterNodeRole-joiner"] = tags
    entries.tags["karpenter"] = tags
    connection("ecr", "us-west-2").create_repository(repositoryName="joiner/joiner", tags=pairs)


@pytest.mark.process
@pytest.mark.parametrize("tags", [{"team": "network"}, {"joiner.dev/installation": "another"}])
def test_names_in_use_stop_the_program_before_anything_is_created(
    entries: Entries, tags: dict[str, str]
) -> None:
    have_every_name(entries, tags)

    with pytest.raises(ConfigError) as refused:
        run(image="")

    said = refused.value.problems
    assert len(said) == 1 + 5 + 2 + 1 + 6 + 1 + 1 + 1
    for name in {"a queue joiner", "kube-system/karpenter", *RULES, *ROLES, *POLICIES}:
        assert any(f" {name} already exists" in f" {problem}" for problem in said), name
    ((key, value),) = tags.items()
    assert all(f"its tags are {key}={value}" in problem for problem in said)
    assert all(f"tag it joiner.dev/installation={STACK}" in problem for problem in said)
    assert any("joiner:queueName to another name" in problem for problem in said)


@pytest.mark.process
@pytest.mark.usefixtures("hooks")
def test_an_object_that_the_stack_created_is_its_own(entries: Entries) -> None:
    have_every_name(entries, {"joiner.dev/installation": STACK})

    made = run(image="")

    assert made.one("aws:sqs/queue:Queue")


@pytest.mark.process
def test_an_existing_object_with_our_tag_is_imported(
    entries: Entries, hooks: Mapping[str, Callable[[Any], None]]
) -> None:
    have_every_name(entries, {"joiner.dev/installation": STACK})

    made = run(image="")

    node, role = "KarpenterNodeRole-joiner", "aws:iam/role:Role"
    policies = {
        arn for (type_, _), arn in made.imported.items() if type_ == "aws:iam/policy:Policy"
    }
    assert policies == {f"arn:aws:iam::{ACCOUNT}:policy/{name}" for name in POLICIES}
    others = {key: name for key, name in made.imported.items() if name not in policies}
    assert others == {
        (role, "joiner-node"): node,
        (role, "joiner-controller"): "KarpenterControllerRole-joiner",
        ("aws:iam/instanceProfile:InstanceProfile", "joiner-node"): node,
        ("aws:eks/accessEntry:AccessEntry", "joiner-node-access"): (
            f"joiner:arn:aws:iam::{ACCOUNT}:role/{node}"
        ),
    }
    assert set(made.imported) <= {(token, name) for token, name, _ in made.resources}
    # Pulumi cannot import these by an ID, so a hook deletes each one before Pulumi creates it.
    ecr = connection("ecr", "us-west-2")
    assert len(ecr.describe_repositories()["repositories"]) == 1
    assert len(hooks) == 2
    hooks["joiner-image-aws:ecr/repository:Repository"](None)
    hooks["joiner-image-aws:ecr/repository:Repository"](None)
    assert ecr.describe_repositories()["repositories"] == []


def test_the_abandon_variable_is_not_stored_in_the_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PULUMI_K8S_DELETE_UNREACHABLE", "true")

    assert "deleteUnreachable" not in run().one("pulumi:providers:kubernetes")


EXTRA_TAGS: list[dict[str, str]] = [{}, {"installation": "prod", "tags": '{"team": "a"}'}]


def test_everything_in_aws_has_the_installation_tag() -> None:
    tags = [
        json.loads(standard(**more).one("pulumi:providers:aws")["defaultTags"])["tags"]
        for more in EXTRA_TAGS
    ]

    assert tags == [
        {"joiner.dev/installation": STACK},
        {"joiner.dev/installation": "prod", "team": "a"},
    ]


def test_a_missing_cluster_is_named_before_anything_is_created() -> None:
    with pytest.raises(ConfigError, match="'other': No cluster found"):
        run(clusterName="other")


def refusing(monkeypatch: pytest.MonkeyPatch, problem: Exception) -> None:
    """Make EKS answer every request about a cluster with an error."""

    def refuse(location: clusterapi.ClusterLocation) -> dict[str, Any]:
        raise problem

    monkeypatch.setattr(ownership, "describe_cluster", refuse)


def test_a_silent_region_is_not_reported_as_a_credentials_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url = "https://eks.us-wets-2.amazonaws.com"
    refusing(monkeypatch, EndpointConnectionError(endpoint_url=url))

    with pytest.raises(ConfigError) as refused:
        run(region="us-west-9")

    (problem,) = refused.value.problems
    assert problem.startswith("joiner:region='us-west-9': EKS does not answer in this region")
    assert "credentials" not in problem


@pytest.mark.parametrize(
    ("code", "may_be_region"), [("UnrecognizedClientException", True), ("AccessDenied", False)]
)
def test_refused_credentials_also_name_the_region_as_a_possible_cause(
    monkeypatch: pytest.MonkeyPatch, code: str, may_be_region: bool
) -> None:
    error = {"Error": {"Code": code, "Message": "no"}}
    refusing(monkeypatch, ClientError(error, "DescribeCluster"))

    with pytest.raises(ConfigError, match="Check the credentials") as refused:
        run()

    (problem,) = refused.value.problems
    assert ("not have opted in" in problem) is may_be_region


def test_secret_environment_variables_are_in_a_secret_and_not_in_the_deployment() -> None:
    given = {f"joiner:{key}": value for key, value in SETTINGS.items()}
    env = {"joiner:env": '{"HTTPS_PROXY": "http://me:hunter2@proxy"}'}

    made = made_by(_program, given | env, secrets=["joiner:env"])

    ((name, secret),) = made.of("kubernetes:core/v1:Secret").items()
    assert unwrap_rpc_secret(secret["stringData"]) == {"HTTPS_PROXY": "http://me:hunter2@proxy"}
    deployment = made.one("kubernetes:apps/v1:Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    given_by = {one["name"]: one.get("valueFrom") for one in container["env"]}
    assert given_by["HTTPS_PROXY"] == {"secretKeyRef": {"name": name, "key": "HTTPS_PROXY"}}
    others = [inputs for type_, _, inputs in made.resources if type_ != "kubernetes:core/v1:Secret"]
    assert "hunter2" not in json.dumps(others, default=str)
    assert not run(env=env["joiner:env"]).of("kubernetes:core/v1:Secret")


def test_other_settings_cannot_be_secret() -> None:
    given = {f"joiner:{key}": value for key, value in SETTINGS.items()}

    with pytest.raises(
        ConfigError, match="joiner:image is set as a secret, but the stack's state would show it"
    ):
        made_by(_program, given, secrets=["joiner:image"])


def test_karpenter_installed_by_helm_stops_the_program_before_anything_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Cluster:
        def get(self, path: str) -> dict[str, Any] | None:
            release = {"meta.helm.sh/release-name": "karpenter"}
            is_theirs = path.endswith("/deployments/karpenter")
            return {"metadata": {"annotations": release}} if is_theirs else None

        def list(self, path: str, **_query: str) -> list[Any]:
            return []

    monkeypatch.setattr(clusterapi.ClusterApi, "find", lambda location, **_: Cluster())

    with pytest.raises(ConfigError, match=r"Deployment kube-system/karpenter \(Helm release"):
        run()
    assert run(name="joiner").one("kubernetes:apps/v1:Deployment")


def test_a_stack_records_the_identity_of_its_cluster() -> None:
    def remembered(made: Made) -> str | None:
        installation = made.dynamic["installation"]
        made_at: str | None = installation.get("cluster_made_at")
        return made_at

    assert remembered(standard()) == "2026-01-01T00:00:00+00:00"
    # The stack creates and deletes this cluster itself.
    assert remembered(standard(cluster="create", clusterName=NEW, publicAccessCidrs="none")) is None


def test_a_changed_kubeconfig_does_not_replace_the_clusters_provider() -> None:
    provider = standard().one("pulumi:providers:kubernetes")

    assert provider["clusterIdentifier"] == "us-west-2/joiner"
    # Either value would override the choice of the user who destroys the stack.
    assert "deleteUnreachable" not in provider
