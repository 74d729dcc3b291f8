"""The CustomResourceDefinition of Disruption."""

from __future__ import annotations

from typing import Any

from controller.apis.crds.definitions import AGE, Column, definition
from controller.apis.crds.schemas import schema_of
from controller.apis.karpenter.disruption import DisruptionSpec, DisruptionStatus
from controller.apis.kinds import DISRUPTION


def disruption() -> dict[str, Any]:
    """Return the CustomResourceDefinition of Disruption."""
    return definition(
        DISRUPTION,
        "A decision to disrupt nodes, from its proposal to its outcome. The annotation "
        "joiner.dev/approved=true approves a proposed decision, false declines it.",
        spec=schema_of(DisruptionSpec),
        status=schema_of(DisruptionStatus),
        category="joiner",
        columns=[
            Column("Reason", ".spec.reason"),
            Column("Nodes", ".spec.nodes"),
            Column("Saving", ".spec.saving", "number"),
            Column("Evictions", ".spec.evictions", "integer"),
            Column("State", ".status.state"),
            AGE,
            Column("After 1h", ".status.afterHour.saving", "number", wide=True),
            Column("After 1d", ".status.afterDay.saving", "number", wide=True),
            Column("Plan saves", ".spec.planSaving", "number", wide=True),
            Column("Why", ".spec.why", wide=True),
            Column("Message", ".status.message", wide=True),
        ],
    )
