"""Number of branch network interfaces per instance type, used by pods with security groups.

The EC2 API does not return these numbers. AWS publishes them with its VPC resource controller,
which advertises them on nodes as the extended resource `vpc.amazonaws.com/pod-eni`. `python -m
controller.aws.instancetypes.branchinterfaces` renders `branchinterfaces.json` from a release of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

PATH = Path(__file__).with_name("branchinterfaces.json")


def branch_interfaces(instance_type: str) -> int:
    """Return the number of branch interfaces of an instance type.

    It is 0 for an instance type that supports none, or that is newer than the table.
    """
    family, _, size = instance_type.partition(".")
    return _limits().get(family, {}).get(size, 0)


@cache
def _limits() -> Mapping[str, Mapping[str, int]]:
    limits: Mapping[str, Mapping[str, int]] = json.loads(PATH.read_text())["limits"]
    return limits
