"""The results of a solve."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from controller.apis.kubernetes.taints import Requirement
from controller.constraints.resources import Resources

MAX_REASONS = 3
"""The maximum number of reasons in a cause about a NodePool, so that events stay readable."""


NO_CAPACITY = "without capacity"
"""Of instance types: EC2 has no capacity now, or a quota of the account is reached."""

_ABOUT_POOL = re.compile(r"NodePool (\S+): ")
_LIMIT = re.compile(r"NodePool \S+: limit of \S+ reached\b.*")


def about_pool(node_pool: str, why: str) -> str:
    """Return the cause that says why a NodePool launches no node for a pod."""
    return f"NodePool {node_pool}: {why}"


def limit_reached(node_pool: str, resource: str, used: str, limit: str) -> str:
    """Return the cause that a NodePool has no node left within its limit of a resource."""
    return about_pool(node_pool, f"limit of {resource} reached ({used} of {limit} in use)")


def pool_of(cause: str) -> str:
    """Return the name of the NodePool in a cause; empty if it is about the pod or all NodePools."""
    named = _ABOUT_POOL.match(cause)
    return named[1] if named else ""


def is_limit(cause: str) -> bool:
    """Whether the cause says that a NodePool has reached a limit."""
    return _LIMIT.fullmatch(cause) is not None


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
