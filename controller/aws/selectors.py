"""Converts the selector terms of an EC2NodeClass to EC2 filters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from controller.apis.karpenter.ec2nodeclass import SelectorTerm


def queries(
    terms: Sequence[SelectorTerm], *, id_filter: str, name_filter: str = ""
) -> list[list[dict[str, Any]]]:
    """Return the EC2 filters of each query; all IDs share one query.

    `id_filter` and `name_filter` are the names of EC2's filters, such as `subnet-id`. If
    `name_filter` is empty, names in terms are ignored.

    Without filters, EC2 returns every resource, so a term without ID, name and tags has no query.
    """
    ids = sorted(term.id for term in terms if term.id)
    by_id = [[{"Name": id_filter, "Values": ids}]] if ids else []
    others = [
        [
            *([{"Name": name_filter, "Values": [term.name]}] if name_filter and term.name else []),
            *tag_filters(term.tags),
        ]
        for term in terms
        if not term.id
    ]
    return by_id + [filters for filters in others if filters]


def tag_filters(tags: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the EC2 filters for tags; the value `*` matches every resource that has the key."""
    return [
        {"Name": "tag-key", "Values": [key]}
        if value == "*"
        else {"Name": f"tag:{key}", "Values": [value]}
        for key, value in sorted(tags.items())
    ]


def tags_of(resource: Mapping[str, Any]) -> dict[str, str]:
    """Return the tags of a resource that EC2 described, by key."""
    return {tag["Key"]: tag["Value"] for tag in resource.get("Tags") or []}


def tag_list(tags: Mapping[str, str]) -> list[dict[str, str]]:
    """Return the tags as the list of keys and values that EC2 expects, sorted by key."""
    return [{"Key": key, "Value": value} for key, value in sorted(tags.items())]
