"""Static drift: a hash of the configuration that a node was created from.

A NodeClaim carries the hash of its NodePool and of its EC2NodeClass. If the current hash differs,
the node has drifted. The content of a hash may change between versions of the controller. Then its
version changes too, and hashes of different versions are not compared.

The hashes are the same as in Karpenter, so that a cluster that migrates between Karpenter and
Joiner keeps its nodes. Karpenter hashes its Go types by reflection (hashstructure, format 2, 64-bit
FNV-1, slices as sets, zero values omitted). So the fields below have the names and the order of the
fields of the Go types. An empty map or list is not a zero value: its hash differs from the hash of
an omitted one.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import reduce
from operator import xor
from typing import Any, TypeVar

from controller.apis.karpenter import durations, ec2nodeclass
from controller.apis.karpenter.nodepool import (
    NodeClaimTemplateMeta,
    NodeClaimTemplateSpec,
    NodeClassReference,
    NodePool,
)
from controller.apis.kubernetes import quantities
from controller.apis.kubernetes.taints import Taint

NODE_POOL_VERSION = "v3"
"""Version of the content of a NodePool's hash; written with each hash."""

NODE_CLASS_VERSION = "v6"
"""Version of the content of an EC2NodeClass's hash; written with each hash."""

_T = TypeVar("_T")

_INT32, _INT64 = "<i", "<q"
_BASIS, _PRIME, _MASK = 0xCBF29CE484222325, 0x100000001B3, 2**64 - 1
_YEAR_ONE = datetime(1, 1, 1, tzinfo=UTC)
_FOR_HTML = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&\u2028\u2029"}


def node_pool_hash(pool: NodePool) -> str:
    """Return the hash of a NodePool's template without its requirements.

    Requirements are compared with the node itself: a node that still meets them has not drifted.
    """
    template = pool.spec.template
    return str(
        _object(
            "NodeClaimTemplate",
            ObjectMeta=_template_metadata(template.metadata),
            Spec=_template_spec(template.spec),
        )
    )


def node_class_hash(node_class: ec2nodeclass.EC2NodeClass, *, ca_bundle: str) -> str:
    """Return the hash of an EC2NodeClass without its selector terms.

    Args:
        node_class: the EC2NodeClass; its AMI family is the resolved one, so that specifying the
            family of the alias does not change the hash.
        ca_bundle: the cluster's CA, PEM in base64, which is part of every node's user data.

    """
    spec = node_class.spec
    words = (spec.resolved_ami_family, ca_bundle, _kubelet_text(spec.kubelet))
    return str(_set([_class_spec(spec), *map(_text, words)]))


# One function for each of Karpenter's types. The hash of an omitted field is None.


def _template_metadata(metadata: NodeClaimTemplateMeta) -> int | None:
    if metadata.labels is None and metadata.annotations is None:
        return None
    return _object(
        "ObjectMeta",
        Labels=_mapping(metadata.labels),
        Annotations=_mapping(metadata.annotations),
    )


def _template_spec(spec: NodeClaimTemplateSpec) -> int:
    return _object(
        "NodeClaimTemplateSpec",
        Taints=_each(_taint, spec.taints),
        StartupTaints=_each(_taint, spec.startup_taints),
        NodeClassRef=_reference(spec.node_class_ref),
        TerminationGracePeriod=_optional(_grace_period, spec.termination_grace_period),
        ExpireAfter=_expiry(spec.expire_after),
    )


def _taint(taint: Taint) -> int:
    return _object(
        "Taint",
        Key=_nonempty_text(taint.key),
        Value=_nonempty_text(taint.value),
        Effect=_nonempty_text(taint.effect),
        TimeAdded=_optional(_time, taint.time_added),
    )


def _reference(reference: NodeClassReference) -> int:
    return _object(
        "NodeClassReference",
        Kind=_nonempty_text(reference.kind),
        Name=_nonempty_text(reference.name),
        Group=_nonempty_text(reference.group),
    )


def _class_spec(spec: ec2nodeclass.EC2NodeClassSpec) -> int:
    return _object(
        "EC2NodeClassSpec",
        PlacementGroupSelector=_optional(_placement_group, spec.placement_group_selector),
        AssociatePublicIPAddress=_optional(_switch, spec.associate_public_ip_address),
        UserData=_optional(_text, spec.user_data),
        Role=_nonempty_text(spec.role),
        InstanceProfile=_optional(_text, spec.instance_profile),
        Tags=_mapping(spec.tags),
        BlockDeviceMappings=_each(_block_device_mapping, spec.block_device_mappings),
        InstanceStorePolicy=_optional(_text, spec.instance_store_policy),
        NetworkInterfaces=_each(_network_interface, spec.network_interfaces),
        DetailedMonitoring=_optional(_switch, spec.detailed_monitoring),
        MetadataOptions=_metadata_options(spec.metadata_options),
        ConnectionTracking=_optional(_connection_tracking, spec.connection_tracking),
        Context=_optional(_text, spec.context),
        CPUOptions=_optional(_cpu_options, spec.cpu_options),
        EnclaveOptions=_optional(_enclave_options, spec.enclave_options),
    )


def _placement_group(selector: ec2nodeclass.PlacementGroupSelector) -> int:
    return _object(
        "PlacementGroupSelector", Name=_nonempty_text(selector.name), ID=_nonempty_text(selector.id)
    )


def _block_device_mapping(mapping: ec2nodeclass.BlockDeviceMapping) -> int:
    return _object(
        "BlockDeviceMapping",
        DeviceName=_optional(_text, mapping.device_name),
        EBS=_optional(_block_device, mapping.ebs),
        RootVolume=_switch(True) if mapping.root_volume else None,
    )


def _block_device(device: ec2nodeclass.BlockDevice) -> int:
    size = None if device.volume_size is None else quantities.canonical(device.volume_size)
    return _object(
        "BlockDevice",
        DeleteOnTermination=_optional(_switch, device.delete_on_termination),
        Encrypted=_optional(_switch, device.encrypted),
        IOPS=_number(_INT64, device.iops),
        KMSKeyID=_optional(_text, device.kms_key_id),
        SnapshotID=_optional(_text, device.snapshot_id),
        Throughput=_number(_INT64, device.throughput),
        VolumeInitializationRate=_number(_INT32, device.volume_initialization_rate),
        VolumeSize=_optional(_text, size),
        VolumeType=_optional(_text, device.volume_type),
    )


def _network_interface(interface: ec2nodeclass.NetworkInterface) -> int:
    return _object(
        "NetworkInterface",
        NetworkCardIndex=_number(_INT32, interface.network_card_index or None),
        DeviceIndex=_number(_INT32, interface.device_index or None),
        InterfaceType=_nonempty_text(interface.interface_type),
    )


def _metadata_options(options: ec2nodeclass.MetadataOptions) -> int:
    return _object(
        "MetadataOptions",
        HTTPEndpoint=_text(options.http_endpoint),
        HTTPProtocolIPv6=_text(options.http_protocol_ipv6),
        HTTPPutResponseHopLimit=_number(_INT64, options.http_put_response_hop_limit),
        HTTPTokens=_text(options.http_tokens),
    )


def _connection_tracking(tracking: ec2nodeclass.ConnectionTracking) -> int:
    return _object(
        "ConnectionTracking",
        TCPEstablishedTimeout=_number(_INT32, tracking.tcp_established_timeout),
        UDPStreamTimeout=_number(_INT32, tracking.udp_stream_timeout),
        UDPTimeout=_number(_INT32, tracking.udp_timeout),
    )


def _cpu_options(options: ec2nodeclass.CpuOptions) -> int:
    return _object(
        "CPUOptions", NestedVirtualization=_optional(_text, options.nested_virtualization)
    )


def _enclave_options(options: ec2nodeclass.EnclaveOptions) -> int:
    return _object("EnclaveOptions", Enabled=_switch(True) if options.enabled else None)


def _grace_period(text: str) -> int:
    return _object("Duration", Duration=_number(_INT64, _nanoseconds(text) or None))


def _expiry(text: str) -> int | None:
    nanoseconds = _nanoseconds(text)
    if nanoseconds is None:
        return None
    return _object("NillableDuration", Duration=_number(_INT64, nanoseconds))


def _nanoseconds(text: str) -> int | None:
    duration = durations.parse(text)
    return None if duration is None else duration // timedelta(microseconds=1) * 1000


def _time(moment: datetime) -> int:
    since = moment - _YEAR_ONE
    seconds = since // timedelta(seconds=1)
    written = struct.pack(">Bqih", 1, seconds, since.microseconds * 1000, 0)
    return _object("Time", Time=_fnv(written))


def _kubelet_text(kubelet: Mapping[str, Any]) -> str:
    """Return the kubelet configuration as Karpenter reads it: the JSON of the API server."""
    if not kubelet:
        return "null"
    return _json(kubelet).translate(_FOR_HTML)


def _json(value: Any) -> str:
    match value:
        case dict():
            members = (f"{_json(key)}:{_json(value[key])}" for key in sorted(value))
            return "{" + ",".join(members) + "}"
        case list():
            return "[" + ",".join(map(_json, value)) + "]"
        case float() if value and not 1e-6 <= abs(value) < 1e21:
            return repr(value).replace("e-0", "e-")
        case float():
            whole, _, fraction = f"{Decimal(repr(value)):f}".partition(".")
            return f"{whole}.{fraction}" if fraction.strip("0") else whole
        case _:
            return json.dumps(value, ensure_ascii=False)


# The rules of hashstructure.


def _object(kind: str, **fields: int | None) -> int:
    """Return the hash of a struct: its type name and the hash of each field that is not omitted.

    Each field is mixed in before the next, so their order matters.
    """
    total = _text(kind)
    for name, value in fields.items():
        if value is not None:
            total = _words(total ^ _words(_text(name), value))
    return total


def _mapping(mapping: Mapping[str, str] | None) -> int | None:
    if mapping is None:
        return None
    return _words(_set(_words(_text(key), _text(value)) for key, value in mapping.items()))


def _each(hashed: Callable[[_T], int], items: Iterable[_T] | None) -> int | None:
    return None if items is None else _set(map(hashed, items))


def _set(hashes: Iterable[int]) -> int:
    return reduce(xor, hashes, 0)


def _optional(hashed: Callable[[_T], int], value: _T | None) -> int | None:
    return None if value is None else hashed(value)


def _nonempty_text(text: str | None) -> int | None:
    """Return the hash of a text; an empty text counts as omitted."""
    return _text(text) if text else None


def _number(form: str, value: int | None) -> int | None:
    return None if value is None else _fnv(struct.pack(form, value))


def _switch(value: bool) -> int:
    return _fnv(bytes([value]))


def _text(text: str) -> int:
    return _fnv(text.encode())


def _words(*words: int) -> int:
    return _fnv(struct.pack(f"<{len(words)}Q", *words))


def _fnv(content: bytes) -> int:
    """Return the 64-bit FNV-1 hash of bytes."""
    total = _BASIS
    for byte in content:
        total = total * _PRIME & _MASK ^ byte
    return total


def differ(then: Mapping[str, str], now: Mapping[str, str], hash_: str, version: str) -> bool:
    """Whether a NodeClaim (`then`) and its NodePool or EC2NodeClass (`now`) have different hashes.

    The arguments are annotations; `hash_` and `version` are the keys of the hash and its version.
    Missing hashes and hashes of different versions do not count as different.
    """
    if not (then.get(hash_) and now.get(hash_) and then.get(version)):
        return False
    return then[version] == now.get(version) and then[hash_] != now[hash_]
