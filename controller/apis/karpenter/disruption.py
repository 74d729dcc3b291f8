"""Disruption, `joiner.dev/v1alpha1`: a decision to disrupt nodes, from proposal to outcome.

Users read it and, if a NodePool requires approval, approve or decline it. Prices are in $/h.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from controller.apis.kubernetes.meta import ObjectMeta, Wire

State = Literal["Proposed", "Underway", "Done", "Failed", "Withdrawn", "Declined"]
"""The state of a decision: it awaits approval, is being executed, or has ended."""


class PlannedReplacement(Wire, omit_defaults=False):
    """A planned replacement node with its pods; the instance types are ordered cheapest first."""

    node_pool: str = ""
    instance_types: list[str] = []
    price: float = 0.0
    pods: list[str] = []


class PlannedMove(Wire, omit_defaults=False):
    """Pods, as `namespace/name`, that move to an existing node."""

    node: str = ""
    pods: list[str] = []


class MovedWorkload(Wire, omit_defaults=False):
    """A workload with pods that have to move; without a `uid`, no controller recreates them."""

    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    pods: int = 0


class DisruptionSpec(Wire, omit_defaults=False):
    """The decision and its expected result.

    `price` is the price of the nodes, `saving` the part of it that is saved, and `evictions` the
    number of evicted pods. `plan_saving` is the saving after all decisions of the plan: the first
    of them may cost more than it saves.
    """

    reason: str = ""
    mode: str = "act"
    nodes: list[str] = []
    node_claims: list[str] = []
    node_pools: list[str] = []
    new_nodes: list[PlannedReplacement] = []
    moves: list[PlannedMove] = []
    workloads: list[MovedWorkload] = []
    price: float = 0.0
    saving: float = 0.0
    plan_saving: float = 0.0
    evictions: int = 0
    why: str = ""


class MovedPods(Wire, omit_defaults=False):
    """The number of evicted pods (`moved`), and of running new pods of the same workloads.

    `slowest_seconds` is the longest time from a new pod's creation until it was ready.
    """

    moved: int = 0
    running: int = 0
    slowest_seconds: float = 0.0


class Outcome(Wire, omit_defaults=False):
    """The result of a decision, measured at the time `at`: 1 h or 24 h after the decision ended.

    `cost` includes the replacements at their actual price, and the `unplanned_nodes`, which were
    not planned but which the moved pods needed. `saving` is the price of the disrupted nodes minus
    `cost`. Both are in $/h. `replacements_disrupted` counts replacements that no longer exist.
    """

    at: datetime | None = None
    cost: float = 0.0
    saving: float = 0.0
    unplanned_nodes: int = 0
    replacements_disrupted: int = 0


class Balance(Wire, omit_defaults=False):
    """Totals of all decisions so far, so that old Disruptions can be deleted.

    A Disruption that changes the totals stores the new ones; those with the highest `sequence` are
    current. `done` and `failed` count decisions. `predicted`, `after_hour` and `after_day` are
    savings in $/h: as predicted, and as measured 1 h and 24 h later. `moved` and `running` count
    the evicted pods and their successors.
    """

    sequence: int = 0
    done: int = 0
    failed: int = 0
    predicted: float = 0.0
    after_hour: float = 0.0
    after_day: float = 0.0
    moved: int = 0
    running: int = 0
    replacements_disrupted: int = 0


class DisruptionStatus(Wire):
    """The progress and the outcome of a decision.

    `replacements` are the names of the replacements' NodeClaims. `replacements_cost` is their price
    as launched, in $/h.
    """

    state: State = "Proposed"
    message: str = ""
    replacements: list[str] = []
    replacements_cost: float = 0.0
    begun_at: datetime | None = None
    ended_at: datetime | None = None
    pods: MovedPods | None = None
    after_hour: Outcome | None = None
    after_day: Outcome | None = None
    balance: Balance | None = None


class Disruption(Wire):
    """A Disruption object."""

    metadata: ObjectMeta
    spec: DisruptionSpec = DisruptionSpec()
    status: DisruptionStatus = DisruptionStatus()
