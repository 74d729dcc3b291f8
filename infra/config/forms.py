"""The types of a stack's settings: patterns for their text, and shapes of lists of maps."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pulumi

from controller.apis.kubernetes.quantities import parse

PROJECT = "joiner"

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

    def __init__(self, *problems: str) -> None:
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
LEAST_MEMORY = "256Mi"
"""What the controller needs for a small cluster: docs/explanation/benchmarks.md measures 225 MiB
and more."""


class _MemoryForm(Form):
    """An amount of memory with which the controller starts."""

    __slots__ = ()

    def admits(self, value: Any) -> bool:
        """Whether the text is an amount that is not too small."""
        return super().admits(value) and parse(value) >= parse(LEAST_MEMORY)


Memory = Annotated[
    str,
    _MemoryForm(
        r"\d{1,7}(\.\d{1,3})?[MGT]i?",
        f"an amount of memory such as 512Mi or 1Gi, and at least {LEAST_MEMORY}",
    ),
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

CREATED_OR_EXISTING = ("cluster", "nodeRole", "controllerRole", "queue")
"""Settings that choose whether the stack creates a resource or uses an existing one."""

_CONFIRMED = (*CREATED_OR_EXISTING, "nodePools")
Confirmed = Annotated[str, Form("|".join(_CONFIRMED), f"any of {', '.join(_CONFIRMED)}")]

_STAYING = (*CREATED_OR_EXISTING, "nodes")
Staying = Annotated[str, Form("|".join(_STAYING), f"any of {', '.join(_STAYING)}")]


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
