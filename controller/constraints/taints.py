"""Taints and who may pass them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from controller.apis import labels
from controller.apis.taints import Taint, Toleration

NO_SCHEDULE = "NoSchedule"
PREFER_NO_SCHEDULE = "PreferNoSchedule"
NO_EXECUTE = "NoExecute"

TOLERATE_PREFERENCES = Toleration(operator="Exists", effect=PREFER_NO_SCHEDULE)
"""What a pod gains when it gives up avoiding soft taints."""

HELD = Taint(key=labels.NOMINATING_TAINT, effect=NO_SCHEDULE)
"""Keeps pods off a node of ours until the scheduler knows which of them it is for."""

NOT_READY = Taint(key=labels.NOT_READY_TAINT, effect=NO_SCHEDULE)
"""Keeps pods off a node that is not ready."""

_EPHEMERAL = frozenset(
    {
        (NOT_READY.key, NOT_READY.effect),
        (labels.NOT_READY_TAINT, NO_EXECUTE),
        (labels.UNREACHABLE_TAINT, NO_SCHEDULE),
        (labels.UNINITIALIZED_TAINT, NO_SCHEDULE),
        (labels.UNREGISTERED_TAINT, NO_EXECUTE),
        (HELD.key, HELD.effect),
    }
)


def is_ephemeral(taint: Taint) -> bool:
    """Whether the taint belongs to a node's birth and will go by itself."""
    return (taint.key, taint.effect) in _EPHEMERAL or taint.key.startswith(
        labels.READINESS_TAINT_PREFIX
    )


def is_held(taints: Iterable[Taint]) -> bool:
    """Whether a node with these taints waits until its pods know their places."""
    return any(same(taint, HELD) for taint in taints)


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    """Whether one toleration lets a pod past one taint."""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator == "Exists":
        return True
    if toleration.operator in {"Gt", "Lt"}:
        return _compares(toleration, taint)
    return bool(toleration.key) and toleration.value == taint.value


def untolerated(taints: Iterable[Taint], tolerations: Sequence[Toleration]) -> Taint | None:
    """Return the first taint that keeps the pod off, or None."""
    for taint in taints:
        if not any(tolerates(toleration, taint) for toleration in tolerations):
            return taint
    return None


def same(one: Taint, other: Taint) -> bool:
    """Whether two taints are the same one: key and effect name it."""
    return one.key == other.key and one.effect == other.effect


def text(taint: Taint) -> str:
    """Write a taint the way kubectl does."""
    value = f"={taint.value}" if taint.value else ""
    return f"{taint.key}{value}:{taint.effect}"


def _compares(toleration: Toleration, taint: Taint) -> bool:
    try:
        held, bound = int(taint.value), int(toleration.value)
    except ValueError:
        return False
    return held > bound if toleration.operator == "Gt" else held < bound
