"""Launch templates: one per distinct content, named by its hash, shared by all launches.

EC2 limits the rate at which templates are created. A launch waits for the template of its cheapest
offering as long as it takes, and for each other template for `PATIENCE` seconds at most.

A template that no launch has used for 60 s is deleted. The next launch that needs it creates it
again under the same name. The controller finds templates of its earlier processes by their tags and
takes them over.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from controller.apis import labels
from controller.apis.karpenter.ec2nodeclass import (
    BlockDeviceMapping,
    EC2NodeClass,
    EC2NodeClassSpec,
)
from controller.apis.kubernetes.quantities import MILLI, parse
from controller.aws.bootstrap.families import Family
from controller.aws.errors import ALREADY_EXISTS, AwsError
from controller.aws.instancetypes.catalogue import Attachment
from controller.aws.selectors import tag_list
from controller.aws.session import Aws
from controller.cloudprovider.errors import CloudProviderError

PREFIX = "karpenter.k8s.aws/"
IDLE = 60.0
"""Seconds after its last use until a launch template is deleted."""

PATIENCE = 2.0
"""Seconds for which a launch waits at EC2's rate limit for a launch template that it can omit."""

_GIB = 2**30 * MILLI

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """The capacity reservation of a launch template.

    `market` is empty unless it is a capacity block or interruptible.
    """

    id: str
    market: str = ""


@dataclass(frozen=True, slots=True)
class LaunchTemplate:
    """The content of a launch template, in the shape of RequestLaunchTemplateData, and its tags."""

    content: Mapping[str, Any]
    tags: Mapping[str, str]
    name: str = field(init=False)

    def __post_init__(self) -> None:
        text = json.dumps([self.content, self.tags], sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        object.__setattr__(self, "name", f"{PREFIX}{digest}")


def launch_template(
    node_class: EC2NodeClass,
    *,
    family: Family,
    image_id: str,
    user_data: str,
    capacity_type: str,
    tags: Mapping[str, str],
    ipv6: bool = False,
    attachments: Sequence[Attachment] = (),
    enclaves: bool = False,
    tenancy: str = "default",
    placement: Mapping[str, Any] | None = None,
    reservation: Reservation | None = None,
    names_reservations: bool = True,
    in_isolated_partition: bool = False,
) -> LaunchTemplate:
    """Build the launch template of one AMI and one set of launch parameters.

    `attachments` are the network interfaces of an instance with EFA, the primary first; empty for
    one without. `placement` is the Placement of RequestLaunchTemplateData. In an isolated partition
    of AWS (`in_isolated_partition`), the template does not set the metadata service's IPv6
    endpoint.
    `names_reservations` means that the template states which capacity reservation the instance
    uses. Without it, EC2 uses any open capacity reservation that matches.
    """
    spec = node_class.spec
    content: dict[str, Any] = {
        "ImageId": image_id,
        "IamInstanceProfile": {"Name": node_class.status.instance_profile},
        "Monitoring": {"Enabled": bool(spec.detailed_monitoring)},
        "MetadataOptions": _metadata(spec, with_ipv6=not in_isolated_partition),
        "NetworkInterfaces": _interfaces(node_class, ipv6=ipv6, attachments=attachments),
        "TagSpecifications": [
            {"ResourceType": kind, "Tags": tag_list(tags)}
            for kind in (
                "network-interface",
                *(["spot-instances-request"] if capacity_type == labels.SPOT else []),
            )
        ],
        "Placement": {"Tenancy": tenancy, **(placement or {})},
    }
    if user_data:
        content["UserData"] = base64.b64encode(user_data.encode()).decode()
    mappings = spec.block_device_mappings or family.block_devices
    if mappings:
        content["BlockDeviceMappings"] = [_block_device(m) for m in mappings]
    if spec.cpu_options and spec.cpu_options.nested_virtualization:
        content["CpuOptions"] = {"NestedVirtualization": spec.cpu_options.nested_virtualization}
    if enclaves:
        content["EnclaveOptions"] = {"Enabled": True}
    if names_reservations:
        content |= _reservation(reservation)
    return LaunchTemplate(content, dict(tags))


def _metadata(spec: EC2NodeClassSpec, *, with_ipv6: bool) -> dict[str, Any]:
    options = spec.metadata_options
    metadata = {
        "HttpEndpoint": options.http_endpoint,
        "HttpPutResponseHopLimit": options.http_put_response_hop_limit,
        "HttpTokens": options.http_tokens,
        "InstanceMetadataTags": "disabled",
    }
    return {**metadata, "HttpProtocolIpv6": options.http_protocol_ipv6} if with_ipv6 else metadata


def _interfaces(
    node_class: EC2NodeClass, *, ipv6: bool, attachments: Sequence[Attachment]
) -> list[dict[str, Any]]:
    spec = node_class.spec
    groups = [group.id for group in node_class.status.security_groups]
    if spec.network_interfaces:
        return [
            {
                "NetworkCardIndex": n.network_card_index,
                "DeviceIndex": n.device_index,
                "InterfaceType": n.interface_type,
                "Groups": groups,
                **(_addresses(spec, ipv6=ipv6) if n.interface_type != "efa-only" else {}),
            }
            for n in spec.network_interfaces
        ]
    addresses = _addresses(spec, ipv6=ipv6)
    if attachments:
        return [
            {
                "NetworkCardIndex": attachment.card,
                "DeviceIndex": attachment.device,
                "InterfaceType": attachment.kind,
                "Groups": groups,
                # EC2 assigns public addresses and prefixes to the first interface only.
                **(addresses if number == 0 else {}),
            }
            for number, attachment in enumerate(attachments)
        ]
    return [{"DeviceIndex": 0, "Groups": groups, **addresses}]


def _addresses(spec: EC2NodeClassSpec, *, ipv6: bool) -> dict[str, Any]:
    addresses: dict[str, Any] = {}
    if spec.associate_public_ip_address is not None:
        addresses["AssociatePublicIpAddress"] = spec.associate_public_ip_address
    if ipv6:
        addresses |= {"PrimaryIpv6": True, "Ipv6AddressCount": 1}
    if spec.ip_prefix_count:
        addresses["Ipv6PrefixCount" if ipv6 else "Ipv4PrefixCount"] = spec.ip_prefix_count
    tracking = spec.connection_tracking
    if tracking:
        named = {
            "TcpEstablishedTimeout": tracking.tcp_established_timeout,
            "UdpStreamTimeout": tracking.udp_stream_timeout,
            "UdpTimeout": tracking.udp_timeout,
        }
        addresses["ConnectionTrackingSpecification"] = {k: v for k, v in named.items() if v}
    return addresses


def _block_device(mapping: BlockDeviceMapping) -> dict[str, Any]:
    device: dict[str, Any] = {"DeviceName": mapping.device_name}
    ebs = mapping.ebs
    if ebs is None:
        return device
    size = math.ceil(parse(ebs.volume_size) / _GIB) if ebs.volume_size is not None else None
    named = {
        "DeleteOnTermination": ebs.delete_on_termination,
        "Encrypted": ebs.encrypted,
        "Iops": ebs.iops,
        "KmsKeyId": ebs.kms_key_id,
        "SnapshotId": ebs.snapshot_id,
        "Throughput": ebs.throughput,
        "VolumeInitializationRate": ebs.volume_initialization_rate,
        "VolumeSize": size,
        "VolumeType": ebs.volume_type,
    }
    return {**device, "Ebs": {name: value for name, value in named.items() if value is not None}}


def _reservation(reservation: Reservation | None) -> dict[str, Any]:
    if reservation is None:
        return {"CapacityReservationSpecification": {"CapacityReservationPreference": "none"}}
    specification: dict[str, Any] = {
        "CapacityReservationSpecification": {
            "CapacityReservationPreference": "capacity-reservations-only",
            "CapacityReservationTarget": {"CapacityReservationId": reservation.id},
        }
    }
    if reservation.market:
        specification["InstanceMarketOptions"] = {"MarketType": reservation.market}
    return specification


@dataclass
class LaunchTemplates:
    """Creates launch templates on first use and deletes those idle for `IDLE` seconds.

    It manages the launch templates of an installation in the cluster `cluster_name`. `delay`
    returns the seconds for which a call to an operation of EC2 would wait for its rate limit if it
    were made now.
    """

    aws: Aws
    cluster_name: str
    installation: str
    delay: Callable[[str], float] = lambda operation: 0.0
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._ours = {
            f"tag:{labels.TAG_CLUSTER_NAME}": self.cluster_name,
            f"tag:{labels.TAG_INSTALLATION}": self.installation,
        }
        self._used_at: dict[str, float] = {}
        self._making: dict[str, asyncio.Task[bool]] = {}
        self._in_doubt: dict[str, float] = {}
        self._held: Counter[str] = Counter()
        self._is_hydrated = False

    async def ensure(self, templates: Sequence[LaunchTemplate], *, required: int = 1) -> set[str]:
        """Create the launch templates that do not exist yet, concurrently, each of them once.

        Concurrent launches that need the same template share one creation. The first `required`
        templates are always created. Each of the others is omitted if its creation would wait for
        EC2's rate limit for longer than `PATIENCE`.

        Returns:
            The names of the templates that exist.

        """
        exist = await asyncio.gather(
            *(
                self._ensure(template, is_required=index < required)
                for index, template in enumerate(templates)
            )
        )
        return {template.name for template, does in zip(templates, exist, strict=True) if does}

    @contextmanager
    def held(self, templates: Iterable[LaunchTemplate]) -> Iterator[None]:
        """Keep launch templates from becoming idle while a launch waits for EC2's rate limit."""
        names = {template.name for template in templates}
        self._held.update(names)
        try:
            yield
        finally:
            self._held.subtract(names)
            self._held = +self._held
            self._used_at |= dict.fromkeys(names & self._used_at.keys(), self.clock())

    def forget(self, names: Iterable[str]) -> None:
        """Forget templates that EC2 reports as missing, so that the next launch creates them."""
        for name in names:
            self._used_at.pop(name, None)

    async def hydrate(self) -> int:
        """Take over the launch templates of earlier processes; return their number."""
        templates = await self._describe(self._ours)
        for template in templates:
            name = template["LaunchTemplateName"]
            if name.startswith(PREFIX):
                self._used_at.setdefault(name, self.clock())
        self._is_hydrated = True
        log.info(
            "reusing the EC2 launch templates of earlier processes", extra={"count": len(templates)}
        )
        return len(templates)

    async def sweep(self) -> int:
        """Delete the launch templates idle for `IDLE` seconds; return their number."""
        if not self._is_hydrated:
            await self.hydrate()
        now = self.clock()
        known = self._in_doubt | self._used_at
        idle = [
            name for name, used in known.items() if now - used > IDLE and name not in self._held
        ]
        await self._delete_all(idle)
        return len(idle)

    async def release(self, class_name: str) -> None:
        """Delete every launch template that was created for an EC2NodeClass."""
        templates = await self._describe({**self._ours, f"tag:{labels.EC2NODECLASS}": class_name})
        await self._delete_all([d["LaunchTemplateName"] for d in templates])

    async def _ensure(self, template: LaunchTemplate, *, is_required: bool) -> bool:
        """Create a launch template if it does not exist; returns whether it exists."""
        while template.name not in self._used_at:
            making = self._making.get(template.name)
            if making is None:
                making = asyncio.create_task(self._make(template, is_required=is_required))
                self._making[template.name] = making
            # Shielded: other launches may wait for this creation when this launch is cancelled.
            if await asyncio.shield(making):
                return True
            if not is_required:
                return False
            # Another launch omitted the template.
        self._used_at[template.name] = self.clock()
        return True

    async def _make(self, template: LaunchTemplate, *, is_required: bool) -> bool:
        """Create a launch template unless it is omitted; returns whether it exists.

        The delay is read when the task runs: by then, the tasks before it have joined the queue of
        the rate limit.
        """
        try:
            if not is_required and self.delay("create_launch_template") > PATIENCE:
                return False
            await self._create(template)
        finally:
            del self._making[template.name]
        return True

    async def _create(self, template: LaunchTemplate) -> None:
        # If the response is lost, the template may exist, and is deleted with the idle templates
        # unless a launch needs it.
        self._in_doubt[template.name] = self.clock()
        try:
            await self.aws.call(
                "ec2",
                "create_launch_template",
                LaunchTemplateName=template.name,
                LaunchTemplateData=template.content,
                TagSpecifications=[
                    {"ResourceType": "launch-template", "Tags": tag_list(template.tags)}
                ],
                ClientToken=hashlib.sha256(f"{template.name}/{self.clock()}".encode()).hexdigest()[
                    :32
                ],
            )
        except AwsError as exc:
            # The name is the hash of the content, so an existing template has the same content.
            if exc.code not in ALREADY_EXISTS:
                if not exc.is_server_fault:
                    self._in_doubt.pop(template.name, None)
                raise
        self._in_doubt.pop(template.name, None)
        self._used_at[template.name] = self.clock()

    async def _delete_all(self, names: Sequence[str]) -> None:
        """Delete each template, even if other deletions fail; raise the first error."""
        outcomes = await asyncio.gather(*map(self._delete, names), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def _delete(self, name: str) -> None:
        # Forgotten before the call: a concurrent launch then creates it again, or EC2 reports that
        # it does not exist and the launch retries.
        self._used_at.pop(name, None)
        self._in_doubt.pop(name, None)
        try:
            await self.aws.call("ec2", "delete_launch_template", LaunchTemplateName=name)
        except CloudProviderError as exc:
            if isinstance(exc, AwsError) and exc.is_not_found:
                return
            # The template still exists: the next sweep tries again.
            self._used_at.setdefault(name, self.clock() - IDLE - 1)
            raise

    async def _describe(self, filters: Mapping[str, str]) -> Sequence[dict[str, Any]]:
        return await self.aws.pages(
            "ec2",
            "describe_launch_templates",
            "LaunchTemplates",
            Filters=[{"Name": name, "Values": [value]} for name, value in filters.items()],
            PaginationConfig={"PageSize": 200},
        )
