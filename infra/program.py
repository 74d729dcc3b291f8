"""The Pulumi program: composes the stack from its settings and exports the outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pulumi
import pulumi_aws as aws

from controller.apis import labels
from infra import nodepools, providers
from infra.cluster import placement
from infra.cluster.creation import Access, Cluster, ClusterArgs, facts, refuse_foreign_cluster
from infra.cluster.ekscluster import EksCluster, kubernetes_provider
from infra.cluster.network import Network, NetworkArgs, zones_in_use
from infra.clusterapi import ClusterLocation
from infra.config.checks import require_options
from infra.config.forms import PRIVATE, ConfigError
from infra.config.reading import is_secret, read, refuse_disallowed
from infra.config.settings import StackConfig
from infra.deployment import customresources
from infra.guards import clusterproof, preflight
from infra.guards.deletionguard import DeletionGuard, retention_options
from infra.guards.ownership import refuse_missing_cluster
from infra.joiner import Joiner, JoinerArgs
from infra.lifecycle.destroying import is_destroying
from infra.lifecycle.networksweep import NetworkSweep
from infra.lifecycle.teardown import Installation
from infra.nodepools import NodePools, NodePoolsArgs
from infra.policies import Place
from infra.policypack.enforcement import check_against_rules
from infra.state import full_name_of_stack, recorded_outputs, recorded_resources

CLUSTER = "aws:eks/cluster:Cluster"
"""Type of the cluster that a stack creates."""


def platform(config: StackConfig) -> None:
    """Create or find the cluster, and create the controller and its NodePools.

    Raises:
        ConfigError: a setting cannot be used, or a resource of another owner has one of the names.
            Nothing has been created.

    """
    pools = _manifests(config)
    location, installation = _location(config), _installation(config)
    made_at = ""
    if config.cluster == "create":
        refuse_foreign_cluster(location, installation, is_recorded=_has_recorded_cluster)
    else:
        made_at = refuse_missing_cluster(location)
    first = Installation("installation", location, installation, made_at=made_at)
    held = _deletion_guard(config, location, "cluster-deletion-guard", after=[first], is_first=True)
    on_aws = providers.aws_provider(config, installation=first.title, after=[first, held])
    cluster, made = _cluster(config, location, on_aws)
    guards: list[pulumi.Resource] = []
    if made:
        sweep = NetworkSweep(
            "network-sweep",
            location,
            made.network_id,
            installation=installation,
            retained="cluster" in config.retain_on_delete,
            opts=pulumi.ResourceOptions(depends_on=[made]),
        )
        # A destroy deletes this guard after Joiner and before cluster and network: it checks who
        # owns them before any part of them is deleted.
        before_end = "cluster-deletion-guard-before-end"
        held = _deletion_guard(
            config, location, before_end, after=[made, sweep], network=made.network_id
        )
        guards = [made, held, sweep]
    refuse_disallowed(cluster.account)
    adopts = customresources.are_kept(
        cluster.known_location, config.existing_crds, installation, recorded_resources()
    )
    in_cluster = kubernetes_provider(
        cluster, opts=pulumi.ResourceOptions(depends_on=[first, *guards]), adopts=adopts
    )
    joiner = Joiner(
        "joiner",
        JoinerArgs(
            cluster=cluster,
            installation=first,
            node_pools=pools,
            **config.shared | _environment(config) | _node_placement(config, cluster, location),
        ),
        pulumi.ResourceOptions(providers=[on_aws, in_cluster], depends_on=guards),
    )
    if made:
        # A destroy deletes this guard first: a cluster that is not deleted keeps its nodes.
        before_drain = "cluster-deletion-guard-before-drain"
        _deletion_guard(config, location, before_drain, after=[joiner], network=made.network_id)
    _export(config, joiner)


def _has_recorded_cluster() -> bool:
    return any(type_ == CLUSTER for type_, _ in recorded_resources())


def _deletion_guard(
    config: StackConfig,
    location: ClusterLocation,
    name: str,
    *,
    after: Sequence[pulumi.Resource],
    network: pulumi.Input[str] | None = None,
    is_first: bool = False,
) -> DeletionGuard:
    """Create the guard that records whether the stack created the cluster, and its settings."""
    is_made = config.cluster == "create"
    made: dict[str, pulumi.Input[str]] = {"cluster": config.cluster_name} if is_made else {}
    if network is not None:
        made["network"] = network
    stays = ["network"] if "cluster" in config.retain_on_delete else []
    fixed = {"secretsKey": "", **_immutable_settings(config)}
    return DeletionGuard(
        name,
        location,
        made,
        installation=_installation(config),
        fixed=_immutable_settings(config) if is_made else {},
        retained=[*config.retain_on_delete, *stays],
        confirmed=config.confirm_delete,
        needed={"network": {"arn": config.cluster_name, "cidr": config.vpc_cidr, **fixed}}
        if is_made
        else {},
        settings={"cluster": config.cluster, **fixed},
        outlives_cluster=is_made and is_first,
        opts=pulumi.ResourceOptions(depends_on=list(after)),
    )


def _cluster(
    config: StackConfig, location: ClusterLocation, on_aws: aws.Provider
) -> tuple[EksCluster, Cluster | None]:
    """Find or create the cluster; return its facts, and the created component or None."""
    if config.cluster == "existing":
        return EksCluster.found(location, on_aws), None
    asking = pulumi.InvokeOptions(provider=on_aws)
    place = Place(
        partition=aws.get_partition(opts=asking).partition,
        region=config.region,
        account=aws.get_caller_identity(opts=asking).account_id,
        cluster_name=config.cluster_name,
    )
    options = pulumi.ResourceOptions.merge(
        retention_options("cluster", config.retain_on_delete),
        pulumi.ResourceOptions(providers=[on_aws], transformations=[check_against_rules]),
    )
    network = None if config.subnet_ids else _network(config, place, location, options)
    cluster = Cluster(
        "cluster",
        ClusterArgs(
            place=place,
            network=network,
            subnet_ids=config.subnet_ids,
            version=config.kubernetes_version,
            public_access_cidrs=[one for one in config.public_access_cidrs if one != PRIVATE],
            ip_family=config.ip_family,
            log_types=config.control_plane_logs,
            secrets_key=config.secrets_key,
            deletion_protection=config.deletion_protection,
            upgrade_policy=config.upgrade_policy,
            zonal_shift=require_options(config.settings).enable_zonal_shift,
            windows=config.windows_nodes or "WINDOWS" in (config.node_access or ""),
            controller_compute=config.controller_compute,
            controller_size=config.controller_size,
            controller_instance_types=config.controller_instance_types,
            name_prefix=config.name_prefix,
            iam_path=None if config.iam_path == "/" else config.iam_path,
            permissions_boundary=config.permissions_boundary,
            namespace=config.namespace,
            deployment=config.name,
            node_tags={**config.tags, labels.TAG_INSTALLATION: _installation(config)},
            access=[Access(**entry) for entry in config.access_entries],
        ),
        options,
    )
    return facts(cluster, place, location), cluster


def _network(
    config: StackConfig, place: Place, location: ClusterLocation, options: pulumi.ResourceOptions
) -> Network:
    zones = zones_in_use(location, _installation(config))
    if several := clusterproof.describe_second_network(location, _installation(config)):
        pulumi.warn(several)
    return Network(
        "network",
        NetworkArgs(
            place=place,
            cidr=config.vpc_cidr,
            nat=config.nat_gateways,
            private_tags=_discovery_tags(config),
            interface_endpoints=config.interface_endpoints,
            ip_family=config.ip_family,
            zones=zones,
        ),
        options,
    )


def _immutable_settings(config: StackConfig) -> dict[str, str]:
    """Return the settings whose change would replace the cluster."""
    key = {"secretsKey": config.secrets_key} if config.secrets_key else {}
    network = "given" if config.subnet_ids else "made here"
    return {"vpcCidr": config.vpc_cidr, "ipFamily": config.ip_family, "subnetIds": network, **key}


def _discovery_tags(config: StackConfig) -> dict[str, str]:
    tags = {labels.TAG_DISCOVERY: config.cluster_name} if config.discovery_tags else {}
    if config.cluster_tags:
        tags[labels.tag_cluster_owned(config.cluster_name)] = "shared"
    return tags


def pools_alone(config: StackConfig, platform_stack: str) -> None:
    """Create only NodePools, on the cluster and controller of another stack."""
    pools = _manifests(config)
    reference = pulumi.StackReference(
        platform_stack if "/" in platform_stack else full_name_of_stack(platform_stack)
    )
    location = _location(config)
    made_at = refuse_missing_cluster(location)
    preflight.require_access(location, "/apis/karpenter.sh/v1/nodepools")
    first = Installation("installation", location, _installation(config), made_at=made_at)
    on_aws = providers.aws_provider(config, installation=first.title, after=[first])
    cluster = EksCluster.found(location, on_aws)
    refuse_disallowed(cluster.account)
    in_cluster = kubernetes_provider(
        cluster, opts=pulumi.ResourceOptions(depends_on=[first]), adopts=False
    )
    NodePools(
        "node-pools",
        NodePoolsArgs(
            cluster=cluster,
            manifests=pools,
            variables={
                "CLUSTER_NAME": _output_of(reference, "clusterName"),
                "NODE_ROLE": _output_of(reference, "nodeRole"),
                "INSTANCE_PROFILE": _output_of(reference, "instanceProfile"),
                # Not every stack exports these, and stacks of earlier versions export none.
                "DISCOVERY_TAG": reference.get_output("discoveryTag").apply(
                    lambda key: key or labels.TAG_DISCOVERY
                ),
                "WINDOWS_NODE_ROLE": reference.get_output("windowsNodeRole").apply(
                    lambda role: role or nodepools.WINDOWS_NODE_ROLE
                ),
                "WINDOWS_INSTANCE_PROFILE": reference.get_output("windowsInstanceProfile").apply(
                    lambda profile: profile or nodepools.WINDOWS_INSTANCE_PROFILE
                ),
            },
            stack=full_name_of_stack(),
            delete_timeout=config.drain_timeout,
        ),
        pulumi.ResourceOptions(providers=[in_cluster]),
    )
    pulumi.export("nodePools", [w["metadata"]["name"] for w in pools if w["kind"] == "NodePool"])


def _output_of(platform: pulumi.StackReference, name: str) -> pulumi.Output[str]:
    """Return an output of the platform's stack; in a destroy, "" if it has none."""

    def require(value: str | None, stack: str) -> str:
        if value is None and not is_destroying():
            raise ConfigError(
                f"joiner:platformStack: the stack {stack} has no output {name}: it was destroyed, "
                "or has no controller. Run `pulumi up` there first, or destroy this stack"
            )
        return value or ""

    outputs: pulumi.Output[list[Any]] = pulumi.Output.all(platform.get_output(name), platform.name)
    return outputs.apply(lambda known: require(*known))


def _environment(config: StackConfig) -> dict[str, Any]:
    """Return the environment variables of the container, as secrets if they were set so."""
    if not is_secret("env"):
        return {"env": config.env}
    secret = {name: pulumi.Output.secret(value) for name, value in config.env.items()}
    return {"env": {}, "secret_env": secret}


def _node_placement(
    config: StackConfig, cluster: EksCluster, location: ClusterLocation
) -> dict[str, Any]:
    """Return subnets and security groups of nodes: those set, or else those where nodes can join.

    Warns if nodes cannot join in some of the cluster's subnets and no subnets are set.
    """
    named = {"subnet_ids": config.subnet_ids, "security_group_ids": config.security_group_ids}
    if config.cluster == "create":
        return named
    isolated = require_options(config.settings).isolated_vpc
    found = placement.find(location, list(map(str, cluster.subnet_ids)), isolated=isolated)
    if found.trouble and not config.subnet_ids:
        pulumi.warn(f"{found.trouble}: set joiner:subnetIds to the subnets in which nodes can join")
    return {name: ids or getattr(found, name) for name, ids in named.items()}


def _export(config: StackConfig, joiner: Joiner) -> None:
    pulumi.export("clusterName", config.cluster_name)
    pulumi.export("region", config.region)
    pulumi.export("nodeRole", joiner.node_role_name)
    if config.windows_nodes:
        pulumi.export("windowsNodeRole", joiner.windows_node_role_name)
        pulumi.export("windowsInstanceProfile", joiner.windows_instance_profile)
    pulumi.export("nodeRoleArn", joiner.node_role_arn)
    pulumi.export("instanceProfile", joiner.instance_profile)
    pulumi.export("controllerRoleArn", joiner.controller_role_arn)
    pulumi.export("interruptionQueue", joiner.interruption_queue)
    pulumi.export("discoveryTag", config.discovery_tag_key)
    pulumi.export("namespace", joiner.namespace)
    pulumi.export("deployment", joiner.deployment)


def _manifests(config: StackConfig) -> Sequence[nodepools.Wire]:
    if config.node_pools_folder:
        return nodepools.manifests_in(config.node_pools_folder)
    if not config.default_node_pool:
        return []
    isolated = require_options(config.settings).isolated_vpc
    makes_profiles = config.instance_profiles == "managed" and config.instance_profile_name is None
    by_role = makes_profiles and not isolated
    tags = {key: str(value) for key, value in config.tags.items()}
    return nodepools.default_manifests(by_role=by_role, tags=tags)


def _location(config: StackConfig) -> ClusterLocation:
    return ClusterLocation(
        config.cluster_name, config.region, config.aws_endpoint or "", config.portable_kubeconfig
    )


def _installation(config: StackConfig) -> str:
    return config.installation or full_name_of_stack()


def main() -> None:
    """Check every setting, then create the resources of the stack."""
    # Read in every run: the state then has the engine's own provider, which answers, from the
    # first run on, and a refused run does not change it.
    last = recorded_outputs()
    try:
        config = read()
        if config.platform_stack:
            pools_alone(config, config.platform_stack)
        else:
            platform(config)
    except pulumi.RunError:
        # The engine removes outputs that the program does not export, also if it refuses to run.
        # Stacks of NodePools read them.
        for name, value in last.items():
            pulumi.export(name, value)
        raise
