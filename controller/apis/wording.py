"""Phrases of messages: a number with its noun, and lists of names and values.

The module also recognizes one refusal of the API server by its message.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def with_count(number: int, noun: str) -> str:
    """Return a number with its noun in singular or plural, such as "1 pod" or "2 pods"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def first_three(names: Sequence[str]) -> str:
    """Return the first three names, and how many follow, such as "a, b, c and 2 more"."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def shown_values(values: Iterable[str]) -> str:
    """Return the values of a requirement as text; an empty value is shown as two quotes."""
    return ", ".join(value or '""' for value in values)


def is_namespace_terminating(refusal: Exception) -> bool:
    """Whether the API server refused a write because the namespace is being deleted."""
    return "because it is being terminated" in str(refusal)
