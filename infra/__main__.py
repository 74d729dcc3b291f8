"""Composes the stack and exports what others need to know of it."""

from __future__ import annotations

import dataclasses

import pulumi

from controller.apis import labels
from infra import customresources, image, names, nodepools, providers
from infra.access import NodeAccess, NodeAccessArgs
from infra.clusterapi import Way
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


def platform(config: StackConfig) -> None:
    """Everything a cluster needs, and the controller; the NodePools as well, if there are any."""
    pools = _manifests(config)
    way = _way(config)
    installation = _installation(config)
    refuse_missing_cluster(way)
    first = Installation("installation", way, installation)
    on_aws = providers.aws_provider(config, installation=installation, after=[first])
    cluster = providers.find_cluster(config, on_aws)
    refuse_taken(config, way=way, place=cluster.place, installation=installation)
    discovery = _discovery(config, cluster, installation)
    refuse_clashes(discovery, on_aws)
    if config.identity == "irsa":
        refuse_unusable_provider(
            config.oidc_provider,
            place=cluster.place,
            issuer=cluster.issuer,
            stack=_stack(),
            iam=way.client("iam"),
        )
    in_cluster = providers.kubernetes_provider(config, cluster, after=[first])
    aws_options = pulumi.ResourceOptions(providers=[on_aws])
    cluster_options = pulumi.ResourceOptions(providers=[in_cluster])

    node_role = NodeRole(
        "node",
        NodeRoleArgs(
            place=cluster.place,
            way=way,
            name=config.node_role,
            spot_role=config.spot_role,
            permissions_boundary=config.permissions_boundary,
        ),
        aws_options,
    )
    access = NodeAccess(
        "node-access",
        NodeAccessArgs(kind=config.node_access, way=way, node_role_arn=node_role.role.arn),
        aws_options,
    )
    queue = InterruptionQueue(
        "interruption",
        InterruptionQueueArgs(place=cluster.place, queue_name=config.queue),
        aws_options,
    )
    controller_role = ControllerRole(
        "controller",
        ControllerRoleArgs(
            place=cluster.place,
            way=way,
            stack=_stack(),
            installation=installation,
            name=config.controller_role,
            identity=config.identity,
            namespace=config.namespace,
            service_account=config.name,
            node_role_arn=node_role.role.arn,
            queue_arn=queue.queue.arn,
            issuer=cluster.issuer,
            pod_identity_agent=config.pod_identity_agent,
            oidc_provider=config.oidc_provider,
            permissions_boundary=config.permissions_boundary,
            zonal_shift=config.options.enable_zonal_shift,
        ),
        aws_options,
    )
    tags = DiscoveryTags("discovery", discovery, aws_options)
    kinds = CustomResources(
        "crds", CustomResourcesArgs(files=customresources.rendered()), cluster_options
    )
    made = [node_role, access, queue, controller_role, tags, kinds]
    nothing_left = NothingLeft(
        "nothing-left", way, installation, pulumi.ResourceOptions(depends_on=made)
    )
    controller = Controller(
        "karpenter",
        ControllerArgs(
            namespace=config.namespace,
            name=config.name,
            image=config.image or _built(config, way, aws_options),
            replicas=config.replicas,
            cpu=config.cpu,
            memory=config.memory,
            region=config.region,
            options=dataclasses.replace(config.options, installation=installation),
            identity=config.identity,
            role_arn=controller_role.role.arn,
            after=[*made, nothing_left],
        ),
        cluster_options,
    )
    drain = DrainArgs(
        way=way,
        installation=installation,
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
            variables={"CLUSTER_NAME": cluster.name, "NODE_ROLE": node_role.role.name},
            stack=_stack(),
            delete_timeout=config.drain_timeout,
            after=[before_controller_goes],
        ),
        cluster_options,
    )
    Drain("drain", drain, pulumi.ResourceOptions(depends_on=[before_controller_goes, node_pools]))
    pulumi.export("clusterName", cluster.name)
    pulumi.export("region", config.region)
    pulumi.export("nodeRole", node_role.role.name)
    pulumi.export("nodeRoleArn", node_role.role.arn)
    pulumi.export("instanceProfile", node_role.profile.name)
    pulumi.export("controllerRoleArn", controller_role.role.arn)
    pulumi.export("interruptionQueue", queue.queue.name)
    pulumi.export("namespace", config.namespace)
    pulumi.export("deployment", config.name)


def pools_alone(config: StackConfig, platform_stack: str) -> None:
    """NodePools on what another stack has set up."""
    pools = _manifests(config)
    reference = pulumi.StackReference(
        platform_stack if "/" in platform_stack else _stack(platform_stack)
    )
    way, installation = _way(config), _installation(config)
    refuse_missing_cluster(way)
    first = Installation("installation", way, installation)
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


def _built(config: StackConfig, way: Way, options: pulumi.ResourceOptions) -> pulumi.Output[str]:
    args = image.ControllerImageArgs(
        way=way, repository=names.repository(config.cluster_name), sources=image.sources_digest()
    )
    return image.ControllerImage("image", args, options).reference


def _way(config: StackConfig) -> Way:
    path = config.kubeconfig_path
    return Way(
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
