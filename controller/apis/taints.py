"""Taints, tolerations and requirement terms as they stand on the wire."""

from __future__ import annotations

from datetime import datetime

from controller.apis.meta import Wire


class Taint(Wire):
    """Keeps pods off a node unless they tolerate it."""

    key: str
    value: str = ""
    effect: str = ""
    time_added: datetime | None = None


class Toleration(Wire):
    """Lets a pod on a node despite a taint; empty key with Exists tolerates everything."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class Requirement(Wire):
    """One term over a label: `key operator values`, with an optional flexibility floor."""

    key: str
    operator: str
    values: list[str] = []
    min_values: int | None = None
