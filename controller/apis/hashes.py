"""Static drift: what a node was made from, in one short word.

A NodeClaim carries the hash of its NodePool and of its EC2NodeClass. When the present
hash differs, the node is drifted. What a hash covers may change between versions of
the controller; then `VERSION` changes too, and hashes of another version say nothing.

A hash is the same for the same meaning: order in a list does not count, nor does a
field that is empty or left out.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import msgspec

from controller.apis.ec2nodeclass import EC2NodeClass, EC2NodeClassSpec
from controller.apis.meta import to_wire
from controller.apis.nodepool import NodePool

NODE_POOL_VERSION = "v3"
"""What the hash of a NodePool covers; written beside each hash."""

NODE_CLASS_VERSION = "v6"
"""What the hash of an EC2NodeClass covers; written beside each hash."""

_FOUND_BY_SELECTION = {
    "subnet_selector_terms",
    "security_group_selector_terms",
    "ami_selector_terms",
    "capacity_reservation_selector_terms",
}
# Prefixes change what pods' addresses are taken from, not the instance.
_WITHOUT_EFFECT = {"ip_prefix_count"}
# Hashed in another form.
_RESTATED = {"ami_family", "kubelet"}


def node_pool_hash(pool: NodePool) -> str:
    """Hash what every node of the pool is made from: the template, but for its requirements.

    Requirements are compared with the node itself: a node that still meets them stays.
    """
    template = pool.spec.template
    return _hash(
        {
            "labels": template.metadata.labels,
            "annotations": template.metadata.annotations,
            "taints": template.spec.taints,
            "startupTaints": template.spec.startup_taints,
            "nodeClassRef": template.spec.node_class_ref,
            "terminationGracePeriod": template.spec.termination_grace_period,
            "expireAfter": template.spec.expire_after,
        }
    )


def node_class_hash(node_class: EC2NodeClass, *, ca_bundle: str) -> str:
    """Hash how instances of the class are made, but for what selector terms find.

    Args:
        node_class: the class; its family is taken as resolved, so that naming the family an
            alias already says changes nothing.
        ca_bundle: the cluster's CA, base64 of PEM, which stands in every node's user data.

    """
    spec = node_class.spec
    left_out = _FOUND_BY_SELECTION | _WITHOUT_EFFECT | _RESTATED
    made_from = {
        name: getattr(spec, name)
        for name in EC2NodeClassSpec.__struct_fields__
        if name not in left_out
    }
    return _hash(
        made_from
        | {
            "amiFamily": spec.resolved_ami_family,
            "kubelet": json.dumps(spec.kubelet, sort_keys=True) if spec.kubelet else "",
            "caBundle": ca_bundle,
        }
    )


def _hash(value: Any) -> str:
    text = json.dumps(_canonical(to_wire(value)), sort_keys=True, separators=(",", ":"))
    return str(int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]))


def _canonical(value: Any) -> Any:
    """Drop what is empty and put lists in one order."""
    match value:
        case dict():
            filled = {key: _canonical(item) for key, item in value.items()}
            return {key: item for key, item in filled.items() if not _is_empty(item)}
        case list():
            return sorted((_canonical(item) for item in value), key=_order)
        case _:
            return value


def _is_empty(value: Any) -> bool:
    return value is None or value is False or value in ("", 0) or value in ([], {})


def _order(value: Any) -> str:
    return msgspec.json.encode(value, order="sorted").decode()
