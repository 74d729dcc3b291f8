"""A node in the engine's view: the Node, its NodeClaim, or both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from controller.apis import labels
from controller.apis.karpenter.nodeclaim import NodeClaim
from controller.apis.kubernetes import conditions
from controller.apis.kubernetes.nodes import Node
from controller.constraints import taints

LIFECYCLES: Mapping[str, str] = {
    "eks.amazonaws.com/capacityType": "SPOT",
    "node.kubernetes.io/lifecycle": "spot",
}
"""Labels of nodes outside NodePools, with the value that marks a spot instance."""

LIFECYCLE_EVENTS = ("DrainInProgress", "MaintenanceInProgress", "GracefulNodeShutdownInProgress")
"""Conditions of a node that an administrator is draining. The conditions of planned maintenance and
of a completed drain are left out: before the drain the node runs pods, after it the node may be
disrupted."""


@dataclass(frozen=True, slots=True)
class StateNode:
    """A node: in flight if it is only a NodeClaim, unmanaged if it is only a Node.

    `deleting` is True if either object has a deletion timestamp or is marked for disruption, or if
    the Node was deleted before its NodeClaim.
    `buffered` nodes hold virtual pods of a CapacityBuffer.
    """

    node: Node | None = None
    claim: NodeClaim | None = None
    deleting: bool = False
    nominated: bool = False
    buffered: bool = False

    @property
    def name(self) -> str:
        """The Node's name, or the NodeClaim's while there is no Node."""
        if self.node is not None:
            return self.node.metadata.name
        return self.claim.metadata.name if self.claim is not None else ""

    @property
    def deleted_at(self) -> datetime | None:
        """When the deletion of the NodeClaim or the Node was requested; None if it was not."""
        times = (
            each.metadata.deletion_timestamp for each in (self.claim, self.node) if each is not None
        )
        return min((at for at in times if at is not None), default=None)

    @property
    def provider_id(self) -> str:
        """The provider ID; empty before the launch."""
        if self.node is not None and self.node.spec.provider_id:
            return self.node.spec.provider_id
        return self.claim.status.provider_id if self.claim is not None else ""

    @property
    def managed(self) -> bool:
        """Whether Joiner manages the node."""
        return self.claim is not None

    @property
    def registered(self) -> bool:
        """Whether the node is registered (unmanaged nodes always are)."""
        if self.claim is None:
            return True
        return self.node is not None and is_registered(self.node)

    @property
    def initialized(self) -> bool:
        """Whether the node is initialized (unmanaged nodes always are)."""
        if self.claim is None:
            return True
        return self.node is not None and is_initialized(self.node)

    @property
    def labels(self) -> dict[str, str]:
        """The labels that scheduling uses: the NodeClaim's until registration, then the Node's.

        Until a node is initialized, the labels that Joiner will set by then are added.
        """
        if self.initialized:
            assert self.node is not None
            return self.node.metadata.labels
        assert self.claim is not None
        own = self.node if self.node is not None and self.registered else self.claim
        return {**own.metadata.labels, **labels.LIFECYCLE}

    @property
    def node_pool(self) -> str:
        """The name of the NodePool in the node's label; empty without the label."""
        return self.labels.get(labels.NODEPOOL, "")

    @property
    def capacity_type(self) -> str:
        """The capacity type; a node outside NodePools is on-demand unless a label says spot."""
        carried = self.labels
        if self.managed or labels.CAPACITY_TYPE in carried:
            return carried.get(labels.CAPACITY_TYPE, "")
        is_spot = any(carried.get(key) == value for key, value in LIFECYCLES.items())
        return labels.SPOT if is_spot else labels.ON_DEMAND


def is_up(node: Node) -> bool:
    """Whether the node is Ready and has no ephemeral taint but `joiner.dev/nominating`.

    Startup taints of its NodePool do not count.
    """
    return conditions.is_true(node.status.conditions, "Ready") and not any(
        taints.is_ephemeral(taint) and not taints.are_same(taint, taints.HELD)
        for taint in node.spec.taints
    )


def lifecycle_event(node: Node) -> str:
    """Return the type of the condition that says that the node is drained or maintained, or "".

    Administrators set these conditions (KEP-5683). Kubernetes itself does not act on them.
    """
    return next(
        (kind for kind in LIFECYCLE_EVENTS if conditions.is_true(node.status.conditions, kind)), ""
    )


def is_registered(node: Node) -> bool:
    """Whether the node has the label `karpenter.sh/registered`.

    It may be registered before the NodeClaim's condition is written. A Node that its kubelet
    created again is not registered, even if the condition is True.
    """
    return node.metadata.labels.get(labels.REGISTERED) == "true"


def is_initialized(node: Node) -> bool:
    """Whether the node has the label `karpenter.sh/initialized`."""
    return node.metadata.labels.get(labels.INITIALIZED) == "true"


def is_unregistered(node: Node) -> bool:
    """Whether the node has the taint `karpenter.sh/unregistered`, and needs registration.

    A node has it when it joins, when its kubelet creates the Node again, and when a client restores
    old taints.
    """
    return any(taint.key == labels.UNREGISTERED_TAINT for taint in node.spec.taints)


def is_closed(node: Node) -> bool:
    """Whether a new Node accepts no pods yet, and is not being deleted.

    It has the taint `karpenter.sh/unregistered` or `joiner.dev/nominating`.
    """
    is_held = any(taints.are_same(taint, taints.HELD) for taint in node.spec.taints)
    return not node.metadata.is_deleting and (is_held or is_unregistered(node))
