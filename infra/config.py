"""The stack's settings: `joiner:<key>` of `Pulumi.<stack>.yaml`, typed and checked.

Everything is checked before anything is created. An error names every key that cannot
be used, with its value and what is allowed.
"""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

import pulumi
import yaml

from controller.options import SETTINGS, Options, OptionsError, Range, value_of
from infra import names

PROJECT = "joiner"
CHECKOUT = Path(__file__).resolve().parent.parent
"""Relative paths in settings start here, where Pulumi.yaml is."""

Identity = Literal["pod-identity", "irsa"]
NodeAccess = Literal["EC2_LINUX", "EC2_WINDOWS", "aws-auth", "none"]
Presence = Literal["existing", "create"]


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
        """Whether the whole text has the form."""
        return re.fullmatch(self.pattern, value) is not None

    def __str__(self) -> str:
        return self.words


ClusterName = Annotated[
    str, Form(r"[0-9A-Za-z][A-Za-z0-9_-]{0,99}", "1 to 100 letters, digits, '-' and '_'")
]
Region = Annotated[str, Form(r"[a-z]{2}(-[a-z]+)+-\d", "an AWS region such as us-west-2")]
Url = Annotated[str, Form(r"https?://[^/\s]+(/\S*)?", "a URL such as http://127.0.0.1:4566")]
RoleName = Annotated[str, Form(r"[\w+=,.@-]{1,64}", "1 to 64 letters, digits and any of +=,.@-_")]
QueueName = Annotated[str, Form(r"[\w-]{1,80}", "1 to 80 letters, digits, '-' and '_'")]
Label = Annotated[
    str, Form(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", "a DNS label such as kube-system")
]
Arn = Annotated[str, Form(r"arn:[\w-]+:iam::\d{12}:policy/.+", "the ARN of an IAM policy")]
Cpu = Annotated[str, Form(r"\d+(\.\d+)?|\d+m", "an amount of CPU such as 500m or 2")]
Memory = Annotated[str, Form(r"\d+(\.\d+)?[MGT]i?", "an amount of memory such as 512Mi or 1Gi")]
StackName = Annotated[str, Form(r"[^/\s]+/[^/\s]+/[^/\s]+", "organization/project/stack")]


@dataclass(frozen=True, kw_only=True, slots=True)
class StackConfig:
    """The settings of one stack. A field `cluster_name` is the key `joiner:clusterName`."""

    cluster_name: ClusterName
    """The EKS cluster, which must exist."""

    region: Region
    """Its region; `aws:region` or `AWS_REGION` when left out."""

    platform_stack: StackName | None = None
    """Makes this a stack of NodePools alone, on what that stack has set up."""

    aws_endpoint: Url | None = None
    """One endpoint for every AWS API, such as a testbed's; AWS itself when left out."""

    kubeconfig: str | None = None
    """Path of a kubeconfig; the cluster is reached by its EKS endpoint when left out."""

    image: str | None = None
    """The controller's image; built from the Dockerfile and pushed to ECR when left out."""

    namespace: Label = "kube-system"
    """Namespace of the controller."""

    name: Label = "karpenter"
    """Name of the Deployment, service account and Service; tools look for Karpenter's."""

    replicas: Annotated[int, Range(1, 10)] = 2
    """Controllers; one acts, the others stand by."""

    cpu: Cpu = "1"
    """CPU that each controller requests."""

    memory: Memory = "1Gi"
    """Memory that each controller requests, and its limit."""

    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings of the controller by environment variable, such as BATCH_IDLE_DURATION: 2s."""

    identity: Identity = "pod-identity"
    """How the controller becomes its role: EKS Pod Identity, or IRSA (OIDC; also the way on
    Fargate)."""

    pod_identity_agent: Presence = "existing"
    """With Pod Identity: whether its agent is on the cluster already or is installed here."""

    oidc_provider: Presence = "existing"
    """With IRSA: whether the cluster's OIDC provider exists in IAM already or is made here."""

    node_access: NodeAccess = "EC2_LINUX"
    """How nodes are let into the cluster: an access entry of this type, the aws-auth ConfigMap
    of older clusters, or some other way of yours."""

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

    discovery_tags: bool = True
    """Whether subnets and security groups are tagged `karpenter.sh/discovery: <cluster>`."""

    cluster_tags: bool = False
    """Whether they are tagged `kubernetes.io/cluster/<cluster>: shared` too."""

    subnet_ids: tuple[str, ...] = ()
    """The subnets that nodes start in; the cluster's when left out."""

    security_group_ids: tuple[str, ...] = ()
    """The security groups of nodes; the cluster's own when left out."""

    tags: Mapping[str, str] = field(default_factory=dict)
    """Tags of every AWS resource the program makes."""

    node_pools: str | None = None
    """Folder of YAML with NodePools and EC2NodeClasses, relative to the project."""

    default_node_pool: bool = True
    """Whether a sample pool and class called `default` are made when no folder is named."""

    delete_foreign_node_pools: bool = False
    """Whether `pulumi destroy` also deletes NodePools that no stack owns; it refuses otherwise."""

    drain_timeout: Annotated[timedelta, Range(timedelta(seconds=1))] = timedelta(minutes=20)
    """How long `pulumi destroy` lets the controller drain nodes before it terminates instances
    by their tags."""

    @property
    def queue(self) -> str:
        """Name of the interruption queue."""
        return self.queue_name or names.queue(self.cluster_name)

    @property
    def node_role(self) -> str:
        """Name of the nodes' role."""
        return self.node_role_name or names.node_role(self.cluster_name)

    @property
    def controller_role(self) -> str:
        """Name of the controller's role."""
        return self.controller_role_name or names.controller_role(self.cluster_name)

    @property
    def kubeconfig_path(self) -> Path | None:
        """The kubeconfig's file."""
        return CHECKOUT / Path(self.kubeconfig).expanduser() if self.kubeconfig else None

    @property
    def node_pools_folder(self) -> Path | None:
        """The folder of NodePools."""
        return CHECKOUT / self.node_pools if self.node_pools else None

    @property
    def options(self) -> Options:
        """The controller's settings: those of the stack, and what follows from it."""
        return Options.parse([], self._environment)

    @property
    def _environment(self) -> dict[str, str]:
        own = {
            "CLUSTER_NAME": self.cluster_name,
            "INTERRUPTION_QUEUE": self.queue,
            "SYSTEM_NAMESPACE": self.namespace,
            "KARPENTER_SERVICE": self.name,
        }
        return own | dict(self.settings)


def read() -> StackConfig:
    """Read the settings of the running stack; raises `ConfigError`."""
    config = pulumi.Config(PROJECT)
    given = {
        name.partition(":")[2]: config.require(name.partition(":")[2])
        for name in pulumi.runtime.config.CONFIG.get()
        if name.startswith(f"{PROJECT}:")
    }
    region = pulumi.Config("aws").get("region")
    return parse(given, default_region=region)


def parse(given: Mapping[str, str], *, default_region: str | None = None) -> StackConfig:
    """Check settings as text, by key without the project's name.

    Args:
        given: what the stack says; objects and lists are JSON.
        default_region: the region when the stack names none.

    Raises:
        ConfigError: some cannot be used; all of them are named.

    """
    values: dict[str, Any] = {"region": default_region} if default_region else {}
    problems = [
        f"{PROJECT}:{key}={text!r}: there is no such setting; there are {', '.join(sorted(KEYS))}"
        for key, text in given.items()
        if key not in KEYS
    ]
    for key, member in KEYS.items():
        if not given.get(key):
            continue
        try:
            values[member.name] = _value(given[key], _TYPES[member.name], f"{PROJECT}:{key}")
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


FOLLOWING = {
    "CLUSTER_NAME": "clusterName",
    "INTERRUPTION_QUEUE": "queueName",
    "SYSTEM_NAMESPACE": "namespace",
    "KARPENTER_SERVICE": "name",
}
"""Settings of the controller that must agree with what the program makes: the key of each."""


def _contradictions(config: StackConfig) -> Iterator[str]:
    """What each setting for itself allows, but not all of them together."""
    variables = {setting.variable for setting in SETTINGS} - FOLLOWING.keys()
    for name, value in sorted(config.settings.items()):
        if name in FOLLOWING:
            key = f"{PROJECT}:{FOLLOWING[name]}"
            yield f"{PROJECT}:settings: {name}={value!r} cannot be set here: it follows from {key}"
        elif name not in variables:
            yield (
                f"{PROJECT}:settings: {name}={value!r}: the controller has no such setting; "
                f"there are {', '.join(sorted(variables))}"
            )
    try:
        _ = config.options
    except OptionsError as exc:
        yield f"{PROJECT}:settings: {exc}"
    if config.kubeconfig_path and not config.kubeconfig_path.is_file():
        yield f"{PROJECT}:kubeconfig={config.kubeconfig!r}: allowed is the path of a file"
    if config.node_pools_folder and not config.node_pools_folder.is_dir():
        yield f"{PROJECT}:nodePools={config.node_pools!r}: allowed is the path of a folder"
    if not config.kubeconfig and not shutil.which("aws"):
        yield (
            f"{PROJECT}:kubeconfig is missing: name one, or install the AWS CLI: the way to an EKS "
            "cluster is by `aws eks get-token`"
        )
    if config.platform_stack is None and config.image is None and not shutil.which("docker"):
        yield (
            f"{PROJECT}:image is missing: name an image of the controller, or install docker "
            "so that one can be built"
        )


def _value(text: str, kind: Any, key: str) -> Any:
    members = [m for m in typing.get_args(kind) if m is not type(None)]
    if type(None) in typing.get_args(kind):
        kind = members[0]
    if kind == Mapping[str, str]:
        return _mapping(text, key)
    if kind == tuple[str, ...] and text.lstrip().startswith("["):
        return tuple(str(item) for item in _structure(text, key, list, "a list"))
    return value_of(text, kind, key=key)


def _mapping(text: str, key: str) -> dict[str, str]:
    words = "a map of names to text"
    found: dict[Any, Any] = _structure(text, key, dict, words)
    if any(isinstance(value, dict | list) or value is None for value in found.values()):
        raise OptionsError(key, text, words)
    return {str(name): _scalar(value) for name, value in found.items()}


def _scalar(value: Any) -> str:
    return json.dumps(value) if isinstance(value, bool) else str(value)


def _structure(text: str, key: str, kind: type[Any], words: str) -> Any:
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError as exc:
        raise OptionsError(key, text, words) from exc
    if not isinstance(found, kind):
        raise OptionsError(key, text, words)
    return found


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.title() for word in rest)


_TYPES = typing.get_type_hints(StackConfig, include_extras=True)
KEYS: Mapping[str, dataclasses.Field[Any]] = {
    _camel(member.name): member for member in dataclasses.fields(StackConfig)
}
"""Every setting of a stack by its key."""
