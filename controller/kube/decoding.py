"""From the server's bytes to cut types, without anything in between."""

from __future__ import annotations

import logging
from typing import Any, Generic

import msgspec

from controller.apis.kinds import Kind, T
from controller.apis.meta import ObjectMeta, Wire

log = logging.getLogger(__name__)


class ListMeta(Wire):
    """How far a list goes, and which version of the world it shows."""

    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class Page(msgspec.Struct, Generic[T]):
    """One page of a list."""

    metadata: ListMeta
    items: list[T] | None = None


class RawPage(msgspec.Struct):
    """A page whose objects have not been looked at."""

    metadata: ListMeta
    items: list[msgspec.Raw] | None = None


class WatchEvent(msgspec.Struct):
    """One line of a watch; what the object is depends on the type."""

    type: str
    object: msgspec.Raw


class Named(msgspec.Struct):
    """Any object, cut down to its metadata."""

    metadata: ObjectMeta


def one(kind: Kind[T], body: bytes) -> T:
    """Decode an object."""
    return msgspec.json.decode(body, type=kind.type)


def readable(kind: Kind[T], body: Any) -> T | None:
    """Decode an object, or say in the log that it cannot be read and return None."""
    try:
        return msgspec.json.decode(body, type=kind.type)
    except msgspec.ValidationError as exc:
        metadata = msgspec.json.decode(body, type=Named).metadata
        log.error(
            "ignoring an object that cannot be read: %s",
            exc,
            extra={"kind": kind.name, "namespace": metadata.namespace, "object": metadata.name},
        )
        return None


def page(kind: Kind[T], body: bytes) -> Page[T]:
    """Decode a page; one object that cannot be read does not hide the others."""
    whole: Any = Page[kind.type]  # type: ignore[name-defined]
    try:
        decoded: Page[T] = msgspec.json.decode(body, type=whole)
    except msgspec.ValidationError:
        raw = msgspec.json.decode(body, type=RawPage)
        read = (readable(kind, item) for item in raw.items or ())
        return Page(raw.metadata, [item for item in read if item is not None])
    return decoded
