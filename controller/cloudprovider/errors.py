"""What a cloud may answer instead of a node.

* CloudProviderError            something failed; carries a `reason` for conditions
  x NodeClaimNotFoundError      the instance is gone: deletion is complete
  x InsufficientCapacityError   every offering was refused; the claim is given up
  x NodeClassNotReadyError      the node class cannot launch anything yet
  x NodeClassUnknownError       nobody has looked at the node class yet; tried again soon
  x CreateError                 the launch failed for a reason a person must see
  x ThrottledError              the cloud asks us to slow down; nothing may be concluded
"""

from __future__ import annotations


class CloudProviderError(Exception):
    """Something failed on the cloud's side; `reason` is CamelCase, for a condition."""

    reason = "CloudProviderError"

    def __init__(self, message: str, *, reason: str | None = None) -> None:
        super().__init__(message)
        if reason is not None:
            self.reason = reason


class NodeClaimNotFoundError(CloudProviderError):
    """The instance does not exist (any more): deletion is complete."""

    reason = "NodeClaimNotFound"


class InsufficientCapacityError(CloudProviderError):
    """No offering that was asked for has capacity."""

    reason = "InsufficientCapacity"


class NodeClassNotReadyError(CloudProviderError):
    """The node class cannot launch anything yet."""

    reason = "NodeClassNotReady"


class NodeClassUnknownError(CloudProviderError):
    """Nobody has looked at the node class yet: tried again soon."""

    reason = "NodeClassReadinessUnknown"


class CreateError(CloudProviderError):
    """The launch failed for a reason that a person must see; tried again with back-off."""

    reason = "LaunchFailed"


class ThrottledError(CloudProviderError):
    """The cloud asks us to slow down; nothing may be concluded from this."""

    reason = "RequestLimitExceeded"
