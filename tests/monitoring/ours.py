"""The dashboards and the alerts that the repository offers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from testbed.environment import CHECKOUT

MONITORING = CHECKOUT / "examples" / "monitoring"
RULES = MONITORING / "rules.yaml"


def dashboards() -> list[Path]:
    """Return the files of the dashboards."""
    return sorted(MONITORING.glob("*.json"))


def queries_of(path: Path) -> list[str]:
    """Return the queries of a dashboard."""
    panels = json.loads(path.read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel["targets"]]


def alerts() -> list[dict[str, Any]]:
    """Return the alerts."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]
