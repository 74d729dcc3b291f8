"""Disruption, `joiner.dev/v1alpha1`: a decision to disrupt nodes, from proposal to outcome.

Users read it and, if a NodePool requires approval, approve or decline it. Its schema is made from
these types: the description of a field is the string below it, that of an item of a list the first
paragraph of its class.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from controller.apis.kubernetes.meta import KubernetesObject, Wire

State = Literal["Proposed", "Underway", "Done", "Failed", "Withdrawn", "Declined"]
"""The state of a decision: it awaits approval, is being executed, or has ended."""


class PlannedReplacement(Wire, omit_defaults=False):
    """A node that is launched to replace disrupted nodes."""

    node_pool: str = ""
    """NodePool of the replacement."""
    instance_types: list[str] = []
    """Instance types of the launch, cheapest first."""
    price: float = 0.0
    """Price of the cheapest instance type, in $/h."""
    pods: list[str] = []
    """Pods that the simulation places there, as namespace/name."""


class PlannedMove(Wire, omit_defaults=False):
    """An existing node to which pods move."""

    node: str = ""
    """Name of the node."""
    pods: list[str] = []
    """Pods that the simulation places there, as namespace/name."""


class MovedWorkload(Wire, omit_defaults=False):
    """A workload whose pods are evicted.

    Without a `uid`, it is a pod that no controller recreates.
    """

    kind: str = ""
    """Kind of the workload, such as ReplicaSet; Pod for a pod without a controller."""
    namespace: str = ""
    """Namespace of the workload."""
    name: str = ""
    """Name of the workload."""
    uid: str = ""
    """UID of the workload; empty for a pod without a controller."""
    pods: int = 0
    """Number of its pods that are evicted."""


class DisruptionSpec(Wire, omit_defaults=False):
    """The decision and its expected effect."""

    reason: str = ""
    """Disruption reason: Empty, Drifted, Unhealthy or Underutilized."""
    mode: str = "act"
    """act, or recommend if the decision needs approval."""
    nodes: list[str] = []
    """Nodes that are disrupted."""
    node_claims: list[str] = []
    """NodeClaims of these nodes."""
    node_pools: list[str] = []
    """NodePools of these nodes."""
    new_nodes: list[PlannedReplacement] = []
    """Replacements that are launched."""
    moves: list[PlannedMove] = []
    """Existing nodes to which pods move."""
    workloads: list[MovedWorkload] = []
    """Workloads whose pods are evicted."""
    price: float = 0.0
    """Price of the disrupted nodes, in $/h."""
    saving: float = 0.0
    """Saving by this decision, in $/h; negative if only later decisions of the plan save."""
    plan_saving: float = 0.0
    """Saving once all decisions of the plan are executed, in $/h."""
    evictions: int = 0
    """Number of pods that are evicted."""
    why: str = ""
    """Explanation of the decision."""


class MovedPods(Wire, omit_defaults=False):
    """The evicted pods, and the new pods of the same workloads."""

    moved: int = 0
    """Number of evicted pods."""
    running: int = 0
    """Number of new pods of the same workloads that are running."""
    slowest_seconds: float = 0.0
    """Longest time that one of the new pods took to be ready, in s."""


class Outcome(Wire, omit_defaults=False):
    """The result of a decision, measured 1 h or 24 h after the decision ended.

    `cost` includes the replacements at their actual price, and the `unplanned_nodes`. `saving` is
    the price of the disrupted nodes minus `cost`.
    """

    at: datetime | None = None
    """Time of the measurement."""
    cost: float = 0.0
    """Price of the nodes of the moved pods at that time, in $/h."""
    saving: float = 0.0
    """Saving at that time, in $/h."""
    unplanned_nodes: int = 0
    """Number of nodes that the pods needed in addition to the plan."""
    replacements_disrupted: int = 0
    """Number of replacements disrupted by that time."""


class Balance(Wire, omit_defaults=False):
    """Totals of all decisions so far.

    A Disruption that changes the totals stores the new ones.
    """

    sequence: int = 0
    """Sequence number of the totals; the highest is current."""
    done: int = 0
    """Number of executed decisions."""
    failed: int = 0
    """Number of failed decisions."""
    predicted: float = 0.0
    """Sum of the expected savings, in $/h."""
    after_hour: float = 0.0
    """Sum of the savings after 1 hour, in $/h."""
    after_day: float = 0.0
    """Sum of the savings after 1 day, in $/h."""
    moved: int = 0
    """Number of evicted pods."""
    running: int = 0
    """Number of new pods of the same workloads that were running."""
    replacements_disrupted: int = 0
    """Number of replacements disrupted within 1 day."""


class DisruptionStatus(Wire):
    """The progress and the outcome of the decision."""

    state: State = "Proposed"
    """State of the decision."""
    message: str = ""
    """Explanation of the state."""
    replacements: list[str] = []
    """NodeClaims of the replacements."""
    replacements_cost: float = 0.0
    """Price of the replacements when they last existed, in $/h."""
    begun_at: datetime | None = None
    """Time at which the execution began."""
    ended_at: datetime | None = None
    """Time at which the decision reached its final state."""
    pods: MovedPods | None = None
    """The evicted pods."""
    after_hour: Outcome | None = None
    """Outcome 1 hour after the end."""
    after_day: Outcome | None = None
    """Outcome 1 day after the end."""
    balance: Balance | None = None
    """Totals of all decisions so far, so that old Disruptions can be deleted."""


class Disruption(KubernetesObject):
    """A Disruption object."""

    spec: DisruptionSpec = DisruptionSpec()
    status: DisruptionStatus = DisruptionStatus()
