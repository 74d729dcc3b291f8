"""The field manager under which Pulumi applies every object of the program.

By default, Pulumi's Kubernetes provider draws a field manager for each resource that it creates.
An object that it adopts after a lost state keeps the former one as an owner of every field: a
changed setting is then a conflict, and a removed one stays. With one field manager, an adopted
object has one owner.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

import pulumi

from infra.clusterapi import CLUSTER_ERRORS, ClusterApi, ClusterLocation, Wire
from infra.lifecycle.destroying import is_destroying

MANAGER = "pulumi-kubernetes-joiner"
ANNOTATIONS = {
    "pulumi.com/patchFieldManager": MANAGER,
    # Settings that another tool has changed are set again.
    "pulumi.com/patchForce": "true",
}
DRAWN = re.compile(r"pulumi-kubernetes(-[0-9a-f]{8})?")
"""A field manager that Pulumi's provider draws, or the one of its POST requests."""


def applied_by_us(metadata: Mapping[str, Any]) -> Wire:
    """Return the metadata with annotations that name the field manager to Pulumi's provider."""
    return {**metadata, "annotations": {**ANNOTATIONS, **(metadata.get("annotations") or {})}}


def take_over_fields(
    location: ClusterLocation,
    paths: Iterable[str],
    *,
    is_ours: Callable[[Wire], bool] = lambda wire: True,
) -> None:
    """Transfer the fields of drawn field managers to `MANAGER`, in the objects at these paths.

    Stacks of earlier versions applied their objects under such a field manager. Of an object that
    the provider has created by POST, the fields become applied ones: an apply that leaves out a
    field removes only applied fields, also in a preview.

    Objects for which `is_ours` returns False are not changed. In a preview or a destroy, nothing is
    changed. If the cluster does not answer or refuses a request, the objects keep their field
    managers: the provider that connects next reports the failure.
    """
    if pulumi.runtime.is_dry_run() or is_destroying():
        return
    with suppress(*CLUSTER_ERRORS):
        cluster = ClusterApi.find(location)
        for path in paths:
            wire = cluster.get(path)
            if wire is not None and is_ours(wire) and (entries := _with_one_owner(wire)):
                version = wire["metadata"]["resourceVersion"]
                changed = {"managedFields": entries, "resourceVersion": version}
                cluster.merge(path, {"metadata": changed})


def _with_one_owner(wire: Wire) -> list[Wire]:
    """Return the managed fields after the transfer; empty if nothing changes."""
    entries = wire["metadata"].get("managedFields") or []
    ours = [one for one in entries if _is_ours(one)]
    if all((one["manager"], one["operation"]) == (MANAGER, "Apply") for one in ours):
        return []
    fields: Wire = {}
    for one in ours:
        _merge(fields, one["fieldsV1"])
    return [
        *(one for one in entries if not _is_ours(one)),
        {**ours[-1], "manager": MANAGER, "operation": "Apply", "fieldsV1": fields},
    ]


def _is_ours(entry: Wire) -> bool:
    """Whether Pulumi's provider has written the fields: it creates by POST, and then applies."""
    manager = entry["manager"]
    is_pulumi = manager == MANAGER or DRAWN.fullmatch(manager) is not None
    return is_pulumi and not entry.get("subresource")


def _merge(into: Wire, fields: Wire) -> None:
    for key, inner in fields.items():
        _merge(into.setdefault(key, {}), inner)
