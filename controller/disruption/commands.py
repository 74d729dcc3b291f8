"""What disruption speaks of: candidates, reasons, and the command to act."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from controller.apis.nodeclaim import NodeClaim
from controller.apis.nodepool import NodePool
from controller.apis.nodes import Node
from controller.apis.pods import Pod


class Reason(Enum):
    """Why a node may go, as budgets and metrics name it."""

    EMPTY = "Empty"
    UNDERUTILIZED = "Underutilized"
    DRIFTED = "Drifted"

    @property
    def label(self) -> str:
        """The reason as metrics write it."""
        return self.value.lower()


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node that may be disrupted: managed, initialized, and free of whatever forbids it.

    A `buffered` one keeps room free for a capacity buffer.
    """

    node: Node
    claim: NodeClaim
    node_pool: NodePool
    pods: tuple[Pod, ...]
    price: float = 0.0
    buffered: bool = False

    @property
    def name(self) -> str:
        """The node's name."""
        return self.node.metadata.name


@dataclass(frozen=True, slots=True)
class Command:
    """Nodes to remove together, for one reason."""

    reason: Reason
    candidates: tuple[Candidate, ...]
