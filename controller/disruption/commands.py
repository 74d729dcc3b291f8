"""What disruption speaks of: candidates, reasons, and the command to act."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Literal

from controller.apis import conditions, labels
from controller.apis.nodeclaim import DISRUPTION_REASON, NodeClaim
from controller.apis.nodepool import NodePool
from controller.apis.nodes import Node
from controller.apis.pods import Pod
from controller.scheduling.results import NewNode
from controller.state.pods import is_reschedulable


class Reason(Enum):
    """Why a node may go, as budgets and metrics name it."""

    EMPTY = "Empty"
    UNDERUTILIZED = "Underutilized"
    DRIFTED = "Drifted"

    @property
    def label(self) -> str:
        """The reason as metrics write it."""
        return self.value.lower()


@dataclass(frozen=True)
class Candidate:
    """A node that may be disrupted: managed, initialized, and free of whatever forbids it.

    `price` is that of its offering in $/h, 0 when nobody knows it. A `buffered` one keeps
    room free for a capacity buffer. `anchored` names a pod whose volume lies on its own disk.
    """

    node: Node
    claim: NodeClaim
    node_pool: NodePool
    pods: tuple[Pod, ...]
    price: float = 0.0
    buffered: bool = False
    anchored: str = ""

    @property
    def name(self) -> str:
        """The node's name."""
        return self.node.metadata.name

    @property
    def pool(self) -> str:
        """The name of its pool."""
        return self.node_pool.metadata.name

    @property
    def is_spot(self) -> bool:
        """Whether it is a spot instance."""
        return self.node.metadata.labels.get(labels.CAPACITY_TYPE) == labels.SPOT

    @property
    def is_marked(self) -> bool:
        """Whether it has been chosen to go."""
        return conditions.is_true(self.claim.status.conditions, DISRUPTION_REASON)

    @property
    def is_heir(self) -> bool:
        """Whether it was made in the place of other nodes."""
        return labels.REPLACES in self.claim.metadata.annotations

    @cached_property
    def moving(self) -> tuple[Pod, ...]:
        """The pods that need another node when this one goes."""
        return tuple(pod for pod in self.pods if is_reschedulable(pod))


@dataclass(frozen=True, slots=True)
class Command:
    """Nodes to remove together, for one reason, and where their pods go.

    `replacements` are the nodes to be made first; `moves` maps nodes that exist to the pods
    that go there. `saving` is in $/h; `evictions` counts the pods that move, `conceding` those
    of them that do without what they prefer. An instalment is `part_of` a command that is too
    large for budgets: by itself it may save less than nothing.
    """

    reason: Reason
    candidates: tuple[Candidate, ...]
    replacements: tuple[NewNode, ...] = ()
    moves: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    saving: float = 0.0
    evictions: int = 0
    conceding: int = 0
    why: str = ""
    part_of: Command | None = None

    @property
    def names(self) -> frozenset[str]:
        """The names of the nodes to be removed."""
        return frozenset(candidate.name for candidate in self.candidates)

    @property
    def whole(self) -> Command:
        """The command that it is an instalment of, or itself."""
        return self.part_of or self

    @property
    def consolidation_type(self) -> str:
        """`empty`, `multi` or `single` as metrics have it; nothing for what is no consolidation."""
        if self.reason is Reason.UNDERUTILIZED:
            return "multi" if len(self.candidates) > 1 else "single"
        return "empty" if self.reason is Reason.EMPTY else ""

    @property
    def decision(self) -> str:
        """`replace` or `delete`, as metrics write it."""
        return "replace" if self.replacements else "delete"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of weighing a consolidation for a pool; only balanced pools have a `score`."""

    pool: str
    policy: str
    decision: Literal["approved", "rejected"]
    score: float | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do now, and per node that stays the reason.

    `held_back` names those that nothing but budgets keep; `eligible` counts the nodes that each
    method could take, if anything were gained. `verdicts` are those on the consolidations that
    were found; `timed_out` when the time was up before all had been looked at. `lower_bound` is
    what no arrangement of the pods costs less than, in $/h, where that was asked for and nothing
    was left to do.
    """

    commands: tuple[Command, ...] = ()
    blocked: Mapping[str, str] = field(default_factory=dict)
    held_back: frozenset[str] = frozenset()
    eligible: Mapping[Reason, int] = field(default_factory=dict)
    verdicts: tuple[Verdict, ...] = ()
    timed_out: bool = False
    lower_bound: float | None = None


@dataclass(frozen=True, slots=True)
class Confirmation:
    """Which commands still stand, as they would be decided now, and per node the reason why its
    command does not.
    """

    commands: tuple[Command, ...] = ()
    rejected: Mapping[str, str] = field(default_factory=dict)
