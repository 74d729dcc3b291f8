"""How many branch interfaces an instance type takes: pods with security groups of their own.

EC2 does not tell. AWS publishes the figures with its VPC resource controller, which puts
them on nodes as `vpc.amazonaws.com/pod-eni`; `branchinterfaces.json` is rendered from a
release of it by `python -m controller.aws.branchinterfaces`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

PATH = Path(__file__).with_name("branchinterfaces.json")


def branch_interfaces(instance_type: str) -> int:
    """Return how many a type takes; 0 for one that takes none, or came after the table."""
    family, _, size = instance_type.partition(".")
    return _limits().get(family, {}).get(size, 0)


@cache
def _limits() -> Mapping[str, Mapping[str, int]]:
    limits: Mapping[str, Mapping[str, int]] = json.loads(PATH.read_text())["limits"]
    return limits
