"""An EKS cluster, and Joiner on it, as parts of one program."""

import pulumi
import pulumi_aws as aws
import pulumi_kubernetes as kubernetes

from controller.apis import labels
from controller.apis.karpenter.nodepool import (
    NodeClaimTemplate,
    NodeClaimTemplateSpec,
    NodeClassReference,
    NodePool,
    NodePoolSpec,
)
from controller.apis.kinds import NODE_POOL
from controller.apis.kubernetes.meta import ObjectMeta
from controller.apis.kubernetes.taints import Requirement
from infra.cluster.ekscluster import EksCluster, kubernetes_provider
from infra.joiner import Joiner, JoinerArgs
from infra.nodepools import default_manifests, manifest

settings = pulumi.Config()
subnets: list[str] = settings.require_object("subnets")

cluster = aws.eks.Cluster(
    "cluster",
    role_arn=settings.require("clusterRole"),
    vpc_config={"subnet_ids": subnets},
    access_config={
        "authentication_mode": "API",
        "bootstrap_cluster_creator_admin_permissions": True,
    },
)
# The nodes that run the controller must exist before the controller does.
node_group = aws.eks.NodeGroup(
    "controller",
    cluster_name=cluster.name,
    node_role_arn=settings.require("nodeGroupRole"),
    subnet_ids=subnets,
    instance_types=["m7g.large"],
    ami_type="AL2023_ARM_64_STANDARD",
    scaling_config={"min_size": 2, "max_size": 2, "desired_size": 2},
)
agent = aws.eks.Addon("agent", cluster_name=cluster.name, addon_name="eks-pod-identity-agent")

target = EksCluster.of(cluster, subnet_ids=subnets)
in_cluster = kubernetes_provider(target)
namespace = kubernetes.core.v1.Namespace(
    "autoscaling", opts=pulumi.ResourceOptions(provider=in_cluster)
)

arm = NodePool(
    metadata=ObjectMeta(name="arm"),
    spec=NodePoolSpec(
        weight=10,
        limits={"cpu": "200"},
        template=NodeClaimTemplate(
            spec=NodeClaimTemplateSpec(
                node_class_ref=NodeClassReference(
                    group="karpenter.k8s.aws", kind="EC2NodeClass", name="default"
                ),
                requirements=[
                    Requirement(key=labels.ARCH, operator="In", values=["arm64"]),
                    Requirement(key=labels.CAPACITY_TYPE, operator="In", values=[labels.SPOT]),
                ],
            )
        ),
    ),
)

joiner = Joiner(
    "joiner",
    JoinerArgs(
        cluster=target,
        image=settings.require("image"),
        namespace=namespace.metadata["name"],
        settings={"BATCH_IDLE_DURATION": "2s"},
        tags={"team": "platform"},
        node_pools=[*default_manifests(), manifest(NODE_POOL, arm)],
    ),
    pulumi.ResourceOptions(providers=[in_cluster], depends_on=[node_group, agent]),
)

pulumi.export("nodeRole", joiner.node_role_name)
pulumi.export("interruptionQueue", joiner.interruption_queue)
