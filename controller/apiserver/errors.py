"""Errors of the API server.

* ApiError                  any failed request; has `status` and the server's message
  x NotFoundError           404: the object does not exist
  x ConflictError           409: the object changed, or it already exists
  x InvalidError            400, 422: a schema or validation rule refuses the object; do not retry
  x UnauthorizedError       401: the server does not accept the credentials
  x ForbiddenError          403: RBAC or an admission controller does not allow the request
  x TooManyRequestsError    429: slow down, or a PodDisruptionBudget forbids the eviction
  x GoneError               410: the watch is too old; list again
  x UnavailableError        5xx and broken connections: retry
  x UnreadableError         the object has an unexpected format
"""

from __future__ import annotations


class ApiError(Exception):
    """A request that failed; `status` is the HTTP status, 0 without a response."""

    def __init__(self, message: str, *, status: int = 0, reason: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


class NotFoundError(ApiError):
    """The object does not exist."""


class ConflictError(ApiError):
    """The object changed since it was read, or already exists."""


class InvalidError(ApiError):
    """The schema or a rule refuses the object."""


class UnauthorizedError(ApiError):
    """The server does not accept the credentials; `manager.authentication` reports it."""


class ForbiddenError(ApiError):
    """The controller's role does not allow the request."""


class TooManyRequestsError(ApiError):
    """Too many requests; for an eviction, a PodDisruptionBudget forbids it now."""


class GoneError(ApiError):
    """The resource version is too old; list again."""


class UnavailableError(ApiError):
    """The server did not respond, or could not process the request; retry."""


class UnreadableError(ApiError):
    """The server's object has an unexpected format."""
