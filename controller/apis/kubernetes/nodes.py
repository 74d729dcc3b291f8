"""Nodes, reduced to the fields that scheduling, registration and disruption read."""

from __future__ import annotations

import msgspec

from controller.apis.kubernetes.conditions import Condition
from controller.apis.kubernetes.meta import KubernetesObject, Wire
from controller.apis.kubernetes.pods import Quantities
from controller.apis.kubernetes.taints import Taint


class NodeSpec(Wire):
    """The provider ID of the node's instance, its taints, and whether it is cordoned."""

    provider_id: str = msgspec.field(default="", name="providerID")
    taints: list[Taint] = []
    unschedulable: bool = False


class NodeInfo(Wire):
    """The kubelet's information about its host."""

    boot_id: str = msgspec.field(default="", name="bootID")


class NodeStatus(Wire):
    """The state that the kubelet reports."""

    capacity: Quantities = {}
    allocatable: Quantities = {}
    conditions: list[Condition] = []
    node_info: NodeInfo = NodeInfo()


class Node(KubernetesObject):
    """A Node object."""

    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()
