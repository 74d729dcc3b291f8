"""Checks whether a registered node is initialized, and if not, why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from controller.apis import labels
from controller.apis.karpenter.nodeclaim import NodeClaim
from controller.apis.kinds import NODE
from controller.apis.kubernetes import conditions, quantities
from controller.apis.kubernetes.devices import ResourceSlice
from controller.apis.kubernetes.nodes import Node
from controller.apiserver.port import ApiServer
from controller.constraints import taints


class Obstacle(NamedTuple):
    """Why a node is not initialized yet."""

    reason: str
    message: str


def obstacle(
    claim: NodeClaim, node: Node | None, slices: Iterable[ResourceSlice] | None = None
) -> Obstacle | None:
    """Return why the node is not initialized yet, or None if it is ready for pods.

    `slices` are all ResourceSlices; None if they are not mirrored.
    """
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
    silent = _silent_driver(claim, node, slices) if slices is not None else None
    if silent is not None:
        return Obstacle(
            "DRADriverPoolsNotPublished", f'Driver "{silent}" has not published its devices'
        )
    return None


async def initialize(api: ApiServer, node: Node) -> Node:
    """Set the label `karpenter.sh/initialized` on the node; return the updated node."""
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


def _silent_driver(claim: NodeClaim, node: Node, slices: Iterable[ResourceSlice]) -> str | None:
    """Return a device driver that has not published a complete pool for the node, or None.

    Only drivers of devices for the node's planned pods count.
    """
    expected = claim.metadata.annotations.get(labels.REQUESTED_DRA_DRIVERS, "")
    if not expected:
        return None
    own = [published for published in slices if _is_local(published, node.metadata.name)]
    last: dict[tuple[str, str], int] = {}
    for published in own:
        pool = (published.spec.driver, published.spec.pool.name)
        last[pool] = max(last.get(pool, 0), published.spec.pool.generation)
    shown = Counter(
        (published.spec.driver, published.spec.pool.name, published.spec.pool.resource_slice_count)
        for published in own
        if published.spec.pool.generation == last[(published.spec.driver, published.spec.pool.name)]
    )
    whole = {driver for (driver, _, count), seen in shown.items() if seen == count}
    return next((name for name in expected.split(",") if name not in whole), None)


def _is_local(published: ResourceSlice, node: str) -> bool:
    owners = (ref.name for ref in published.metadata.owner_references if ref.kind == "Node")
    return node in (published.spec.node_name, *owners)
