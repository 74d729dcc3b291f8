"""Status conditions of objects, each with a status and a reason."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Literal

from controller.apis.kubernetes.meta import Wire

ConditionStatus = Literal["True", "False", "Unknown"]

LONGEST_MESSAGE = 32768
"""The number of characters that the API server accepts in a message."""


class Condition(Wire, omit_defaults=False):
    """A condition; `last_transition_time` changes only when `status` does."""

    type: str
    status: ConditionStatus = "Unknown"
    reason: str = ""
    message: str = ""
    last_transition_time: datetime | None = None
    observed_generation: int = 0

    @property
    def is_true(self) -> bool:
        """Whether the status is True."""
        return self.status == "True"

    @property
    def is_false(self) -> bool:
        """Whether the status is False."""
        return self.status == "False"


def find(conditions: Iterable[Condition], kind: str) -> Condition | None:
    """Return the condition of this type, or None if it has never been set."""
    return next((c for c in conditions if c.type == kind), None)


def is_true(conditions: Iterable[Condition], kind: str) -> bool:
    """Whether the condition of this type is set and True."""
    for condition in conditions:  # without `find`, because each decision checks all nodes
        if condition.type == kind:
            return condition.status == "True"
    return False


def with_condition(
    conditions: Sequence[Condition],
    kind: str,
    status: ConditionStatus,
    *,
    reason: str = "",
    message: str = "",
    generation: int = 0,
    now: datetime,
) -> list[Condition]:
    """Return the conditions with that of type `kind` set.

    Its transition time changes only with its status. An empty reason becomes `kind`. A message
    that is longer than the API server accepts is cut.
    """
    before = find(conditions, kind)
    since = before.last_transition_time if before and before.status == status else now
    after = Condition(
        type=kind,
        status=status,
        reason=reason or kind,
        message=message[:LONGEST_MESSAGE],
        last_transition_time=since,
        observed_generation=generation,
    )
    if before is None:
        return [*conditions, after]
    return [after if c.type == kind else c for c in conditions]


def without_condition(conditions: Sequence[Condition], kind: str) -> list[Condition]:
    """Return the conditions without those of type `kind`."""
    return [c for c in conditions if c.type != kind]


def rolled_up(
    conditions: Sequence[Condition],
    dependents: Sequence[str],
    *,
    kind: str = "Ready",
    generation: int,
    now: datetime,
) -> list[Condition]:
    """Return the conditions with `kind` set from its dependents.

    It is False if any dependent is, True if all are, otherwise Unknown. As in Karpenter, the
    message names the blocking conditions. Their messages are added.
    """
    depended_on = [
        find(conditions, d)
        or Condition(
            type=d, reason="AwaitingReconciliation", message="object is awaiting reconciliation"
        )
        for d in dependents
    ]
    failed = [c for c in depended_on if c.is_false]
    unknown = [c for c in depended_on if c.status == "Unknown"]
    status: ConditionStatus = "False" if failed else "Unknown" if unknown else "True"
    blocking = failed or unknown
    message = "; ".join(
        f"{c.type}={c.status}" + (f": {c.message}" if c.message else "") for c in blocking
    )
    reason = "UnhealthyDependents" if failed else "ReconcilingDependents" if unknown else kind
    return with_condition(
        conditions, kind, status, reason=reason, message=message, generation=generation, now=now
    )


def unchanged(before: Sequence[Condition], after: Sequence[Condition]) -> bool:
    """Whether two lists of conditions are equal."""
    return list(before) == list(after)
