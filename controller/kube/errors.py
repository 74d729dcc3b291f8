"""Translates HTTP errors of the API server and network errors into `ApiError`s."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import aiohttp
import msgspec

from controller.apiserver.errors import (
    ApiError,
    ConflictError,
    ForbiddenError,
    GoneError,
    InvalidError,
    NotFoundError,
    TooManyRequestsError,
    UnauthorizedError,
    UnavailableError,
)

_BY_STATUS: dict[int, type[ApiError]] = {
    400: InvalidError,
    401: UnauthorizedError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    410: GoneError,
    422: InvalidError,
    429: TooManyRequestsError,
}


class Status(msgspec.Struct):
    """The Status object of a failed request."""

    message: str = ""
    reason: str = ""
    code: int = 0


def refusal(status: int, body: bytes) -> ApiError:
    """Return the error for an HTTP status and the body of the response."""
    try:
        said = msgspec.json.decode(body, type=Status)
    except msgspec.DecodeError:
        said = Status(message=body[:300].decode(errors="replace").strip())
    kind = _BY_STATUS.get(status, UnavailableError if status >= 500 else ApiError)
    return kind(said.message or f"HTTP {status}", status=status, reason=said.reason)


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Raise UnavailableError for timeouts and broken connections."""
    try:
        yield
    except TimeoutError as exc:
        raise UnavailableError("the API server did not answer in time") from exc
    except (aiohttp.ClientError, OSError) as exc:
        raise UnavailableError(f"the API server cannot be reached: {exc}") from exc
