"""The register of the operations that are answered here instead of by moto."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from testbed.cloud.wire import Call, Xml
from testbed.cloud.world import World

Result = Mapping[str, Any] | Xml | None
Operation = Callable[[World, Call], Result]

OPERATIONS: dict[tuple[str, str], Operation] = {}
"""(service, operation) → the function that answers it, under the world's lock."""


Answer = TypeVar("Answer", bound=Operation)


def operation(service: str, name: str) -> Callable[[Answer], Answer]:
    """Register a function as the answer to an operation."""

    def register(function: Answer) -> Answer:
        OPERATIONS[service, name] = function
        return function

    return register
