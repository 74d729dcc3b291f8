"""Selector terms of a node class as EC2 filters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def tag_filters(tags: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the filters for tags; the value `*` asks for the key alone."""
    return [
        {"Name": "tag-key", "Values": [key]}
        if value == "*"
        else {"Name": f"tag:{key}", "Values": [value]}
        for key, value in sorted(tags.items())
    ]


def tags_of(resource: Mapping[str, Any], key: str = "Tags") -> dict[str, str]:
    """Return the tags of something EC2 described."""
    return {tag["Key"]: tag["Value"] for tag in resource.get(key) or []}


def tag_list(tags: Mapping[str, str]) -> list[dict[str, str]]:
    """Return tags in the form EC2 takes them."""
    return [{"Key": key, "Value": value} for key, value in sorted(tags.items())]
