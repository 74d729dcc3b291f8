"""The results of a solve."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from controller.apis.kubernetes.taints import Requirement
from controller.constraints.resources import Resources

MOST_REASONS = 3
"""How many reasons a cause lists per NodePool, so that events stay readable."""


NO_CAPACITY = "without capacity"
"""Of instance types: EC2 has no capacity now, or a quota of the account is reached."""

_ABOUT_POOL = re.compile(r"NodePool (\S+): ")
_LIMIT = re.compile(r"NodePool \S+: limit of \S+ reached")


def about_pool(node_pool: str, why: str) -> str:
    """Return the cause why this NodePool launches no node for a pod."""
    return f"NodePool {node_pool}: {why}"


def limit_reached(node_pool: str, resource: str) -> str:
    """Return the cause of a NodePool that accepts the pod but has reached a limit."""
    return about_pool(node_pool, f"limit of {resource} reached")


def pool_of(cause: str) -> str:
    """Return the NodePool that a cause is about; empty if it is about the pod or all pools."""
    named = _ABOUT_POOL.match(cause)
    return named[1] if named else ""


def is_limit(cause: str) -> bool:
    """Whether the cause is a limit that a NodePool has reached."""
    return _LIMIT.fullmatch(cause) is not None


@dataclass(frozen=True, slots=True)
class NewNode:
    """A node to launch, and the pods that it is for.

    `instance_types` are cheapest first, at most 600. `requirements` are those of the NodeClaim
    without the instance type. `price` is that of the cheapest offering that meets them, in $/h.
    `requests` are those of the pods and the DaemonSet pods, in thousandths.
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
    """Where every pod is scheduled, and why the others are unschedulable.

    Pods are named `namespace/name`. `existing_nodes` maps a node (or a NodeClaim without a node)
    to its pods, `unschedulable` a pod to its causes, the most important first. `cost` is the
    price of the new nodes, `lower_bound` the least price of any set of new nodes, both in $/h.
    `refused_gangs` are the gangs (`namespace/name`) that cannot be scheduled as a whole although
    enough of their pods exist.
    """

    new_nodes: tuple[NewNode, ...] = ()
    existing_nodes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unschedulable: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    cost: float = 0.0
    lower_bound: float = 0.0
    refused_gangs: frozenset[str] = frozenset()
