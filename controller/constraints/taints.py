"""Taints and tolerations, matched as kube-scheduler does."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from controller.apis import labels
from controller.apis.kubernetes.taints import Taint, Toleration

NO_SCHEDULE = "NoSchedule"
PREFER_NO_SCHEDULE = "PreferNoSchedule"
NO_EXECUTE = "NoExecute"

TOLERATE_PREFERENCES = Toleration(operator="Exists", effect=PREFER_NO_SCHEDULE)
"""The toleration that is added to a pod when its avoidance of PreferNoSchedule taints is
relaxed."""

HELD = Taint(key=labels.NOMINATING_TAINT, effect=NO_SCHEDULE)
"""The taint that keeps other pods off a new node until kube-scheduler has read the nominations."""

REBOOTING = Taint(key=labels.REBOOTING_TAINT, effect=NO_SCHEDULE)
"""The taint that keeps pods off a node while it is rebooted."""

NOT_READY = Taint(key=labels.NOT_READY_TAINT, effect=NO_SCHEDULE)
"""The taint that keeps pods off a node that is not ready."""

_INTEGER = re.compile(r"0|-?[1-9][0-9]*")

_EPHEMERAL = frozenset(
    {
        (NOT_READY.key, NOT_READY.effect),
        (labels.NOT_READY_TAINT, NO_EXECUTE),
        (labels.UNREACHABLE_TAINT, NO_SCHEDULE),
        (labels.UNINITIALIZED_TAINT, NO_SCHEDULE),
        (labels.UNREGISTERED_TAINT, NO_EXECUTE),
        (HELD.key, HELD.effect),
        (REBOOTING.key, REBOOTING.effect),
    }
)


def is_ephemeral(taint: Taint) -> bool:
    """Whether the taint is temporary: set while a node starts, reboots or is not ready."""
    return (taint.key, taint.effect) in _EPHEMERAL or taint.key.startswith(
        labels.READINESS_TAINT_PREFIX
    )


def is_held(taints: Iterable[Taint]) -> bool:
    """Whether one of the taints is `HELD`, set until kube-scheduler has read the nominations."""
    return any(are_same(taint, HELD) for taint in taints)


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    """Whether a toleration matches a taint."""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator == "Exists":
        return True
    if toleration.operator in {"Gt", "Lt"}:
        return _compares(toleration, taint)
    return bool(toleration.key) and toleration.value == taint.value


def untolerated_taint(taints: Iterable[Taint], tolerations: Sequence[Toleration]) -> Taint | None:
    """Return the first taint that no toleration matches, or None."""
    for taint in taints:
        if not any(tolerates(toleration, taint) for toleration in tolerations):
            return taint
    return None


def are_same(one: Taint, other: Taint) -> bool:
    """Whether two taints are the same: equal in key and effect."""
    return one.key == other.key and one.effect == other.effect


def text(taint: Taint) -> str:
    """Return a taint as kubectl writes it: `key=value:effect`."""
    value = f"={taint.value}" if taint.value else ""
    return f"{taint.key}{value}:{taint.effect}"


def _compares(toleration: Toleration, taint: Taint) -> bool:
    """Whether the taint's value is greater (`Gt`) or less (`Lt`) than the toleration's.

    Values that kube-scheduler does not read as integers never match.
    """
    held, bound = _as_integer(taint.value), _as_integer(toleration.value)
    if held is None or bound is None:
        return False
    return held > bound if toleration.operator == "Gt" else held < bound


def _as_integer(value: str) -> int | None:
    """Return the decimal integer of 64 bits without leading zeros that a text is, or None."""
    if not _INTEGER.fullmatch(value):
        return None
    number = int(value)
    return number if -(2**63) <= number < 2**63 else None
