"""Nodes, cut to what placement, registration and disruption read."""

from __future__ import annotations

import msgspec

from controller.apis.conditions import Condition
from controller.apis.meta import ObjectMeta, Wire
from controller.apis.pods import Quantities
from controller.apis.taints import Taint


class NodeSpec(Wire):
    """The cloud's name for the machine, and what keeps pods off it."""

    provider_id: str = msgspec.field(default="", name="providerID")
    taints: list[Taint] = []
    unschedulable: bool = False


class NodeStatus(Wire):
    """What the kubelet reports."""

    capacity: Quantities = {}
    allocatable: Quantities = {}
    conditions: list[Condition] = []


class Node(Wire):
    """A node."""

    metadata: ObjectMeta
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()
