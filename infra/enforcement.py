"""Holds every resource of a program to the rules, in a preview already.

A resource whose document breaks a rule is never sent anywhere: the program ends, and says why.
What is known only once other resources are made is looked at as soon as it is known.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pulumi

from infra.rules import CHECKS, violations


class RuleBrokenError(pulumi.RunError):
    """A resource would open what must stay closed; says what to do instead."""

    def __init__(self, name: str, kind: str, problems: list[str]) -> None:
        self.problems = problems
        what = kind.rpartition(":")[2]
        super().__init__(
            "\n".join([f"{what} {name} breaks the rules of docs/security.md:", *problems])
        )


def held_to_rules(
    made: pulumi.ResourceTransformationArgs,
) -> pulumi.ResourceTransformationResult | None:
    """Look at what a resource is asked to be, wherever there is a rule for its type."""
    if made.type_ not in CHECKS:
        return None
    props: dict[str, Any] = dict(made.props)
    for key in CHECKS[made.type_]:
        given = _python(key) if _python(key) in props else key
        if given in props:
            props[given] = _checked(made, key, props[given])
    return pulumi.ResourceTransformationResult(props, made.opts)


def _checked(made: pulumi.ResourceTransformationArgs, key: str, value: Any) -> Any:
    """Return the value, or what becomes of it, once it has been looked at."""

    def harmless(known: Any) -> Any:
        if problems := list(violations(made.type_, {key: _as_sent(known)})):
            raise RuleBrokenError(made.name, made.type_, problems)
        return known

    if isinstance(value, str):
        return harmless(value)
    output: pulumi.Output[Any] = pulumi.Output.from_input(value)
    return output.apply(harmless)


def _as_sent(value: Any) -> Any:
    """Return a value as it is sent: Pulumi's typed arguments are maps in Python's spelling."""
    if isinstance(value, list | tuple):
        return [_as_sent(each) for each in value]
    if isinstance(value, str | int | float | bool | None):
        return value
    members = value if isinstance(value, Mapping) else vars(value)
    return {_camel(name): _as_sent(each) for name, each in members.items()}


def _camel(name: str) -> str:
    """Return the name of a property as Pulumi's schema has it; others are no names."""
    if not re.fullmatch(r"[a-z]+(_[a-z]+)+", name):
        return name
    return re.sub("_([a-z])", lambda letter: letter[1].upper(), name)


def _python(key: str) -> str:
    """Return the name of a property in Python's spelling."""
    return re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", key)
