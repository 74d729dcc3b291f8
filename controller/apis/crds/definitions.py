"""Builds a CustomResourceDefinition from the schemas of spec and status."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from controller.apis.crds.schemas import Schema
from controller.apis.kinds import Kind


@dataclass(frozen=True, slots=True)
class Column:
    """A column of `kubectl get`; a wide column is printed with `-o wide` only."""

    name: str
    path: str
    type: str = "string"
    wide: bool = False

    @property
    def rendered(self) -> dict[str, Any]:
        """The column as an entry of `additionalPrinterColumns`."""
        column: dict[str, Any] = {"name": self.name, "jsonPath": self.path, "type": self.type}
        return column | ({"priority": 1} if self.wide else {})


AGE = Column("Age", ".metadata.creationTimestamp", "date")


def condition(name: str) -> str:
    """Return the JSONPath of a condition's status."""
    return f'.status.conditions[?(@.type=="{name}")].status'


def label(key: str) -> str:
    """Return the JSONPath of a label's value."""
    return ".metadata.labels." + key.replace(".", r"\.")


def definition(
    kind: Kind[Any],
    about: str,
    *,
    spec: Schema,
    status: Schema,
    columns: Sequence[Column],
    category: str,
    short_names: Sequence[str] = (),
    scale: dict[str, str] | None = None,
) -> dict[str, Any]:
    """Return the CustomResourceDefinition of a kind with a spec and a status subresource."""
    names: dict[str, Any] = {
        "categories": [category],
        "kind": kind.name,
        "listKind": f"{kind.name}List",
        "plural": kind.plural,
        "singular": kind.name.lower(),
    }
    if short_names:
        names["shortNames"] = list(short_names)
    version = {
        "name": kind.api_version.rpartition("/")[2],
        "served": True,
        "storage": True,
        "additionalPrinterColumns": [column.rendered for column in columns],
        "subresources": {"status": {}} | ({"scale": scale} if scale else {}),
        "schema": {"openAPIV3Schema": _root(about, spec, status)},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{kind.group}"},
        "spec": {
            "group": kind.group,
            "names": names,
            "scope": "Namespaced" if kind.namespaced else "Cluster",
            "versions": [version],
        },
    }


def _root(about: str, spec: Schema, status: Schema) -> Schema:
    return {
        "description": about,
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": spec,
            "status": status,
        },
    }
