"""Disruption, `joiner.dev/v1alpha1`: a decision that nodes go, from proposal to what it brought.

People read it, and where a pool asks for their word they give it here. Amounts are in $/h.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from controller.apis.meta import ObjectMeta, Wire

State = Literal["Proposed", "Underway", "Done", "Failed", "Withdrawn", "Declined"]
"""Where a decision is: it waits for somebody's word, is being carried out, or has ended."""


class PlannedReplacement(Wire, omit_defaults=False):
    """A node that is to come in the place of others, with its pods; types are cheapest first."""

    node_pool: str = ""
    instance_types: list[str] = []
    price: float = 0.0
    pods: list[str] = []


class PlannedMove(Wire, omit_defaults=False):
    """Pods, `namespace/name`, that go to a node that stays."""

    node: str = ""
    pods: list[str] = []


class MovedWorkload(Wire, omit_defaults=False):
    """A workload of which some pods have to move; without a `uid` nobody will make them again."""

    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    pods: int = 0


class DisruptionSpec(Wire, omit_defaults=False):
    """What was decided, and what it was expected to bring.

    `price` is what the nodes cost, `saving` what is saved of it, `evictions` how many pods move.
    `plan_saving` is what is saved once the nodes that follow have gone, too: the first step of a
    plan may cost more than it saves.
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
    """What became of the pods: how many of their workloads' pods, made since, run by now.

    `slowest_seconds` is how long the slowest of them took from its creation until it was ready.
    """

    moved: int = 0
    running: int = 0
    slowest_seconds: float = 0.0


class Outcome(Wire, omit_defaults=False):
    """What it had brought at a moment.

    `cost` is that of what came in the place of the nodes, as it was bought, and of nodes that
    nobody had planned and the moved pods needed all the same; `saving` is what is left.
    """

    at: datetime | None = None
    cost: float = 0.0
    saving: float = 0.0
    unplanned_nodes: int = 0
    replacements_disrupted: int = 0


class Balance(Wire, omit_defaults=False):
    """All decisions so far, carried from one to the next, so that old ones can be forgotten.

    The newest has the highest `sequence`.
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
    """What became of it."""

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
    """A Disruption."""

    metadata: ObjectMeta
    spec: DisruptionSpec = DisruptionSpec()
    status: DisruptionStatus = DisruptionStatus()
