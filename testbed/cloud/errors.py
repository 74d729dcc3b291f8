"""What AWS answers instead of a result."""

from __future__ import annotations


class AwsError(Exception):
    """An error as the caller will see it: code, message and HTTP status."""

    def __init__(self, code: str, message: str, *, status: int = 400) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.status = status


def dry_run_succeeded() -> AwsError:
    """The answer to a dry run that would have worked."""
    return AwsError(
        "DryRunOperation",
        "Request would have succeeded, but DryRun flag is set.",
        status=412,
    )


def not_implemented(service: str, operation: str) -> AwsError:
    """The answer to a call that this cloud does not know."""
    return AwsError(
        "NotImplementedInTestCloud",
        f"The testbed's cloud does not implement {service}:{operation}.",
        status=501,
    )
