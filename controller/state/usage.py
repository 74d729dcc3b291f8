"""What a pool's machines amount to, for its limits and its status."""

from __future__ import annotations

from collections.abc import Iterable

from controller.apis.quantities import MILLI
from controller.constraints.resources import NODES, Resources, parsed, total
from controller.state.nodes import StateNode


def usage(nodes: Iterable[StateNode], node_pool: str) -> dict[str, int]:
    """Add up the capacity of a pool's machines, in thousandths, with their number as `nodes`.

    A machine counts from its launch to its end, those being deleted included.
    """
    members = [n for n in nodes if n.managed and n.node_pool == node_pool]
    amounts = total(capacity(n) for n in members)
    return {**amounts, NODES: len(members) * MILLI}


def capacity(node: StateNode) -> Resources:
    """Return all of a machine: as its kubelet reports it, or as its claim promises until then."""
    promised = parsed(node.claim.status.capacity) if node.claim is not None else {}
    reported = parsed(node.node.status.capacity) if node.node is not None else {}
    return {**promised, **{k: v for k, v in reported.items() if v}}
