"""Values of a program in any language → the component's arguments.

* ArgumentError  an argument cannot be used; names it, its value, and what is allowed
"""

from __future__ import annotations

import typing
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal

import pulumi
from pulumi.output import Unknown

from controller.options import OptionsError, value_of
from infra.cluster.ekscluster import EksCluster
from infra.clusterapi import ClusterLocation
from infra.joiner import JoinerArgs
from infra.plugin.schema import LOCATING, arguments, parts

CONNECTING = (*LOCATING, "aws_endpoint", "kubeconfig")
"""The facts of a cluster with which the others are found."""


class ArgumentError(pulumi.RunError):
    """An argument cannot be used. The message names it, its value, and what is allowed."""


def joiner_args(values: Mapping[str, Any]) -> JoinerArgs:
    """Return the component's arguments from values by their names in the schema.

    Raises:
        ArgumentError: an argument is missing or unknown, or has a value that is not allowed.

    """
    given = _read(JoinerArgs, values, "")
    if "cluster" not in given:
        raise ArgumentError(
            "cluster is missing: allowed is an object with name and region of the EKS cluster"
        )
    return JoinerArgs(**{**given, "cluster": _cluster(given["cluster"])})


def _cluster(facts: Mapping[str, Any]) -> EksCluster:
    """Return the facts of the cluster as the program states them, or find it by its name."""
    if missing := [f"cluster.{name}" for name in LOCATING if name not in facts]:
        raise ArgumentError(f"{missing[0]} is missing: allowed is text")
    if facts.keys() <= set(CONNECTING):
        known = {name: _require_known(value, f"cluster.{name}") for name, value in facts.items()}
        return EksCluster.found(ClusterLocation(cluster_name=known.pop("name"), **known))
    try:
        return EksCluster(**facts)
    except TypeError as error:
        raise ArgumentError(
            f"cluster: {error}. Give only name and region to read the other facts from EKS"
        ) from error


def _read(kind: type[Any], values: Mapping[str, Any], path: str) -> dict[str, Any]:
    known = arguments(kind)
    if strange := sorted(values.keys() - known.keys()):
        raise ArgumentError(f"{path}{strange[0]} is unknown: allowed are {', '.join(known)}")
    read = {}
    for key, value in values.items():
        name, hint = known[key]
        read[name] = _value(value, hint, f"{path}{key}")
    return read


def _value(value: Any, kind: Any, path: str) -> Any:
    member, is_input = parts(kind)
    if is_input and isinstance(value, pulumi.Output | Unknown):
        return pulumi.Output.from_input(value)
    value = _require_known(value, path)
    if member is EksCluster:
        return _read(EksCluster, _of_kind(value, dict, path, "an object"), f"{path}.")
    origin, inner = typing.get_origin(member), typing.get_args(member)
    if origin in (Mapping, dict):
        entries = _of_kind(value, dict, path, "an object")
        return {key: _value(one, inner[1], f"{path}.{key}") for key, one in entries.items()}
    if origin is Sequence:
        items = _of_kind(value, list, path, "a list")
        return [_value(one, inner[0], f"{path}[{at}]") for at, one in enumerate(items)]
    if member is Any:
        return _json(value, path)
    return _scalar(value, member, path)


def _scalar(value: Any, kind: Any, path: str) -> Any:
    if kind is bool:
        return _of_kind(value, bool, path, "true or false")
    if kind in (str, timedelta) or typing.get_origin(kind) is Literal:
        # Not made text from a number: YAML reads 1.10 as 1.1, and 0123 as 83.
        _of_kind(value, str, path, "text; put a number, true or false in quotes")
    # Pulumi's numbers are floating-point numbers.
    text = f"{value:g}" if isinstance(value, float) else str(value)
    try:
        return value_of(text, kind, key=path)
    except OptionsError as error:
        raise ArgumentError(str(error)) from error


def _json(value: Any, path: str) -> Any:
    """Return a JSON value with integers, which Pulumi passes as floating-point numbers."""
    value = _require_known(value, path)
    if isinstance(value, dict):
        return {key: _json(one, f"{path}.{key}") for key, one in value.items()}
    if isinstance(value, list):
        return [_json(one, f"{path}[{at}]") for at, one in enumerate(value)]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _require_known(value: Any, path: str) -> Any:
    if isinstance(value, pulumi.Output | Unknown):
        raise ArgumentError(
            f"{path} is a secret, or an output of another resource: allowed is a value that is "
            "known while the program runs, because it decides which resources exist"
        )
    return value


def _of_kind(value: Any, kind: type[Any], path: str, words: str) -> Any:
    if not isinstance(value, kind):
        raise ArgumentError(f"{path}={_yaml_text(value)} cannot be used: allowed is {words}")
    return value


def _yaml_text(value: Any) -> str:
    """Return a value as programs in YAML write it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return repr(value)
