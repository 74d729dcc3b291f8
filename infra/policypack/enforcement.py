"""Checks every resource of a program against the security rules, also in a preview.

If a document breaks a rule, the program fails with the reason before the engine creates the
resource. A value that depends on other resources is checked once it is known.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pulumi

from infra.policypack.rules import CHECKS, violations


class RuleBrokenError(pulumi.RunError):
    """A resource breaks security rules; says which, and what to do instead."""

    def __init__(self, name: str, kind: str, problems: list[str]) -> None:
        self.problems = problems
        what = kind.rpartition(":")[2]
        super().__init__(
            "\n".join(
                [f"{what} {name} breaks the rules of docs/explanation/security.md:", *problems]
            )
        )


def check_against_rules(
    made: pulumi.ResourceTransformationArgs,
) -> pulumi.ResourceTransformationResult | None:
    """Check a resource's inputs if there are rules for its type.

    This is a Pulumi transformation. It returns the same inputs, in which each output is checked
    once its value is known; None if there are no rules.

    Raises:
        RuleBrokenError: a text among the inputs breaks a rule.

    """
    if made.type_ not in CHECKS:
        return None
    props: dict[str, Any] = dict(made.props)
    for key in CHECKS[made.type_]:
        given = _python(key) if _python(key) in props else key
        if given in props:
            props[given] = _check(made, key, props[given])
    return pulumi.ResourceTransformationResult(props, made.opts)


def _check(made: pulumi.ResourceTransformationArgs, key: str, value: Any) -> Any:
    """Return the value, checked; for an output, an output that is checked once known."""

    def harmless(known: Any) -> Any:
        if problems := list(violations(made.type_, {key: _as_sent(known)})):
            raise RuleBrokenError(made.name, made.type_, problems)
        return known

    if isinstance(value, str):
        return harmless(value)
    output: pulumi.Output[Any] = pulumi.Output.from_input(value)
    return output.apply(harmless)


def _as_sent(value: Any) -> Any:
    """Return a value as the engine gets it: typed arguments become maps with camelCase names."""
    if isinstance(value, list | tuple):
        return [_as_sent(each) for each in value]
    if isinstance(value, str | int | float | bool | None):
        return value
    members = value if isinstance(value, Mapping) else vars(value)
    return {_camel(name): _as_sent(each) for name, each in members.items()}


def _camel(name: str) -> str:
    """Return a property's name in camelCase; text that is not snake_case is unchanged."""
    if not re.fullmatch(r"[a-z]+(_[a-z]+)+", name):
        return name
    return re.sub("_([a-z])", lambda letter: letter[1].upper(), name)


def _python(key: str) -> str:
    """Return a property's name in snake_case."""
    return re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", key)
