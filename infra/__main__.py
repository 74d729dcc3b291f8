"""Composes the stack and exports what others need to know of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import pulumi

from controller.apis import labels
from infra import customresources, image, names, nodepools, providers
from infra.access import NodeAccess, NodeAccessArgs
from infra.clusterapi import ClusterLocation
from infra.config import StackConfig, read
from infra.customresources import CustomResources, CustomResourcesArgs
from infra.deployment import Controller, ControllerArgs
from infra.discovery import DiscoveryTags, DiscoveryTagsArgs, refuse_clashes
from infra.iam import ControllerRole, ControllerRoleArgs, NodeRole, NodeRoleArgs
from infra.identity import refuse_unusable_provider
from infra.interruption import InterruptionQueue, InterruptionQueueArgs
from infra.nodepools import NodePools, NodePoolsArgs
from infra.ownership import refuse_missing_cluster, refuse_taken
from infra.teardown import Drain, DrainArgs, Installation, NothingLeft


@dataclass(frozen=True, kw_only=True)
class _Site:
    """The cluster as it was found, and how things are made on it."""

    location: ClusterLocation
    installation: str
    cluster: providers.Cluster
    discovery: DiscoveryTagsArgs
    on_aws: pulumi.ResourceOptions
    in_cluster: pulumi.ResourceOptions


@dataclass(frozen=True, kw_only=True)
class _Groundwork:
    """What the controller stands on; `every` of it is there before the controller is."""

    node_role: NodeRole
    queue: InterruptionQueue
    controller_role: ControllerRole
    every: Sequence[pulumi.Resource]


def platform(config: StackConfig) -> None:
    """Everything a cluster needs, and the controller; the NodePools as well, if there are any."""
    pools = _manifests(config)
    site = _site(config)
    groundwork = _groundwork(config, site)
    controller = _controller(config, site, groundwork)
    _node_pools(config, site, groundwork, pools, controller)
    _export(config, site, groundwork)


def pools_alone(config: StackConfig, platform_stack: str) -> None:
    """NodePools on what another stack has set up."""
    pools = _manifests(config)
    reference = pulumi.StackReference(
        platform_stack if "/" in platform_stack else _stack(platform_stack)
    )
    location, installation = _location(config), _installation(config)
    refuse_missing_cluster(location)
    first = Installation("installation", location, installation)
    on_aws = providers.aws_provider(config, installation=installation, after=[first])
    cluster = providers.find_cluster(config, on_aws)
    in_cluster = providers.kubernetes_provider(config, cluster, after=[first])
    NodePools(
        "node-pools",
        NodePoolsArgs(
            manifests=pools,
            variables={
                "CLUSTER_NAME": reference.require_output("clusterName"),
                "NODE_ROLE": reference.require_output("nodeRole"),
            },
            stack=_stack(),
            delete_timeout=config.drain_timeout,
        ),
        pulumi.ResourceOptions(providers=[in_cluster]),
    )
    pulumi.export("nodePools", [w["metadata"]["name"] for w in pools if w["kind"] == "NodePool"])


def _site(config: StackConfig) -> _Site:
    """Find the cluster, and refuse what cannot be made before anything is."""
    location = _location(config)
    installation = _installation(config)
    refuse_missing_cluster(location)
    first = Installation("installation", location, installation)
    on_aws = providers.aws_provider(config, installation=installation, after=[first])
    cluster = providers.find_cluster(config, on_aws)
    refuse_taken(config, location=location, place=cluster.place, installation=installation)
    discovery = _discovery(config, cluster, installation)
    refuse_clashes(discovery, on_aws)
    if config.identity == "irsa":
        refuse_unusable_provider(
            config.oidc_provider,
            place=cluster.place,
            issuer=cluster.issuer,
            stack=_stack(),
            iam=location.client("iam"),
        )
    in_cluster = providers.kubernetes_provider(config, cluster, after=[first])
    return _Site(
        location=location,
        installation=installation,
        cluster=cluster,
        discovery=discovery,
        on_aws=pulumi.ResourceOptions(providers=[on_aws]),
        in_cluster=pulumi.ResourceOptions(providers=[in_cluster]),
    )


def _groundwork(config: StackConfig, site: _Site) -> _Groundwork:
    """Roles, access, queue, tags and kinds."""
    node_role = NodeRole(
        "node",
        NodeRoleArgs(
            place=site.cluster.place,
            location=site.location,
            name=config.node_role,
            spot_role=config.spot_role,
            permissions_boundary=config.permissions_boundary,
        ),
        site.on_aws,
    )
    access = NodeAccess(
        "node-access",
        NodeAccessArgs(
            kind=config.node_access, location=site.location, node_role_arn=node_role.role.arn
        ),
        site.on_aws,
    )
    queue = InterruptionQueue(
        "interruption",
        InterruptionQueueArgs(place=site.cluster.place, queue_name=config.queue),
        site.on_aws,
    )
    controller_role = ControllerRole(
        "controller",
        ControllerRoleArgs(
            place=site.cluster.place,
            location=site.location,
            stack=_stack(),
            installation=site.installation,
            name=config.controller_role,
            identity=config.identity,
            namespace=config.namespace,
            service_account=config.name,
            node_role_arn=node_role.role.arn,
            queue_arn=queue.queue.arn,
            issuer=site.cluster.issuer,
            pod_identity_agent=config.pod_identity_agent,
            oidc_provider=config.oidc_provider,
            permissions_boundary=config.permissions_boundary,
            zonal_shift=config.options.enable_zonal_shift,
        ),
        site.on_aws,
    )
    tags = DiscoveryTags("discovery", site.discovery, site.on_aws)
    kinds = CustomResources(
        "crds", CustomResourcesArgs(files=customresources.rendered()), site.in_cluster
    )
    return _Groundwork(
        node_role=node_role,
        queue=queue,
        controller_role=controller_role,
        every=[node_role, access, queue, controller_role, tags, kinds],
    )


def _controller(config: StackConfig, site: _Site, groundwork: _Groundwork) -> Controller:
    """Run the controller; what proves, after its end, that it left nothing is made before it."""
    nothing_left = NothingLeft(
        "nothing-left",
        site.location,
        site.installation,
        pulumi.ResourceOptions(depends_on=groundwork.every),
    )
    return Controller(
        "karpenter",
        ControllerArgs(
            namespace=config.namespace,
            name=config.name,
            image=config.image or _built(config, site.location, site.on_aws),
            replicas=config.replicas,
            cpu=config.cpu,
            memory=config.memory,
            region=config.region,
            options=dataclasses.replace(config.options, installation=site.installation),
            identity=config.identity,
            role_arn=groundwork.controller_role.role.arn,
            after=[*groundwork.every, nothing_left],
        ),
        site.in_cluster,
    )


def _node_pools(
    config: StackConfig,
    site: _Site,
    groundwork: _Groundwork,
    pools: Sequence[nodepools.Wire],
    controller: Controller,
) -> None:
    """Make the NodePools, between two drains: the one goes before them, the other after."""
    drain = DrainArgs(
        location=site.location,
        installation=site.installation,
        namespace=config.namespace,
        deployment=config.name,
        timeout_seconds=config.drain_timeout.total_seconds(),
        delete_foreign_node_pools=config.delete_foreign_node_pools,
    )
    # An `up` that fails below leaves this one, so that a destroy drains all the same.
    before_controller_goes = Drain(
        "drain-before-controller", drain, pulumi.ResourceOptions(depends_on=[controller])
    )
    node_pools = NodePools(
        "node-pools",
        NodePoolsArgs(
            manifests=pools,
            variables={
                "CLUSTER_NAME": site.cluster.name,
                "NODE_ROLE": groundwork.node_role.role.name,
            },
            stack=_stack(),
            delete_timeout=config.drain_timeout,
            after=[before_controller_goes],
        ),
        site.in_cluster,
    )
    Drain("drain", drain, pulumi.ResourceOptions(depends_on=[before_controller_goes, node_pools]))


def _export(config: StackConfig, site: _Site, groundwork: _Groundwork) -> None:
    pulumi.export("clusterName", site.cluster.name)
    pulumi.export("region", config.region)
    pulumi.export("nodeRole", groundwork.node_role.role.name)
    pulumi.export("nodeRoleArn", groundwork.node_role.role.arn)
    pulumi.export("instanceProfile", groundwork.node_role.profile.name)
    pulumi.export("controllerRoleArn", groundwork.controller_role.role.arn)
    pulumi.export("interruptionQueue", groundwork.queue.queue.name)
    pulumi.export("namespace", config.namespace)
    pulumi.export("deployment", config.name)


def _manifests(config: StackConfig) -> list[nodepools.Wire]:
    if config.node_pools_folder:
        return nodepools.manifests_in(config.node_pools_folder)
    return nodepools.default_manifests(config.cluster_name) if config.default_node_pool else []


def _discovery(
    config: StackConfig, cluster: providers.Cluster, installation: str
) -> DiscoveryTagsArgs:
    tags = {labels.TAG_DISCOVERY: cluster.name} if config.discovery_tags else {}
    if config.cluster_tags:
        tags[labels.tag_cluster_owned(cluster.name)] = "shared"
    subnets = config.subnet_ids or cluster.subnet_ids
    groups = config.security_group_ids or (cluster.security_group_id,)
    return DiscoveryTagsArgs(
        resource_ids=[*subnets, *groups],
        tags=tags,
        cluster_name=cluster.name,
        installation=installation,
    )


def _built(
    config: StackConfig, location: ClusterLocation, options: pulumi.ResourceOptions
) -> pulumi.Output[str]:
    args = image.ControllerImageArgs(
        location=location,
        repository=names.repository(config.cluster_name),
        sources=image.sources_digest(),
    )
    return image.ControllerImage("image", args, options).reference


def _location(config: StackConfig) -> ClusterLocation:
    path = config.kubeconfig_path
    return ClusterLocation(
        config.cluster_name,
        config.region,
        config.aws_endpoint or "",
        str(path) if path else "",
    )


def _installation(config: StackConfig) -> str:
    return config.installation or _stack()


def _stack(name: str = "") -> str:
    """Return the full name of a stack of the project: of the running one when none is named."""
    return f"{pulumi.get_organization()}/{pulumi.get_project()}/{name or pulumi.get_stack()}"


def main() -> None:
    """Check every setting, then make what they ask for."""
    config = read()
    if config.platform_stack:
        pools_alone(config, config.platform_stack)
    else:
        platform(config)


main()
