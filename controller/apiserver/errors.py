"""What the API server may answer instead of an object.

* ApiError                  any refusal; carries `status` and the server's message
  x NotFoundError           404: there is no such object
  x ConflictError           409: it changed, or it already exists
  x InvalidError            422: the schema or a rule refuses it; never worth a retry
  x ForbiddenError          401, 403: RBAC does not allow it
  x TooManyRequestsError    429: slow down, or a disruption budget forbids the eviction
  x GoneError               410: the watch is too old, list again
  x UnavailableError        5xx and connections that break: try again
"""

from __future__ import annotations


class ApiError(Exception):
    """A refusal by the API server; `status` is the HTTP status, 0 when none came."""

    def __init__(self, message: str, *, status: int = 0, reason: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


class NotFoundError(ApiError):
    """There is no such object."""


class ConflictError(ApiError):
    """The object changed since it was read, or already exists."""


class InvalidError(ApiError):
    """The schema or a rule refuses the object."""


class ForbiddenError(ApiError):
    """The controller's role does not allow this."""


class TooManyRequestsError(ApiError):
    """Slow down; for an eviction: a PodDisruptionBudget forbids it now."""


class GoneError(ApiError):
    """The resource version is too old: list again."""


class UnavailableError(ApiError):
    """The server did not answer, or could not: try again."""
