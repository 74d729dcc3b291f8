"""Drift of an instance from its EC2NodeClass.

The hashed fields of the EC2NodeClass are those that its annotation
`karpenter.k8s.aws/ec2nodeclass-hash` covers. They are compared by this hash. The AMIs, subnets,
security groups, capacity reservations and placement group that it selects are compared one by one.
"""

from __future__ import annotations

from controller.apis import labels
from controller.apis.karpenter import hashes
from controller.apis.karpenter.ec2nodeclass import EC2NodeClass
from controller.apis.karpenter.nodeclaim import NodeClaim
from controller.aws.instances import Described
from controller.aws.instancetypes.offerings import image_for
from controller.cloudprovider.errors import CloudProviderError
from controller.cloudprovider.instancetypes import InstanceType

AMI_DRIFT = "AMIDrift"


def static_drift_reason(claim: NodeClaim, node_class: EC2NodeClass) -> str | None:
    """Return the reason if the hashed fields of the EC2NodeClass have changed, or None."""
    then, now = claim.metadata.annotations, node_class.metadata.annotations
    is_changed = hashes.differ(then, now, labels.NODECLASS_HASH, labels.NODECLASS_HASH_VERSION)
    return "NodeClassDrift" if is_changed else None


def drift_reason(
    claim: NodeClaim,
    node_class: EC2NodeClass,
    *,
    instance: Described,
    instance_type: InstanceType,
    reservations: frozenset[str],
    placement_group_id: str = "",
) -> str | None:
    """Return the first reason for which the instance has drifted, or None.

    Hashed fields are not compared; see `static_drift_reason`. `reservations` are the IDs of the
    capacity reservations that the EC2NodeClass selects. An instance that has left its capacity
    reservation continues as an on-demand instance. That is not drift.

    Raises:
        CloudProviderError: the status of the NodeClaim or EC2NodeClass lacks a field to compare.

    """
    if not claim.status.image_id or not node_class.status.security_groups:
        raise CloudProviderError(
            f"NodeClaim {claim.metadata.name}: cannot determine drift yet: its status.imageID, or "
            f"status.securityGroups of EC2NodeClass {node_class.metadata.name}, is not set"
        )
    image = image_for(instance_type, node_class.status.amis)
    if image is None or image.id != claim.status.image_id:
        return AMI_DRIFT
    if instance.security_groups != {g.id for g in node_class.status.security_groups}:
        return "SecurityGroupDrift"
    if instance.subnet_id not in {s.id for s in node_class.status.subnets}:
        return "SubnetDrift"
    if instance.reserved_by and instance.reserved_by not in reservations:
        return "CapacityReservationDrift"
    labelled = claim.metadata.labels.get(labels.PLACEMENT_GROUP_ID, "")
    if labelled != placement_group_id:
        return "PlacementGroupDrift"
    return None
