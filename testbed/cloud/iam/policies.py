"""Evaluation of IAM policies: a pure function from documents and a request to a verdict.

Statements are evaluated as IAM does: an explicit Deny wins, and at least one Allow is needed.
A statement applies only if its action, resource, principal and conditions all match. An
unknown condition operator raises PolicyError, since guessing could accept a wrong policy.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from testbed.cloud.protocol.filters import like

Context = Mapping[str, Sequence[str]]
"""Condition key → its values. Keys are case-insensitive."""


class PolicyError(Exception):
    """A policy uses a condition operator that this module does not support."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of one evaluation; `reason` explains a denial."""

    allowed: bool
    reason: str


def parse(document: str | Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a policy document parsed from JSON; a parsed one is returned unchanged."""
    if not isinstance(document, str):
        return document
    parsed: Mapping[str, Any] = json.loads(document)
    return parsed


def evaluate(
    documents: Iterable[Mapping[str, Any]],
    *,
    action: str,
    resource: str,
    context: Context,
    principal: Mapping[str, str] | None = None,
) -> Verdict:
    """Return the verdict of all documents together.

    If `principal` is given, the documents are resource policies, and statements that name
    other principals are ignored. Raises PolicyError for an unsupported condition operator.
    """
    lowered = {key.lower(): list(values) for key, values in context.items()}
    allowed = False
    for document in documents:
        for statement in _as_list(document.get("Statement", [])):
            if principal is not None and not _names(statement, principal):
                continue
            if not _applies(statement, action, resource, lowered):
                continue
            if statement.get("Effect") == "Deny":
                return Verdict(False, "with an explicit deny")
            allowed = True
    return Verdict(allowed, "" if allowed else f"because no policy allows the {action} action")


def trusts(
    document: Mapping[str, Any],
    *,
    action: str,
    principal: Mapping[str, str],
    context: Context,
) -> bool:
    """Return whether a role's trust policy allows a principal to assume the role."""
    statements = [
        {**statement, "Resource": "*"} for statement in _as_list(document.get("Statement", []))
    ]
    verdict = evaluate(
        [{"Statement": statements}],
        action=action,
        resource="*",
        context=context,
        principal=principal,
    )
    return verdict.allowed


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _names(statement: Mapping[str, Any], principal: Mapping[str, str]) -> bool:
    named = statement.get("Principal", {})
    if named == "*":
        return True
    for kind, value in principal.items():
        for candidate in _as_list(named.get(kind, [])):
            if candidate in ("*", value):
                return True
            if kind == "AWS":
                # Naming the account allows every principal in it.
                account = value.split(":")[4]
                if candidate in (account, f"arn:aws:iam::{account}:root"):
                    return True
    return False


def _applies(
    statement: Mapping[str, Any], action: str, resource: str, context: Mapping[str, list[str]]
) -> bool:
    return (
        _fits(statement, "Action", lambda glob: like(action.lower(), str(glob).lower()))
        and _fits(
            statement, "Resource", lambda glob: like(resource, _substitute_variables(glob, context))
        )
        and all(
            _holds(operator, key, wanted, context)
            for operator, keys in statement.get("Condition", {}).items()
            for key, wanted in keys.items()
        )
    )


def _fits(statement: Mapping[str, Any], name: str, matches: Callable[[str], bool]) -> bool:
    if name in statement:
        return any(matches(glob) for glob in _as_list(statement[name]))
    if f"Not{name}" in statement:
        return not any(matches(glob) for glob in _as_list(statement[f"Not{name}"]))
    return False


VARIABLE = re.compile(r"\$\{([^}]+)\}")


def _substitute_variables(text: Any, context: Mapping[str, list[str]]) -> str:
    """Return the text with policy variables replaced; an unset variable matches nothing."""

    def value(match: re.Match[str]) -> str:
        name = match.group(1)
        if name in ("*", "?", "$"):
            return name
        values = context.get(name.lower())
        return values[0] if values else "\0"

    return VARIABLE.sub(value, str(text))


# ---------------------------------------------------------------- conditions


def _arn_like(value: str, wanted: str) -> bool:
    parts, globs = value.split(":", 5), wanted.split(":", 5)
    return len(parts) == len(globs) and all(map(like, parts, globs))


TESTS: dict[str, Callable[[str, str], bool]] = {
    "StringEquals": lambda value, wanted: value == wanted,
    "StringEqualsIgnoreCase": lambda value, wanted: value.lower() == wanted.lower(),
    "StringLike": like,
    "ArnEquals": _arn_like,
    "ArnLike": _arn_like,
    "Bool": lambda value, wanted: value.lower() == wanted.lower(),
}

NEGATED = {
    "StringNotEquals": "StringEquals",
    "StringNotEqualsIgnoreCase": "StringEqualsIgnoreCase",
    "StringNotLike": "StringLike",
    "ArnNotEquals": "ArnEquals",
    "ArnNotLike": "ArnLike",
}


def _holds(operator: str, key: str, wanted: Any, context: Mapping[str, list[str]]) -> bool:
    values = context.get(key.lower())
    texts = [_text(each) for each in _as_list(wanted)]
    if operator == "Null":
        return any((values is None) == (text == "true") for text in texts)
    quantifier, _, rest = operator.rpartition(":")
    name = rest.removesuffix("IfExists")
    negated = name in NEGATED
    test = TESTS.get(NEGATED.get(name, name))
    if test is None or quantifier not in ("", "ForAllValues", "ForAnyValue"):
        raise PolicyError(f"the condition operator {operator} is not understood")
    filled = [_substitute_variables(text, context) for text in texts]

    def matches(value: str) -> bool:
        return any(test(value, text) for text in filled) is not negated

    if quantifier == "ForAllValues":
        return all(matches(value) for value in values or [])
    if values is None:
        return rest.endswith("IfExists") or (negated and quantifier == "")
    if negated and quantifier == "":
        return all(matches(value) for value in values)
    return any(matches(value) for value in values)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)
