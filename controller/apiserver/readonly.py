"""A read-only API server, for a controller that must not change the cluster."""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator, Mapping
from typing import Any, Literal, NoReturn

from controller.apis.kinds import Kind, T
from controller.apiserver.errors import ForbiddenError
from controller.apiserver.port import ApiServer, Change, Patch


class ReadOnlyApiServer:
    """Forwards reads and refuses writes before they leave the process; implements `ApiServer`."""

    def __init__(self, api: ApiServer) -> None:
        self._api = api

    async def get(self, kind: Kind[T], name: str, namespace: str = "") -> T:
        """Return one object."""
        return await self._api.get(kind, name, namespace)

    async def list(
        self,
        kind: Kind[T],
        *,
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
    ) -> builtins.list[T]:
        """Return all objects of a kind."""
        return await self._api.list(
            kind, namespace=namespace, label_selector=label_selector, field_selector=field_selector
        )

    def watch(self, kind: Kind[T]) -> AsyncIterator[Change[T]]:
        """List a kind, then yield its changes."""
        return self._api.watch(kind)

    async def create(self, kind: Kind[T], body: Mapping[str, Any], namespace: str = "") -> T:
        """Refuse the write."""
        _refuse("create", kind)

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
        """Refuse the write."""
        _refuse("patch", kind)

    async def delete(
        self,
        kind: Kind[T],
        name: str,
        *,
        namespace: str = "",
        uid: str = "",
        resource_version: str = "",
        grace_period_seconds: int | None = None,
        propagation: Literal["Background", "Foreground", "Orphan"] | None = None,
    ) -> None:
        """Refuse the write."""
        _refuse("delete", kind)

    async def evict(self, name: str, namespace: str, *, uid: str) -> None:
        """Refuse the write."""
        raise ForbiddenError(
            "evict: not sent, because DISRUPTION_MODE=observe writes nothing", status=403
        )

    async def replace(self, kind: Kind[T], body: Mapping[str, Any], namespace: str = "") -> T:
        """Refuse the write."""
        _refuse("replace", kind)


def _refuse(verb: str, kind: Kind[Any]) -> NoReturn:
    raise ForbiddenError(
        f"{verb} {kind.plural}: not sent, because DISRUPTION_MODE=observe writes nothing",
        status=403,
    )
