"""The stack's settings: `joiner:<key>` of `Pulumi.<stack>.yaml`, typed and checked.

Everything is checked before anything is created. An error names every key that cannot
be used, with its value and what is allowed.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import json
import os
import re
import shutil
import subprocess
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

import pulumi
import yaml

from controller.options import SETTINGS, Options, OptionsError, Range, value_of
from infra.clusterapi import kubeconfig_file
from infra.rules import of_statement

PROJECT = "joiner"
CHECKOUT = Path(__file__).resolve().parent.parent
"""Relative paths in settings start here, where Pulumi.yaml is."""

Identity = Literal["pod-identity", "irsa"]
NodeAccess = Literal["EC2_LINUX", "EC2_WINDOWS", "aws-auth", "aws-auth-windows", "none"]
Presence = Literal["existing", "create"]
Home = Literal["node-group", "fargate"]
Nat = Literal["single", "zonal"]
Profiles = Literal["given", "managed"]
Scraping = Literal["none", "annotations", "service-monitor"]
Wire = Mapping[str, Any]
"""An object as it stands in JSON."""


class ConfigError(pulumi.RunError):
    """Settings cannot be used; the message has a line for each."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        super().__init__("\n".join(["the stack's settings cannot be used:", *problems]))


@dataclass(frozen=True, slots=True)
class Form:
    """Text of a certain form, said in words."""

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
KubernetesVersion = Annotated[str, Form(r"1\.\d{2}", "a version of Kubernetes such as 1.36")]
Cidr = Annotated[
    str,
    Form(r"(\d{1,3}\.){3}\d{1,3}/(1[6-9]|20)", "a private network of /16 to /20"),
]
StackName = Annotated[
    str,
    Form(r"([^/\s]+/[^/\s]+/)?[^/\s]+", "a stack of this project, or organization/project/stack"),
]


@dataclass(frozen=True, slots=True)
class Each:
    """Maps of a certain shape, said in words."""

    has_shape: Callable[[Wire], bool]
    words: str

    def __str__(self) -> str:
        return self.words


Statements = Annotated[
    tuple[Wire, ...],
    Each(
        lambda wire: _is_statement(wire),
        "a list of statements of IAM, each with an Effect (Allow or Deny), an Action and a "
        "Resource, and none that breaks the rules of security.md",
    ),
]

ACCESS_POLICIES = (
    "AmazonEKSAdminPolicy",
    "AmazonEKSAdminViewPolicy",
    "AmazonEKSClusterAdminPolicy",
    "AmazonEKSEditPolicy",
    "AmazonEKSViewPolicy",
)
"""What a person may be let do in a cluster: EKS user guide, "Review access policy permissions"."""

AccessEntries = Annotated[
    tuple[Wire, ...],
    Each(
        lambda wire: _is_access(wire),
        "a list of maps with a principal (the ARN of a role or user of IAM), a policy (any of "
        f"{', '.join(ACCESS_POLICIES)}) and, where it is not for the whole cluster, namespaces (a "
        "list)",
    ),
]

HOLDINGS = ("cluster", "nodeRole", "controllerRole", "queue")
"""What may be made by a stack, or be there already: each is the key of the setting that says so."""

Holdings = Annotated[str, Form("|".join(HOLDINGS), f"any of {', '.join(HOLDINGS)}")]

_STAYING = (*HOLDINGS, "nodes")
Staying = Annotated[str, Form("|".join(_STAYING), f"any of {', '.join(_STAYING)}")]

NO_REGIONS: Mapping[str, str] = {}


@dataclass(frozen=True, kw_only=True, slots=True)
class StackConfig:
    """The settings of one stack. A field `cluster_name` is the key `joiner:clusterName`."""

    cluster_name: ClusterName
    """The EKS cluster, which must exist unless it is made here."""

    region: Region
    """Its region; `aws:region` or `AWS_REGION` when left out."""

    cluster: Presence = "existing"
    """Whether there is a cluster already or it is made here, with its network and add-ons."""

    kubernetes_version: KubernetesVersion | None = None
    """Of a cluster made here; EKS's default when left out."""

    controller_home: Home = "node-group"
    """Where the controller of a cluster made here runs: on two Graviton nodes, or on Fargate."""

    vpc_cidr: Cidr = "10.128.0.0/16"
    """The network of a cluster made here."""

    nat_gateways: Nat = "single"
    """Of a network made here: one for all zones, or one in each."""

    access_entries: AccessEntries = ()
    """Who else may do what in a cluster made here; whoever makes it is its administrator, and is
    not named."""

    platform_stack: StackName | None = None
    """Makes this a stack of NodePools alone, on what that stack has set up. One without
    organization and project is of this project and of our organization."""

    aws_endpoint: Url | None = None
    """One endpoint for every AWS API, such as a testbed's; AWS itself when left out."""

    kubeconfig: str | None = None
    """Path of a kubeconfig, from home (~) or from the project, so that the stack can be destroyed
    on another machine too; the cluster is reached by its EKS endpoint when left out."""

    image: Image | None = None
    """The controller's image; built from the Dockerfile and pushed to ECR when left out."""

    namespace: Label = "kube-system"
    """Namespace of the controller."""

    name: ServiceName = "karpenter"
    """Name of the Deployment, service account and Service; tools look for Karpenter's."""

    replicas: Annotated[int, Range(1, 10)] = 2
    """Controllers; one acts, the others stand by."""

    cpu: Cpu = "1"
    """CPU that each controller requests."""

    memory: Memory = "1Gi"
    """Memory that each controller requests, and its limit."""

    create_namespace: bool = False
    """Whether that namespace is made, and goes with the stack."""

    scraping: Scraping = "none"
    """How Prometheus finds the metrics: by annotations of the pods, or by a ServiceMonitor, whose
    CRD must be there."""

    extra_labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of all that the controller is made of in the cluster, and of its pods."""

    pod_annotations: Mapping[str, str] = field(default_factory=dict)
    """Annotations of its pods."""

    env: Mapping[str, str] = field(default_factory=dict)
    """What its container finds in its environment beside the settings, such as HTTPS_PROXY."""

    node_selector: Mapping[str, str] = field(default_factory=dict)
    """Labels of the nodes where it may run."""

    tolerations: tuple[Wire, ...] = ()
    """Taints that it tolerates, beside CriticalAddonsOnly."""

    affinity: Wire = field(default_factory=dict)
    """Its affinity, as in a pod's; each kind takes the place of ours. It never runs on nodes that
    it makes."""

    image_pull_secrets: tuple[SecretName, ...] = ()
    """Secrets of its namespace by which its image is pulled."""

    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings of the controller by environment variable, such as BATCH_IDLE_DURATION: 2s."""

    identity: Identity = "pod-identity"
    """How the controller becomes its role: EKS Pod Identity, or IRSA (OIDC; also the way on
    Fargate)."""

    pod_identity_agent: Presence = "existing"
    """With Pod Identity: whether its agent is on the cluster already or is installed here."""

    oidc_provider: Presence = "existing"
    """With IRSA: whether the cluster's OIDC provider exists in IAM already or is made here."""

    node_access: NodeAccess | None = None
    """How nodes are let into the cluster: an access entry of this type, the aws-auth ConfigMap
    of older clusters (with the group that Windows nodes need, or without), or some other way of
    yours. When left out, an access entry for Linux where the cluster takes entries, else
    aws-auth."""

    windows_nodes: bool = False
    """Whether Windows nodes have a role of their own, `KarpenterWindowsNodeRole-<cluster>`, and
    are let in beside Linux nodes: `${WINDOWS_INSTANCE_PROFILE}` and `${WINDOWS_NODE_ROLE}` in
    NodePools."""

    node_role: Presence = "create"
    """Whether the nodes' role is made, or is there already under its name and left as it is."""

    controller_role: Presence = "create"
    """The same of the controller's role: one that exists needs its policies and its trust."""

    queue: Presence = "create"
    """The same of the interruption queue: one that exists needs its rules and its policy."""

    retain_on_delete: tuple[Staying, ...] = ()
    """What stays in AWS when it is no longer the stack's, be it by `existing` or by `pulumi
    destroy`: set it, run `pulumi up`, and then let go. With nodes, a destroy drains and ends
    none: another Karpenter has taken them over."""

    confirm_delete: tuple[Holdings, ...] = ()
    """What `pulumi up` may delete, or make anew. Without it, a setting that would have something
    deleted that the stack has made is refused in the preview."""

    instance_profile_name: RoleName | None = None
    """An instance profile that is there already; one is made of the nodes' role when left out."""

    instance_profiles: Profiles = "given"
    """Whether classes name a profile (`${INSTANCE_PROFILE}`), and the controller has no right in
    IAM but to pass on the nodes' role; or it may make profiles, for classes with a `spec.role`
    that has none of its own name, such as those made for Karpenter."""

    image_parameters: tuple[ImageParameter, ...] = ()
    """SSM parameters of yours that the controller may read, for classes whose `amiSelectorTerms`
    name an `ssmParameter`; it may always read those that AWS publishes."""

    iam_path: IamPath = "/"
    """Path of roles, policies and instance profile."""

    name_prefix: Prefix = "Karpenter"
    """What the names of roles, policies and instance profile begin with."""

    controller_statements: Statements = ()
    """Statements of IAM that the controller's role bears beside its own."""

    node_statements: Statements = ()
    """The same of the nodes' role."""

    node_policies: tuple[PolicyArns, ...] = ()
    """Policies attached to the nodes' role beside those that every node needs."""

    queue_key: KeyArn | None = None
    """KMS key of the queue; encrypted with SQS's own key when left out. The key's own policy lets
    events.amazonaws.com use it."""

    node_role_name: RoleName | None = None
    """`KarpenterNodeRole-<cluster>` when left out. IAM has one role of a name in all regions."""

    controller_role_name: RoleName | None = None
    """`KarpenterControllerRole-<cluster>` when left out; as unique."""

    permissions_boundary: Arn | None = None
    """A permissions boundary for both roles."""

    spot_role: Presence = "existing"
    """Whether the account has EC2's service-linked role for spot already or it is made here. It
    exists once anybody has used spot in the account."""

    queue_name: QueueName | None = None
    """Name of the interruption queue; the cluster's when left out."""

    existing_kinds: tuple[Definition, ...] = ()
    """CustomResourceDefinitions that somebody else keeps in the cluster, such as Karpenter or EKS
    Auto Mode: they are neither made nor deleted here."""

    discovery_tags: bool = True
    """Whether subnets and security groups are tagged `karpenter.sh/discovery: <cluster>`."""

    discovery_tag_key: TagKey = "karpenter.sh/discovery"
    """The key of that tag: clusters that share subnets need one each."""

    cluster_tags: bool = False
    """Whether they are tagged `kubernetes.io/cluster/<cluster>: shared` too, where EKS or somebody
    else has not tagged them so already."""

    subnet_ids: tuple[Subnet, ...] = ()
    """The subnets that nodes start in; those of managed node groups when left out, or else those of
    the cluster's that have a way out."""

    security_group_ids: tuple[SecurityGroup, ...] = ()
    """The security groups of nodes; those that the launch templates of managed node groups name
    when left out, or else the cluster's own."""

    installation: TagValue | None = None
    """Names the installation in the tag `joiner.dev/installation` of everything in AWS;
    organization/project/stack when left out. Said once it is needed: a stack keeps it for life."""

    tags: Mapping[str, str] = field(default_factory=dict)
    """Tags of every AWS resource the program makes."""

    node_pools: str | None = None
    """Folder of YAML with NodePools and EC2NodeClasses, relative to the project."""

    default_node_pool: bool = True
    """Whether a sample pool and class called `default` are made when no folder is named."""

    delete_foreign_node_pools: bool = False
    """Whether `pulumi destroy` also deletes NodePools that no stack owns; it refuses otherwise."""

    drain_timeout: Annotated[timedelta, Range(timedelta(seconds=1), timedelta(days=7))] = timedelta(
        minutes=20
    )
    """How long `pulumi destroy` lets the controller drain nodes before it terminates instances
    by their tags."""

    @property
    def kubeconfig_path(self) -> Path | None:
        """The kubeconfig's file."""
        return kubeconfig_file(self.kubeconfig) if self.kubeconfig else None

    @property
    def portable_kubeconfig(self) -> str:
        """Its path as another machine understands it, wherever that can be; empty for none."""
        path = Path(self.kubeconfig or "")
        if not self.kubeconfig or not path.is_relative_to(Path.home()):
            return self.kubeconfig or ""
        return f"~/{path.relative_to(Path.home())}"

    @property
    def node_pools_folder(self) -> Path | None:
        """The folder of NodePools."""
        return CHECKOUT / self.node_pools if self.node_pools else None


def read() -> StackConfig:
    """Read the settings of the running stack; raises `ConfigError`."""
    config = pulumi.Config(PROJECT)
    given = {
        name.partition(":")[2]: config.require(name.partition(":")[2])
        for name in pulumi.runtime.config.CONFIG.get()
        if name.startswith(f"{PROJECT}:")
    }
    if problems := list(_unusable_aws_settings()):
        raise ConfigError(problems)
    elsewhere = {
        "aws:region": pulumi.Config("aws").get("region") or "",
        "AWS_REGION": os.environ.get("AWS_REGION", ""),
    }
    return parse(given, regions=elsewhere)


AWS_SETTINGS = {
    "profile": "export AWS_PROFILE={value} for whoever runs Pulumi",
    "assumeRole": "name the role in a profile (role_arn) and export AWS_PROFILE",
    "assumeRoles": "name the role in a profile (role_arn) and export AWS_PROFILE",
    "assumeRoleWithWebIdentity": "export AWS_ROLE_ARN and AWS_WEB_IDENTITY_TOKEN_FILE",
    "accessKey": "export AWS_ACCESS_KEY_ID",
    "secretKey": "export AWS_SECRET_ACCESS_KEY",
    "token": "export AWS_SESSION_TOKEN",
    "defaultTags": "set joiner:tags",
    "endpoints": "set joiner:awsEndpoint",
}
"""Settings of Pulumi's AWS provider that this program cannot honour, and what to do instead: it
looks into AWS and takes the stack down beside the provider, as the AWS CLI and SDK do."""

HONOURED = ("region", "allowedAccountIds", "forbiddenAccountIds")


def _unusable_aws_settings() -> Iterator[str]:
    for name in sorted(pulumi.runtime.config.CONFIG.get()):
        project, _, key = name.partition(":")
        if project == "aws" and key not in HONOURED:
            value = pulumi.Config("aws").get(key) if key == "profile" else ""
            instead = AWS_SETTINGS.get(key, "it goes to the environment of the AWS SDK")
            yield f"{name} is not honoured here: {instead.format(value=value)}"


def refuse_disallowed(account: pulumi.Input[str]) -> None:
    """Hold to `aws:allowedAccountIds` and `aws:forbiddenAccountIds`, as the provider does.

    Raises:
        ConfigError: they do not let the account be used.

    """
    config = pulumi.Config("aws")
    allowed = [str(one) for one in config.get_object("allowedAccountIds") or ()]
    forbidden = [str(one) for one in config.get_object("forbiddenAccountIds") or ()]
    if account in forbidden or (allowed and account not in allowed):
        key = "forbiddenAccountIds" if account in forbidden else "allowedAccountIds"
        raise ConfigError(
            [f"aws:{key} does not let the account {account} be used, whose credentials are at hand"]
        )


def parse(given: Mapping[str, str], *, regions: Mapping[str, str] = NO_REGIONS) -> StackConfig:
    """Check settings as text, by key without the project's name.

    Args:
        given: what the stack says; objects and lists are JSON.
        regions: the region when the stack names none, by where else it stands; the first counts.

    Raises:
        ConfigError: some cannot be used; all of them are named.

    """
    keys = {key: f"{PROJECT}:{key}" for key in KEYS}
    if not given.get("region"):
        for where, region in regions.items():
            if region:
                given, keys["region"] = {**given, "region": region}, where
                break
    values: dict[str, Any] = {}
    problems = [
        f"{PROJECT}:{key}={text!r}: there is no such setting; there are {', '.join(sorted(KEYS))}"
        for key, text in given.items()
        if key not in KEYS
    ]
    for key, member in KEYS.items():
        if not given.get(key):
            continue
        try:
            values[member.name] = _value(given[key], _TYPES[member.name], keys[key])
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
        problems = list(_contradictions(config))
    if problems:
        raise ConfigError(problems)
    return config


_ABOUT = {
    "clusterName": "the name of the EKS cluster",
    "region": "an AWS region such as us-west-2; aws:region and AWS_REGION serve too",
}


TAGS = 40
"""Of every resource; AWS takes 50, and some are ours."""

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
"""Settings of the controller that must agree with what the program makes: the key of each."""


def _contradictions(config: StackConfig) -> Iterator[str]:
    """What each setting for itself allows, but not all of them together."""
    yield from _unusable_settings(config.settings)
    yield from _unusable_tags(config.tags)
    yield from _unusable_from_nothing(config)
    yield from _unusable_statements(config)
    yield from _unusable_entries(config)
    for name in sorted(config.env.keys() & {setting.variable for setting in SETTINGS}):
        yield (
            f"{PROJECT}:env: {name}={config.env[name]!r} cannot be set here: it is a setting of "
            f"the controller, and goes into {PROJECT}:settings"
        )
    if config.kubeconfig and not _is_there(lambda: config.kubeconfig_path, Path.is_file):
        yield f"{PROJECT}:kubeconfig={config.kubeconfig!r}: allowed is the path of a file"
    if config.node_pools and not _is_there(lambda: config.node_pools_folder, Path.is_dir):
        yield f"{PROJECT}:nodePools={config.node_pools!r}: allowed is the path of a folder"
    if not config.kubeconfig and not shutil.which("aws"):
        yield (
            f"{PROJECT}:kubeconfig is missing: name one, or install the AWS CLI: the way to an EKS "
            "cluster is by `aws eks get-token`"
        )
    if config.platform_stack is None and config.image is None and not _can_build():
        yield (
            f"{PROJECT}:image is missing: name an image of the controller, or install docker "
            "with buildx so that one can be built"
        )


def _unusable_from_nothing(config: StackConfig) -> Iterator[str]:
    """What does not go with a cluster that is made here, or only with one."""
    create = f"{PROJECT}:cluster='create'"
    if config.cluster == "existing":
        if config.kubernetes_version:
            yield f"{PROJECT}:kubernetesVersion counts only with {create}"
        return
    if not _is_private(config.vpc_cidr):
        yield (
            f"{PROJECT}:vpcCidr={config.vpc_cidr!r}: allowed is the address of a private network"
        )
    if config.platform_stack:
        yield f"{create}: a stack of NodePools alone, as {PROJECT}:platformStack asks, makes none"
    if config.subnet_ids:
        yield f"{create}: the subnets are made here; {PROJECT}:subnetIds cannot name others"
    if config.node_access == "aws-auth":
        yield f"{create}: nodes are let in by access entries; set {PROJECT}:nodeAccess to another"
    if config.identity == "pod-identity" and config.pod_identity_agent == "create":
        yield f"{create}: the agent comes with it; leave {PROJECT}:podIdentityAgent out"
    on_fargate = config.controller_home == "fargate"
    if on_fargate and (config.identity, config.oidc_provider) != ("irsa", "create"):
        yield (
            f"{PROJECT}:controllerHome='fargate': there is no Pod Identity on Fargate; set "
            f"{PROJECT}:identity to irsa and {PROJECT}:oidcProvider to create"
        )
    if config.identity == "irsa" and config.oidc_provider != "create" and not on_fargate:
        yield f"{create}: a new cluster has no OIDC provider; set {PROJECT}:oidcProvider to create"


def _unusable_entries(config: StackConfig) -> Iterator[str]:
    principals = [entry["principal"] for entry in config.access_entries]
    if principals and config.cluster == "existing":
        yield f"{PROJECT}:accessEntries counts only with {PROJECT}:cluster='create'"
    for principal in sorted({one for one in principals if principals.count(one) > 1}):
        yield f"{PROJECT}:accessEntries: {principal} stands there more than once; allowed is once"


def _unusable_statements(config: StackConfig) -> Iterator[str]:
    """What opens what must stay closed, as the resources made of it would be refused for."""
    for key in ("controllerStatements", "nodeStatements"):
        for statement in getattr(config, KEYS[key].name):
            written = json.dumps(statement, default=str)
            for fault in of_statement(statement):
                yield f"{PROJECT}:{key}: {written} cannot be used: {fault}"


def _is_private(cidr: str) -> bool:
    try:
        return ipaddress.ip_network(cidr).is_private
    except ValueError:
        return False


def _can_build() -> bool:
    """Whether there is a docker that can build for both architectures."""
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
    """Return those settings of the controller that follow from what the program makes."""
    return {
        "CLUSTER_NAME": cluster_name,
        "INSTALLATION": installation,
        "INTERRUPTION_QUEUE": queue,
        "SYSTEM_NAMESPACE": namespace,
        "KARPENTER_SERVICE": name,
    }


def require_options(settings: Mapping[str, str]) -> Options:
    """Read the controller's settings, but for those of `FOLLOWING`.

    Raises:
        ConfigError: some cannot be used; all of them are named.

    """
    if problems := list(_unusable_settings(settings)):
        raise ConfigError(problems)
    return _options(settings)


def _unusable_settings(settings: Mapping[str, str]) -> Iterator[str]:
    variables = {setting.variable for setting in SETTINGS} - FOLLOWING.keys()
    for name, value in sorted(settings.items()):
        if name in FOLLOWING:
            key = f"{PROJECT}:{FOLLOWING[name]}"
            yield f"{PROJECT}:settings: {name}={value!r} cannot be set here: it follows from {key}"
        elif name not in variables:
            yield (
                f"{PROJECT}:settings: {name}={value!r}: the controller has no such setting; "
                f"there are {', '.join(sorted(variables))}"
            )
    try:
        _options(settings)
    except OptionsError as exc:
        yield f"{PROJECT}:settings: {exc}"


def _options(settings: Mapping[str, str]) -> Options:
    # There are no options without a cluster; its name comes with the others that follow.
    return Options.parse([], {**settings, "CLUSTER_NAME": "any"})


def _unusable_tags(tags: Mapping[str, str]) -> Iterator[str]:
    for name, value in tags.items():
        if not (TAG_NAME.fullmatch(name) and TAG_VALUE.fullmatch(value)):
            yield (
                f"{PROJECT}:tags: {name}={value!r} cannot be used: allowed are names of up to 128 "
                "characters that do not begin with aws:, and values of up to 256, both of letters, "
                "digits, spaces and any of _.:/=+-@"
            )
    if len(tags) > TAGS:
        yield f"{PROJECT}:tags={dict(tags)!r} cannot be used: allowed are at most {TAGS} tags"


def _is_statement(wire: Wire) -> bool:
    """Whether it has what a statement has; what it opens is another question."""
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
    """Whether there is what a path leads to; there is nothing where it cannot be a path."""
    try:
        place = path()
        return place is not None and look(place)
    except (OSError, RuntimeError, ValueError):
        return False


def _value(text: str, kind: Any, key: str) -> Any:
    members = [m for m in typing.get_args(kind) if m is not type(None)]
    if type(None) in typing.get_args(kind):
        kind = members[0]
    if kind == Mapping[str, str]:
        return _mapping(text, key)
    if kind == Wire:
        words = "an affinity as in the spec of a pod"
        affinity = _structure(text, key, dict, words)
        if not _is_affinity(affinity):
            raise OptionsError(key, text, words)
        return affinity
    if kind == tuple[Wire, ...]:
        return _wires(text, key, "a list of maps")
    if len(members) > 1 and isinstance(members[1], Each):
        wires = _wires(text, key, members[1].words)
        if not all(map(members[1].has_shape, wires)):
            raise OptionsError(key, text, members[1].words)
        return wires
    if typing.get_origin(kind) is tuple:
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
    """Whether there is nothing in it that ours could not be put beside."""
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
        # Numbers and dates that are none are ValueErrors of their own.
        raise OptionsError(key, text, words) from exc
    if not isinstance(structure, kind):
        raise OptionsError(key, text, words)
    return structure


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.title() for word in rest)


_TYPES = typing.get_type_hints(StackConfig, include_extras=True)
KEYS: Mapping[str, dataclasses.Field[Any]] = {
    _camel(member.name): member for member in dataclasses.fields(StackConfig)
}
"""Every setting of a stack by its key."""
