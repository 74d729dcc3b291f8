"""Errors of a cloud provider.

* CloudProviderError            a call failed; carries a `reason` for conditions
  x NodeClaimNotFoundError      the instance is terminated: deletion is complete
  x RebootRefusedError          the instance cannot be rebooted; a retry does not help
  x InsufficientCapacityError   no requested offering has capacity; the NodeClaim is deleted
  x NodeClassNotReadyError      the NodeClass cannot launch instances yet
  x NodeClassUnknownError       the NodeClass is not reconciled yet; the launch is retried soon
  x CreateError                 the launch failed for a reason that the user must see
  x ThrottledError              the cloud throttled the call; the state of the instance is unknown
"""

from __future__ import annotations


class CloudProviderError(Exception):
    """A call to the cloud failed; `reason` is CamelCase, for a condition.

    The text is `problem`, then what to do where the controller runs, if that is known.
    """

    reason = "CloudProviderError"

    def __init__(self, problem: str, *, reason: str | None = None, remedy: str = "") -> None:
        super().__init__(f"{problem}; {remedy}" if remedy else problem)
        self.problem = problem
        if reason is not None:
            self.reason = reason


class NodeClaimNotFoundError(CloudProviderError):
    """The instance does not exist or is terminated: deletion is complete."""

    reason = "NodeClaimNotFound"


class RebootRefusedError(CloudProviderError):
    """The instance cannot be rebooted; a retry does not help."""


class InsufficientCapacityError(CloudProviderError):
    """None of the requested offerings has capacity."""

    reason = "InsufficientCapacity"


class NodeClassNotReadyError(CloudProviderError):
    """The NodeClass cannot launch instances yet."""

    reason = "NodeClassNotReady"


class NodeClassUnknownError(CloudProviderError):
    """The NodeClass has not been reconciled yet; the launch is retried soon."""

    reason = "NodeClassReadinessUnknown"


class CreateError(CloudProviderError):
    """The launch failed for a reason that the user must see; it is retried with backoff."""

    reason = "LaunchFailed"


class ThrottledError(CloudProviderError):
    """The cloud throttled the call, so the state of the instance is unknown."""

    reason = "RequestLimitExceeded"
