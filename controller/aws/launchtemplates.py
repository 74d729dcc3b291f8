"""Launch templates: one per distinct content, named by its hash, shared by all launches.

A template that no launch has asked for in a minute is deleted; asking for it again
makes it again, under the same name. Templates that another process of ours left
are found by their tags and taken over.
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
from controller.apis.ec2nodeclass import BlockDeviceMapping, EC2NodeClass, EC2NodeClassSpec
from controller.apis.quantities import MILLI, parse
from controller.aws.errors import ALREADY_EXISTS, AwsError
from controller.aws.families import Family
from controller.aws.selectors import tag_list
from controller.aws.session import Aws
from controller.cloudprovider.errors import CloudProviderError

PREFIX = "karpenter.k8s.aws/"
IDLE = 60.0
"""Seconds after its last use until a template is deleted."""

_GIB = 2**30 * MILLI

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """A capacity reservation a template launches into; `market` is empty for an ordinary one."""

    id: str
    market: str = ""


@dataclass(frozen=True, slots=True)
class LaunchTemplate:
    """A template as EC2 will have it: `content` in the shape of RequestLaunchTemplateData."""

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
    efa_interfaces: int = 0,
    enclaves: bool = False,
    tenancy: str = "default",
    placement: Mapping[str, Any] | None = None,
    reservation: Reservation | None = None,
    names_reservations: bool = True,
    in_isolated_partition: bool = False,
) -> LaunchTemplate:
    """Write the template for one image and one kind of machine.

    `names_reservations` says whether the template decides about capacity reservations;
    without it EC2 fills any open one by itself.
    """
    spec = node_class.spec
    content: dict[str, Any] = {
        "ImageId": image_id,
        "IamInstanceProfile": {"Name": node_class.status.instance_profile},
        "Monitoring": {"Enabled": bool(spec.detailed_monitoring)},
        "MetadataOptions": _metadata(spec, with_ipv6=not in_isolated_partition),
        "NetworkInterfaces": _interfaces(node_class, ipv6=ipv6, efa_interfaces=efa_interfaces),
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
    node_class: EC2NodeClass, *, ipv6: bool, efa_interfaces: int
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
    if efa_interfaces:
        return [
            {
                "NetworkCardIndex": card,
                "DeviceIndex": 0 if card == 0 else 1,
                "InterfaceType": "efa",
                "Groups": groups,
                # EC2 gives public addresses and prefixes to the first interface alone.
                **(addresses if card == 0 else {}),
            }
            for card in range(efa_interfaces)
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


class LaunchTemplates:
    """Makes templates when they are first asked for, and deletes those nobody asks for."""

    def __init__(
        self,
        aws: Aws,
        cluster_name: str,
        *,
        installation: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._aws = aws
        self._ours = {
            f"tag:{labels.TAG_CLUSTER_NAME}": cluster_name,
            f"tag:{labels.TAG_INSTALLATION}": installation,
        }
        self._clock = clock
        self._used_at: dict[str, float] = {}
        self._making: dict[str, asyncio.Task[None]] = {}
        self._in_doubt: dict[str, float] = {}
        self._held: Counter[str] = Counter()
        self._is_hydrated = False

    async def ensure(self, templates: Iterable[LaunchTemplate]) -> None:
        """Make those that do not exist yet, at once; each once, however many ask for it."""
        await asyncio.gather(*(self._ensure(t) for t in {t.name: t for t in templates}.values()))

    @contextmanager
    def held(self, templates: Iterable[LaunchTemplate]) -> Iterator[None]:
        """Keep these from being idle: a launch by them may wait long for its turn."""
        names = {template.name for template in templates}
        self._held.update(names)
        try:
            yield
        finally:
            self._held.subtract(names)
            self._held = +self._held
            self._used_at |= dict.fromkeys(names & self._used_at.keys(), self._clock())

    def forget(self, names: Iterable[str]) -> None:
        """Let these be made again: EC2 says they do not exist."""
        for name in names:
            self._used_at.pop(name, None)

    async def hydrate(self) -> int:
        """Take over what an earlier process of ours made; return how many."""
        templates = await self._tagged(self._ours)
        for template in templates:
            name = template["LaunchTemplateName"]
            if name.startswith(PREFIX):
                self._used_at.setdefault(name, self._clock())
        self._is_hydrated = True
        log.info("took over launch templates", extra={"count": len(templates)})
        return len(templates)

    async def sweep(self) -> int:
        """Delete what has not been used for a while; return how many."""
        if not self._is_hydrated:
            await self.hydrate()
        now = self._clock()
        known = self._in_doubt | self._used_at
        idle = [
            name for name, used in known.items() if now - used > IDLE and name not in self._held
        ]
        await self._delete_all(idle)
        return len(idle)

    async def release(self, class_name: str) -> None:
        """Delete every template that was made for a class."""
        templates = await self._tagged({**self._ours, f"tag:{labels.EC2NODECLASS}": class_name})
        await self._delete_all([d["LaunchTemplateName"] for d in templates])

    async def _ensure(self, template: LaunchTemplate) -> None:
        if template.name in self._used_at:
            self._used_at[template.name] = self._clock()
            return
        making = self._making.get(template.name)
        if making is None:
            making = asyncio.ensure_future(self._make(template))
            self._making[template.name] = making
            making.add_done_callback(lambda _: self._making.pop(template.name, None))
        # A launch that is given up must not undo what another one waits for.
        await asyncio.shield(making)

    async def _make(self, template: LaunchTemplate) -> None:
        # Should the answer get lost, the template may be there all the same: one that nobody
        # asks for again is deleted with those that are idle.
        self._in_doubt[template.name] = self._clock()
        try:
            await self._aws.call(
                "ec2",
                "create_launch_template",
                LaunchTemplateName=template.name,
                LaunchTemplateData=template.content,
                TagSpecifications=[
                    {"ResourceType": "launch-template", "Tags": tag_list(template.tags)}
                ],
                ClientToken=hashlib.sha256(f"{template.name}/{self._clock()}".encode()).hexdigest()[
                    :32
                ],
            )
        except AwsError as exc:
            # The name says the content: whoever made it made the same.
            if exc.code not in ALREADY_EXISTS:
                if not exc.is_server_fault:
                    self._in_doubt.pop(template.name, None)
                raise
        self._in_doubt.pop(template.name, None)
        self._used_at[template.name] = self._clock()

    async def _delete_all(self, names: Sequence[str]) -> None:
        """Delete each, whatever becomes of the others; raise the first failure."""
        outcomes = await asyncio.gather(*map(self._delete, names), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def _delete(self, name: str) -> None:
        # Forgotten first: a launch that comes meanwhile makes it anew, or EC2 says it is gone.
        self._used_at.pop(name, None)
        self._in_doubt.pop(name, None)
        try:
            await self._aws.call("ec2", "delete_launch_template", LaunchTemplateName=name)
        except CloudProviderError as exc:
            if isinstance(exc, AwsError) and exc.is_not_found:
                return
            # Still there, then: the next sweep tries again.
            self._used_at.setdefault(name, self._clock() - IDLE - 1)
            raise

    async def _tagged(self, filters: Mapping[str, str]) -> Sequence[dict[str, Any]]:
        return await self._aws.pages(
            "ec2",
            "describe_launch_templates",
            "LaunchTemplates",
            Filters=[{"Name": name, "Values": [value]} for name, value in filters.items()],
            PaginationConfig={"PageSize": 200},
        )
