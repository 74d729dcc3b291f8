"""Helpers for Pulumi inputs, which may be known only once other resources are created."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pulumi
from pulumi.output import Unknown
from pulumi.runtime.rpc import UNKNOWN

T = TypeVar("T")


def then(value: pulumi.Input[str], function: Callable[[str], str]) -> pulumi.Input[str]:
    """Return the function's result: text if the value is known, otherwise an output."""
    if isinstance(value, str):
        return function(value)
    following: pulumi.Output[str] = pulumi.Output.all(value).apply(lambda it: function(it[0]))
    return following


def are_known(*values: pulumi.Input[str]) -> bool:
    """Whether all values are known while the program runs, in a preview too."""
    return all(isinstance(value, str) for value in values)


def is_unknown(value: Any) -> bool:
    """Whether a provider received a value in a preview that becomes known only in `up`."""
    return isinstance(value, Unknown) or value == UNKNOWN
