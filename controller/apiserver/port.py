"""What Joiner asks of the Kubernetes API server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol

from controller.apis.kinds import Kind, T

Patch = Mapping[str, Any]
"""A JSON merge patch: nested keys to set; None removes."""


@dataclass(frozen=True, slots=True)
class Change(Generic[T]):
    """One step of a watch.

    `RESET` carries no object: what follows is a whole new list, and `SYNCED` ends
    it. Objects not seen between the two are gone.
    """

    type: Literal["RESET", "ADDED", "MODIFIED", "DELETED", "SYNCED"]
    object: T | None = None


class ApiServer(Protocol):
    """The API server. Every call may raise ApiError; see `errors`."""

    async def get(self, kind: Kind[T], name: str, namespace: str = "") -> T:
        """Return one object."""

    async def list(
        self,
        kind: Kind[T],
        *,
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
    ) -> list[T]:
        """Return all objects of a kind, read in pages."""

    def watch(self, kind: Kind[T]) -> AsyncIterator[Change[T]]:
        """List, then follow a kind for ever; reconnects by itself, lists again when it must."""

    async def create(self, kind: Kind[T], body: Mapping[str, Any], namespace: str = "") -> T:
        """Create an object from its JSON form and return what the server made of it."""

    async def patch(
        self,
        kind: Kind[T],
        name: str,
        patch: Patch,
        *,
        namespace: str = "",
        subresource: str = "",
        resource_version: str = "",
        uid: str = "",
    ) -> T:
        """Merge a patch into an object, or into its `status`.

        With `resource_version`, a change made meanwhile raises ConflictError; with
        `uid`, so does an object of the same name that is another one.
        """

    async def delete(
        self,
        kind: Kind[T],
        name: str,
        *,
        namespace: str = "",
        uid: str = "",
        grace_period_seconds: int | None = None,
        propagation: Literal["Background", "Foreground", "Orphan"] | None = None,
    ) -> None:
        """Ask for an object's end; one that is already gone raises NotFoundError."""

    async def evict(self, name: str, namespace: str, *, uid: str) -> None:
        """Evict a pod. TooManyRequestsError says that a disruption budget forbids it now."""

    async def replace(self, kind: Kind[T], body: Mapping[str, Any], namespace: str = "") -> T:
        """Write a whole object back; its resourceVersion must be the current one."""
