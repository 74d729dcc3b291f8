"""Phrases of messages: a number with its noun, a shortened list of names."""

from __future__ import annotations

from collections.abc import Sequence


def with_count(number: int, noun: str) -> str:
    """Return a number with its noun in singular or plural, such as "1 pod" or "2 pods"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def first_three(names: Sequence[str]) -> str:
    """Return the first three names, and how many follow, such as "a, b, c and 2 more"."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
