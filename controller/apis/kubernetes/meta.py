"""The base type of decoded objects, and the metadata and references that objects share."""

from __future__ import annotations

from datetime import datetime
from typing import Any, TypeVar, dataclass_transform

import msgspec


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class WireMeta(msgspec.StructMeta):
    """Makes every decoded type frozen and keyword-only, also for the type checker."""

    def __new__(
        mcls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any
    ) -> WireMeta:
        """Create the struct type; the options are those of msgspec."""
        defaults: dict[str, Any] = {
            "frozen": True,
            "kw_only": True,
            "rename": "camel",
            "omit_defaults": True,
            # Values decoded from JSON contain no cycles, so garbage collection need not track them.
            "gc": False,
        }
        return super().__new__(mcls, name, bases, namespace, **(defaults | options))


class Wire(msgspec.Struct, metaclass=WireMeta):
    """A frozen struct with camelCase names in JSON; unknown fields are dropped."""


_Wire = TypeVar("_Wire", bound=Wire)


class OwnerReference(Wire):
    """A reference to the object that owns this one."""

    api_version: str = msgspec.field(default="", name="apiVersion")
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False
    block_owner_deletion: bool = False


class ObjectMeta(Wire):
    """The metadata of an object; timestamps are aware UTC datetimes."""

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
        """Whether the object is being deleted."""
        return self.deletion_timestamp is not None

    @property
    def key(self) -> str:
        """The key of a namespaced object, `namespace/name`."""
        return f"{self.namespace}/{self.name}"


class KubernetesObject(Wire):
    """Any object with metadata: its name, its identity and its timestamps."""

    metadata: ObjectMeta


class LabelSelectorRequirement(Wire):
    """An expression of a label selector: In, NotIn, Exists or DoesNotExist."""

    key: str
    operator: str
    values: list[str] = []


class LabelSelector(Wire):
    """Selects objects by label; every expression must match."""

    match_labels: dict[str, str] = {}
    match_expressions: list[LabelSelectorRequirement] = []


class ObjectReference(Wire):
    """A reference to any object, as in events."""

    api_version: str = msgspec.field(default="", name="apiVersion")
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""


def with_fields(whole: _Wire, path: str, **fields: object) -> _Wire:
    """Return a copy of an object with other values of some fields of its part at a dotted path."""
    name, _, rest = path.partition(".")
    part = getattr(whole, name)
    changed = with_fields(part, rest, **fields) if rest else msgspec.structs.replace(part, **fields)
    return msgspec.structs.replace(whole, **{name: changed})


def to_wire(value: Any) -> Any:
    """Return a struct as JSON-compatible Python values (dicts, lists, strings, numbers)."""
    return msgspec.to_builtins(value)
