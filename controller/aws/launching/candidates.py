"""Launch candidates: each offering with the launch template that launches it.

A launch template depends on the AMI, the kubelet's maxPods and the capacity type, so the many
offerings of a launch share a few templates. NodeClaims of one NodePool share them too: a template
written for one NodeClaim is cached for the next.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from cachetools import LRUCache

from controller.apis import labels
from controller.apis.karpenter.ec2nodeclass import AMIStatus, EC2NodeClass
from controller.apis.karpenter.nodeclaim import NodeClaim
from controller.apis.kubernetes.quantities import MILLI
from controller.aws.bootstrap.families import AL2023, CUSTOM, alias_of, family_of
from controller.aws.bootstrap.kubeletexpressions import RESERVATIONS
from controller.aws.bootstrap.nodeconfigs import UserDataError
from controller.aws.bootstrap.userdata import (
    Bootstrap,
    allowed_labels,
    registered_taints,
    user_data,
)
from controller.aws.cluster import EksCluster
from controller.aws.instancetypes import expecteddevices
from controller.aws.instancetypes.catalogue import EFA, Attachment
from controller.aws.instancetypes.offerings import (
    RESERVATION_ID,
    RESERVATION_INTERRUPTIBLE,
    RESERVATION_TYPE,
    image_for,
)
from controller.aws.launching.fleet import CAPACITY_BLOCK, INTERRUPTIBLE, LaunchCandidate
from controller.aws.launching.launchtemplates import LaunchTemplate, Reservation, launch_template
from controller.aws.network.placementgroups import PlacementGroup
from controller.aws.network.subnets import Subnet
from controller.cloudprovider.errors import NodeClassNotReadyError
from controller.cloudprovider.instancetypes import InstanceType, Offering
from controller.constraints.resources import PODS

NITRO_SANDBOX = "eks.amazonaws.com/nitro-sandbox"
"""An extended resource that no instance type has: a request for it enables Nitro Enclaves."""


WRITTEN_TEMPLATES = 256
"""The number of launch templates in the cache, more than a burst of launches needs.

The least recently used one is evicted first.
"""


def wants_efa(claim: NodeClaim) -> bool:
    """Whether pods of the NodeClaim request EFA interfaces, as a resource or with DRA.

    Without such a request, instances have none.
    """
    drivers = claim.metadata.annotations.get(labels.REQUESTED_DRA_DRIVERS, "").split(",")
    return EFA in claim.spec.resources.requests or expecteddevices.EFA in drivers


@dataclass(slots=True, kw_only=True)
class Writer:
    """Builds the launch templates of one launch; offerings with equal content share a template."""

    claim: NodeClaim
    node_class: EC2NodeClass
    image_device: str
    """The device of the volume with container images; empty if there is none."""

    cluster: EksCluster
    tags: Mapping[str, str]
    group: PlacementGroup | None
    partition: str
    tenancy: str
    names_reservations: bool
    in_isolated_partition: bool
    kubelet: Callable[[str], Mapping[str, Any]]
    """Returns the kubelet configuration of an instance type, by its name."""

    attachments_with_efa: Callable[[str], tuple[Attachment, ...]]
    """Returns the network interfaces of an instance type with its EFA interfaces, by its name."""

    written: LRUCache[bytes, LaunchTemplate]
    """Cache of launch templates, by all of their inputs; NodeClaims of one NodePool share it."""

    _own: bytes = field(init=False)

    def __post_init__(self) -> None:
        claim, status = self.claim, self.node_class.status
        self._own = msgspec.json.encode(
            [
                sorted(claim.metadata.labels.items()),
                claim.spec.taints,
                claim.spec.startup_taints,
                self._pulls_fast,
                self.image_device,
                NITRO_SANDBOX in claim.spec.resources.requests,
                self.node_class.spec,
                status.security_groups,
                status.instance_profile,
                dataclasses.asdict(self.cluster),
                sorted(self.tags.items()),
                self._placement,
                self.tenancy,
            ]
        )

    def candidate(
        self, instance_type: InstanceType, offering: Offering, subnet: Subnet
    ) -> LaunchCandidate:
        """Return the launch candidate of an offering, with its launch template.

        Raises:
            NodeClassNotReadyError: no AMI of the EC2NodeClass runs on the instance type, EKS does
                not return the service CIDR that AL2023 needs, or the user data is invalid.

        """
        image = image_for(instance_type, self.node_class.status.amis)
        if image is None:
            raise NodeClassNotReadyError(
                f"no AMI of EC2NodeClass {self.node_class.metadata.name} is compatible with "
                f"{instance_type.name}"
            )
        pods = instance_type.capacity.get(PODS, 0) // MILLI
        attachments: tuple[Attachment, ...] = ()
        if wants_efa(self.claim) and instance_type.capacity.get(EFA, 0):
            attachments = self.attachments_with_efa(instance_type.name)
        reservation = offering.requirements.get(RESERVATION_ID, "")
        kubelet = {**self.kubelet(instance_type.name), "maxPods": pods}
        reserved = [kubelet.get(name) for name in RESERVATIONS]
        own = [
            image.id,
            image.name,
            pods,
            attachments,
            offering.capacity_type,
            reservation,
            reserved,
        ]
        key = self._own + msgspec.json.encode(own)
        template = self.written.get(key)
        if template is None:
            template = self.written[key] = self._write(image, kubelet, attachments, offering)
        return LaunchCandidate(
            instance_type=instance_type,
            offering=offering,
            template=template,
            image_id=image.id,
            subnet_id=subnet.id,
        )

    def _write(
        self,
        image: AMIStatus,
        kubelet: Mapping[str, Any],
        attachments: tuple[Attachment, ...],
        offering: Offering,
    ) -> LaunchTemplate:
        reservation = offering.requirements.get(RESERVATION_ID, "")
        return launch_template(
            self.node_class,
            family=family_of(self.node_class),
            image_id=image.id,
            user_data=self._user_data(kubelet, offering.capacity_type, image.name),
            capacity_type=offering.capacity_type,
            tags=self.tags,
            ipv6=self.cluster.ipv6,
            attachments=attachments,
            enclaves=self.node_class.spec.requires_enclaves
            or NITRO_SANDBOX in self.claim.spec.resources.requests,
            tenancy=self.tenancy,
            placement=self._placement,
            reservation=Reservation(id=reservation, market=market(offering))
            if reservation
            else None,
            names_reservations=self.names_reservations,
            in_isolated_partition=self.in_isolated_partition,
        )

    @property
    def _placement(self) -> dict[str, Any]:
        if self.group is None:
            return {}
        number = {"PartitionNumber": int(self.partition)} if self.partition else {}
        return {"GroupId": self.group.id, **number}

    @property
    def _pulls_fast(self) -> bool:
        return self.claim.metadata.annotations.get(labels.FAST_IMAGE_PULL) == "true"

    def _user_data(self, kubelet: Mapping[str, Any], capacity_type: str, image_name: str) -> str:
        spec, family = self.node_class.spec, family_of(self.node_class)
        if family is AL2023 and not self.cluster.service_cidr:
            raise NodeClassNotReadyError("EKS returned no service CIDR for the cluster")
        own = {**self.claim.metadata.labels, labels.CAPACITY_TYPE: capacity_type}
        if family is not CUSTOM:
            own[labels.DO_NOT_SYNC_TAINTS] = "true"
        if self.cluster.dns and not kubelet.get("clusterDNS"):
            kubelet = {**kubelet, "clusterDNS": [self.cluster.dns]}
        claim = self.claim.spec
        alias = alias_of(self.node_class)
        pinned = alias[1] if alias and alias[1] != "latest" else image_name
        try:
            return user_data(
                family,
                Bootstrap(
                    cluster=self.cluster,
                    labels=allowed_labels(own),
                    taints=registered_taints(*claim.taints, *claim.startup_taints),
                    kubelet=kubelet,
                    custom=spec.user_data or "",
                    raid=spec.instance_store_policy == "RAID0",
                    fast_image_pull=self._pulls_fast,
                    image_device=self.image_device,
                    image_version=pinned,
                ),
            )
        except UserDataError as exc:
            raise NodeClassNotReadyError(str(exc)) from exc


def market(offering: Offering) -> str:
    """Return the market type of an offering's capacity reservation.

    It is empty unless the reservation is a capacity block or interruptible.
    """
    carried = offering.requirements
    if carried.get(RESERVATION_TYPE) == CAPACITY_BLOCK:
        return CAPACITY_BLOCK
    return INTERRUPTIBLE if carried.get(RESERVATION_INTERRUPTIBLE) == "true" else ""
