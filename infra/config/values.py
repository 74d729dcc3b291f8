"""Parses the text of a setting into a value of its type."""

from __future__ import annotations

import json
import typing
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from controller.options import OptionsError, value_of
from infra.config.forms import Each, Wire


def value_from(text: str, kind: Any, key: str) -> Any:
    """Return the value that the text of a setting means.

    `kind` is the type of the setting; `key` names the setting in errors.

    Raises:
        OptionsError: the text is not a value of this type; says what is allowed.

    """
    members = typing.get_args(kind)
    if kind == Mapping[str, str]:
        return _mapping(text, key)
    if kind == Wire:
        words = "an affinity as in the spec of a pod"
        affinity = _structure(text, key, dict, words)
        if not _is_affinity(affinity):
            raise OptionsError(key, text, words)
        return affinity
    if kind == Sequence[Wire]:
        return _wires(text, key, "a list of maps")
    if len(members) > 1 and isinstance(members[1], Each):
        wires = _wires(text, key, members[1].words)
        if not all(map(members[1].has_shape, wires)):
            raise OptionsError(key, text, members[1].words)
        return wires
    if typing.get_origin(kind) is Sequence:
        return _list(text, members[0], key)
    return value_of(text, kind, key=key)


def _list(text: str, kind: Any, key: str) -> tuple[Any, ...]:
    words = f"a list of {typing.get_args(kind)[1]}"
    items = (
        _structure(text, key, list, words)
        if text.lstrip().startswith("[")
        else [item.strip() for item in text.split(",") if item.strip()]
    )
    try:
        return tuple(value_of(item, kind, key=key) for item in items)
    except OptionsError as exc:
        raise OptionsError(key, text, words) from exc


def _is_affinity(value: Wire) -> bool:
    """Whether an affinity has the shape that the default affinity can be merged with."""
    if not all(isinstance(kind, dict) for kind in value.values()):
        return False
    required = value.get("nodeAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is None:
        return True
    terms = required.get("nodeSelectorTerms") if isinstance(required, dict) else None
    return isinstance(terms, list) and all(
        isinstance(term, dict) and isinstance(term.get("matchExpressions", []), list)
        for term in terms
    )


def _wires(text: str, key: str, words: str) -> tuple[Wire, ...]:
    wires = _structure(text, key, list, words)
    if not all(isinstance(wire, dict) for wire in wires):
        raise OptionsError(key, text, words)
    return tuple(wires)


def _mapping(text: str, key: str) -> dict[str, str]:
    words = "a map of names to text"
    mapping: dict[Any, Any] = _structure(text, key, dict, words)
    if not all(isinstance(name, str) for name in mapping) or any(
        isinstance(value, dict | list | set | tuple) or value is None for value in mapping.values()
    ):
        raise OptionsError(key, text, words)
    return {name: _scalar(value) for name, value in mapping.items()}


def _scalar(value: Any) -> str:
    return json.dumps(value) if isinstance(value, bool) else str(value)


def _structure(text: str, key: str, kind: type[Any], words: str) -> Any:
    try:
        structure = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as exc:
        # PyYAML raises ValueError for invalid numbers and dates.
        raise OptionsError(key, text, words) from exc
    if not isinstance(structure, kind):
        raise OptionsError(key, text, words)
    return structure
