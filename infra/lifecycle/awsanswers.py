"""Answers of AWS: an expected error instead of one, and the tags in one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from botocore.exceptions import ClientError

Answer = TypeVar("Answer")

ABSENT = frozenset({"NoSuchEntity", "ResourceNotFoundException"})
"""The error codes of IAM and EKS for a resource that does not exist."""


def unless_error(codes: Collection[str], ask: Callable[[], Answer]) -> Answer | None:
    """Return the answer to a call, or None if AWS answers with an error of one of the codes."""
    try:
        return ask()
    except ClientError as exc:
        if exc.response["Error"]["Code"] not in codes:
            raise
        return None


def tags_in(described: Mapping[str, Any], key: str = "Tags") -> dict[str, str]:
    """Return the tags in AWS' description of a resource."""
    return {tag["Key"]: tag["Value"] for tag in described.get(key) or ()}
