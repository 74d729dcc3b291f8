"""Checks of a manifest against its CustomResourceDefinition, before anything is created.

Pulumi's Kubernetes provider creates custom resources without field validation, so the API server
drops a misspelt field without an error. A preview often has no cluster to ask. The check applies
what the API server applies: the schema's defaults, its constraints, and its CEL rules. In addition,
each unknown field is a fault, and its message says where API version v1 has that field.
"""

from __future__ import annotations

import copy
import difflib
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache
from typing import Any

from cel_expr_python import cel
from jsonschema import Draft202012Validator

from controller.apis.crds import DEFINITIONS
from controller.apis.kinds import EC2_NODE_CLASS, NODE_POOL, Kind

Schema = Mapping[str, Any]
Path = tuple[str | int, ...]

RENAMED = {
    "apiVersion": "group",
    "providerRef": "nodeClassRef",
    "ttlSecondsAfterEmpty": "consolidateAfter",
    "ttlSecondsUntilExpired": "expireAfter",
    "consolidation": "consolidationPolicy",
    "kubeletConfiguration": "kubelet",
    "subnetSelector": "subnetSelectorTerms",
    "securityGroupSelector": "securityGroupSelectorTerms",
    "amiSelector": "amiSelectorTerms",
}
"""Fields of Karpenter's earlier APIs by the name in v1. Source: Karpenter's upgrade guides."""

SUCCESSORS: Mapping[str, Kind[Any]] = {"Provisioner": NODE_POOL, "AWSNodeTemplate": EC2_NODE_CLASS}
"""Kinds of Karpenter's v1alpha5 and the kinds that took their place."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A value that a CRD does not allow: the path of its field, and what is allowed."""

    path: Path
    text: str
    constraint: str
    """The constraint of the schema, such as `required` or `pattern`; `rule` for a CEL rule."""

    def __str__(self) -> str:
        """The fault as users read it, with a path such as `spec.requirements[0].key`."""
        steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.path)
        return f"{''.join(steps).removeprefix('.')}: {self.text}"


def schema_faults(kind: str, wire: Mapping[str, Any]) -> Iterator[Fault]:
    """Yield everything that the CRD of the kind does not allow.

    The values of placeholders such as `${NODE_ROLE}` are not known yet, so the form and the length
    of a text that contains one are not checked. A kind without a CRD here has no faults.
    """
    schema = _schemas().get(kind)
    if schema is None:
        return
    value = _with_defaults(schema, _without_nulls(wire))
    errors = [
        error
        for error in Draft202012Validator(_with_declared_fields_only(schema)).iter_errors(value)
        if not (error.validator in {"pattern", "maxLength"} and "${" in error.instance)
    ]
    for error in errors:
        yield from _messages(kind, error)
    yield from _broken_rules(schema, value, (), {tuple(error.absolute_path) for error in errors})


@cache
def _schemas() -> Mapping[str, Schema]:
    """Return the schema of each CRD by kind."""
    return {
        crd["spec"]["names"]["kind"]: crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        for crd in (define() for define in DEFINITIONS)
    }


def _without_nulls(value: Any) -> Any:
    """Return the value without fields that are null: the API server drops them."""
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def _with_defaults(schema: Schema, value: Any) -> Any:
    """Return the value with the schema's defaults in place of absent fields."""
    if isinstance(value, list):
        return [_with_defaults(schema.get("items", {}), item) for item in value]
    if not isinstance(value, Mapping):
        return value
    fields = schema.get("properties", {})
    defaults = {
        name: copy.deepcopy(field["default"])
        for name, field in fields.items()
        if "default" in field
    }
    return {
        name: _with_defaults(fields.get(name, {}), item)
        for name, item in {**defaults, **value}.items()
    }


def _with_declared_fields_only(schema: Any) -> Any:
    """Return the schema in which an object has no fields but those that are declared."""
    if isinstance(schema, list):
        return [_with_declared_fields_only(part) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    closed = {
        name: {key: _with_declared_fields_only(field) for key, field in part.items()}
        if name == "properties"
        else _with_declared_fields_only(part)
        for name, part in schema.items()
    }
    return {"additionalProperties": False, **closed} if "properties" in schema else closed


def _messages(kind: str, error: Any) -> Iterator[Fault]:
    """Yield the faults of one error of the validator."""
    path: Path = tuple(error.absolute_path)
    about, text, constraint = error.schema.get("description", ""), error.message, error.validator
    if constraint == "additionalProperties":
        for name in (n for n in error.instance if n not in error.schema["properties"]):
            text = f"unknown field; {_remedy(kind, path, name)}"
            yield Fault((*path, name), text, constraint)
        return
    if constraint == "required":
        # The validator reports each missing field, and names it in its message only.
        name = error.message.split("'")[1]
        path = (*path, name)
        text = f"required. {error.schema['properties'][name].get('description', '')}".rstrip()
    elif constraint == "enum":
        allowed = [str(value) for value in error.validator_value]
        nearest = difflib.get_close_matches(str(error.instance), allowed, 1)
        hint = f"; did you mean {nearest[0]}?" if nearest else ""
        text = f"{error.instance!r} is not one of {', '.join(allowed)}{hint}"
    elif constraint == "pattern":
        text = f"{error.instance!r} does not match {error.validator_value}. {about}".rstrip()
    yield Fault(path, text, constraint)


def _remedy(kind: str, path: Path, name: str) -> str:
    """Return where v1 has a field of this name, or the field that its name resembles."""
    parent = tuple(step for step in path if isinstance(step, str))
    siblings = {field[-1] for field in _fields(kind) if field[:-1] == parent}
    meant = RENAMED.get(name, name)
    if meant in siblings:
        return f"in v1 it is {meant}"
    if nearest := difflib.get_close_matches(name, siblings, 1):
        return f"did you mean {nearest[0]}?"
    for owner in (kind, *_schemas()):
        if place := next((field for field in _fields(owner) if field[-1] == meant), None):
            return f"in v1 it is {'.'.join(place)}" + (f" of {owner}" if owner != kind else "")
    places = {field[-1]: ".".join(field) for field in reversed(_fields(kind))}
    if nearest := difflib.get_close_matches(name, places, 1):
        return f"did you mean {places[nearest[0]]}?"
    return f"allowed are {', '.join(sorted(siblings))}"


@cache
def _fields(kind: str) -> Sequence[tuple[str, ...]]:
    """Return the paths of all fields in the spec of a kind, those nearer to the root first."""
    spec = _schemas()[kind]["properties"]["spec"]
    return sorted(_paths(spec, ("spec",)), key=len)


def _paths(schema: Schema, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    schema = schema.get("items", schema)
    for name, field in schema.get("properties", {}).items():
        yield (*path, name)
        yield from _paths(field, (*path, name))


def _broken_rules(schema: Schema, value: Any, path: Path, wrong: Set[Path]) -> Iterator[Fault]:
    """Yield a fault for each CEL rule that the value, or a value below it, breaks.

    A rule that cannot be evaluated because of a `wrong` value below is left out.
    """
    for rule in schema.get("x-kubernetes-validations", ()):
        if "oldSelf" in rule["rule"]:
            continue
        holds = _holds(rule["rule"], value)
        if holds is False or (holds is None and not any(p[: len(path)] == path for p in wrong)):
            yield Fault(path, rule["message"], "rule")
    below: Iterator[tuple[str | int, Schema, Any]] = iter(())
    if isinstance(value, list):
        below = ((index, schema.get("items", {}), item) for index, item in enumerate(value))
    elif isinstance(value, Mapping):
        fields, others = schema.get("properties", {}), schema.get("additionalProperties", {})
        below = ((name, fields.get(name, others), item) for name, item in value.items())
    for step, part, item in below:
        yield from _broken_rules(part, item, (*path, step), wrong)


def _holds(rule: str, value: Any) -> bool | None:
    """Whether the value meets a CEL rule; None if the rule cannot be evaluated."""
    try:
        result = _program(rule).eval(data={"self": value})
    except (RuntimeError, ValueError, LookupError):
        return None
    return bool(result.value()) if result.type().name() == "BOOL" else None


@cache
def _program(rule: str) -> Any:
    """Return a compiled rule."""
    return _environment().compile(rule)


@cache
def _environment() -> Any:
    """Return the CEL environment of the rules; Kubernetes' own functions are not used in them."""
    return cel.NewEnv(variables={"self": cel.Type.DYN})
