"""AWS errors."""

from __future__ import annotations


class AwsError(Exception):
    """An error as the caller sees it: code, message and HTTP status."""

    def __init__(self, code: str, message: str, *, status: int = 400) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.status = status


def invalid_value(message: str) -> AwsError:
    """Return EC2's error for a parameter with a value that it does not accept."""
    return AwsError("InvalidParameterValue", message)


def missing_parameter(name: str) -> AwsError:
    """Return EC2's error for a parameter that is absent."""
    return AwsError("MissingParameter", f"The request must contain the parameter {name}")


def dry_run_succeeded() -> AwsError:
    """Return the error that answers a dry run that would have succeeded."""
    return AwsError(
        "DryRunOperation",
        "Request would have succeeded, but DryRun flag is set.",
        status=412,
    )


def not_implemented(service: str, operation: str) -> AwsError:
    """Return the error for an operation that the test cloud does not implement."""
    return AwsError(
        "NotImplementedInTestCloud",
        f"The testbed's cloud does not implement {service}:{operation}.",
        status=501,
    )
