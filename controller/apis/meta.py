"""What every Kubernetes object carries: its metadata and its references."""

from __future__ import annotations

from datetime import datetime
from typing import Any, dataclass_transform

import msgspec


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class WireMeta(msgspec.StructMeta):
    """Makes every wire type frozen and keyword-only, and tells the type checker so."""

    def __new__(
        mcls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any
    ) -> WireMeta:
        """Build the struct; options are msgspec's."""
        defaults: dict[str, Any] = {
            "frozen": True,
            "kw_only": True,
            "rename": "camel",
            "omit_defaults": True,
            # What comes from JSON has no cycle for the collector to look for.
            "gc": False,
        }
        return super().__new__(mcls, name, bases, namespace, **(defaults | options))


class Wire(msgspec.Struct, metaclass=WireMeta):
    """A frozen value with camelCase names on the wire; unknown fields are dropped."""


class OwnerReference(Wire):
    """Points at the object that owns this one."""

    api_version: str = msgspec.field(default="", name="apiVersion")
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False
    block_owner_deletion: bool = False


class ObjectMeta(Wire):
    """Name, identity and life of an object; times are aware UTC datetimes."""

    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: list[OwnerReference] = []
    finalizers: list[str] = []

    @property
    def is_deleting(self) -> bool:
        """Whether someone has asked for this object to go."""
        return self.deletion_timestamp is not None


class LabelSelectorRequirement(Wire):
    """One expression of a label selector: In, NotIn, Exists or DoesNotExist."""

    key: str
    operator: str
    values: list[str] = []


class LabelSelector(Wire):
    """Selects objects by label; every part must hold."""

    match_labels: dict[str, str] = {}
    match_expressions: list[LabelSelectorRequirement] = []


class ObjectReference(Wire):
    """Points at any object, as events do."""

    api_version: str = msgspec.field(default="", name="apiVersion")
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""


def to_wire(value: Any) -> Any:
    """Turn a wire value into plain JSON-ready Python (dicts, lists, strings, numbers)."""
    return msgspec.to_builtins(value)
