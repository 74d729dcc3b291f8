"""A cluster in an empty account, as the stack creates it."""

from typing import Any

import pulumi
import pulumi_aws as aws

from infra.cluster.creation import Cluster, ClusterArgs
from infra.cluster.network import Network, NetworkArgs
from infra.policies import Place

config = pulumi.Config()
endpoint = config.require("endpoint")
changes: dict[str, Any] = config.get_object("changes") or {}

services = ("ec2", "eks", "iam", "ssm", "sts")
provider = aws.Provider(
    "aws",
    region="us-west-2",
    access_key="testing",
    secret_key="testing",
    endpoints=[aws.ProviderEndpointArgs(**dict.fromkeys(services, endpoint))],
    default_tags=aws.ProviderDefaultTagsArgs(tags={"joiner.dev/installation": "test"}),
)
mine = pulumi.ResourceOptions(providers=[provider])
place = Place("aws", "us-west-2", "123456789012", "joiner")
network = Network(
    "network",
    NetworkArgs(place=place, **changes.get("network", {})),
    mine,
)
cluster = Cluster(
    "cluster",
    ClusterArgs(
        place=place,
        network=network,
        public_access_cidrs=["203.0.113.0/24"],
        **({"node_tags": {"team": "core"}} | changes.get("cluster", {})),
    ),
    mine,
)
pulumi.export("subnets", [subnet.id for subnet in network.private_subnets])
pulumi.export("group", cluster.eks.vpc_config.cluster_security_group_id)
pulumi.export("endpoint", cluster.eks.endpoint)
pulumi.export("issuer", cluster.eks.identities[0].oidcs[0].issuer)
