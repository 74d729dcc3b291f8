"""Joiner on an existing EKS cluster, with the SDK that `pulumi package add` generates."""

import pulumi
import pulumi_joiner as joiner

autoscaler = joiner.infra.Joiner(
    "joiner",
    cluster={"name": "my-cluster", "region": "us-west-2"},
    image="registry.example.com/joiner:1",
    settings={"BATCH_IDLE_DURATION": "2s"},
    tags={"team": "platform"},
)
pulumi.export("nodeRole", autoscaler.node_role_name)
pulumi.export("interruptionQueue", autoscaler.interruption_queue)
