"""The calls of the Kubernetes API server that Joiner uses."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol

from controller.apis.kinds import Kind, T

Patch = Mapping[str, Any]
"""A JSON merge patch: the nested keys to set; None removes a key."""


@dataclass(frozen=True, slots=True)
class Change(Generic[T]):
    """One step of a watch.

    `RESET` and `SYNCED` carry no object. A complete list, as `ADDED` changes, follows `RESET`, and
    `SYNCED` ends it. Objects that are not listed between the two no longer exist.
    """

    type: Literal["RESET", "ADDED", "MODIFIED", "DELETED", "SYNCED"]
    object: T | None = None


class ApiServer(Protocol):
    """The API server. Every call may raise ApiError; see `errors`."""

    async def get(self, kind: Kind[T], name: str, namespace: str = "") -> T:
        """Return one object; raises NotFoundError if it does not exist."""

    async def list(
        self, kind: Kind[T], *, label_selector: str = "", field_selector: str = ""
    ) -> list[T]:
        """Return the objects of a kind in all namespaces, read in pages."""

    def watch(self, kind: Kind[T]) -> AsyncIterator[Change[T]]:
        """Yield RESET, the existing objects, SYNCED, and then every change; see `Change`.

        The watch reconnects by itself. If it must list the objects again, it yields another RESET,
        and so on.
        """

    async def create(self, kind: Kind[T], body: Mapping[str, Any], namespace: str = "") -> T:
        """Create an object from its JSON form and return the object as the server stored it.

        Raises ConflictError if an object of this name exists.
        """

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
        """Merge a patch into an object, or into its `status`, and return the resulting object.

        With `resource_version`, ConflictError is raised if the object has changed since. With
        `uid`, ConflictError is raised if the object was replaced by another of the same name.
        """

    async def delete(
        self,
        kind: Kind[T],
        name: str,
        *,
        namespace: str = "",
        uid: str = "",
        resource_version: str = "",
        grace_period_seconds: int | None = None,
    ) -> None:
        """Request an object's deletion; raises NotFoundError if it does not exist.

        If a given `uid` or `resource_version` is not the object's, ConflictError is raised.
        """

    async def evict(self, name: str, namespace: str, *, uid: str) -> None:
        """Evict a pod; raises TooManyRequestsError if a PodDisruptionBudget forbids it now.

        Raises ConflictError if `uid` is not the pod's.
        """
