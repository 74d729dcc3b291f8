"""Parser for user data: the kubelet configuration that an AMI would derive from it.

It reads three formats: nodeadm's NodeConfig (AL2023; alone or as MIME parts, merged in order),
Bottlerocket's TOML settings, and the arguments of AL2's bootstrap.sh. `parse_user_data` returns a
`Bootstrap`, or raises a `UserDataError` with the reason. Every function is pure.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from email import message_from_string
from email.message import Message
from enum import StrEnum
from typing import Any

import yaml

NODE_CONFIG_TYPE = "application/node.eks.aws"
NODE_CONFIG_GROUP = "node.eks.aws/"

# Labels in Kubernetes' own domains that a kubelet may set on its node. The kubelet
# refuses to start with any other.
KUBELET_LABELS = frozenset(
    {
        "kubernetes.io/hostname",
        "kubernetes.io/arch",
        "kubernetes.io/os",
        "beta.kubernetes.io/arch",
        "beta.kubernetes.io/os",
        "beta.kubernetes.io/instance-type",
        "node.kubernetes.io/instance-type",
        "failure-domain.beta.kubernetes.io/region",
        "failure-domain.beta.kubernetes.io/zone",
        "topology.kubernetes.io/region",
        "topology.kubernetes.io/zone",
    }
)
KUBELET_LABEL_DOMAINS = ("kubelet.kubernetes.io", "node.kubernetes.io")


class UserDataError(ValueError):
    """An instance with this user data cannot become a node."""


class Dialect(StrEnum):
    """The AMI family that user data is written for."""

    NODEADM = "AL2023"
    BOTTLEROCKET = "Bottlerocket"
    BOOTSTRAP = "AL2"


def dialect_of(image_name: str) -> Dialect | None:
    """Return the format that an AMI of this published name reads; None if the name is unknown."""
    for start, dialect in _IMAGES:
        if image_name.startswith(start):
            return dialect
    return None


_IMAGES = (
    ("amazon-eks-node-al2023-", Dialect.NODEADM),
    ("bottlerocket-", Dialect.BOTTLEROCKET),
    ("amazon-eks-node-", Dialect.BOOTSTRAP),
    ("amazon-eks-arm64-node-", Dialect.BOOTSTRAP),
    ("amazon-eks-gpu-node-", Dialect.BOOTSTRAP),
)


def make_taint(key: str, value: str, effect: str) -> dict[str, str]:
    """Return a taint that the kubelet registers its node with, in the API's format."""
    return {"key": key, "value": value, "effect": effect}


@dataclass(frozen=True, kw_only=True)
class Bootstrap:
    """A kubelet's configuration; None stands for the kubelet's default.

    Reservations and eviction thresholds are quantities.
    """

    dialect: Dialect
    cluster_name: str
    endpoint: str
    certificate_authority: str  # base64 of PEM
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: Sequence[Mapping[str, str]] = ()
    max_pods: int | None = None
    pods_per_core: int | None = None
    kube_reserved: Mapping[str, str] = field(default_factory=dict)
    system_reserved: Mapping[str, str] = field(default_factory=dict)
    eviction_hard: Mapping[str, str] = field(default_factory=dict)
    local_storage: bool = False  # the instance's local disks back ephemeral storage
    huge_pages: int = 0  # pages of 2 MiB that a script reserves before the kubelet starts


def parse_user_data(text: str) -> Bootstrap:
    """Parse user data, already decoded from base64.

    Raises UserDataError if the format is not recognized, a required setting is missing, or the
    kubelet would refuse a label.
    """
    if not text.strip():
        raise UserDataError("there is no user data")
    bootstrap = _parse(text)
    _require_allowed_labels(bootstrap.labels)
    return replace(bootstrap, huge_pages=_huge_pages(text))


def _parse(text: str) -> Bootstrap:
    documents = list(_node_configs(text))
    if documents:
        return _from_node_config(documents)
    scripts = [part for part in _parts(text) if "/etc/eks/bootstrap.sh" in part.content]
    if scripts:
        return _from_bootstrap_script(scripts[-1].content)
    settings = _toml(text)
    if settings:
        return _from_bottlerocket(settings)
    raise UserDataError(
        "it holds no NodeConfig, no Bottlerocket settings and no call of /etc/eks/bootstrap.sh"
    )


def _huge_pages(text: str) -> int:
    """Return the number of huge pages that the last sysctl of a shell script reserves."""
    scripts = [part.content for part in _parts(text) if part.content.lstrip().startswith("#!")]
    reserved = re.findall(r"sysctl\s[^\n]*\bvm\.nr_hugepages=(\d+)", "\n".join(scripts))
    return int(reserved[-1]) if reserved else 0


# --- MIME


@dataclass(frozen=True, slots=True)
class _Part:
    content_type: str
    content: str


def _parts(text: str) -> list[_Part]:
    """Split a MIME archive into its parts; any other text is a single part."""
    if not re.match(r"(?i)\s*(mime-version|content-type):", text):
        return [_Part("", text)]
    return [
        _Part(leaf.get_content_type(), _payload(leaf))
        for leaf in message_from_string(text.lstrip()).walk()
        if not leaf.is_multipart()
    ]


def _payload(leaf: Message) -> str:
    payload = leaf.get_payload(decode=True)
    return payload.decode(errors="replace") if isinstance(payload, bytes) else ""


# --- nodeadm


def _node_configs(text: str) -> Iterable[Mapping[str, Any]]:
    for part in _parts(text):
        is_alone = part.content_type == "" and _is_node_config(part.content)
        if part.content_type == NODE_CONFIG_TYPE or is_alone:
            yield _node_config(part.content)


def _is_node_config(content: str) -> bool:
    return re.search(r"(?m)^\s*\"?apiVersion\"?:\s*\"?node\.eks\.aws/", content) is not None


def _node_config(content: str) -> Mapping[str, Any]:
    try:
        document = yaml.safe_load(content)
    except yaml.YAMLError as exc:
        raise UserDataError(f"a NodeConfig is not YAML: {exc}") from exc
    if not isinstance(document, dict):
        raise UserDataError("a NodeConfig is not a mapping")
    if not str(document.get("apiVersion", "")).startswith(NODE_CONFIG_GROUP):
        raise UserDataError(
            f"a NodeConfig has apiVersion {document.get('apiVersion')!r}, not {NODE_CONFIG_GROUP}…"
        )
    if document.get("kind") != "NodeConfig":
        raise UserDataError(f"a NodeConfig has kind {document.get('kind')!r}, not NodeConfig")
    return document


def _from_node_config(documents: Iterable[Mapping[str, Any]]) -> Bootstrap:
    spec: dict[str, Any] = {}
    for document in documents:
        spec = _merge(spec, document.get("spec") or {})
    cluster = spec.get("cluster") or {}
    for key in ("name", "apiServerEndpoint", "certificateAuthority", "cidr"):
        if not cluster.get(key):
            raise UserDataError(f"the NodeConfig's cluster.{key} is missing")
    kubelet = spec.get("kubelet") or {}
    config = kubelet.get("config") or {}
    flags = _flags(kubelet.get("flags") or [])
    return Bootstrap(
        dialect=Dialect.NODEADM,
        cluster_name=cluster["name"],
        endpoint=cluster["apiServerEndpoint"],
        certificate_authority=cluster["certificateAuthority"],
        labels=_pairs(flags.get("node-labels", "")),
        taints=_config_taints(config) + _flag_taints(flags.get("register-with-taints", "")),
        max_pods=_whole(flags.get("max-pods", config.get("maxPods")), "maxPods"),
        pods_per_core=_whole(config.get("podsPerCore"), "podsPerCore"),
        kube_reserved=_texts(config.get("kubeReserved")),
        system_reserved=_texts(config.get("systemReserved")),
        eviction_hard=_texts(config.get("evictionHard")),
        local_storage=bool(
            ((spec.get("instance") or {}).get("localStorage") or {}).get("strategy") == "RAID0"
        ),
    )


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two NodeConfigs: maps merge, kubelet flags are concatenated, other values replaced."""
    merged = dict(below)
    for key, value in above.items():
        under = merged.get(key)
        if isinstance(under, dict) and isinstance(value, dict):
            merged[key] = _merge(under, value)
        elif key == "flags" and isinstance(under, list) and isinstance(value, list):
            merged[key] = under + value
        elif value is not None:
            merged[key] = value
    return merged


def _config_taints(config: Mapping[str, Any]) -> list[dict[str, str]]:
    return [
        make_taint(taint["key"], taint.get("value") or "", taint["effect"])
        for taint in config.get("registerWithTaints") or []
    ]


# --- AL2


def _from_bootstrap_script(script: str) -> Bootstrap:
    arguments = _bootstrap_arguments(script)
    positional, options = _options(arguments)
    if not positional:
        raise UserDataError("bootstrap.sh is called without a cluster name")
    for key in ("apiserver-endpoint", "b64-cluster-ca"):
        if not options.get(key):
            raise UserDataError(f"bootstrap.sh is called without --{key}")
    flags = _flags(shlex.split(options.get("kubelet-extra-args", "")))
    return Bootstrap(
        dialect=Dialect.BOOTSTRAP,
        cluster_name=positional[0],
        endpoint=options["apiserver-endpoint"],
        certificate_authority=options["b64-cluster-ca"],
        labels=_pairs(flags.get("node-labels", "")),
        taints=_flag_taints(flags.get("register-with-taints", "")),
        max_pods=_whole(flags.get("max-pods"), "--max-pods"),
        pods_per_core=_whole(flags.get("pods-per-core"), "--pods-per-core"),
        kube_reserved=_pairs(flags.get("kube-reserved", "")),
        system_reserved=_pairs(flags.get("system-reserved", "")),
        eviction_hard=_pairs(flags.get("eviction-hard", ""), between="<"),
        local_storage=options.get("local-disks") == "raid0",
    )


def _bootstrap_arguments(script: str) -> list[str]:
    command = script.replace("\\\n", " ")
    call = command[command.rindex("/etc/eks/bootstrap.sh") :]
    lexer = shlex.shlex(call, posix=True, punctuation_chars=";&|\n")
    lexer.whitespace = " \t"
    lexer.whitespace_split = True
    try:
        words = list(lexer)
    except ValueError as exc:
        raise UserDataError(f"the call of bootstrap.sh cannot be read: {exc}") from exc
    end = next((i for i, word in enumerate(words) if set(word) <= set(";&|\n")), len(words))
    return words[1:end]


def _options(arguments: list[str]) -> tuple[list[str], dict[str, str]]:
    positional: list[str] = []
    options: dict[str, str] = {}
    words = iter(arguments)
    for word in words:
        if word.startswith("--"):
            options[word[2:]] = next(words, "")
        else:
            positional.append(word)
    return positional, options


# --- Bottlerocket


def _toml(text: str) -> Mapping[str, Any]:
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        if re.search(r"(?m)^\s*\[settings", text):
            raise UserDataError(f"the Bottlerocket settings are not TOML: {exc}") from exc
        return {}
    settings = document.get("settings", {}).get("kubernetes", {})
    return dict(settings) if isinstance(settings, dict) else {}


def _from_bottlerocket(settings: Mapping[str, Any]) -> Bootstrap:
    for key in ("cluster-name", "api-server", "cluster-certificate"):
        if not settings.get(key):
            raise UserDataError(f"settings.kubernetes.{key} is missing")
    return Bootstrap(
        dialect=Dialect.BOTTLEROCKET,
        cluster_name=settings["cluster-name"],
        endpoint=settings["api-server"],
        certificate_authority=settings["cluster-certificate"],
        labels=_texts(settings.get("node-labels")),
        taints=list(_bottlerocket_taints(settings.get("node-taints") or {})),
        max_pods=_whole(settings.get("max-pods"), "max-pods"),
        kube_reserved=_texts(settings.get("kube-reserved")),
        system_reserved=_texts(settings.get("system-reserved")),
        eviction_hard=_texts(settings.get("eviction-hard")),
    )


def _bottlerocket_taints(taints: Mapping[str, Any]) -> Iterable[dict[str, str]]:
    for key, values in taints.items():
        for text in values if isinstance(values, list) else [values]:
            value, _, effect = text.rpartition(":")
            yield make_taint(key, value, effect)


# --- shared by the formats


def _flags(arguments: Iterable[str]) -> dict[str, str]:
    """Parse `--name=value` and `--name value`; the last value of a name wins."""
    flags: dict[str, str] = {}
    name = ""
    for argument in arguments:
        if argument.startswith("--"):
            name, _, value = argument[2:].partition("=")
            flags[name] = value.strip("'\"")
        elif name:
            flags[name] = argument.strip("'\"")
    return flags


def _pairs(text: str, *, between: str = "=") -> dict[str, str]:
    pairs = (item.partition(between) for item in text.split(",") if item)
    return {key.strip(): value.strip() for key, _, value in pairs}


def _flag_taints(text: str) -> list[dict[str, str]]:
    """Parse `key=value:Effect` or `key:Effect`, separated by commas."""
    taints = []
    for item in filter(None, text.split(",")):
        body, colon, effect = item.strip().rpartition(":")
        if not colon:
            raise UserDataError(f"--register-with-taints: {item!r} has no effect")
        key, _, value = body.partition("=")
        taints.append(make_taint(key, value, effect))
    return taints


def _texts(mapping: Mapping[str, Any] | None) -> dict[str, str]:
    return {str(key): str(value) for key, value in (mapping or {}).items()}


def _whole(value: Any, name: str) -> int | None:
    if value is None or value == "":
        return None
    try:
        return int(value)
    except ValueError as exc:
        raise UserDataError(f"{name} is not a whole number: {value!r}") from exc


def _require_allowed_labels(labels: Mapping[str, str]) -> None:
    refused = sorted(key for key in labels if not _is_allowed_label(key))
    if refused:
        raise UserDataError(f"the kubelet refuses to set the labels {', '.join(refused)}")


def _is_allowed_label(key: str) -> bool:
    domain = key.rpartition("/")[0]
    if not _within(domain, "kubernetes.io") and not _within(domain, "k8s.io"):
        return True
    return key in KUBELET_LABELS or any(_within(domain, own) for own in KUBELET_LABEL_DOMAINS)


def _within(domain: str, parent: str) -> bool:
    return domain == parent or domain.endswith(f".{parent}")
