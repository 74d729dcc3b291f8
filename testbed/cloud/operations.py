"""Registry of the AWS operations that the test cloud answers instead of moto.

A registered function returns the operation's result or raises `AwsError`, the error that the client
receives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from testbed.cloud.protocol.wire import Call, Xml
from testbed.cloud.state.world import World

Result = Mapping[str, Any] | Xml | None
Operation = Callable[[World, Call], Result]

OPERATIONS: dict[tuple[str, str], Operation] = {}
"""(service, operation) → the function that answers it; called with the world's lock held."""


Answer = TypeVar("Answer", bound=Operation)


def operation(service: str, name: str) -> Callable[[Answer], Answer]:
    """Register the decorated function as the answer to an operation."""

    def register(function: Answer) -> Answer:
        OPERATIONS[service, name] = function
        return function

    return register
