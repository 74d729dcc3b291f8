"""Status conditions of objects, each with a status and a reason."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Literal

from controller.apis.kubernetes.meta import Wire

ConditionStatus = Literal["True", "False", "Unknown"]

LONGEST_MESSAGE = 32768
"""The number of characters that the API server accepts in a message."""

_NEVER = datetime.min.replace(tzinfo=UTC)


class Condition(Wire, omit_defaults=False):
    """A condition; `last_transition_time` changes only when `status` does.

    The API server accepts any text as the status of a condition of a pod or node.
    """

    type: str
    status: str = "Unknown"
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
    """Return the condition of this type, or None if there is none."""
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


def roll_up(
    conditions: Sequence[Condition],
    dependents: Sequence[str],
    *,
    kind: str = "Ready",
    generation: int,
    now: datetime,
) -> list[Condition]:
    """Return the conditions with `kind` set from its dependents.

    It is False if any dependent is, True if all are, otherwise Unknown. As in Karpenter, the
    message names the dependents that are not True, the last change first, and no cause. Of
    changes at the same time, the last of `dependents` is first.
    """
    depended_on = [
        find(conditions, d)
        or Condition(
            type=d, reason="AwaitingReconciliation", message="object is awaiting reconciliation"
        )
        for d in dependents
    ]
    blocking = [c for c in reversed(depended_on) if not c.is_true]
    blocking.sort(key=lambda c: c.last_transition_time or _NEVER, reverse=True)
    failed = any(c.is_false for c in blocking)
    status: ConditionStatus = "False" if failed else "Unknown" if blocking else "True"
    reason = "UnhealthyDependents" if failed else "ReconcilingDependents" if blocking else kind
    message = ", ".join(f"{c.type}={c.status}" for c in blocking)
    return with_condition(
        conditions, kind, status, reason=reason, message=message, generation=generation, now=now
    )


def are_equal(before: Sequence[Condition], after: Sequence[Condition]) -> bool:
    """Whether two lists of conditions are equal."""
    return list(before) == list(after)
