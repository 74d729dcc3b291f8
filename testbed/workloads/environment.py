"""The environment variables of a container, resolved from its pod spec."""

from __future__ import annotations

import base64
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import Any

from testbed.kube.client import NotFoundError, Object
from testbed.kube.quantities import parse_quantity

_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_.\-][A-Za-z0-9_.\-]*)\)")
_SUBSCRIPT = re.compile(r"metadata\.(labels|annotations)\['(.+)'\]")
RESOURCES = ("cpu", "memory", "ephemeral-storage")

ReadObject = Callable[[str, str], Awaitable[Object]]  # plural kind, name → object


class ConfigurationError(Exception):
    """A container cannot start as its spec says; a change in the cluster may resolve this."""


@dataclass(frozen=True)
class Surroundings:
    """What a pod's environment variables may refer to."""

    pod: Object
    address: str
    host_address: str
    allocatable: Mapping[str, str]  # the node's; used if a container sets no limit
    read: ReadObject  # ConfigMaps and Secrets of the pod's namespace


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Return the text with $(NAME) replaced if NAME is known, and $$ by a dollar sign."""

    def replacement(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        return variables.get(match[1], match[0])

    return _REFERENCE.sub(replacement, text)


async def resolve(
    container: Object, surroundings: Surroundings, given: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables of a container, added to the given ones.

    Raises ConfigurationError if an object or key that the container refers to does not exist, or if
    the source of a variable is not supported here.
    """
    variables = dict(given)
    for source in container.get("envFrom") or []:
        variables.update(await _whole(source, surroundings))
    for entry in container.get("env") or []:
        value = await _value(entry, container, surroundings, variables)
        if value is not None:
            variables[entry["name"]] = value
    return variables


async def _whole(source: Object, surroundings: Surroundings) -> dict[str, str]:
    prefix = source.get("prefix") or ""
    for key, kind in (("configMapRef", "configmaps"), ("secretRef", "secrets")):
        if reference := source.get(key):
            entries = await _entries(kind, reference, surroundings)
            return {prefix + name: value for name, value in entries.items()}
    return {}


async def _value(
    entry: Object, container: Object, surroundings: Surroundings, variables: Mapping[str, str]
) -> str | None:
    source = entry.get("valueFrom")
    if source is None:
        return expand(entry.get("value") or "", variables)
    if field := source.get("fieldRef"):
        return _field(field["fieldPath"], surroundings)
    if resource := source.get("resourceFieldRef"):
        return _resource(resource, container, surroundings)
    for key, kind in (("configMapKeyRef", "configmaps"), ("secretKeyRef", "secrets")):
        if reference := source.get(key):
            return await _value_of_key(kind, reference, surroundings)
    raise ConfigurationError(f"variable {entry['name']} has a source that is not supported here")


async def _value_of_key(kind: str, reference: Object, surroundings: Surroundings) -> str | None:
    entries = await _entries(kind, reference, surroundings)
    if reference["key"] in entries:
        return entries[reference["key"]]
    if reference.get("optional"):
        return None
    raise ConfigurationError(f"{kind} {reference['name']!r} has no key {reference['key']!r}")


async def _entries(kind: str, reference: Object, surroundings: Surroundings) -> dict[str, str]:
    try:
        source = await surroundings.read(kind, reference["name"])
    except NotFoundError as exc:
        if reference.get("optional"):
            return {}
        raise ConfigurationError(f"{kind} {reference['name']!r} not found") from exc
    return _decode(kind, source.get("data") or {})


def _decode(kind: str, entries: Mapping[str, str]) -> dict[str, str]:
    if kind == "configmaps":
        return dict(entries)
    return {key: base64.b64decode(value).decode() for key, value in entries.items()}


def _field(path: str, surroundings: Surroundings) -> str:
    pod = surroundings.pod
    metadata, spec = pod["metadata"], pod["spec"]
    if match := _SUBSCRIPT.fullmatch(path):
        return str((metadata.get(match[1]) or {}).get(match[2], ""))
    fields: dict[str, Any] = {
        "metadata.name": metadata["name"],
        "metadata.namespace": metadata["namespace"],
        "metadata.uid": metadata["uid"],
        "spec.nodeName": spec["nodeName"],
        "spec.serviceAccountName": spec.get("serviceAccountName", "default"),
        "status.podIP": surroundings.address,
        "status.podIPs": surroundings.address,
        "status.hostIP": surroundings.host_address,
        "status.hostIPs": surroundings.host_address,
    }
    if path not in fields:
        raise ConfigurationError(f"field {path} is not supported")
    return str(fields[path])


def _resource(reference: Object, container: Object, surroundings: Surroundings) -> str:
    source = container
    if name := reference.get("containerName"):
        source = next(c for c in surroundings.pod["spec"]["containers"] if c["name"] == name)
    group, _, resource = reference["resource"].partition(".")
    if group not in ("limits", "requests") or resource not in RESOURCES:
        raise ConfigurationError(f"resource {reference['resource']} is not supported")
    amount = parse_quantity(_amount(source, group, resource, surroundings))
    divisor = parse_quantity(reference.get("divisor") or "1")
    return str(ceil(amount / (divisor or Fraction(1))))


def _amount(container: Object, group: str, resource: str, surroundings: Surroundings) -> str:
    own = (container.get("resources") or {}).get(group) or {}
    if resource in own:
        return str(own[resource])
    return surroundings.allocatable.get(resource, "0") if group == "limits" else "0"
