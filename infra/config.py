"""The stack's settings: `joiner:<key>` of `Pulumi.<stack>.yaml`, typed and checked.

The program checks all settings before it creates anything. The error lists every invalid key
with its value and what is allowed.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import json
import os
import re
import shlex
import shutil
import subprocess
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

import pulumi
import yaml

from controller.apis import labels
from controller.options import (
    SETTINGS,
    Options,
    OptionsError,
    Range,
    ignored_gates,
    nearest,
    value_of,
)
from infra import names, policies
from infra.clusterapi import (
    ClusterUnreachableError,
    kubeconfig_file,
    server_of,
)
from infra.policypack.rules import of_statement
from infra.release import released_image

PROJECT = "joiner"
CHECKOUT = Path(__file__).resolve().parent.parent
"""The folder of Pulumi.yaml; relative paths in settings start here."""

Identity = Literal["pod-identity", "irsa"]
NodeAccess = Literal["EC2_LINUX", "EC2_WINDOWS", "aws-auth", "aws-auth-windows", "none"]
Presence = Literal["existing", "create"]
ControllerCompute = Literal["node-group", "fargate"]
Nat = Literal["single", "zonal"]
Profiles = Literal["given", "managed"]
MetricsDiscovery = Literal["none", "annotations", "service-monitor"]
IpFamily = Literal["ipv4", "ipv6"]
UpgradePolicy = Literal["STANDARD", "EXTENDED"]
DnsPolicy = Literal["ClusterFirst", "Default"]
Wire = Mapping[str, Any]
"""A JSON object."""


class ConfigError(pulumi.RunError):
    """Settings are invalid; the message has one line for each problem."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        super().__init__("\n".join(["invalid stack settings:", *problems]))


@dataclass(frozen=True, slots=True)
class Form:
    """A pattern for the text of a setting, and its description for users."""

    pattern: str
    words: str

    def admits(self, value: Any) -> bool:
        """Whether the whole text has the form; letters and digits are those of ASCII."""
        return re.fullmatch(self.pattern, value, re.ASCII) is not None

    def __str__(self) -> str:
        return self.words


ClusterName = Annotated[
    str, Form(r"[0-9A-Za-z][A-Za-z0-9_-]{0,99}", "1 to 100 letters, digits, '-' and '_'")
]
Region = Annotated[str, Form(r"[a-z]{2,5}(-[a-z]+)+-\d{1,2}", "an AWS region such as us-west-2")]
Url = Annotated[str, Form(r"https?://[^/\s]+(/\S*)?", "a URL such as http://127.0.0.1:4566")]
RoleName = Annotated[str, Form(r"[\w+=,.@-]{1,64}", "1 to 64 letters, digits and any of +=,.@-_")]
QueueName = Annotated[str, Form(r"[\w-]{1,80}", "1 to 80 letters, digits, '-' and '_'")]
Label = Annotated[
    str, Form(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", "a DNS label such as kube-system")
]
SecretName = Annotated[
    str, Form(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", "names of Secrets such as registry")
]
ServiceName = Annotated[
    str, Form(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", "a DNS label such as karpenter")
]
TagKey = Annotated[
    str,
    Form(r"(?!aws:)[\w.:/=+@-]{1,128}", "1 to 128 letters, digits and any of _.:/=+-@"),
]
TagValue = Annotated[
    str, Form(r"[\w .:/=+@-]{1,256}", "1 to 256 letters, digits, spaces and any of _.:/=+-@")
]
_POLICY_ARN = r"arn:[\w-]+:iam::(\d{12}|aws):policy/\S+"
Arn = Annotated[str, Form(_POLICY_ARN, "the ARN of an IAM policy")]
PolicyArns = Annotated[str, Form(_POLICY_ARN, "ARNs of IAM policies")]
KeyArn = Annotated[
    str,
    Form(r"arn:[\w-]+:kms:[\w-]+:\d{12}:key/[\w-]+", "the ARN of a KMS key (not of an alias)"),
]
IamPath = Annotated[str, Form(r"/([!-~]{1,510}/)?", "a path of IAM such as /platform/")]
Prefix = Annotated[str, Form(r"[\w+=,.@-]{1,20}", "1 to 20 letters, digits and any of +=,.@-_")]
Cpu = Annotated[str, Form(r"\d{1,4}(\.\d{1,3})?|\d{1,7}m", "an amount of CPU such as 500m or 2")]
Memory = Annotated[
    str, Form(r"\d{1,7}(\.\d{1,3})?[MGT]i?", "an amount of memory such as 512Mi or 1Gi")
]
Image = Annotated[
    str, Form(r"[A-Za-z0-9][\w.:/@+-]{0,511}", "an image such as registry.example.com/joiner:1")
]
ImageParameter = Annotated[
    str,
    Form(
        r"/?[\w.-][\w./-]*(/?\*)?|arn:[\w-]+:ssm:[\w-]+:\d{12}:parameter/[\w./-]+\*?",
        "names of SSM parameters such as /golden/al2023, paths such as /golden/*, or ARNs",
    ),
]
Subnet = Annotated[str, Form(r"subnet-[0-9a-z]+", "subnets such as subnet-0123456789abcdef0")]
SecurityGroup = Annotated[
    str, Form(r"sg-[0-9a-z]+", "security groups such as sg-0123456789abcdef0")
]
Definition = Annotated[
    str,
    Form(r"[a-z0-9.-]{1,253}", "CustomResourceDefinitions such as nodepools.karpenter.sh"),
]
KubernetesVersion = Annotated[str, Form(r"1\.\d{2}", "a version of Kubernetes such as 1.37")]
Cidr = Annotated[
    str,
    Form(r"(\d{1,3}\.){3}\d{1,3}/(1[6-9]|20)", "a private network of /16 to /20"),
]
PRIVATE = "none"
AccessCidr = Annotated[
    str,
    Form(
        rf"{PRIVATE}|[0-9a-fA-F.:]+/\d{{1,3}}",
        "networks such as 203.0.113.7/32 (0.0.0.0/0 is the whole internet), or none for a private "
        "endpoint",
    ),
]
ServiceOfAws = Annotated[
    str, Form(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?", "AWS services such as ecr.api and ecr.dkr")
]
_LOG_TYPES = ("api", "audit", "authenticator", "controllerManager", "scheduler")
ControlPlaneLog = Annotated[str, Form("|".join(_LOG_TYPES), f"any of {', '.join(_LOG_TYPES)}")]
InstanceType = Annotated[
    str, Form(r"[a-z0-9-]+\.[a-z0-9-]+", "EC2 instance types such as m7g.large")
]
GRAVITON = r"(a1|[a-z]+\d+g[a-z]*)\."
"""Beginning of the names of instance types of arm64."""

StackName = Annotated[
    str,
    Form(r"([^/\s]+/[^/\s]+/)?[^/\s]+", "a stack of this project, or organization/project/stack"),
]


@dataclass(frozen=True, slots=True)
class Each:
    """A check for each map in a list, and its description for users."""

    has_shape: Callable[[Wire], bool]
    words: str

    def __str__(self) -> str:
        return self.words


Statements = Annotated[
    Sequence[Wire],
    Each(
        lambda wire: _is_statement(wire),
        "a list of IAM statements, each with an Effect (Allow or Deny), an Action and a "
        "Resource, and none that breaks the rules of docs/explanation/security.md",
    ),
]

ACCESS_POLICIES = (
    "AmazonEKSAdminPolicy",
    "AmazonEKSAdminViewPolicy",
    "AmazonEKSClusterAdminPolicy",
    "AmazonEKSEditPolicy",
    "AmazonEKSViewPolicy",
)
"""EKS access policies for people: EKS user guide, "Review access policy permissions"."""

AccessEntries = Annotated[
    Sequence[Wire],
    Each(
        lambda wire: _is_access(wire),
        "a list of maps with a principal (the ARN of an IAM role or user), a policy (any of "
        f"{', '.join(ACCESS_POLICIES)}) and, unless it applies to the whole cluster, namespaces (a "
        "list)",
    ),
]

HOLDINGS = ("cluster", "nodeRole", "controllerRole", "queue")
"""Settings that choose whether the stack creates a resource or uses an existing one."""

_CONFIRMED = (*HOLDINGS, "nodePools")
Confirmed = Annotated[str, Form("|".join(_CONFIRMED), f"any of {', '.join(_CONFIRMED)}")]

_STAYING = (*HOLDINGS, "nodes")
Staying = Annotated[str, Form("|".join(_STAYING), f"any of {', '.join(_STAYING)}")]

NO_REGIONS: Mapping[str, str] = {}


@dataclass(frozen=True, kw_only=True, slots=True)
class InstallationSettings:
    """The settings that a stack and the component `Joiner` have in common.

    Settings that decide which resources exist (identity, access …) are plain values, known while
    the program runs. The others may be outputs of other resources.
    """

    image: pulumi.Input[Image] | None = None
    """Container image of the controller. The default is the published image of a released version.
    Other versions are built from the Dockerfile and pushed to ECR."""

    namespace: pulumi.Input[Label] = "kube-system"
    """Namespace of the controller."""

    name: pulumi.Input[ServiceName] = "karpenter"
    """Name of the controller's Deployment, service account and Service. The default is the name
    that tools for Karpenter expect."""

    replicas: pulumi.Input[Annotated[int, Range(1, 10)]] = 2
    """Number of controller pods. One holds the Lease and acts; the others stand by."""

    cpu: pulumi.Input[Cpu] = "1"
    """CPU request of each controller pod."""

    memory: pulumi.Input[Memory] = "1Gi"
    """Memory request and limit of each controller pod."""

    create_namespace: bool = False
    """Whether the stack creates the namespace, and deletes it on destroy."""

    metrics_discovery: MetricsDiscovery = "none"
    """How Prometheus discovers the metrics: by pod annotations, or by a ServiceMonitor. The
    ServiceMonitor CRD must exist in the cluster."""

    extra_labels: Mapping[str, str] = field(default_factory=dict)
    """Labels added to all Kubernetes objects of the controller and to its pods."""

    pod_annotations: Mapping[str, str] = field(default_factory=dict)
    """Annotations added to the controller's pods."""

    env: Mapping[str, pulumi.Input[str]] = field(default_factory=dict)
    """Environment variables of the controller's container beside its settings, such as HTTPS_PROXY.
    If it is set with `pulumi config set --secret`, the values are encrypted in the state and stored
    in a Secret instead of the Deployment."""

    node_selector: Mapping[str, str] = field(default_factory=dict)
    """Node selector of the controller's pods."""

    tolerations: Sequence[Wire] = ()
    """Tolerations of the controller's pods, in addition to CriticalAddonsOnly."""

    affinity: Wire = field(default_factory=dict)
    """Affinity of the controller's pods. `nodeAffinity`, `podAffinity` and `podAntiAffinity` each
    replace the default one. The controller never runs on nodes that it launches."""

    dns_policy: DnsPolicy = "ClusterFirst"
    """DNS policy of the controller's pods: CoreDNS (`ClusterFirst`) or the VPC's resolver
    (`Default`). Use `Default` if CoreDNS runs only on nodes that the controller launches."""

    image_pull_secrets: Sequence[SecretName] = ()
    """Secrets in the controller's namespace for pulling its image."""

    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings of the controller, by environment variable. Example: `pulumi config set --path
    joiner:settings.BATCH_IDLE_DURATION 2s`."""

    identity: Identity = "pod-identity"
    """How the controller's pods assume their IAM role: EKS Pod Identity, or IRSA (OIDC). Fargate
    requires IRSA."""

    pod_identity_agent: Presence = "existing"
    """With `identity: pod-identity`: whether the EKS Pod Identity Agent exists in the cluster or
    the stack installs it."""

    oidc_provider: Presence = "existing"
    """With `identity: irsa`: whether the cluster's OIDC provider exists in IAM or the stack creates
    it."""

    node_access: NodeAccess | None = None
    """How nodes get access to the cluster: an access entry of this type; the aws-auth ConfigMap of
    older clusters, with the group for Windows nodes (`aws-auth-windows`) or without; or `none` if
    you grant access yourself. The default is an access entry for Linux if the cluster supports
    access entries, and aws-auth otherwise."""

    windows_nodes: bool = False
    """Whether the stack also creates the role `KarpenterWindowsNodeRole-<cluster>` for Windows
    nodes, with its instance profile and cluster access. Use `${WINDOWS_INSTANCE_PROFILE}` and
    `${WINDOWS_NODE_ROLE}` in NodePools."""

    node_role: Presence = "create"
    """Whether the stack creates the node role, or uses an existing role of that name unchanged."""

    controller_role: Presence = "create"
    """Whether the stack creates the controller's role. An existing role needs the controller's
    policies and trust policy."""

    queue: Presence = "create"
    """Whether the stack creates the interruption queue. An existing queue needs the EventBridge
    rules and the queue policy."""

    retain_on_delete: Sequence[Staying] = ()
    """What stays in AWS when a setting changes to `existing` or the stack is destroyed. Set it and
    run `pulumi up` before that change. With `nodes`, `pulumi destroy` neither drains nor terminates
    nodes; use it after another Karpenter has taken them over."""

    confirm_delete: Sequence[Confirmed] = ()
    """What `pulumi up` may delete or replace. Without it, the preview refuses a change that would
    delete what the stack created. With `nodePools`, `pulumi destroy` also deletes the NodePools of
    other stacks; without it, the destroy is refused."""

    instance_profile_name: pulumi.Input[RoleName] | None = None
    """Name of an existing instance profile. By default the stack creates one with the node role."""

    instance_profiles: Profiles = "given"
    """Who creates instance profiles. `given`: EC2NodeClasses name a profile
    (`${INSTANCE_PROFILE}`), and the controller's only IAM permission is to pass the node role.
    `managed`: the controller may also create instance profiles for EC2NodeClasses with
    `spec.role`, as Karpenter does."""

    image_parameters: Sequence[ImageParameter] = ()
    """Your SSM parameters that the controller may read, for EC2NodeClasses whose
    `amiSelectorTerms` name an `ssmParameter`. The controller may always read the parameters that
    AWS publishes."""

    iam_path: IamPath = "/"
    """IAM path of the roles, policies and instance profiles."""

    name_prefix: Prefix = names.PREFIX
    """Prefix of the names of roles, policies and instance profiles."""

    controller_statements: Statements = ()
    """IAM statements added to the controller's role."""

    node_statements: Statements = ()
    """IAM statements added to the node role."""

    node_policies: Sequence[pulumi.Input[PolicyArns]] = ()
    """At most six policies attached to the node role, in addition to the four that every node
    needs."""

    queue_key: pulumi.Input[KeyArn] | None = None
    """ARN of the KMS key that encrypts the interruption queue. The default is SQS's own key. The
    key policy must allow events.amazonaws.com to use the key."""

    node_role_name: pulumi.Input[RoleName] | None = None
    """Name of the node role. The default is `KarpenterNodeRole-<cluster>`. Role names are unique
    across all regions of an account."""

    controller_role_name: pulumi.Input[RoleName] | None = None
    """Name of the controller's role. The default is `KarpenterControllerRole-<cluster>`. Role names
    are unique across all regions of an account."""

    permissions_boundary: pulumi.Input[Arn] | None = None
    """ARN of the permissions boundary of all roles that the stack creates."""

    spot_role: Presence = "existing"
    """Whether EC2's service-linked role for spot instances exists in the account or the stack
    creates it. It exists if the account has ever used spot instances."""

    queue_name: pulumi.Input[QueueName] | None = None
    """Name of the interruption queue. The default is the name of the cluster."""

    existing_crds: Sequence[Definition] = ()
    """CustomResourceDefinitions that Karpenter, EKS Auto Mode or another stack manages. This stack
    neither creates nor deletes them. A CRD that this stack created stays in the cluster when it is
    listed here."""

    discovery_tags: bool = True
    """Whether the stack tags subnets and security groups `karpenter.sh/discovery: <cluster>`."""

    discovery_tag_key: TagKey = labels.TAG_DISCOVERY
    """Key of the discovery tag. Clusters that share subnets need different keys."""

    cluster_tags: bool = False
    """Whether the stack also tags subnets and security groups `kubernetes.io/cluster/<cluster>:
    shared`. It skips those that EKS or another tool has tagged."""

    subnet_ids: Sequence[pulumi.Input[Subnet]] = ()
    """Subnets for nodes. The default is the subnets of managed node groups, or else those of the
    cluster with a route to the internet. With `cluster: create`, the cluster is created in these
    subnets (in at least two zones) instead of a new VPC."""

    security_group_ids: Sequence[pulumi.Input[SecurityGroup]] = ()
    """Security groups of nodes. The default is those in the launch templates of managed node
    groups, or else the cluster security group."""

    tags: Mapping[str, pulumi.Input[str]] = field(default_factory=dict)
    """Tags of all AWS resources that the stack creates."""

    delete_foreign_node_pools: bool = False
    """Whether `pulumi destroy` also deletes NodePools that no stack owns. If `false`, the destroy
    is refused while there are any."""

    drain_timeout: Annotated[timedelta, Range(timedelta(seconds=1), timedelta(days=7))] = timedelta(
        minutes=20
    )
    """How long `pulumi destroy` waits for the controller to drain all nodes. After that it
    terminates the remaining instances by their tags."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StackConfig(InstallationSettings):
    """All settings of one stack. A field `cluster_name` is the key `joiner:clusterName`."""

    cluster_name: ClusterName
    """Name of the EKS cluster. It must exist unless `cluster` is `create`."""

    region: Region
    """AWS region of the cluster. The default is `aws:region`, then `AWS_REGION`."""

    cluster: Presence = "existing"
    """Whether the stack uses an existing EKS cluster or creates one with its VPC and add-ons."""

    kubernetes_version: KubernetesVersion | None = None
    """Kubernetes version of a created cluster. The default is EKS's default version. Each
    `pulumi up` updates the add-ons and the controller's nodes to the versions that EKS recommends
    for it."""

    public_access_cidrs: Sequence[AccessCidr] = ()
    """Networks that may reach the public API endpoint of a created cluster. Required with `cluster:
    create`. Nodes always use the private endpoint."""

    control_plane_logs: Sequence[ControlPlaneLog] = ()
    """Control plane logs that a created cluster sends to CloudWatch. EKS creates the log group
    `/aws/eks/<cluster>/cluster` and keeps it after the cluster is deleted."""

    secrets_key: KeyArn | None = None
    """ARN of the KMS key that encrypts the Secrets of a created cluster. The default is a key that
    AWS owns. EKS cannot disable encryption with a key once it is enabled."""

    deletion_protection: bool = False
    """Whether EKS refuses to delete a created cluster. Before `pulumi destroy`, set it to `false`
    and run `pulumi up`."""

    upgrade_policy: UpgradePolicy | None = None
    """What EKS does when standard support of the Kubernetes version ends. `STANDARD` upgrades the
    cluster. `EXTENDED` keeps the version at a higher price and is EKS's default."""

    ip_family: IpFamily = "ipv4"
    """IP family of pods and Services in a created cluster. It cannot be changed later."""

    controller_compute: ControllerCompute = "node-group"
    """Where the controller runs in a created cluster: on a managed node group or on Fargate. The
    nodes of the node group have the taint `CriticalAddonsOnly`, so workloads run on nodes of
    NodePools."""

    controller_instance_types: Sequence[InstanceType] = ("t4g.medium",)
    """Instance types of the controller's node group, all of one architecture. EC2 launches the
    first one that has capacity."""

    controller_size: Annotated[int, Range(1, 100)] = 2
    """Number of nodes in the controller's node group. An update adds one node temporarily."""

    vpc_cidr: Cidr = "10.128.0.0/16"
    """CIDR of the VPC that is created for a created cluster. With `subnetIds` no VPC is created."""

    nat_gateways: Nat = "single"
    """NAT gateways of a created VPC: one for all zones, or one in each zone."""

    interface_endpoints: Sequence[ServiceOfAws] = ()
    """AWS services that a created VPC reaches through an interface endpoint in each zone instead of
    NAT. Each costs about $22 a month in three zones. The S3 gateway endpoint, which carries image
    layers, is free and always created."""

    access_entries: AccessEntries = ()
    """IAM principals with access to a created cluster. The principal that creates the cluster is
    its administrator; do not list it."""

    platform_stack: StackName | None = None
    """The stack that installed the controller. If it is set, this stack manages only NodePools. A
    name without organization and project means this organization and project."""

    aws_endpoint: Url | None = None
    """URL of one endpoint for all AWS APIs, such as the testbed's. The default is AWS."""

    kubeconfig: str | None = None
    """Path of a kubeconfig, relative to the home directory (`~`) or to the project, so that the
    stack can also be destroyed from another machine. By default the program uses the EKS endpoint
    and `aws eks get-token`."""

    installation: TagValue | None = None
    """Value of the tag `joiner.dev/installation` on all AWS resources of the installation. The
    default is organization/project/stack. It cannot change during the life of a stack; set it to
    the old value after `pulumi stack rename`."""

    node_pools: str | None = None
    """Folder with YAML files of NodePools and EC2NodeClasses, relative to the project."""

    default_node_pool: bool = True
    """Whether the stack creates a NodePool and an EC2NodeClass named `default` if `nodePools` is
    not set."""

    @property
    def shared(self) -> dict[str, Any]:
        """The settings that the component has too, by field."""
        fields = dataclasses.fields(InstallationSettings)
        return {member.name: getattr(self, member.name) for member in fields}

    @property
    def kubeconfig_path(self) -> Path | None:
        """Path of the kubeconfig, None if the setting is unset."""
        return kubeconfig_file(self.kubeconfig) if self.kubeconfig else None

    @property
    def portable_kubeconfig(self) -> str:
        """The kubeconfig's path relative to `~` if possible; empty if the setting is unset."""
        path = Path(self.kubeconfig or "")
        if not self.kubeconfig or not path.is_relative_to(Path.home()):
            return self.kubeconfig or ""
        return f"~/{path.relative_to(Path.home())}"

    @property
    def node_pools_folder(self) -> Path | None:
        """Path of the folder of NodePools, None if the setting is unset."""
        return CHECKOUT / self.node_pools if self.node_pools else None


def read() -> StackConfig:
    """Read the settings of the running stack; raises `ConfigError`."""
    config = pulumi.Config(PROJECT)
    given = {
        name.partition(":")[2]: config.require(name.partition(":")[2])
        for name in pulumi.runtime.config.CONFIG.get()
        if name.startswith(f"{PROJECT}:")
    }
    if problems := [*_unusable_aws_settings(), *_unusable_secrets()]:
        raise ConfigError(problems)
    elsewhere = {
        "aws:region": pulumi.Config("aws").get("region") or "",
        "AWS_REGION": os.environ.get("AWS_REGION", ""),
    }
    stack = parse(given, regions=elsewhere)
    for warning in ignored_gates([], stack.settings):
        pulumi.log.warn(f"{PROJECT}:settings: {warning}")
    return stack


def is_secret(key: str) -> bool:
    """Whether a setting of the running stack was set with `pulumi config set --secret`."""
    return pulumi.runtime.is_config_secret(f"{PROJECT}:{key}")


SECRET = ("env",)
"""Settings that may be secret. Others appear in names and properties of resources."""


def _unusable_secrets() -> Iterator[str]:
    for key in KEYS:
        if key not in SECRET and is_secret(key):
            yield (
                f"{PROJECT}:{key} is set as a secret, but the stack's state would show it in plain "
                f"text: set it without --secret; only {PROJECT}:env can be secret"
            )


AWS_SETTINGS = {
    "profile": "export AWS_PROFILE={value} where Pulumi runs",
    "assumeRole": "name the role in a profile (role_arn) and export AWS_PROFILE",
    "assumeRoles": "name the role in a profile (role_arn) and export AWS_PROFILE",
    "assumeRoleWithWebIdentity": "export AWS_ROLE_ARN and AWS_WEB_IDENTITY_TOKEN_FILE",
    "accessKey": "export AWS_ACCESS_KEY_ID",
    "secretKey": "export AWS_SECRET_ACCESS_KEY",
    "token": "export AWS_SESSION_TOKEN",
    "defaultTags": "set joiner:tags",
    "endpoints": "set joiner:awsEndpoint",
}
"""Settings of Pulumi's AWS provider that this program does not support, and what to do instead.
The program also calls AWS outside the provider, with the credentials of the AWS SDK."""

HONOURED = ("region", "allowedAccountIds", "forbiddenAccountIds")


def _unusable_aws_settings() -> Iterator[str]:
    for name in sorted(pulumi.runtime.config.CONFIG.get()):
        project, _, key = name.partition(":")
        if project == "aws" and key not in HONOURED:
            value = pulumi.Config("aws").get(key) if key == "profile" else ""
            instead = AWS_SETTINGS.get(key, "use the environment variables of the AWS SDK")
            yield f"{name} is not supported: {instead.format(value=value)}"


def refuse_disallowed(account: pulumi.Input[str]) -> None:
    """Check the account against `aws:allowedAccountIds` and `aws:forbiddenAccountIds`.

    Raises:
        ConfigError: the account is forbidden, or not among the allowed ones.

    """
    config = pulumi.Config("aws")
    allowed = [str(one) for one in config.get_object("allowedAccountIds") or ()]
    forbidden = [str(one) for one in config.get_object("forbiddenAccountIds") or ()]
    if account in forbidden or (allowed and account not in allowed):
        key = "forbiddenAccountIds" if account in forbidden else "allowedAccountIds"
        raise ConfigError(
            [
                f"aws:{key} excludes the account {account} of the current AWS credentials: use "
                "credentials of another account or change this setting"
            ]
        )


def parse(given: Mapping[str, str], *, regions: Mapping[str, str] = NO_REGIONS) -> StackConfig:
    """Check settings as text, by key without the project's name.

    Args:
        given: the stack's settings; objects and lists are JSON.
        regions: other sources of the region, by the name of the source. The first one with a value
            is used if the stack sets none.

    Raises:
        ConfigError: settings are unknown, missing or invalid; lists all of them.

    """
    keys = {key: f"{PROJECT}:{key}" for key in KEYS}
    if not given.get("region"):
        for where, region in regions.items():
            if region:
                given, keys["region"] = {**given, "region": region}, where
                break
    values: dict[str, Any] = {}
    problems = [_unknown(key, text) for key, text in given.items() if key not in KEYS]
    for key, member in KEYS.items():
        if not given.get(key):
            continue
        try:
            values[member.name] = _value(given[key], TYPES[member.name], keys[key])
        except OptionsError as exc:
            problems.append(str(exc))
    problems += [
        f"{PROJECT}:{key} is missing: {_ABOUT[key]}"
        for key, member in KEYS.items()
        if member.default is dataclasses.MISSING
        and member.default_factory is dataclasses.MISSING
        and member.name not in values
        and not given.get(key)
    ]
    if not problems:
        config = StackConfig(**values)
        problems = [*_without_meaning(config, given), *_contradictions(config)]
    if problems:
        raise ConfigError(problems)
    return config


def _unknown(key: str, text: str) -> str:
    """Return the error for an unknown key, with the command or key to use instead."""
    full, outer = f"{PROJECT}:{key}", re.split(r"[.\[]", key, maxsplit=1)[0]
    if outer in KEYS and outer != key:
        # Without --path, Pulumi reads the dot as a part of the key's name.
        return (
            f"{full}={text!r}: a value inside {PROJECT}:{outer} is set with --path: run `pulumi "
            f"config rm {full}` and `pulumi config set --path {full} {shlex.quote(text)}`"
        )
    return f"{full}={text!r}: unknown setting{_instead(key, KEYS)}"


def _instead(name: str, known: Iterable[str]) -> str:
    known = sorted(known)
    return nearest(name, known) or f"; the settings are {', '.join(known)}"


_ABOUT = {
    "clusterName": "the name of the EKS cluster",
    "region": "an AWS region such as us-west-2; aws:region and AWS_REGION are also read",
}


TAGS = 40
"""Most tags that users may set. AWS allows 50 for a resource, and the program sets some."""

_TAG = r"[\w .:/=+@-]"
TAG_NAME = re.compile(rf"(?!aws:){_TAG}{{1,128}}", re.IGNORECASE)
TAG_VALUE = re.compile(rf"{_TAG}{{0,256}}")

FOLLOWING = {
    "CLUSTER_NAME": "clusterName",
    "INSTALLATION": "installation",
    "INTERRUPTION_QUEUE": "queueName",
    "SYSTEM_NAMESPACE": "namespace",
    "KARPENTER_SERVICE": "name",
}
"""Settings of the controller that the program derives from the stack setting named here."""


def _contradictions(config: StackConfig) -> Iterator[str]:
    """Yield the errors that need more than one setting to detect."""
    yield from _unusable_settings(config.settings)
    yield from _unusable_tags(config.tags)
    yield from _unusable_from_nothing(config)
    yield from _unusable_statements(config)
    yield from _unusable_policies(
        config.node_policies, config.node_statements, config.controller_statements
    )
    yield from _unusable_entries(config)
    for name in sorted(config.env.keys() & {setting.variable for setting in SETTINGS}):
        yield (
            f"{PROJECT}:env: {name}={config.env[name]!r} cannot be set here: it is a setting of "
            f"the controller; set it in {PROJECT}:settings"
        )
    if config.kubeconfig:
        yield from _unusable_kubeconfig(config)
    if config.node_pools and not _is_there(lambda: config.node_pools_folder, Path.is_dir):
        yield f"{PROJECT}:nodePools={config.node_pools!r}: allowed is the path of a folder"
    if not config.kubeconfig and not shutil.which("aws"):
        yield (
            f"{PROJECT}:kubeconfig is missing: set it to the path of a kubeconfig, or install the "
            "AWS CLI, as the program authenticates to EKS with `aws eks get-token`"
        )
    is_image_known = config.platform_stack or config.image or released_image()
    if not is_image_known and not _can_build():
        yield (
            f"{PROJECT}:image is missing: set it to an image of the controller, or install docker "
            "with buildx to build one"
        )


def _unusable_kubeconfig(config: StackConfig) -> Iterator[str]:
    said = f"{PROJECT}:kubeconfig={config.kubeconfig!r}"
    if not _is_there(lambda: config.kubeconfig_path, Path.is_file):
        yield f"{said}: allowed is the path of a file"
        return
    try:
        server_of(kubeconfig_file(config.kubeconfig or ""))
    except ClusterUnreachableError as exc:
        yield f"{said}: {exc}"


def _unusable_from_nothing(config: StackConfig) -> Iterator[str]:
    """Yield settings that conflict with `cluster`."""
    create = f"{PROJECT}:cluster='create'"
    if config.cluster == "existing":
        return
    yield from _unusable_access(config.public_access_cidrs)
    yield from _unusable_controller_types(config.controller_instance_types)
    if not _is_private(config.vpc_cidr):
        yield (f"{PROJECT}:vpcCidr={config.vpc_cidr!r}: allowed is the CIDR of a private network")
    if config.platform_stack:
        yield (
            f"{create}: a stack with {PROJECT}:platformStack manages only NodePools: unset one "
            "of the two settings"
        )
    if config.node_access in ("aws-auth", "aws-auth-windows"):
        entry = "EC2_WINDOWS" if config.node_access.endswith("windows") else "EC2_LINUX"
        yield (
            f"{create}: a created cluster does not read aws-auth: set {PROJECT}:nodeAccess to "
            f"{entry} or leave it out"
        )
    if config.identity == "pod-identity" and config.pod_identity_agent == "create":
        yield f"{create}: it installs the agent itself: leave {PROJECT}:podIdentityAgent out"
    on_fargate = config.controller_compute == "fargate"
    if on_fargate and (config.identity, config.oidc_provider) != ("irsa", "create"):
        yield (
            f"{PROJECT}:controllerCompute='fargate': Fargate does not support Pod Identity: set "
            f"{PROJECT}:identity to irsa and {PROJECT}:oidcProvider to create"
        )
    if config.identity == "irsa" and config.oidc_provider != "create" and not on_fargate:
        yield f"{create}: a new cluster has no OIDC provider: set {PROJECT}:oidcProvider to create"


ONLY_WITH_CREATE = (
    "controlPlaneLogs",
    "deletionProtection",
    "controllerInstanceTypes",
    "controllerSize",
    "interfaceEndpoints",
    "ipFamily",
    "kubernetesVersion",
    "publicAccessCidrs",
    "secretsKey",
    "upgradePolicy",
)
"""Settings that apply only to a created cluster."""


def _without_meaning(config: StackConfig, given: Mapping[str, str]) -> Iterator[str]:
    """Yield the settings of a created cluster that are set although the cluster exists."""
    if config.cluster != "existing":
        return
    for key in ONLY_WITH_CREATE:
        if getattr(config, KEYS[key].name) != KEYS[key].default:
            yield (
                f"{PROJECT}:{key}={given[key]!r} cannot be set here: it applies only with "
                f"{PROJECT}:cluster='create'"
            )


def _unusable_access(cidrs: Sequence[str]) -> Iterator[str]:
    key = f"{PROJECT}:publicAccessCidrs"
    if not cidrs:
        yield (
            f"{key} is missing: list the networks that may reach the API server, such as this "
            "machine's address (https://checkip.amazonaws.com shows it) with /32; or set it to "
            f"{PRIVATE} if this machine is in the VPC"
        )
    if PRIVATE in cidrs and len(cidrs) > 1:
        yield f"{key}: {PRIVATE} disables the public endpoint: allowed is {PRIVATE} or networks"
    for cidr in cidrs:
        if cidr != PRIVATE and not _is_network(cidr):
            yield f"{key}={cidr!r}: allowed is a network such as 203.0.113.0/24"


def _unusable_controller_types(instance_types: Sequence[str]) -> Iterator[str]:
    key = f"{PROJECT}:controllerInstanceTypes"
    if not instance_types:
        yield f"{key} is empty; allowed is at least one instance type"
    if len({re.match(GRAVITON, one) is None for one in instance_types}) > 1:
        yield f"{key}={list(instance_types)}: allowed are instance types of one architecture"


def _is_network(cidr: str) -> bool:
    try:
        ipaddress.ip_network(cidr)
    except ValueError:
        return False
    return True


def _unusable_entries(config: StackConfig) -> Iterator[str]:
    principals = [entry["principal"] for entry in config.access_entries]
    if principals and config.cluster == "existing":
        yield (
            f"{PROJECT}:accessEntries={principals!r} cannot be set here: it applies only with "
            f"{PROJECT}:cluster='create'"
        )
    for principal in sorted({one for one in principals if principals.count(one) > 1}):
        yield f"{PROJECT}:accessEntries: {principal} is listed more than once; allowed is once"


def _unusable_statements(config: StackConfig) -> Iterator[str]:
    """Yield statements that break the policy rules in `infra.policypack.rules`."""
    for key in ("controllerStatements", "nodeStatements"):
        for statement in getattr(config, KEYS[key].name):
            written = json.dumps(statement, default=str)
            for fault in of_statement(statement):
                yield f"{PROJECT}:{key}: {written} is not allowed: {fault}"


def refuse_unusable_policies(
    node_policies: Sequence[Any],
    node_statements: Sequence[Wire],
    controller_statements: Sequence[Wire],
) -> None:
    """Check the policies and statements that users add to the roles against IAM's quotas.

    A policy whose ARN is not known yet only counts towards the number of policies.

    Raises:
        ConfigError: IAM would refuse policies or statements; lists all of them.

    """
    if problems := list(_unusable_policies(node_policies, node_statements, controller_statements)):
        raise ConfigError(problems)


def _unusable_policies(
    node_policies: Sequence[Any],
    node_statements: Sequence[Wire],
    controller_statements: Sequence[Wire],
) -> Iterator[str]:
    known = [arn for arn in node_policies if isinstance(arn, str)]
    titles = [arn.rpartition("/")[2] for arn in known]
    for arn, title in zip(known, titles, strict=True):
        if title in policies.NODE_ROLE_POLICIES:
            yield f"{PROJECT}:nodePolicies: {arn} is always attached to the node role: leave it out"
    for title in sorted({title for title in titles if titles.count(title) > 1}):
        yield f"{PROJECT}:nodePolicies: {title} is listed more than once; allowed is once"
    most = policies.ATTACHED - len(policies.NODE_ROLE_POLICIES)
    if len(node_policies) > most:
        yield (
            f"{PROJECT}:nodePolicies lists {len(node_policies)} policies; allowed are {most}: IAM "
            f"attaches at most {policies.ATTACHED} to a role, and every node needs "
            f"{len(policies.NODE_ROLE_POLICIES)} others"
        )
    for key, statements, limit, what in (
        ("controllerStatements", controller_statements, policies.MANAGED_SIZE, "a managed policy"),
        ("nodeStatements", node_statements, _NODE_STATEMENTS_SIZE, "the inline policies of a role"),
    ):
        document = policies.text_of(policies.document(*map(dict, statements)))
        if (size := policies.size_of(document)) > limit:
            yield (
                f"{PROJECT}:{key} makes a policy of {size:,} characters; allowed are {limit:,}, "
                f"IAM's limit for {what}: merge or shorten statements"
            )


_NODE_STATEMENTS_SIZE = policies.INLINE_SIZE - 1_000
"""Characters left for the user: the statements for IPv6 are inline policies of the role too."""


def _is_private(cidr: str) -> bool:
    try:
        return ipaddress.ip_network(cidr).is_private
    except ValueError:
        return False


def _can_build() -> bool:
    """Whether docker with buildx is installed, which builds for both architectures."""
    try:
        asked = subprocess.run(["docker", "buildx", "version"], capture_output=True, check=False)
    except OSError:
        return False
    return asked.returncode == 0


def following(
    *,
    cluster_name: pulumi.Input[str],
    installation: pulumi.Input[str],
    queue: pulumi.Input[str],
    namespace: pulumi.Input[str],
    name: pulumi.Input[str],
) -> dict[str, pulumi.Input[str]]:
    """Return the controller's settings that the program derives (`FOLLOWING`)."""
    return {
        "CLUSTER_NAME": cluster_name,
        "INSTALLATION": installation,
        "INTERRUPTION_QUEUE": queue,
        "SYSTEM_NAMESPACE": namespace,
        "KARPENTER_SERVICE": name,
    }


def require_options(settings: Mapping[str, str]) -> Options:
    """Return the controller's options without those of `FOLLOWING`.

    Raises:
        ConfigError: settings are unknown or invalid; lists all of them.

    """
    if problems := list(_unusable_settings(settings)):
        raise ConfigError(problems)
    return _options(settings)


def _unusable_settings(settings: Mapping[str, str]) -> Iterator[str]:
    variables = {setting.variable for setting in SETTINGS} - FOLLOWING.keys()
    for name, value in sorted(settings.items()):
        if name in FOLLOWING:
            key = f"{PROJECT}:{FOLLOWING[name]}"
            yield f"{PROJECT}:settings: {name}={value!r} cannot be set here: set {key} instead"
        elif name not in variables:
            yield (
                f"{PROJECT}:settings: {name}={value!r}: unknown setting of the controller"
                f"{_instead(name, variables)}"
            )
    try:
        _options({name: value for name, value in settings.items() if name not in FOLLOWING})
    except OptionsError as exc:
        yield f"{PROJECT}:settings: {exc}"


def _options(settings: Mapping[str, str]) -> Options:
    # Options require a cluster name; the program sets the real one with the others of FOLLOWING.
    return Options.parse([], {**settings, "CLUSTER_NAME": "any"})


def _unusable_tags(tags: Mapping[str, Any]) -> Iterator[str]:
    for name, value in tags.items():
        if not (TAG_NAME.fullmatch(name) and TAG_VALUE.fullmatch(value)):
            yield (
                f"{PROJECT}:tags: {name}={value!r} is invalid: allowed are names of up to 128 "
                "characters that do not begin with aws:, and values of up to 256, both of letters, "
                "digits, spaces and any of _.:/=+-@"
            )
    if len(tags) > TAGS:
        yield f"{PROJECT}:tags={dict(tags)!r} is invalid: allowed are at most {TAGS} tags"


def _is_statement(wire: Wire) -> bool:
    """Whether a map has the fields of an IAM statement; `rules` checks what it allows."""
    said = {"Action", "NotAction", "Resource", "NotResource"} & wire.keys()
    condition = wire.get("Condition", {})
    return (
        wire.get("Effect") in ("Allow", "Deny")
        and len(said & {"Action", "NotAction"}) == len(said & {"Resource", "NotResource"}) == 1
        and all(_are_names(wire[key]) for key in said)
        and isinstance(condition, dict)
        and all(isinstance(keys, dict) for keys in condition.values())
    )


def _are_names(value: Any) -> bool:
    names = [value] if isinstance(value, str) else value
    return isinstance(names, list) and bool(names) and all(isinstance(n, str) and n for n in names)


_PRINCIPAL = r"arn:[\w-]+:iam::\d{12}:(role|user)/[!-~]{1,512}"


def _is_access(wire: Wire) -> bool:
    return (
        {"principal", "policy"} <= wire.keys() <= {"principal", "policy", "namespaces"}
        and re.fullmatch(_PRINCIPAL, str(wire["principal"]), re.ASCII) is not None
        and wire["policy"] in ACCESS_POLICIES
        and ("namespaces" not in wire or _are_names(wire["namespaces"]))
    )


def _is_there(path: Callable[[], Path | None], look: Callable[[Path], bool]) -> bool:
    """Whether a path exists and passes a check; False if it is not a valid path."""
    try:
        place = path()
        return place is not None and look(place)
    except (OSError, RuntimeError, ValueError):
        return False


def _value(text: str, kind: Any, key: str) -> Any:
    members = typing.get_args(kind)
    if kind == Mapping[str, str]:
        return _mapping(text, key)
    if kind == Wire:
        words = "an affinity as in the spec of a pod"
        affinity = _structure(text, key, dict, words)
        if not _is_affinity(affinity):
            raise OptionsError(key, text, words)
        return affinity
    if kind == Sequence[Wire]:
        return _wires(text, key, "a list of maps")
    if len(members) > 1 and isinstance(members[1], Each):
        wires = _wires(text, key, members[1].words)
        if not all(map(members[1].has_shape, wires)):
            raise OptionsError(key, text, members[1].words)
        return wires
    if typing.get_origin(kind) is Sequence:
        return _list(text, members[0], key)
    return value_of(text, kind, key=key)


def _list(text: str, kind: Any, key: str) -> tuple[Any, ...]:
    words = f"a list of {typing.get_args(kind)[1]}"
    items = (
        _structure(text, key, list, words)
        if text.lstrip().startswith("[")
        else [item.strip() for item in text.split(",") if item.strip()]
    )
    try:
        return tuple(value_of(item, kind, key=key) for item in items)
    except OptionsError as exc:
        raise OptionsError(key, text, words) from exc


def _is_affinity(value: Wire) -> bool:
    """Whether an affinity has the shape that the default affinity can be merged with."""
    if not all(isinstance(kind, dict) for kind in value.values()):
        return False
    required = value.get("nodeAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is None:
        return True
    terms = required.get("nodeSelectorTerms") if isinstance(required, dict) else None
    return isinstance(terms, list) and all(
        isinstance(term, dict) and isinstance(term.get("matchExpressions", []), list)
        for term in terms
    )


def _wires(text: str, key: str, words: str) -> tuple[Wire, ...]:
    wires = _structure(text, key, list, words)
    if not all(isinstance(wire, dict) for wire in wires):
        raise OptionsError(key, text, words)
    return tuple(wires)


def _mapping(text: str, key: str) -> dict[str, str]:
    words = "a map of names to text"
    mapping: dict[Any, Any] = _structure(text, key, dict, words)
    if not all(isinstance(name, str) for name in mapping) or any(
        isinstance(value, dict | list | set | tuple) or value is None for value in mapping.values()
    ):
        raise OptionsError(key, text, words)
    return {name: _scalar(value) for name, value in mapping.items()}


def _scalar(value: Any) -> str:
    return json.dumps(value) if isinstance(value, bool) else str(value)


def _structure(text: str, key: str, kind: type[Any], words: str) -> Any:
    try:
        structure = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as exc:
        # PyYAML raises ValueError for invalid numbers and dates.
        raise OptionsError(key, text, words) from exc
    if not isinstance(structure, kind):
        raise OptionsError(key, text, words)
    return structure


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.title() for word in rest)


def _of_text(kind: Any) -> Any:
    """Return the type of a value that is set as text: neither None nor an output of a resource."""
    origin, members = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _of_text(members[0])
    if origin in (Mapping, Sequence):
        return origin[tuple(map(_of_text, members))]
    return kind


# `pulumi.Input` refers to `Output` by name.
_HINTS = typing.get_type_hints(StackConfig, localns=vars(pulumi.output), include_extras=True)
TYPES: Mapping[str, Any] = {name: _of_text(kind) for name, kind in _HINTS.items()}
"""The type of the value of each setting of a stack, by field."""

KEYS: Mapping[str, dataclasses.Field[Any]] = {
    _camel(member.name): member for member in dataclasses.fields(StackConfig)
}
"""All settings of a stack, by key."""
