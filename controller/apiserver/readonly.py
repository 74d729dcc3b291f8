"""A read-only API server, for a controller that must not change the cluster.

Reads are forwarded. Writes raise ForbiddenError and are not sent.
"""

from __future__ import annotations

from typing import Any, NoReturn

from controller.apis.kinds import Kind
from controller.apiserver.errors import ForbiddenError
from controller.apiserver.port import ApiServer


class ReadOnlyApiServer:
    """Forwards reads and refuses writes before they leave the process; implements `ApiServer`."""

    def __init__(self, api: ApiServer) -> None:
        self.get, self.list, self.watch = api.get, api.list, api.watch

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


def _refusal(request: str) -> ForbiddenError:
    return ForbiddenError(
        f"{request}: not sent, because DISRUPTION_MODE=observe writes nothing", status=403
    )
