"""What Helm, Argo CD and Flux cannot create: IAM, the interruption queue, the nodes' access.

The outputs are the values of charts/joiner.
"""

import pulumi

from infra import names
from infra.cluster.ekscluster import EksCluster
from infra.clusterapi import ClusterLocation
from infra.identity.access import NodeAccess, NodeAccessArgs
from infra.identity.iam import ControllerRole, ControllerRoleArgs, NodeRole, NodeRoleArgs
from infra.interruption import InterruptionQueue, InterruptionQueueArgs
from infra.joiner import full_name_of_stack

settings = pulumi.Config()
name, region = settings.require("clusterName"), settings.require("region")
cluster = EksCluster.found(ClusterLocation(name, region))
stack = full_name_of_stack()

nodes = NodeRole("node", NodeRoleArgs(cluster=cluster, name=names.node_role(name)))
NodeAccess(
    "node",
    NodeAccessArgs(
        kind="EC2_LINUX",
        cluster=cluster,
        node_role_arn=nodes.role_arn,
        node_role_id=nodes.role_id,
    ),
)
queue = InterruptionQueue(
    "interruption", InterruptionQueueArgs(cluster=cluster, queue_name=names.queue(name))
)
controller = ControllerRole(
    "controller",
    ControllerRoleArgs(
        cluster=cluster,
        stack=stack,
        installation=stack,
        name=names.controller_role(name),
        identity="pod-identity",
        namespace="kube-system",
        service_account="karpenter",
        node_role_arns=[nodes.role_arn],
        queue_arn=queue.queue_arn,
    ),
)

pulumi.export("clusterName", name)
pulumi.export("region", region)
pulumi.export("installation", stack)
pulumi.export("interruptionQueue", queue.queue_name)
pulumi.export("controllerRoleArn", controller.role_arn)
pulumi.export("instanceProfile", nodes.profile_name)
