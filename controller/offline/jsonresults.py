"""The results of a solve as JSON-ready values, in the format of `docs/reference/formats.md`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from controller.apis.kubernetes.meta import to_wire
from controller.scheduling.buffers import Fill
from controller.scheduling.results import NewNode, Results


def results_content(
    results: Results, *, seconds: float = 0.0, fills: Mapping[str, Fill] | None = None
) -> dict[str, Any]:
    """Return the results as JSON-ready values; `seconds` is the duration of the solve.

    `fills` says, by `namespace/name` of a CapacityBuffer, how many of its pods are on existing
    nodes, on new nodes and without a node. If it is empty or None, the result does not mention
    CapacityBuffers.
    """
    buffers = {name: asdict(fill) for name, fill in (fills or {}).items()}
    return {
        "newNodes": [node_content(node) for node in results.new_nodes],
        "existingNodes": {name: list(pods) for name, pods in results.existing_nodes.items()},
        "unschedulable": {pod: list(causes) for pod, causes in results.unschedulable.items()},
        "cost": results.cost,
        "lowerBound": results.lower_bound,
        "seconds": seconds,
        **({"capacityBuffers": buffers} if buffers else {}),
    }


def node_content(node: NewNode) -> dict[str, Any]:
    """Return a new node as JSON-ready values."""
    terms = [to_wire(term) | {"values": list(term.values)} for term in node.requirements]
    return {
        "nodePool": node.node_pool,
        "instanceTypes": list(node.instance_types),
        "requirements": terms,
        "price": node.price,
        "pods": list(node.pods),
    }
