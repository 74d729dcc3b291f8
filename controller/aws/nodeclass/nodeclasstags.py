"""Tags of the AWS resources of an EC2NodeClass: the ownership tags and the user's."""

from __future__ import annotations

from collections.abc import Mapping

from controller.apis import labels
from controller.apis.karpenter.ec2nodeclass import EC2NodeClass

REGION = labels.REGION


def forbidden(tags: Mapping[str, str]) -> list[str]:
    """Return the tag keys that a user may not set: those that name an owner, and the empty key."""
    ours = {
        labels.TAG_CLUSTER_NAME,
        labels.TAG_INSTALLATION,
        labels.NODEPOOL,
        labels.TAG_NODECLAIM,
        labels.SHARED_LAUNCH,
        labels.EC2NODECLASS,
    }
    return sorted(
        key for key in tags if not key or key in ours or key.startswith("kubernetes.io/cluster")
    )


def owner_tags(node_class: EC2NodeClass, cluster_name: str, installation: str) -> dict[str, str]:
    """Return the user's tags and the tags that state the owner and the EC2NodeClass."""
    return {
        **(node_class.spec.tags or {}),
        labels.tag_cluster_owned(cluster_name): "owned",
        labels.TAG_CLUSTER_NAME: cluster_name,
        labels.TAG_INSTALLATION: installation,
        labels.EC2NODECLASS: node_class.metadata.name,
    }


def launch_tags(
    node_class: EC2NodeClass, cluster_name: str, node_pool: str, installation: str
) -> dict[str, str]:
    """Return the tags of launch templates and of the resources launched for a NodePool."""
    return {**owner_tags(node_class, cluster_name, installation), labels.NODEPOOL: node_pool}
