"""How an instance can differ from what its class would launch today."""

from __future__ import annotations

from controller.apis import hashes, labels
from controller.apis.ec2nodeclass import EC2NodeClass
from controller.apis.nodeclaim import NodeClaim
from controller.aws.instances import Described
from controller.aws.offerings import RESERVATION_ID, image_for
from controller.cloudprovider.instancetypes import InstanceType


def drift_reason(
    claim: NodeClaim,
    node_class: EC2NodeClass,
    *,
    instance: Described,
    instance_type: InstanceType,
    reservations: frozenset[str],
    placement_group_id: str = "",
) -> str | None:
    """Return the first way in which the instance differs, or None."""
    then, now = claim.metadata.annotations, node_class.metadata.annotations
    if hashes.differ(then, now, labels.NODECLASS_HASH, labels.NODECLASS_HASH_VERSION):
        return "NodeClassDrift"
    image = image_for(instance_type, node_class.status.amis)
    if image is None or image.id != claim.status.image_id:
        return "AMIDrift"
    if instance.security_groups != {g.id for g in node_class.status.security_groups}:
        return "SecurityGroupDrift"
    if instance.subnet_id not in {s.id for s in node_class.status.subnets}:
        return "SubnetDrift"
    reservation = claim.metadata.labels.get(RESERVATION_ID, "")
    if reservation and reservation not in reservations:
        return "CapacityReservationDrift"
    labelled = claim.metadata.labels.get(labels.PLACEMENT_GROUP_ID, "")
    if labelled != placement_group_id:
        return "PlacementGroupDrift"
    return None
