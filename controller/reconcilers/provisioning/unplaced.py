"""Why pods have no node: the causes in the order in which users need them.

FailedScheduling events, `explain pod`, `solve`, `top` and the page show the same causes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from controller.apis import labels
from controller.apis.karpenter.ec2nodeclass import (
    ADDRESSES_LEFT,
    LAUNCH_SUCCEEDED,
    OFFERINGS_ACCEPTED,
    WITHIN_QUOTAS,
    ZONES_IN_USE,
    EC2NodeClass,
)
from controller.apis.karpenter.nodepool import NODE_REGISTRATION_HEALTHY, NodePool
from controller.apis.kubernetes import conditions
from controller.apis.kubernetes.pods import PodSpec
from controller.constraints.requirements import (
    Requirements,
    conjunction,
    is_possible,
    meets,
    of_labels,
    read,
)
from controller.constraints.taints import PREFER_NO_SCHEDULE, untolerated_taint
from controller.scheduling.pods.nodeaffinity import required_alternatives
from controller.scheduling.results import CauseKind, PoolCause

NOT_CAUSES = ("Ready", NODE_REGISTRATION_HEALTHY)
"""Conditions of a NodePool that are not causes: the summary, and one that it does not include."""

REFUSALS = (LAUNCH_SUCCEEDED, WITHIN_QUOTAS, OFFERINGS_ACCEPTED, ADDRESSES_LEFT, ZONES_IN_USE)
"""Conditions of an EC2NodeClass about launches that AWS refuses or would refuse."""

NO_POOLS = "no NodePool is ready: create one, or read the conditions of the existing NodePools"


@dataclass(slots=True)
class Unplaced:
    """Causes for the pods of one round; equal pods share one message."""

    pools: Sequence[NodePool]
    """All NodePools of the cluster."""

    node_classes: Sequence[EC2NodeClass]
    """All EC2NodeClasses of the cluster."""

    _unready: list[tuple[NodePool, str]] = field(init=False)
    _refused: dict[str, str] = field(init=False)
    """The refused launches that a NodePool's EC2NodeClass reports, by NodePool."""

    _messages: dict[tuple[tuple[str, ...], bytes], str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        classes = {c.metadata.name: c for c in self.node_classes}
        lacks = ((pool, _not_ready(pool)) for pool in self.pools)
        self._unready = [(pool, lack) for pool, lack in lacks if lack]
        named = ((p, classes.get(p.spec.template.spec.node_class_ref.name)) for p in self.pools)
        self._refused = {
            pool.metadata.name: refused
            for pool, node_class in named
            if (refused := _refused_launches(pool, node_class))
        }

    def message(self, spec: PodSpec, causes: tuple[str, ...]) -> str:
        """Return the causes of `in_order` as one sentence."""
        depends = self._unready or self._refused
        terms = (spec.node_selector, spec.affinity, spec.tolerations) if depends else ()
        alike = causes, msgspec.json.encode(terms)
        if alike not in self._messages:
            self._messages[alike] = "; ".join(self.in_order(spec, causes))
        return self._messages[alike]

    def in_order(
        self, spec: PodSpec, causes: Sequence[str], met: Sequence[str] = ()
    ) -> tuple[str, ...]:
        """Return the distinct causes, the most important first.

        If the pod requires a label that a NodePool which is not ready has, and other NodePools
        have not, this comes first, and their causes are left out. Then follow `met`, what
        the controller met in its last attempt; NodePools that accept the pod but reached a limit,
        or whose nodes it cannot share with other pods; NodePools that could hold it but are not
        ready; those that cannot hold it now (`causes`, nearest first); and the other NodePools that
        are not ready.
        """
        holding = {pool.metadata.name for pool in self.pools if _could_hold(pool, spec)}
        asked = [lack for pool, lack in self._unready if pool.metadata.name in holding]
        near, far = self._by_distance(spec, causes)
        named = [lack for pool, lack in self._unready if _is_named(pool, spec)]
        if named and any(p.metadata.name not in holding for p in self.pools):
            others = [
                cause
                for cause in far
                if not isinstance(cause, PoolCause) or cause.node_pool in holding
            ]
            return tuple(dict.fromkeys((*named, *met, *near, *others)))
        last = [lack for _, lack in self._unready]
        found = dict.fromkeys((*met, *near, *asked, *far, *last))
        return tuple(found) or (NO_POOLS,)

    def is_infeasible(self, spec: PodSpec, causes: tuple[str, ...]) -> bool:
        """Whether the pod stays unschedulable until a user changes the pod or a NodePool.

        False if a limit, missing capacity, another pod's constraint or a NodePool that is not ready
        is a cause, because these may change by themselves.
        """
        if any(_could_hold(pool, spec) for pool, _ in self._unready):
            return False
        about = [cause for cause in causes if isinstance(cause, PoolCause)]
        lasting = {cause.node_pool for cause in about if cause.kind is CauseKind.EXCLUDED}
        unready = {pool.metadata.name for pool, _ in self._unready}
        offered = {p.metadata.name for p in self.pools if _launches_for_pods(p)} - unready
        return bool(offered) and offered <= lasting

    def _by_distance(self, spec: PodSpec, causes: Sequence[str]) -> tuple[list[str], list[str]]:
        """Return the causes of NodePools that accept the pod, and of those that cannot hold it."""
        about = [cause for cause in causes if isinstance(cause, PoolCause)]
        impossible = [cause for cause in about if cause.kind is not CauseKind.LIMIT]
        near = [cause for cause in causes if cause not in impossible]
        near += self._refusals(self._unnamed_pools(spec, causes))
        far: list[str] = []
        for cause in impossible:
            far.append(cause)
            if cause.kind is CauseKind.CAPACITY:
                far += self._refusals([cause.node_pool])
        return near, far

    def _unnamed_pools(self, spec: PodSpec, causes: Sequence[str]) -> list[str]:
        """Return the ready NodePools that could hold the pod and that no cause names.

        The pod cannot use them because of a topology domain or a volume. If its zone gets no nodes,
        a condition of the EC2NodeClass has the reason.
        """
        named = {cause.node_pool for cause in causes if isinstance(cause, PoolCause)}
        named |= {pool.metadata.name for pool, _ in self._unready}
        return [
            pool.metadata.name
            for pool in self.pools
            if pool.metadata.name in self._refused
            and pool.metadata.name not in named
            and _could_hold(pool, spec)
        ]

    def _refusals(self, names: Iterable[str]) -> list[str]:
        return [self._refused[name] for name in names if name in self._refused]


def _could_hold(pool: NodePool, spec: PodSpec) -> bool:
    try:
        return could_hold(pool, spec)
    except ValueError:  # a malformed requirement is among the causes
        return False


def could_hold(pool: NodePool, spec: PodSpec) -> bool:
    """Whether labels and taints allow a pod with this spec on nodes of the pool, of any size.

    Raises:
        ValueError: a requirement is malformed.

    """
    taints = pool.spec.template.spec.taints or ()
    hard = [taint for taint in taints if taint.effect != PREFER_NO_SCHEDULE]
    if untolerated_taint(hard, spec.tolerations) is not None:
        return False
    offered = _offered_requirements(pool)
    return is_possible(offered) and any(
        all(meets(offered.get(key), needed, key=key) for key, needed in alternative.items())
        for alternative in required_alternatives(spec)
    )


def _offered_requirements(pool: NodePool) -> Requirements:
    """Return the requirements and labels of a NodePool's nodes.

    Raises:
        ValueError: a requirement is malformed.

    """
    template = pool.spec.template
    return conjunction(
        read(template.spec.requirements),
        of_labels({**(template.metadata.labels or {}), labels.NODEPOOL: pool.metadata.name}),
    )


def _is_named(pool: NodePool, spec: PodSpec) -> bool:
    """Whether the pod fits on the pool's nodes, and requires a label that the pool states."""
    if not _could_hold(pool, spec):
        return False
    stated = _offered_requirements(pool)
    return any(key in stated for alternative in required_alternatives(spec) for key in alternative)


def _launches_for_pods(pool: NodePool) -> bool:
    return pool.spec.replicas is None and not pool.metadata.is_deleting


def _not_ready(pool: NodePool) -> str:
    """Return a sentence why a pool may not create nodes for pods; empty if it may, or is static."""
    if not _launches_for_pods(pool):
        return ""
    if why := not_ready(pool):
        return f"NodePool {pool.metadata.name} is not ready: {why}"
    joining = conditions.find(pool.status.conditions, NODE_REGISTRATION_HEALTHY)
    if joining is not None and joining.is_false:
        return f"new nodes of NodePool {pool.metadata.name} do not join: {joining.message}"
    return ""


def not_ready(pool: NodePool) -> str:
    """Return why a NodePool is not ready, from its conditions; empty if it is."""
    missing = [c for c in pool.status.conditions if c.is_false and c.type not in NOT_CAUSES]
    return "; ".join(c.message or c.reason for c in missing)


def _refused_launches(pool: NodePool, node_class: EC2NodeClass | None) -> str:
    """Return the refused launches of the pool's capacity types, from its EC2NodeClass's status."""
    if node_class is None or not _launches_for_pods(pool):
        return ""
    excluded = _excluded_capacity_types(pool)
    refusals = dict.fromkeys(
        part
        for condition in node_class.status.conditions
        if condition.type in REFUSALS and condition.is_false
        for part in condition.message.split("; ")
        if not any(re.search(rf"\b{kind}\b", part) for kind in excluded)
    )
    return f"EC2NodeClass {node_class.metadata.name}: {'; '.join(refusals)}" if refusals else ""


def _excluded_capacity_types(pool: NodePool) -> list[str]:
    try:
        allowed = read(pool.spec.template.spec.requirements).get(labels.CAPACITY_TYPE)
    except ValueError:  # the NodePool's conditions report a malformed requirement
        return []
    kinds = (labels.ON_DEMAND, labels.SPOT, labels.RESERVED)
    return [kind for kind in kinds if allowed is not None and not allowed.has(kind)]
