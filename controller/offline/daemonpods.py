"""DaemonSet pods for new nodes in a recorded world."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from controller.scheduling.arrays import ResourceAxis
from controller.scheduling.catalog.daemons import Daemon
from controller.scheduling.nodes.existing import ExistingNodes
from controller.state.nodes import StateNode

Body = Mapping[str, Any]

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
COPIED: Body = {"namespace": "", "labels": {}, "annotations": {}, "ownerReferences": []}
"""The metadata that a daemon pod has from its controller, with the value if there is none."""


def daemon_pods(
    world: Body, running: Iterable[Daemon], nodes: Sequence[StateNode]
) -> Iterator[dict[str, Any]]:
    """Yield, as JSON, the pods that the DaemonSets of a recorded world run on these nodes.

    The nodes of a DaemonSet are determined as in a solve. A new pod is a copy of the newest pod of
    the DaemonSet, or of its template if it has no pod.
    """
    sets = {key_of(body): body for body in world.get("daemonSets", [])}
    pods = {key_of(pod): pod for pod in world["pods"]}
    existing = ExistingNodes(nodes, pods=(), daemons=(), axis=ResourceAxis(()))
    for daemon in running:
        runs = existing.compatible_mask(daemon.alternatives) & existing.tolerated_mask(
            daemon.tolerations
        )
        name = daemon.key.rpartition("/")[2]
        body = pods[daemon.newest] if daemon.newest else _from_template(sets[daemon.key])
        for node, is_running in zip(existing.all, runs.tolist(), strict=True):
            if is_running:
                yield {
                    "metadata": {
                        **{key: body["metadata"].get(key, empty) for key, empty in COPIED.items()},
                        "name": f"{name}-{node.name}",
                    },
                    "spec": _spec_on_node(body["spec"], node.name),
                    "status": {"phase": "Running"},
                }


def _spec_on_node(spec: Body, node: str) -> Body:
    """Return the spec of a daemon pod on this node; the affinity of a copied pod names another."""
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    affinity = spec.get("affinity") or {}
    node_affinity = affinity.get("nodeAffinity") or {}
    required = {
        "nodeSelectorTerms": [
            {**term, "matchFields": [field]}
            for term in (node_affinity.get(REQUIRED) or {}).get("nodeSelectorTerms") or [{}]
        ]
    }
    pinned = {**affinity, "nodeAffinity": {**node_affinity, REQUIRED: required}}
    return {**spec, "nodeName": node, "affinity": pinned}


def _from_template(daemon_set: Body) -> Body:
    metadata, template = daemon_set["metadata"], daemon_set["spec"]["template"]
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": metadata["name"]}
    if "uid" in metadata:
        owner["uid"] = metadata["uid"]
    return {
        "metadata": {
            "namespace": metadata.get("namespace", ""),
            "labels": template.get("metadata", {}).get("labels", {}),
            "ownerReferences": [owner],
        },
        "spec": template.get("spec", {}),
    }


def key_of(body: Body) -> str:
    """Return the namespace and name of an object's JSON form, as namespace/name."""
    metadata = body["metadata"]
    return f"{metadata.get('namespace', '')}/{metadata['name']}"
