"""Checks of settings against other settings, against files and against installed programs."""

from __future__ import annotations

import dataclasses
import ipaddress
import json
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from controller.options import SETTINGS, Options, OptionsError, nearest
from infra import policies
from infra.clusterapi import ClusterUnreachableError, kubeconfig_file, server_of
from infra.config.forms import (
    GRAVITON,
    PRIVATE,
    PROJECT,
    ConfigError,
    Wire,
)
from infra.config.settings import KEYS, StackConfig
from infra.policypack.rules import of_statement


def alternatives(name: str, known: Iterable[str]) -> str:
    """Return the end of an error message about an unknown setting.

    It suggests the known name that is nearest to `name`, or lists all known names.
    """
    known = sorted(known)
    return nearest(name, known) or f"; the settings are {', '.join(known)}"


TAGS = 40
"""Most tags that users may set. AWS allows 50 for a resource, and the program sets some."""

_TAG = r"[\w .:/=+@-]"
TAG_NAME = re.compile(rf"(?!aws:){_TAG}{{1,128}}", re.IGNORECASE)
TAG_VALUE = re.compile(rf"{_TAG}{{0,256}}")

DERIVED = {
    "CLUSTER_NAME": "clusterName",
    "INSTALLATION": "installation",
    "INTERRUPTION_QUEUE": "queueName",
    "SYSTEM_NAMESPACE": "namespace",
    "KARPENTER_SERVICE": "name",
}
"""Settings of the controller that the program derives from the stack setting named here."""

SPOT_TO_SPOT = "SpotToSpotConsolidation"
"""The feature gate that a stack turns on, unless its FEATURE_GATES name it."""


def contradictions(config: StackConfig) -> Iterator[str]:
    """Yield an error for each setting that conflicts with others, or cannot be used as it is.

    It cannot be used, for example, if a file that it names or a program that it needs is missing.
    """
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
        yield (
            f"{PROJECT}:nodePools={config.node_pools!r}: allowed is the path of a folder that "
            "exists, relative to Pulumi.yaml"
        )
    if not config.kubeconfig and not shutil.which("aws"):
        yield (
            f"{PROJECT}:kubeconfig is missing: set it to the path of a kubeconfig, or install the "
            "AWS CLI, as the program authenticates to EKS with `aws eks get-token`"
        )


def _unusable_kubeconfig(config: StackConfig) -> Iterator[str]:
    said = f"{PROJECT}:kubeconfig={config.kubeconfig!r}"
    if not _is_there(lambda: config.kubeconfig_path, Path.is_file):
        yield f"{said}: allowed is the path of a file that exists"
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
    vpc = _network(config.vpc_cidr)
    if vpc is None or not vpc.is_private:
        yield (
            f"{PROJECT}:vpcCidr={config.vpc_cidr!r}: allowed is the CIDR of a private network, "
            "such as 10.128.0.0/16"
        )
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
        yield (
            f"{create}: the stack always installs the agent itself in a cluster that it creates: "
            f"leave {PROJECT}:podIdentityAgent out"
        )
    on_fargate = config.controller_compute == "fargate"
    if on_fargate and (config.identity, config.oidc_provider) != ("irsa", "create"):
        yield (
            f"{PROJECT}:controllerCompute='fargate': Fargate does not support Pod Identity: set "
            f"{PROJECT}:identity to irsa and {PROJECT}:oidcProvider to create"
        )
    if config.identity == "irsa" and config.oidc_provider != "create" and not on_fargate:
        yield f"{create}: a new cluster has no OIDC provider: set {PROJECT}:oidcProvider to create"


ONLY_WITH_CREATE = (
    "accessEntries",
    "controlPlaneLogs",
    "controllerCompute",
    "controllerInstanceTypes",
    "controllerSize",
    "deletionProtection",
    "interfaceEndpoints",
    "ipFamily",
    "kubernetesVersion",
    "natGateways",
    "publicAccessCidrs",
    "secretsKey",
    "upgradePolicy",
    "vpcCidr",
)
"""Settings that apply only to a created cluster."""

OF_CREATED_VPC = ("interfaceEndpoints", "natGateways", "vpcCidr")
"""Settings that apply only to the VPC of a created cluster."""

OF_NODE_GROUP = ("controllerInstanceTypes", "controllerSize")
"""Settings that apply only to the controller's node group."""


OF_NODE_POOLS = (
    "awsEndpoint",
    "cluster",
    "clusterName",
    "defaultNodePool",
    "drainTimeout",
    "installation",
    "kubeconfig",
    "nodePools",
    "platformStack",
    "region",
)
"""Settings that apply to a stack that manages only NodePools. (It cannot create a cluster;
`contradictions` says so.)"""

OF_DEFAULT_NODE_POOL = ("instanceProfileName", "instanceProfiles", "settings")
"""More settings that apply to it if it creates the default NodePool: they decide how the
EC2NodeClass names the role."""

OF_DEFAULT_NODE_CLASS = "ISOLATED_VPC"
"""The one name in `settings` that decides it too."""


def without_effect(config: StackConfig, given: Mapping[str, str]) -> Iterator[str]:
    """Yield an error for each setting that has no effect because of another setting.

    `given` are the stack's settings as text, by key. A setting at its default is accepted.
    """
    needed: dict[str, str] = {}
    if config.platform_stack:
        with_default = config.default_node_pool and not config.node_pools
        applied = {*OF_NODE_POOLS, *(OF_DEFAULT_NODE_POOL if with_default else ())}
        elsewhere = (
            f"in the stack that installs the controller, {config.platform_stack}; this stack "
            f"manages only NodePools, because {PROJECT}:platformStack is set"
        )
        needed = {key: elsewhere for key in KEYS if key not in applied}
        if with_default:
            for name in sorted(config.settings.keys() - {OF_DEFAULT_NODE_CLASS}):
                yield f"{PROJECT}:settings: {name} cannot be set here: it applies only {elsewhere}"
    elif config.cluster == "existing":
        needed = dict.fromkeys(ONLY_WITH_CREATE, f"with {PROJECT}:cluster='create'")
    else:
        if config.subnet_ids:
            needed |= dict.fromkeys(OF_CREATED_VPC, f"without {PROJECT}:subnetIds")
        if config.controller_compute == "fargate":
            node_group = f"with {PROJECT}:controllerCompute='node-group'"
            needed |= dict.fromkeys(OF_NODE_GROUP, node_group)
    for key, condition in needed.items():
        if key in given and getattr(config, KEYS[key].name) != _default_of(key):
            # The values of `env` may be secret.
            value = "" if key == "env" else f"={given[key]!r}"
            yield f"{PROJECT}:{key}{value} cannot be set here: it applies only {condition}"


def _default_of(key: str) -> Any:
    member = KEYS[key]
    if member.default_factory is dataclasses.MISSING:
        return member.default
    return member.default_factory()


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
        if cidr != PRIVATE and _network(cidr) is None:
            yield f"{key}={cidr!r}: allowed is a network such as 203.0.113.0/24"


def _unusable_controller_types(instance_types: Sequence[str]) -> Iterator[str]:
    key = f"{PROJECT}:controllerInstanceTypes"
    if not instance_types:
        yield f"{key} is empty; allowed is at least one instance type"
    if len({re.match(GRAVITON, one) is None for one in instance_types}) > 1:
        yield f"{key}={list(instance_types)}: allowed are instance types of one architecture"


def _network(cidr: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    """Return the network of a CIDR; None if it is not valid."""
    try:
        return ipaddress.ip_network(cidr)
    except ValueError:
        return None


def _unusable_entries(config: StackConfig) -> Iterator[str]:
    principals = [entry["principal"] for entry in config.access_entries]
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
        raise ConfigError(*problems)


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


def require_options(settings: Mapping[str, str]) -> Options:
    """Return the controller's options from the stack's `settings`.

    The feature gate `SPOT_TO_SPOT` is on, unless they name it. The options in `DERIVED` do not have
    their real values: the cluster's name is a placeholder, the others have their defaults.

    Raises:
        ConfigError: settings are unknown, invalid or in `DERIVED`; lists all of them.

    """
    if problems := list(_unusable_settings(settings)):
        raise ConfigError(*problems)
    return _options(settings)


def _unusable_settings(settings: Mapping[str, str]) -> Iterator[str]:
    variables = {setting.variable for setting in SETTINGS} - DERIVED.keys()
    for name, value in sorted(settings.items()):
        if name in DERIVED:
            key = f"{PROJECT}:{DERIVED[name]}"
            yield f"{PROJECT}:settings: {name}={value!r} cannot be set here: set {key} instead"
        elif name not in variables:
            yield (
                f"{PROJECT}:settings: {name}={value!r}: unknown setting of the controller"
                f"{alternatives(name, variables)}"
            )
    try:
        _options({name: value for name, value in settings.items() if name not in DERIVED})
    except OptionsError as exc:
        yield f"{PROJECT}:settings: {exc}"


def _options(settings: Mapping[str, str]) -> Options:
    # Options require a cluster name; the program sets the real one with the others of DERIVED.
    options = Options.parse([], {**settings, "CLUSTER_NAME": "any"})
    if f"{SPOT_TO_SPOT}=" in settings.get("FEATURE_GATES", ""):
        return options
    gates = dataclasses.replace(options.feature_gates, spot_to_spot_consolidation=True)
    return dataclasses.replace(options, feature_gates=gates)


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


def _is_there(path: Callable[[], Path | None], look: Callable[[Path], bool]) -> bool:
    """Whether a path exists and passes a check; False if it is not a valid path."""
    try:
        place = path()
        return place is not None and look(place)
    except (OSError, RuntimeError, ValueError):
        return False
