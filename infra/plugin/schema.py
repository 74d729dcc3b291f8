"""The schema of the package, from the component's own declarations.

Pulumi generates the SDKs of all languages from it. There is no second list of arguments: each is
read from `JoinerArgs` and `EksCluster`, with its type and description.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Awaitable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, Literal, Union

import pulumi

from controller.apis.meanings import meanings
from infra.cluster.ekscluster import EksCluster
from infra.config.settings import camel
from infra.joiner import Joiner, JoinerArgs

NAME: Final = "joiner"
COMPONENT: Final = "joiner:infra:Joiner"
CLUSTER: Final = "joiner:infra:EksCluster"

LOCATING: Final = ("name", "region")
"""The facts of a cluster that a program must state. The others are read from EKS if omitted."""

PRIMITIVES: Final[Mapping[Any, str]] = {
    bool: "boolean",
    int: "integer",
    str: "string",
    timedelta: "string",
}


def schema(version: str) -> dict[str, Any]:
    """Return the schema of the package as a JSON object, in the format of Pulumi's metaschema."""
    return {
        "name": NAME,
        "version": version,
        "displayName": "Joiner",
        "description": "A node autoscaler for Amazon EKS.",
        "license": "Apache-2.0",
        "language": {"nodejs": {"respectSchemaVersion": True}},
        "types": {CLUSTER: {"type": "object", **_members(EksCluster, LOCATING)}},
        "resources": {
            COMPONENT: {
                "isComponent": True,
                "description": _summary(Joiner),
                "inputProperties": _members(JoinerArgs, ["cluster"])["properties"],
                "requiredInputs": ["cluster"],
                "properties": {key: {"type": "string"} for key in outputs()},
                "required": sorted(outputs()),
            }
        },
    }


def outputs() -> Mapping[str, str]:
    """Return the outputs of the component: name in the schema → attribute."""
    return {
        camel(name): name
        for name, kind in _hints(Joiner).items()
        if typing.get_origin(kind) is pulumi.Output and name in Joiner.__annotations__
    }


def arguments(kind: type[Any]) -> Mapping[str, tuple[str, Any]]:
    """Return the fields of a dataclass: name in the schema → name and type."""
    hints = _hints(kind)
    return {camel(one.name): (one.name, hints[one.name]) for one in dataclasses.fields(kind)}


def parts(kind: Any) -> tuple[Any, bool]:
    """Return a type without None, and whether the value may be an output of another resource."""
    members = typing.get_args(kind) if _is_union(kind) else (kind,)
    is_input = any(typing.get_origin(one) is Awaitable for one in members)
    plain = [one for one in members if _is_plain(one)]
    # `Installation | str`: other languages have the text alone.
    return next((one for one in plain if one is str), plain[0]), is_input


def _hints(kind: type[Any]) -> Mapping[str, Any]:
    # `pulumi.Input` refers to Output by name, which the modules of the classes do not import.
    return typing.get_type_hints(kind, localns=vars(pulumi.output))


def _is_union(kind: Any) -> bool:
    return typing.get_origin(kind) in (Union, types.UnionType)


def _is_plain(kind: Any) -> bool:
    return kind is not type(None) and typing.get_origin(kind) not in (Awaitable, pulumi.Output)


def _members(kind: type[Any], required: Sequence[str]) -> dict[str, Any]:
    described = dict(meanings(kind))
    properties = {}
    for key, (name, hint) in arguments(kind).items():
        properties[key] = {**_property(hint), "description": described[name]}
    return {"properties": properties, "required": list(required)}


def _property(kind: Any) -> dict[str, Any]:
    member, is_input = parts(kind)
    return _type(member) | ({} if is_input else {"plain": True})


def _type(kind: Any) -> dict[str, Any]:
    if kind is Any:
        return {"$ref": "pulumi.json#/Any"}
    if kind is EksCluster:
        return {"$ref": f"#/types/{CLUSTER}"}
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return {"type": "string"}
    if origin in (Mapping, dict):
        return {"type": "object", "additionalProperties": _property(inner[1])}
    if origin is Sequence:
        return {"type": "array", "items": _property(inner[0])}
    return {"type": PRIMITIVES[kind]}


def _summary(kind: type[Any]) -> str:
    return (kind.__doc__ or "").partition("\n")[0]
