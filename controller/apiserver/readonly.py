"""A read-only API server, for a controller that must not change the cluster.

Reads are forwarded. Writes raise ForbiddenError and are not sent.
"""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator
from typing import Any, NoReturn

from controller.apis.kinds import Kind, T
from controller.apiserver.errors import ForbiddenError
from controller.apiserver.port import ApiServer, Change


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
        """Yield the existing objects, then every change, as `ApiServer.watch` does."""
        return self._api.watch(kind)

    async def create(self, kind: Kind[Any], *_: Any, **__: Any) -> NoReturn:
        """Raise ForbiddenError without a request."""
        raise _refusal(f"create {kind.plural}")

    async def patch(self, kind: Kind[Any], *_: Any, **__: Any) -> NoReturn:
        """Raise ForbiddenError without a request."""
        raise _refusal(f"patch {kind.plural}")

    async def delete(self, kind: Kind[Any], *_: Any, **__: Any) -> NoReturn:
        """Raise ForbiddenError without a request."""
        raise _refusal(f"delete {kind.plural}")

    async def evict(self, *_: Any, **__: Any) -> NoReturn:
        """Raise ForbiddenError without a request."""
        raise _refusal("evict")

    async def replace(self, kind: Kind[Any], *_: Any, **__: Any) -> NoReturn:
        """Raise ForbiddenError without a request."""
        raise _refusal(f"replace {kind.plural}")


def _refusal(request: str) -> ForbiddenError:
    return ForbiddenError(
        f"{request}: not sent, because DISRUPTION_MODE=observe writes nothing", status=403
    )
