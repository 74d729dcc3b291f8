"""What machines amount to, for room, limits and the status of pools."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from controller.apis.quantities import MILLI
from controller.constraints.resources import NODES, Resources, parsed, total
from controller.state.nodes import StateNode


def usage(nodes: Iterable[StateNode]) -> dict[str, dict[str, int]]:
    """Add up what the machines of each pool amount to, in thousandths, their number as `nodes`.

    A machine belongs to the pool whose label it bears, whoever made it, and counts from its
    launch to its end, while it is deleted too.
    """
    members: defaultdict[str, list[Resources]] = defaultdict(list)
    for node in nodes:
        if node.node_pool:
            members[node.node_pool].append(capacity(node))
    return {
        pool: {**total(amounts), NODES: len(amounts) * MILLI} for pool, amounts in members.items()
    }


def capacity(node: StateNode) -> Resources:
    """Return all of a machine, in thousandths."""
    return _reported(
        node,
        node.node.status.capacity if node.node is not None else {},
        node.claim.status.capacity if node.claim is not None else {},
    )


def allocatable(node: StateNode) -> Resources:
    """Return what a machine has for pods, in thousandths."""
    return _reported(
        node,
        node.node.status.allocatable if node.node is not None else {},
        node.claim.status.allocatable if node.claim is not None else {},
    )


def _reported(
    node: StateNode,
    by_node: Mapping[str, str | int | float],
    by_claim: Mapping[str, str | int | float],
) -> Resources:
    """Take the kubelet's word once the node is initialized; until then the claim's for all that
    the kubelet does not speak of, or calls nothing.
    """
    reported = parsed(by_node)
    if node.initialized:
        return reported
    return {**parsed(by_claim), **{name: amount for name, amount in reported.items() if amount}}
