"""Ownership of fields: later applies take over the fields that a create set.

A field with two managers stays when one of them omits it. The creator owns the fields it
created. The provider therefore transfers their ownership before the first apply. The real
provider does the same: `fixCSAFieldManagers` in pulumi-kubernetes,
`provider/pkg/await/await.go`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Final

FORMER_OWNERS: Final = frozenset(
    {
        ("before-first-apply", "Update"),
        ("kubectl", "Apply"),
        ("kubectl", "Update"),
        ("pulumi-kubernetes", "Update"),
        ("pulumi-kubernetes.exe", "Update"),
        ("pulumi-resource-kubernetes", "Update"),
    }
)
"""(manager, operation) whose fields an update takes over."""

Entry = dict[str, Any]


def taken_over(entries: Sequence[Mapping[str, Any]], manager: str) -> list[Entry] | None:
    """Return the managed fields after `manager` takes over; None if nothing changes."""
    former = [entry for entry in entries if _is_former(entry)]
    if not former:
        return None
    rest = [dict(entry) for entry in entries if not _is_former(entry)]
    own = next((entry for entry in rest if _is_own(entry, manager)), None)
    if own is None:
        own = {**former[0], "manager": manager, "operation": "Apply"}
        rest.append(own)
    fields: dict[str, Any] = {}
    for entry in (own, *former):
        _merge(fields, entry.get("fieldsV1") or {})
    own["fieldsV1"] = fields
    return rest


def _is_former(entry: Mapping[str, Any]) -> bool:
    # Appliers never own the fields of a subresource, such as the status.
    owner = (entry["manager"], entry["operation"])
    return owner in FORMER_OWNERS and not entry.get("subresource")


def _is_own(entry: Mapping[str, Any], manager: str) -> bool:
    owner = (entry["manager"], entry["operation"])
    return owner == (manager, "Apply") and not entry.get("subresource")


def _merge(into: dict[str, Any], fields: Mapping[str, Any]) -> None:
    for key, inner in fields.items():
        if isinstance(inner, Mapping):
            _merge(into.setdefault(key, {}), inner)
        else:
            into[key] = copy.deepcopy(inner)
