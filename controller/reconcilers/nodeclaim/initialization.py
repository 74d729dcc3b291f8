"""Decides when a registered node is ready for pods, and says what it still waits for."""

from __future__ import annotations

from typing import NamedTuple

from controller.apis import conditions, labels, quantities
from controller.apis.kinds import NODE
from controller.apis.nodeclaim import NodeClaim
from controller.apis.nodes import Node
from controller.apiserver.port import ApiServer
from controller.constraints import taints


class Obstacle(NamedTuple):
    """Why a node is not initialized yet."""

    reason: str
    message: str


def obstacle(claim: NodeClaim, node: Node | None) -> Obstacle | None:
    """Return what the node still waits for, or None when it is ready for pods."""
    if node is None:
        return Obstacle("NodeNotFound", "Node not registered with cluster")
    if not conditions.is_true(node.status.conditions, "Ready"):
        return Obstacle("NodeNotReady", "Node status is NotReady")
    startup = {(t.key, t.effect) for t in claim.spec.startup_taints}
    held = next((t for t in node.spec.taints if (t.key, t.effect) in startup), None)
    if held is not None:
        return Obstacle("StartupTaintsExist", f'StartupTaint "{taints.text(held)}" still exists')
    ephemeral = next((t for t in node.spec.taints if taints.is_ephemeral(t)), None)
    if ephemeral is not None:
        return Obstacle(
            "KnownEphemeralTaintsExist",
            f'KnownEphemeralTaint "{taints.text(ephemeral)}" still exists',
        )
    missing = _missing_resource(claim, node)
    if missing is not None:
        return Obstacle(
            "ResourceNotRegistered", f'Resource "{missing}" was requested but not registered'
        )
    return None


async def initialize(api: ApiServer, node: Node) -> Node:
    """Mark the node as initialized."""
    return await api.patch(
        NODE, node.metadata.name, {"metadata": {"labels": {labels.INITIALIZED: "true"}}}
    )


def _missing_resource(claim: NodeClaim, node: Node) -> str | None:
    for name, quantity in claim.spec.resources.requests.items():
        if quantities.parse(quantity) > 0 and not quantities.parse(
            node.status.allocatable.get(name, 0)
        ):
            return name
    return None
