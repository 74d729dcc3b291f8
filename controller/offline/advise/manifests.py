"""NodePools in YAML: read from a folder, written to a folder, and compared."""

from __future__ import annotations

import difflib
import errno
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from controller.apis.karpenter import hashes
from controller.apis.karpenter.defaultpool import DEFAULT_NODE_POOL
from controller.apis.karpenter.nodepool import DisruptionPolicy, NodePool
from controller.apis.karpenter.validation import problems
from controller.apis.kinds import NODE_POOL
from controller.apis.kubernetes.meta import to_wire
from controller.apis.labels import NODEPOOL_HASH, NODEPOOL_HASH_VERSION
from controller.apis.ownership import is_ours
from controller.offline.commandline import CommandError
from controller.offline.wirevalues import WorldError, convert, objects

Wire = dict[str, Any]

DEFAULT: Wire = {
    "apiVersion": NODE_POOL.api_version,
    "kind": NODE_POOL.name,
    **to_wire(DEFAULT_NODE_POOL),
}
"""The NodePool of `crds/samples/default.yaml`, which a new stack creates."""


def read_folder(folder: Path) -> list[Wire]:
    """Return the NodePools with an EC2NodeClass in the YAML files of a folder.

    Other NodePools and other kinds are skipped.

    Raises:
        CommandError: the folder has no such NodePool, a file or a NodePool in it is invalid, or two
            NodePools have the same name.

    """
    found: dict[str, tuple[Path, Wire]] = {}
    for path in sorted([*folder.rglob("*.yaml"), *folder.rglob("*.yml")]):
        for wire in _documents(path):
            pool = _valid(wire, path)
            if (other := found.get(pool.metadata.name)) is not None:
                raise CommandError(
                    f"{path}: NodePool {pool.metadata.name} is in {other[0]} too: give one of them "
                    "another name"
                )
            if is_ours(pool):
                found[pool.metadata.name] = path, wire
    if not found:
        if folder.is_dir():
            cause = "no NodePool found in its YAML files"
        else:
            cause = os.strerror(errno.ENOTDIR if folder.exists() else errno.ENOENT)
        raise CommandError(f"{folder}: {cause}")
    return [wire for _, wire in found.values()]


def _documents(path: Path) -> Iterator[Wire]:
    try:
        documents = list(yaml.safe_load_all(path.read_text()))
    except OSError as error:
        raise CommandError(f"{path}: {os.strerror(error.errno or 0)}") from error
    except (RecursionError, ValueError, yaml.YAMLError) as error:
        raise CommandError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    for wire in documents:
        if isinstance(wire, dict) and wire.get("kind") == NODE_POOL.name:
            yield wire


def _valid(wire: Wire, path: Path) -> NodePool:
    name = wire.get("metadata", {}).get("name", "")
    try:
        pool = convert(wire, NodePool, f"NodePool {name}".rstrip())
    except WorldError as error:
        raise CommandError(f"{path}: {error}") from error
    if faults := problems(pool):
        raise CommandError(f"{path}: NodePool {name}: {'; '.join(faults)}")
    return pool


def has_pools(world: Wire) -> bool:
    """Whether a world has a NodePool from which Joiner launches nodes for pods.

    Raises:
        WorldError: a NodePool is malformed.

    """
    pools = objects(world, "nodePools", NodePool)
    return any(is_ours(pool) and pool.spec.replicas is None for pool in pools)


def with_pools(world: Wire, pools: list[Wire]) -> Wire:
    """Return a world with these NodePools added or replaced, by name.

    A replaced NodePool keeps its status. Each gets the hash of its template, by which drift is
    detected.
    """
    before = {wire["metadata"]["name"]: wire for wire in world.get("nodePools", [])}
    after = {wire["metadata"]["name"]: wire for wire in pools}
    merged = {name: _complete(before.get(name, {}), wire) for name, wire in after.items()}
    return {**world, "nodePools": list({**before, **merged}.values())}


def _complete(before: Wire, wire: Wire) -> Wire:
    pool = convert(wire, NodePool, "NodePool")
    annotations = {
        **wire["metadata"].get("annotations", {}),
        NODEPOOL_HASH: hashes.node_pool_hash(pool),
        NODEPOOL_HASH_VERSION: hashes.NODE_POOL_VERSION,
    }
    metadata = {**wire["metadata"], "annotations": annotations}
    return {**wire, "metadata": metadata, "status": before.get("status", {})}


def write_folder(folder: Path, pools: Mapping[str, NodePool]) -> None:
    """Write each NodePool to a file with its name.

    Raises:
        CommandError: a file cannot be written.

    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, pool in pools.items():
            (folder / f"{name}.yaml").write_text("".join(_yaml_lines(pool)))
    except OSError as error:
        raise CommandError(f"{folder}: {os.strerror(error.errno or 0)}") from error


def difference(before: Mapping[str, NodePool], after: Mapping[str, NodePool]) -> str:
    """Return the unified diff of two sets of NodePools, as files `<name>.yaml`."""
    lines: list[str] = []
    for name in sorted({*before, *after}):
        old, new = (_yaml_lines(pools[name]) if name in pools else [] for pools in (before, after))
        lines += difflib.unified_diff(
            old,
            new,
            f"a/{name}.yaml" if old else "/dev/null",
            f"b/{name}.yaml" if new else "/dev/null",
            n=3,
        )
    return "".join(lines)


class _Dumper(yaml.SafeDumper):
    """Writes lists of plain values on one line, and indents other lists."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        """Indent the items of a list below its key."""
        super().increase_indent(flow, False)

    def represent_values(self, values: list[Any]) -> yaml.Node:
        """Return the node of a list."""
        is_plain = not any(isinstance(value, dict | list) for value in values)
        return self.represent_sequence("tag:yaml.org,2002:seq", values, flow_style=is_plain)


_Dumper.add_representer(list, _Dumper.represent_values)


def _yaml_lines(pool: NodePool) -> list[str]:
    """Return the lines of a NodePool in YAML, without status and metadata set by the cluster."""
    spec = to_wire(pool.spec)
    template, policy = spec.pop("template"), pool.spec.disruption
    disruption: Wire = {
        "consolidationPolicy": policy.consolidation_policy,
        "consolidateAfter": policy.consolidate_after,
    }
    if policy.budgets != DisruptionPolicy().budgets:
        disruption["budgets"] = [
            {"nodes": budget.nodes, **to_wire(budget)} for budget in policy.budgets
        ]
    metadata = {key: value for key, value in template.get("metadata", {}).items() if value}
    wire = {
        "apiVersion": NODE_POOL.api_version,
        "kind": NODE_POOL.name,
        "metadata": {"name": pool.metadata.name},
        "spec": {
            "template": {**({"metadata": metadata} if metadata else {}), "spec": template["spec"]},
            **spec,
            "disruption": disruption,
        },
    }
    text = yaml.dump(wire, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
    return text.splitlines(keepends=True)
