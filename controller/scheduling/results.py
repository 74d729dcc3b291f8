"""The results of a solve."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from controller.apis.kubernetes.taints import Requirement
from controller.constraints.resources import Resources

MAX_REASONS = 3
"""The maximum number of reasons in a cause about a NodePool, so that events stay readable."""


class CauseKind(Enum):
    """Why a NodePool launches no node for a pod."""

    EXCLUDED = "excluded"
    """It cannot hold the pod, until a user changes one of them."""

    CAPACITY = "capacity"
    """EC2 has no capacity for its instance types now, or a quota of the account is reached."""

    LIMIT = "limit"
    """It has reached a limit."""


class PoolCause(str):
    """The sentence why a NodePool launches no node for a pod, with the NodePool and the kind.

    Other causes are about the pod, or about all NodePools. They are plain sentences.
    """

    __slots__ = ("kind", "node_pool")
    node_pool: str
    kind: CauseKind

    @classmethod
    def of(cls, node_pool: str, why: str, kind: CauseKind = CauseKind.EXCLUDED) -> PoolCause:
        """Return the cause that says why a NodePool launches no node for a pod."""
        cause = cls(f"NodePool {node_pool}: {why}")
        cause.node_pool, cause.kind = node_pool, kind
        return cause


@dataclass(frozen=True, slots=True)
class NewNode:
    """A node to launch, and the keys of the pods that are scheduled onto it.

    `instance_types` are the names of the allowed types, the cheapest first, at most 600; empty if
    the node is one of a static NodePool, which may have any type that `requirements` allow.
    `requirements` are the other requirements of the NodeClaim. `price` is the price of the cheapest
    offering that meets them, in $/h. `requests` is the sum over the pods and the DaemonSet pods, by
    resource name, in thousandths of the resource's unit: millicores, and thousandths of a byte.
    """

    node_pool: str
    instance_types: tuple[str, ...]
    requirements: tuple[Requirement, ...]
    price: float
    pods: tuple[str, ...]
    requests: Resources
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Results:
    """The node of every pod that is scheduled, and the causes why the others are unschedulable.

    Pods are named `namespace/name`. `existing_nodes` maps the name of a node, or of a NodeClaim
    without a node, to its pods. `unschedulable` maps a pod to its causes, the most important first.
    `cost` is the price of the new nodes. No set of new nodes costs less than `lower_bound` if the
    pods stay in the same domains and the same preferences are granted. Both are in $/h.
    `refused_gangs` are the gangs (`namespace/name`) that cannot be scheduled as a whole although
    enough of their pods exist.
    """

    new_nodes: tuple[NewNode, ...] = ()
    existing_nodes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unschedulable: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    cost: float = 0.0
    lower_bound: float = 0.0
    refused_gangs: frozenset[str] = frozenset()
