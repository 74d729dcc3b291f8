"""Decodes the server's JSON directly into reduced types, without intermediate objects.

A reduced type has only the fields of an object that Joiner reads.
"""

from __future__ import annotations

import logging
from typing import Any, Generic

import msgspec

from controller.apis.kinds import Kind, T
from controller.apis.kubernetes.meta import KubernetesObject, Wire
from controller.apiserver.errors import UnavailableError, UnreadableError

log = logging.getLogger(__name__)


class ListMeta(Wire):
    """The metadata of a list: its resource version, and the token for the next page."""

    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class Page(msgspec.Struct, Generic[T]):
    """One page of a list."""

    metadata: ListMeta
    items: list[T] | None = None


class RawPage(msgspec.Struct):
    """A page whose objects are not decoded yet."""

    metadata: ListMeta
    items: list[msgspec.Raw] | None = None


class WatchEvent(msgspec.Struct):
    """One line of a watch; the type of `object` depends on `type`."""

    type: str
    object: msgspec.Raw


def one(kind: Kind[T], body: bytes) -> T:
    """Return the decoded object.

    Raises:
        UnavailableError: the body is not JSON.
        UnreadableError: the body is not an object of the kind.

    """
    try:
        decoded: T = _decode(body, kind.type)
    except msgspec.ValidationError as exc:
        raise UnreadableError(f"the {kind.name} has an unexpected format: {exc}") from exc
    return decoded


def readable(kind: Kind[T], body: Any) -> T | None:
    """Return the decoded object; if it is malformed, log an error and return None."""
    try:
        return msgspec.json.decode(body, type=kind.type)
    except msgspec.ValidationError as exc:
        metadata = msgspec.json.decode(body, type=KubernetesObject).metadata
        log.error(
            "ignoring an object with an unexpected format: %s",
            exc,
            extra={"kind": kind.name, "namespace": metadata.namespace, "object": metadata.name},
        )
        return None


def page(kind: Kind[T], body: bytes) -> Page[T]:
    """Return a decoded page; malformed objects are logged and left out.

    Raises:
        UnavailableError: the body is not a list of objects.

    """
    whole: Any = Page[kind.type]  # type: ignore[name-defined]
    try:
        decoded: Page[T] = _decode(body, whole)
    except msgspec.ValidationError:
        raw = _raw(body)
        read = (readable(kind, item) for item in raw.items or ())
        return Page(raw.metadata, [item for item in read if item is not None])
    return decoded


def _raw(body: bytes) -> RawPage:
    try:
        return msgspec.json.decode(body, type=RawPage)
    except msgspec.ValidationError as exc:
        raise _not_kubernetes(exc) from exc


def _decode(body: bytes, type_: Any) -> Any:
    try:
        return msgspec.json.decode(body, type=type_)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError as exc:
        raise _not_kubernetes(exc) from exc


def _not_kubernetes(problem: msgspec.DecodeError) -> UnavailableError:
    """Return the error for a response of another server, such as a proxy or a captive portal."""
    return UnavailableError(f"the response is not from a Kubernetes API server: {problem}")
