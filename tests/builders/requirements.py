"""Builders of requirements, taints and tolerations."""

from __future__ import annotations

from controller.apis.kubernetes.taints import Requirement, Taint, Toleration


def needs(
    key: str, operator: str = "In", *values: str, min_values: int | None = None
) -> Requirement:
    """Return a requirement."""
    return Requirement(key=key, operator=operator, values=list(values), min_values=min_values)


def taint(key: str, value: str = "", effect: str = "NoSchedule") -> Taint:
    """Return a taint."""
    return Taint(key=key, value=value, effect=effect)


def tolerate(key: str = "", value: str | None = None, effect: str = "") -> Toleration:
    """Return a toleration; without a value it tolerates any value, without a key any taint."""
    operator = "Exists" if value is None else "Equal"
    return Toleration(key=key, operator=operator, value=value or "", effect=effect)
