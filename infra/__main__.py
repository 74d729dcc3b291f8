"""Composes the stack and exports what others need to know of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pulumi

from infra import nodepools, providers
from infra.clusterapi import ClusterLocation
from infra.config import StackConfig, read
from infra.earliernames import with_former_name
from infra.ekscluster import EksCluster, kubernetes_provider
from infra.joiner import Joiner, JoinerArgs, full_name_of_stack
from infra.nodepools import NodePools, NodePoolsArgs
from infra.ownership import refuse_missing_cluster
from infra.teardown import Installation


def platform(config: StackConfig) -> None:
    """Everything a cluster needs, and the controller; the NodePools as well, if there are any."""
    pools = _manifests(config)
    location = _location(config)
    refuse_missing_cluster(location)
    first = Installation("installation", location, _installation(config))
    on_aws = providers.aws_provider(config, installation=first.title, after=[first])
    cluster = EksCluster.found(location, on_aws)
    in_cluster = kubernetes_provider(cluster, opts=pulumi.ResourceOptions(depends_on=[first]))
    joiner = Joiner(
        "joiner",
        JoinerArgs(
            cluster=cluster, installation=first, node_pools=pools, **_shared_settings(config)
        ),
        pulumi.ResourceOptions(providers=[on_aws, in_cluster], transformations=[with_former_name]),
    )
    _export(config, joiner)


def pools_alone(config: StackConfig, platform_stack: str) -> None:
    """NodePools on what another stack has set up."""
    pools = _manifests(config)
    reference = pulumi.StackReference(
        platform_stack if "/" in platform_stack else full_name_of_stack(platform_stack)
    )
    location = _location(config)
    refuse_missing_cluster(location)
    first = Installation("installation", location, _installation(config))
    on_aws = providers.aws_provider(config, installation=first.title, after=[first])
    cluster = EksCluster.found(location, on_aws)
    in_cluster = kubernetes_provider(cluster, opts=pulumi.ResourceOptions(depends_on=[first]))
    NodePools(
        "node-pools",
        NodePoolsArgs(
            cluster=cluster,
            manifests=pools,
            variables={
                "CLUSTER_NAME": reference.require_output("clusterName"),
                "NODE_ROLE": reference.require_output("nodeRole"),
            },
            stack=full_name_of_stack(),
            delete_timeout=config.drain_timeout,
        ),
        pulumi.ResourceOptions(providers=[in_cluster], transformations=[with_former_name]),
    )
    pulumi.export("nodePools", [w["metadata"]["name"] for w in pools if w["kind"] == "NodePool"])


def _shared_settings(config: StackConfig) -> dict[str, Any]:
    """Return the settings that the component has under the same name."""
    own = {"cluster", "installation", "node_pools"}
    names = {member.name for member in dataclasses.fields(JoinerArgs)} - own
    return {name: getattr(config, name) for name in names}


def _export(config: StackConfig, joiner: Joiner) -> None:
    pulumi.export("clusterName", config.cluster_name)
    pulumi.export("region", config.region)
    pulumi.export("nodeRole", joiner.node_role_name)
    pulumi.export("nodeRoleArn", joiner.node_role_arn)
    pulumi.export("instanceProfile", joiner.instance_profile)
    pulumi.export("controllerRoleArn", joiner.controller_role_arn)
    pulumi.export("interruptionQueue", joiner.interruption_queue)
    pulumi.export("namespace", joiner.namespace)
    pulumi.export("deployment", joiner.deployment)


def _manifests(config: StackConfig) -> Sequence[nodepools.Wire]:
    if config.node_pools_folder:
        return nodepools.manifests_in(config.node_pools_folder)
    return nodepools.default_manifests() if config.default_node_pool else []


def _location(config: StackConfig) -> ClusterLocation:
    return ClusterLocation(
        config.cluster_name, config.region, config.aws_endpoint or "", config.portable_kubeconfig
    )


def _installation(config: StackConfig) -> str:
    return config.installation or full_name_of_stack()


def main() -> None:
    """Check every setting, then make what they ask for."""
    config = read()
    if config.platform_stack:
        pools_alone(config, config.platform_stack)
    else:
        platform(config)


main()
