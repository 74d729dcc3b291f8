"""What a pod is told that found no place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from controller.apis import conditions, labels
from controller.apis.ec2nodeclass import (
    ADDRESSES_LEFT,
    LAUNCH_SUCCEEDED,
    WITHIN_QUOTAS,
    ZONES_IN_USE,
    EC2NodeClass,
)
from controller.apis.nodepool import NODE_REGISTRATION_HEALTHY, NodePool
from controller.apis.pods import PodSpec
from controller.constraints.requirements import conjunction, meets, of_labels, read
from controller.constraints.taints import PREFER_NO_SCHEDULE, untolerated
from controller.scheduling.pods.nodeaffinity import required_alternatives

STANDING_APART = ("Ready", NODE_REGISTRATION_HEALTHY)
"""The sum of the others, and the one that is no part of it."""

REFUSALS = (LAUNCH_SUCCEEDED, WITHIN_QUOTAS, ADDRESSES_LEFT, ZONES_IN_USE)
"""What a class says of launches that the cloud refuses, or would."""

NO_POOLS = "no ready NodePool: create one, or see why in the conditions of those there are"


@dataclass(slots=True)
class Unplaced:
    """Words for the pods of one round, made once for all that are alike."""

    pools: Sequence[NodePool]
    """All there are."""

    node_classes: Sequence[EC2NodeClass]
    """All that they may name."""

    _lacking: list[tuple[NodePool, str]] = field(init=False)
    _said: dict[tuple[tuple[str, ...], bytes], str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        classes = {c.metadata.name: c for c in self.node_classes}
        lacks = (
            (
                pool,
                _what_it_lacks(pool)
                or _what_is_refused(pool, classes.get(pool.spec.template.spec.node_class_ref.name)),
            )
            for pool in self.pools
        )
        self._lacking = [(pool, lack) for pool, lack in lacks if lack]

    def message(self, spec: PodSpec, causes: tuple[str, ...]) -> str:
        """Say what stands in the way, and first what does so most likely.

        A pool that could hold the pod, were it ready, comes before those that refuse it
        (`causes`); one that could not, after them.
        """
        asked = (spec.node_selector, spec.affinity, spec.tolerations) if self._lacking else ()
        alike = causes, msgspec.json.encode(asked)
        if alike not in self._said:
            self._said[alike] = self._message(spec, causes)
        return self._said[alike]

    def _message(self, spec: PodSpec, causes: tuple[str, ...]) -> str:
        first: list[str] = []
        last: list[str] = []
        for pool, lack in self._lacking:
            try:
                is_meant = could_hold(pool, spec)
            except ValueError:  # what is malformed is among the causes
                is_meant = False
            (first if is_meant else last).append(lack)
        return "; ".join((*first, *causes, *last)) or NO_POOLS


def could_hold(pool: NodePool, spec: PodSpec) -> bool:
    """Whether labels and taints would let such a pod on nodes of the pool, whatever their size.

    Raises:
        ValueError: a requirement is malformed.

    """
    template = pool.spec.template
    hard = [taint for taint in template.spec.taints or () if taint.effect != PREFER_NO_SCHEDULE]
    if untolerated(hard, spec.tolerations) is not None:
        return False
    offered = conjunction(
        read(template.spec.requirements),
        of_labels({**(template.metadata.labels or {}), labels.NODEPOOL: pool.metadata.name}),
    )
    return any(
        all(meets(offered.get(key), needed, key=key) for key, needed in alternative.items())
        for alternative in required_alternatives(spec)
    )


def _what_it_lacks(pool: NodePool) -> str:
    """Return a sentence on a pool that may make no nodes now; nothing about the others."""
    if pool.spec.replicas is not None or pool.metadata.is_deleting:
        return ""
    missing = [c for c in pool.status.conditions if c.is_false and c.type not in STANDING_APART]
    why = "; ".join(c.message or c.reason for c in missing)
    if missing:
        return f"NodePool {pool.metadata.name} is not ready: {why}"
    joining = conditions.find(pool.status.conditions, NODE_REGISTRATION_HEALTHY)
    if joining is not None and joining.is_false:
        return f"new nodes of NodePool {pool.metadata.name} do not join: {joining.message}"
    return ""


def _what_is_refused(pool: NodePool, node_class: EC2NodeClass | None) -> str:
    """Return a sentence on a pool for which the cloud refuses to launch; nothing for others."""
    if node_class is None or pool.spec.replicas is not None or pool.metadata.is_deleting:
        return ""
    refusals = "; ".join(
        condition.message
        for condition in node_class.status.conditions
        if condition.type in REFUSALS and condition.is_false
    )
    if not refusals:
        return ""
    return f"NodePool {pool.metadata.name}: EC2NodeClass {node_class.metadata.name}: {refusals}"
