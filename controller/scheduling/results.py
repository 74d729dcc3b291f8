"""What a solve answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from controller.apis.taints import Requirement
from controller.constraints.resources import Resources

MOST_REASONS = 3
"""How many reasons a pool gives; an event has to stay readable."""


@dataclass(frozen=True, slots=True)
class NewNode:
    """A node that should be made, and the pods it is made for.

    `instance_types` are cheapest first, at most 600; `requirements` are the claim's
    without the instance-type term; `price` is that of the cheapest offering that
    meets them, in $/h; `requests` are the pods' plus the daemons', in thousandths.
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
    """The answer: where every pod goes, and why the rest go nowhere.

    Pods are named `namespace/name`. `existing_nodes` maps a node (or a claim in
    flight) to its pods, `unschedulable` a pod to its causes, most telling first.
    `cost` and `lower_bound` are $/h of the new nodes and of any set of new nodes.
    """

    new_nodes: tuple[NewNode, ...] = ()
    existing_nodes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unschedulable: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    cost: float = 0.0
    lower_bound: float = 0.0
