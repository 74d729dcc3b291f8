"""Read from the source code which events, conditions and errors users can see.

The module neither imports nor runs the code: it reads the syntax trees of `controller/` and
`infra/`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

CHECKOUT = Path(__file__).resolve().parents[2]

WORD = re.compile(r"[A-Z]+[a-z]+[A-Za-z]*")
"""The form of a reason."""

TYPE = re.compile(rf"(joiner\.dev/)?{WORD.pattern}")
"""The form of a condition's type."""

EVENT_TYPES = ("Normal", "Warning")

STATUSES = ("True", "False", "Unknown")

KINDS = {
    "pod": "Pod",
    "now": "Pod",
    "node": "Node",
    "nodes[0]": "Node",
    "candidate.node": "Node",
    "self.cluster.node_of(claim)": "Node",
    "ports.cluster.node_of(claim)": "Node",
    "*self._nodes(claim)": "Node",
    "claim": "NodeClaim",
    "candidate.claim": "NodeClaim",
    "self.cluster.claim_of(node)": "NodeClaim",
    "replacement": "NodeClaim",
    "pool": "NodePool",
    "problem.node_pools[name]": "NodePool",
    "node_class": "EC2NodeClass",
    "record": "Disruption",
}
"""The kind of each object about which an event is published, as the code writes the object."""

CONDITION_WRITERS = {
    "controller/aws/nodeclass": "EC2NodeClass",
    "controller/aws/provider.py": "EC2NodeClass",
    "controller/reconcilers/capacitybuffer": "CapacityBuffer",
    "controller/reconcilers/disruption": "NodeClaim",
    "controller/reconcilers/instances.py": "NodeClaim",
    "controller/reconcilers/nodeclaim": "NodeClaim",
    "controller/reconcilers/nodeoverlay": "NodeOverlay",
    "controller/reconcilers/nodepool": "NodePool",
    "controller/reconcilers/provisioning/buffers.py": "CapacityBuffer",
    "controller/reconcilers/termination": "NodeClaim",
    "infra/lifecycle": "NodePool",
}
"""The kind whose conditions a module or package sets."""

CONDITIONS_OF_OTHERS = {
    "controller/apis/kubernetes/conditions.py",  # sets what its caller passes
    "controller/disruption/advice/forecast.py",  # computes what would be, and writes nothing
    "controller/disruption/advice/recommendations.py",  # computes what would be, and writes nothing
    "controller/reconcilers/featuregates/disabled.py",  # conditions that other reconcilers set too
    "controller/reconcilers/writing.py",  # sets what its caller passes
}
"""Modules that call a condition setter and have no conditions of their own."""

SETTERS = {
    "Caveat",
    "_set",
    "_with_condition",
    "roll_up",
    "step",
    "with_condition",
    "with_outcome",
}
"""Functions that set a condition; its type is the first matching word among the arguments."""

COMMAND_ERRORS = (
    "controller/options.py",
    "controller/kube/access.py",
    "controller/manager",
    "controller/offline",
)
"""Modules that define the errors that end a command of the controller."""


class Event(NamedTuple):
    """An event that the code publishes."""

    kind: str
    type: str
    reason: str


def modules(*roots: str, having: str = "") -> Iterator[tuple[str, ast.Module]]:
    """Yield path and syntax tree of each module whose source contains `having`, except fakes."""
    for root in roots:
        top = CHECKOUT / root
        assert top.exists(), f"{root} has moved"
        for path in [top] if top.is_file() else sorted(top.rglob("*.py")):
            if path.name != "fake.py" and having in _source(path):
                yield str(path.relative_to(CHECKOUT)), _tree(path)


@cache
def _source(path: Path) -> str:
    return path.read_text()


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(_source(path))


# Events.


def events() -> set[Event]:
    """Return every event; raises if a reason cannot be read."""
    return {
        event
        for path, tree in modules("controller/reconcilers", having=".publish")
        for event in _published(path, tree)
    }


def _published(path: str, tree: ast.Module) -> Iterator[Event]:
    for function in _functions(tree):
        for call in (*_calls(function, "publish"), *_calls(function, "publish_all")):
            found = set(_types_and_reasons(call, function, tree))
            assert found, f"{path}:{call.lineno}: write type and reason of the event as literals"
            about = call.args[0]
            for subject in about.elts if isinstance(about, ast.Tuple) else (about,):
                kind = KINDS[ast.unparse(subject)]
                yield from (Event(kind, type_, reason) for type_, reason in found)


def _types_and_reasons(
    call: ast.Call, function: ast.AST, tree: ast.Module
) -> Iterator[tuple[str, str]]:
    """Yield an event's possible values, from the call itself or from a tuple of the module."""
    type_, *rest = call.args[1:]
    if isinstance(type_, ast.Constant):
        for reason in texts(rest[0], function, tree):
            yield str(type_.value), reason
        return
    name = ast.unparse(type_.value if isinstance(type_, ast.Starred) else type_)
    own = [value for value in _assigned(name, function) if isinstance(value, ast.Tuple)]
    for literal in own or [node for node in ast.walk(tree) if isinstance(node, ast.Tuple)]:
        words = [getattr(part, "value", None) for part in literal.elts[:2]]
        if len(words) == 2 and words[0] in EVENT_TYPES and isinstance(words[1], str):
            yield str(words[0]), words[1]


# Conditions.


def condition_types() -> set[tuple[str, str]]:
    """Return every kind with each of its condition types."""
    return {(kind, type_) for kind, type_, _ in _set_conditions()}


def condition_writers() -> set[str]:
    """Return the modules that set conditions by `with_condition`."""
    return {path for path, _ in modules("controller", having="with_condition(")}


def reasons_by_condition() -> set[tuple[str, str, str]]:
    """Return kind, type and reason of each condition that the code sets in one call."""
    return {written for written in _set_conditions() if written[2]}


def _set_conditions() -> Iterator[tuple[str, str, str]]:
    for root, kind in CONDITION_WRITERS.items():
        for _, tree in modules(root):
            for type_, reason in _types(tree):
                yield kind, type_, reason


def _types(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield type and reason of each condition that a module sets; empty if not a literal there."""
    for function in _functions(tree):
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and _name(node.func) in SETTERS:
                given = {keyword.arg: keyword.value for keyword in node.keywords}
                if _name(node.func) == "roll_up" or "ready_when" in given:
                    yield "Ready", ""
                words = filter(None, map(_word, node.args))
                if type_ := next(words, None):
                    yield type_, ""
                    found = texts(given.get("reason", node), function, tree)
                    yield from ((type_, reason) for reason in filter(WORD.fullmatch, found))
            if isinstance(node, ast.Dict):  # a condition as JSON
                keys = [getattr(key, "value", None) for key in node.keys]
                if {"type", "status", "reason"} <= set(keys):
                    values = dict(zip(keys, node.values, strict=True))
                    yield _word(values["type"]) or "", ast.literal_eval(values["reason"])


@cache
def condition_reasons() -> frozenset[str]:
    """Return every reason of a condition that the code sets."""
    return frozenset((*_reasons_of_reconcilers(), *_reasons_in_place()))


def _reasons_of_reconcilers() -> Iterator[str]:
    """Yield the words in the form of a reason: in reconcilers, few other words have it."""
    other = (
        "controller/apis/kubernetes/conditions.py",
        "controller/disruption/commands.py",
        "controller/disruption/methods/drift.py",
        "controller/state/buffers.py",
    )
    for _, tree in modules("controller/reconcilers", *other):
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield from filter(WORD.fullmatch, [node.value])


def _reasons_in_place() -> Iterator[str]:
    """Yield the words in the position of a reason: elsewhere most such words are AWS API fields."""
    roots = ("controller/aws", "controller/cloudprovider", "controller/options.py", "infra")
    for path, tree in modules(*roots):
        yield from _members_of_tables(tree)
        for function in [tree, *_functions(tree)]:
            for expression in _places(function, is_drift=path.endswith("aws/drift.py")):
                yield from filter(WORD.fullmatch, texts(expression, function, tree))


def _places(scope: ast.AST, *, is_drift: bool) -> Iterator[ast.expr]:
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in (
            "reason",
            "GATE_DISABLED",
        ):
            yield node.value
        if isinstance(node, ast.Call):
            yield from (word.value for word in node.keywords if word.arg == "reason")
            if _name(node.func) == "ConditionError":
                yield node.args[0]
            if _name(node.func) == "Caveat":
                yield node.args[1]
        if isinstance(node, ast.Dict):
            yield from (
                value
                for key, value in zip(node.keys, node.values, strict=True)
                if isinstance(key, ast.Constant) and key.value == "reason"
            )
        if is_drift and isinstance(node, ast.Return) and node.value is not None:
            yield node.value


def _members_of_tables(tree: ast.Module) -> Iterator[str]:
    """Yield the reasons in tables that map a condition or an AWS error to one."""
    for name in ("NAMED_BY", "_REASONS"):
        for table in _assigned(name, tree):
            for node in ast.walk(table):
                if isinstance(node, ast.Tuple) and len(node.elts) == 2:
                    yield from filter(WORD.fullmatch, texts(node.elts[0], tree, tree))


# Errors.


def errors(*roots: str) -> set[str]:
    """Return the exception classes that these modules define."""
    return {
        node.name
        for _, tree in modules(*roots)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and re.fullmatch(r"[A-Z]\w+Error", node.name)
    }


# Expressions.


def texts(expression: ast.AST, function: ast.AST, tree: ast.Module) -> set[str]:
    """Return the possible texts of an expression, as far as the module defines them."""
    match expression:
        case ast.Constant(value=str(text)):
            return {text}
        case ast.IfExp():
            branches = (expression.body, expression.orelse)
            return {text for branch in branches for text in texts(branch, function, tree)}
        case ast.JoinedStr(values=[ast.FormattedValue(value=head), ast.Constant(value=tail)]):
            return {text + str(tail) for text in texts(head, function, tree)}
        case ast.Attribute(attr="reason"):
            # A node's obstacle is published as an event if it is one of these.
            return {text for v in _assigned("FROM_PLUGINS", tree) for text in _constants(v)}
        case ast.Name(id=name):
            values = [*_assigned(name, function), *_given(name, function, tree)]
            if not values and function is not tree:
                values = [*_assigned(name, tree)]
            scopes = [*_functions(tree)]
            return {
                text
                for value in values
                for scope in [next((s for s in scopes if value in ast.walk(s)), tree)]
                for text in texts(value, scope, tree)
            }
    return set()


def _given(name: str, function: ast.AST, tree: ast.Module) -> Iterator[ast.expr]:
    """Yield what callers in the module pass for a parameter."""
    if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return
    parameters = [parameter.arg for parameter in function.args.args]
    if name not in parameters:
        return
    index = parameters.index(name) - (parameters[0] == "self")
    for call in _calls(tree, function.name):
        if len(call.args) > index:
            yield call.args[index]


def _assigned(name: str, scope: ast.AST) -> Iterator[ast.expr]:
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AnnAssign):
            targets = [node.target]
        else:
            continue
        names = [target.id for target in targets if isinstance(target, ast.Name)]
        if name in names and node.value is not None:
            yield node.value


def _constants(expression: ast.AST) -> Iterator[str]:
    for node in ast.walk(expression):
        if isinstance(node, ast.Constant):
            yield str(node.value)


def _word(expression: ast.AST) -> str | None:
    if isinstance(expression, ast.Constant):
        text = str(expression.value)
        return text if TYPE.fullmatch(text) and text not in STATUSES else None
    return _named_words().get(_name(expression))


@cache
def _named_words() -> dict[str, str]:
    """Return the words that module constants stand for, by constant name."""
    return {
        target.id: str(node.value.value)
        for _, tree in modules(
            "controller/apis/karpenter", "controller/aws", "controller/reconcilers"
        )
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name) and TYPE.fullmatch(str(node.value.value))
    }


def _functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node


def _calls(scope: ast.AST, name: str) -> Iterator[ast.Call]:
    for node in ast.walk(scope):
        if isinstance(node, ast.Call) and _name(node.func) == name:
            yield node


def _name(expression: ast.AST) -> str:
    return str(getattr(expression, "attr", getattr(expression, "id", "")))
