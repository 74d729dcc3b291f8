"""A node as the engine sees it: the Node, its NodeClaim, or both."""

from __future__ import annotations

from dataclasses import dataclass

from controller.apis import conditions, labels
from controller.apis.nodeclaim import NodeClaim
from controller.apis.nodes import Node
from controller.constraints import taints


@dataclass(frozen=True, slots=True)
class StateNode:
    """One machine: a claim that has no Node yet is in flight, a Node without a claim unmanaged.

    `deleting` covers everything on its way out: a deletion timestamp on either
    object, or a mark by disruption. `buffered` machines keep room free for a buffer.
    """

    node: Node | None = None
    claim: NodeClaim | None = None
    deleting: bool = False
    nominated: bool = False
    buffered: bool = False

    @property
    def name(self) -> str:
        """The Node's name, or the claim's while there is no Node."""
        if self.node is not None:
            return self.node.metadata.name
        return self.claim.metadata.name if self.claim is not None else ""

    @property
    def provider_id(self) -> str:
        """The cloud's name for the machine; empty before launch."""
        if self.node is not None and self.node.spec.provider_id:
            return self.node.spec.provider_id
        return self.claim.status.provider_id if self.claim is not None else ""

    @property
    def managed(self) -> bool:
        """Whether Joiner made it."""
        return self.claim is not None

    @property
    def registered(self) -> bool:
        """Whether the node has been matched to its claim (unmanaged nodes always are)."""
        if self.claim is None:
            return True
        return self.node is not None and self.node.metadata.labels.get(labels.REGISTERED) == "true"

    @property
    def initialized(self) -> bool:
        """Whether the node is ready for pods (unmanaged nodes always are)."""
        if self.claim is None:
            return True
        return self.node is not None and self.node.metadata.labels.get(labels.INITIALIZED) == "true"

    @property
    def labels(self) -> dict[str, str]:
        """The labels pods will see: the claim's until the node is registered, then the node's."""
        if self.node is not None and (self.claim is None or self.registered):
            return self.node.metadata.labels
        assert self.claim is not None
        return self.claim.metadata.labels

    @property
    def node_pool(self) -> str:
        """The name of the pool it belongs to; empty when unmanaged."""
        return self.labels.get(labels.NODEPOOL, "")


def is_up(node: Node) -> bool:
    """Whether a node would take pods in, if we do not hold them off it ourselves."""
    return conditions.is_true(node.status.conditions, "Ready") and not any(
        taints.is_ephemeral(taint) and not taints.same(taint, taints.HELD)
        for taint in node.spec.taints
    )
