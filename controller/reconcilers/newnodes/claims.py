"""Converts a node that the engine plans into a NodeClaim."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from controller.apis import labels
from controller.apis.karpenter import hashes
from controller.apis.karpenter.nodepool import NodePool
from controller.apis.kubernetes import quantities
from controller.apis.kubernetes.meta import to_wire
from controller.apis.kubernetes.taints import Requirement
from controller.cloudprovider.instancetypes import InstanceType
from controller.reconcilers.writing import owner_reference
from controller.scheduling.results import NewNode
from controller.state import overlays


def node_claim(
    name: str, pool: NodePool, node: NewNode, types: Iterable[InstanceType]
) -> dict[str, Any]:
    """Return the NodeClaim's JSON: the pool's template, restricted by the pods' requirements.

    Its annotations say whether NodeOverlays changed prices or capacity of its instance types;
    `types` are the pool's instance types. A node without instance types accepts all instance types
    of the pool.
    """
    named = frozenset(node.instance_types)
    overlaid = overlays.marks(
        instance_type for instance_type in types if instance_type.name in named
    )
    template = pool.spec.template
    class_ref = template.spec.node_class_ref
    own_labels = {
        **(template.metadata.labels or {}),
        **node.labels,
        labels.NODEPOOL: pool.metadata.name,
        f"{class_ref.group}/{class_ref.kind.lower()}": class_ref.name,
    }
    spec: dict[str, Any] = {
        "nodeClassRef": to_wire(class_ref),
        "requirements": [to_wire(r) for r in _requirements(pool, node, own_labels)],
        "expireAfter": template.spec.expire_after,
    }
    if node.requests:
        requests = {k: quantities.format_quantity(v, k) for k, v in sorted(node.requests.items())}
        spec["resources"] = {"requests": requests}
    if template.spec.taints:
        spec["taints"] = to_wire(template.spec.taints)
    if template.spec.startup_taints:
        spec["startupTaints"] = to_wire(template.spec.startup_taints)
    if template.spec.termination_grace_period:
        spec["terminationGracePeriod"] = template.spec.termination_grace_period
    return {
        "metadata": {
            "name": name,
            "labels": own_labels,
            "annotations": {**_annotations(pool), **node.annotations, **overlaid},
            "finalizers": [labels.TERMINATION_FINALIZER],
            "ownerReferences": [owner_reference(pool)],
        },
        "spec": spec,
    }


def _requirements(pool: NodePool, node: NewNode, own_labels: dict[str, str]) -> list[Requirement]:
    floors = {labels.normalize(r.key): r.min_values for r in pool.spec.template.spec.requirements}
    floor = floors.get(labels.INSTANCE_TYPE)
    types = Requirement(
        key=labels.INSTANCE_TYPE,
        operator="In",
        values=list(node.instance_types),
        # Under the policy BestEffort, a node may have fewer types. The API server refuses a
        # minValues that exceeds the number of values.
        min_values=floor if floor is None else min(floor, len(node.instance_types)),
    )
    replaced = {labels.HOSTNAME, *({labels.INSTANCE_TYPE} if node.instance_types else ())}
    others = [r for r in node.requirements if r.key not in replaced]
    named = {r.key for r in others}
    from_labels = [
        Requirement(key=key, operator="In", values=[value])
        for key, value in sorted(own_labels.items())
        if key not in named
    ]
    return [*others, *from_labels, *([types] if node.instance_types else [])]


def _annotations(pool: NodePool) -> dict[str, str]:
    # The pool's own annotations may be of its previous template.
    made_from = {
        labels.NODEPOOL_HASH: hashes.node_pool_hash(pool),
        labels.NODEPOOL_HASH_VERSION: hashes.NODE_POOL_VERSION,
    }
    return {**(pool.spec.template.metadata.annotations or {}), **made_from}
