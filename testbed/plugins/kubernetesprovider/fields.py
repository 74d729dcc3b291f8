"""Ownership of fields: later applies take over the fields that a create set.

A field with two managers stays when one of them omits it. The creator owns the fields it
created. The provider therefore transfers their ownership before it applies, and with it the fields
of kubectl. The real provider does the same: `fixCSAFieldManagers` in pulumi-kubernetes,
`provider/pkg/await/await.go`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Final

FORMER_OWNERS: Final = (
    ("before-first-apply", "Update"),
    ("kubectl", "Apply"),
    ("kubectl", "Update"),
    ("pulumi-kubernetes", "Update"),
    ("pulumi-resource-kubernetes", "Update"),
)
"""(prefix of the manager, operation) whose fields an update takes over.

`kubectl` is the prefix of the managers of `kubectl annotate`, `label`, `edit`, `patch` and `set`.
"""

CREATORS: Final = ("pulumi-kubernetes", "pulumi-kubernetes.exe", "pulumi-resource-kubernetes")
"""Managers whose fields a preview overrides, because the update would take them over."""

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


def is_created_by_pulumi(entries: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether some fields have no owner since Pulumi created the object."""
    return any(each["operation"] == "Update" and each["manager"] in CREATORS for each in entries)


def _is_former(entry: Mapping[str, Any]) -> bool:
    # Appliers never own the fields of a subresource, such as the status.
    return not entry.get("subresource") and any(
        entry["manager"].startswith(prefix) and entry["operation"] == operation
        for prefix, operation in FORMER_OWNERS
    )


def _is_own(entry: Mapping[str, Any], manager: str) -> bool:
    owner = (entry["manager"], entry["operation"])
    return owner == (manager, "Apply") and not entry.get("subresource")


def _merge(into: dict[str, Any], fields: Mapping[str, Any]) -> None:
    for key, inner in fields.items():
        if isinstance(inner, Mapping):
            _merge(into.setdefault(key, {}), inner)
        else:
            into[key] = copy.deepcopy(inner)
