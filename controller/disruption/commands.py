"""The types of disruption: candidates, reasons, commands and decisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from functools import cached_property
from typing import Literal

from controller.apis import labels
from controller.apis.karpenter.nodeclaim import DISRUPTION_REASON, NodeClaim
from controller.apis.karpenter.nodepool import NodePool
from controller.apis.kubernetes import conditions
from controller.apis.kubernetes.nodes import Node
from controller.apis.kubernetes.pods import Pod
from controller.scheduling.results import NewNode
from controller.state.pods import is_reschedulable


class Reason(Enum):
    """Why a node may be disrupted, as budgets and metrics name it."""

    EMPTY = "Empty"
    UNDERUTILIZED = "Underutilized"
    DRIFTED = "Drifted"
    UNHEALTHY = "Unhealthy"

    @property
    def label(self) -> str:
        """The reason as the label of a metric."""
        return self.value.lower()


class TerminateFirst(Enum):
    """Why a replacement cannot be launched before its node is terminated, as a metric names it."""

    STATIC_AT_LIMIT = "static-at-limit"
    NO_RESERVED_CAPACITY = "no-reserved-capacity"


@dataclass(frozen=True)
class Candidate:
    """A node that may be disrupted: managed, initialized and not blocked.

    Some functions also return blocked or uninitialized nodes of Joiner as this type.

    `price` is the price of its offering in $/h, 0 if unknown. `buffered`: it reserves capacity
    for a capacity buffer. `anchored` names a pod with a volume on the node's disk, or is empty.
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
        """The name of the node's NodePool."""
        return self.node_pool.metadata.name

    @property
    def is_spot(self) -> bool:
        """Whether the node is a spot instance."""
        return self.node.metadata.labels.get(labels.CAPACITY_TYPE) == labels.SPOT

    @property
    def reservation(self) -> str:
        """The ID of the capacity reservation that the node uses, or an empty string."""
        carried = self.node.metadata.labels
        is_reserved = carried.get(labels.CAPACITY_TYPE) == labels.RESERVED
        return carried.get(labels.RESERVATION_ID, "") if is_reserved else ""

    @property
    def is_marked(self) -> bool:
        """Whether the node's NodeClaim is marked for disruption."""
        return conditions.is_true(self.claim.status.conditions, DISRUPTION_REASON)

    @property
    def is_replacement(self) -> bool:
        """Whether the node was launched as a replacement."""
        return labels.REPLACES in self.claim.metadata.annotations

    @cached_property
    def moving(self) -> tuple[Pod, ...]:
        """The pods that need another node when this one is removed."""
        return tuple(pod for pod in self.pods if is_reschedulable(pod))


@dataclass(frozen=True, slots=True)
class Command:
    """Nodes to disrupt together, for one reason, and where their pods move.

    `replacements` are the nodes to launch first; `moves` maps existing nodes to the keys of the
    pods that move there. `saving` is in $/h; `evictions` counts the pods that move, `conceding`
    how many of them give up preferences. An instalment is `part_of` a command that is too large
    for the budgets: its own `saving` may be negative.

    A repair has the node's `condition`, and in `drain_bound` how long the drain may take, None if
    only the NodeClaim limits it. `terminate_first` is why the node is terminated before its
    replacement is launched, None otherwise. `reboots`: the node is rebooted instead of removed.
    `gangs` (`namespace/name`) run on the nodes: the command disrupts all of these nodes or none.
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
    condition: str = ""
    drain_bound: timedelta | None = None
    terminate_first: TerminateFirst | None = None
    reboots: bool = False
    gangs: tuple[str, ...] = ()

    @property
    def names(self) -> frozenset[str]:
        """The names of the nodes to be removed."""
        return frozenset(candidate.name for candidate in self.candidates)

    @property
    def whole(self) -> Command:
        """The command that this instalment is part of, or the command itself."""
        return self.part_of or self

    @property
    def consolidation_type(self) -> str:
        """`empty`, `multi` or `single`, as the label of a metric; empty for other reasons."""
        if self.reason is Reason.UNDERUTILIZED:
            return "multi" if len(self.candidates) > 1 else "single"
        return "empty" if self.reason is Reason.EMPTY else ""

    @property
    def decision(self) -> str:
        """`replace`, `delete`, `terminate-first` or `reboot`, as the label of a metric."""
        if self.reboots:
            return "reboot"
        if self.terminate_first is not None:
            return "terminate-first"
        return "replace" if self.replacements else "delete"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the consolidation policy of the NodePool `pool` approves a command.

    `score` is the saved share of the pool's cost divided by the share of its disruption cost; None
    unless the policy is Balanced.
    """

    pool: str
    policy: str
    decision: Literal["approved", "rejected"]
    score: float | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """The commands to execute now, and per node that stays the reason.

    `held_back` names the nodes that only wait, as in `Proposal`. `eligible` is the number of nodes
    that may be disrupted for each reason, whatever budgets allow. `verdicts` are those of the
    consolidation policies. `timed_out`: the time limit was reached before all nodes were evaluated.
    `lower_bound` is a lower bound on the cost of the cluster in $/h; None unless requested and no
    command was found.
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
    """The commands that are still valid, updated to the cluster as it is now.

    `rejected` maps the nodes of the other commands to the reason.
    """

    commands: tuple[Command, ...] = ()
    rejected: Mapping[str, str] = field(default_factory=dict)
