"""Taints, tolerations and requirements as they appear in objects."""

from __future__ import annotations

from datetime import datetime

from controller.apis.kubernetes.meta import Wire


class Taint(Wire):
    """Repels pods that do not tolerate it from a node."""

    key: str
    value: str = ""
    effect: str = ""
    time_added: datetime | None = None


class Toleration(Wire):
    """Allows a pod on a node with a matching taint; an empty key with Exists matches all taints."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class Requirement(Wire):
    """A requirement on a label: `key operator values`, with optional `minValues`."""

    key: str
    operator: str
    values: list[str] = []
    min_values: int | None = None
