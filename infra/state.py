"""What the stack's state contained before this run of the program.

The program asks Pulumi's engine, which reads the state from the backend.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pulumi
import tenacity


def full_name_of_stack(name: str = "") -> str:
    """Return a stack's full name, organization/project/stack; the running stack's if none named."""
    return f"{pulumi.get_organization()}/{pulumi.get_project()}/{name or pulumi.get_stack()}"


def recorded_outputs() -> Mapping[str, Any]:
    """Return the stack's outputs by name; empty before the first run."""
    return _read("readStackOutputs")


def recorded_resources() -> frozenset[tuple[str, str]]:
    """Return type and logical name of each resource; empty before the first run."""
    return frozenset(map(_identity, _read("readStackResourceOutputs")))


def recorded_properties(type_: str, name: str) -> Mapping[str, Any]:
    """Return the outputs of the resource of this type and logical name; empty if there is none."""
    for urn, resource in _read("readStackResourceOutputs").items():
        if _identity(urn) == (type_, name):
            found: Mapping[str, Any] = resource["outputs"]
            return found
    return {}


def _identity(urn: str) -> tuple[str, str]:
    *_, types, name = urn.split("::")
    return types.rpartition("$")[2], name


# The engine may write the state to a folder or bucket while it reads it for this program.
@tenacity.retry(stop=tenacity.stop_after_attempt(5), wait=tenacity.wait_fixed(1), reraise=True)
def _read(function: str) -> Mapping[str, Any]:
    stack = full_name_of_stack()
    asked = {"name": stack, "stackName": stack}  # each function reads the key of its own
    answer = pulumi.runtime.invoke(f"pulumi:pulumi:{function}", asked).value
    recorded: Mapping[str, Any] = answer["outputs"]
    return recorded
