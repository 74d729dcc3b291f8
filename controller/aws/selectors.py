"""Converts the selector terms of an EC2NodeClass to EC2 filters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def tag_filters(tags: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the EC2 filters for tags; the value `*` matches every resource that has the key."""
    return [
        {"Name": "tag-key", "Values": [key]}
        if value == "*"
        else {"Name": f"tag:{key}", "Values": [value]}
        for key, value in sorted(tags.items())
    ]


def tags_of(resource: Mapping[str, Any], key: str = "Tags") -> dict[str, str]:
    """Return the tags of a resource that EC2 described, by key."""
    return {tag["Key"]: tag["Value"] for tag in resource.get(key) or []}


def tag_list(tags: Mapping[str, str]) -> list[dict[str, str]]:
    """Return the tags as the list of keys and values that EC2 expects, sorted by key."""
    return [{"Key": key, "Value": value} for key, value in sorted(tags.items())]
