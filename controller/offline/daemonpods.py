"""DaemonSet pods for new nodes in a recorded world."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from controller.scheduling.arrays import ResourceAxis
from controller.scheduling.catalog.daemons import daemons
from controller.scheduling.nodes.existing import ExistingNodes
from controller.state.nodes import StateNode
from controller.state.snapshot import Snapshot

Body = Mapping[str, Any]


def daemon_pods(
    world: Body, snapshot: Snapshot, nodes: Sequence[StateNode]
) -> Iterator[dict[str, Any]]:
    """Yield, as JSON, the pods that the DaemonSets of a recorded world run on these nodes.

    The nodes of a DaemonSet are determined as in a solve. A new pod is a copy of an existing pod of
    the DaemonSet, or of its template if it has no pod.
    """
    by_key = {key_of(body): body for body in world.get("daemonSets", [])}
    latest_pods = {_owner(pod): pod for pod in world["pods"] if _owner(pod)}
    existing = ExistingNodes(nodes, pods=(), daemons=(), axis=ResourceAxis(()))
    for daemon in daemons(snapshot):
        runs = existing.compatible_mask(daemon.alternatives) & existing.tolerated_mask(
            daemon.tolerations
        )
        body = by_key[daemon.key]
        for node, is_running in zip(existing.all, runs.tolist(), strict=True):
            if is_running:
                yield _pod(body, latest_pods.get(daemon.key), node.name)


def _pod(daemon_set: Body, existing_pod: Body | None, node: str) -> dict[str, Any]:
    metadata, template = daemon_set["metadata"], daemon_set["spec"]["template"]
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": metadata["name"]}
    if "uid" in metadata:
        owner["uid"] = metadata["uid"]
    spec = {**template.get("spec", {})}
    if existing_pod is not None:
        # The existing pod's affinity names the node that it runs on, so it is not copied.
        spec |= {name: value for name, value in existing_pod["spec"].items() if name != "affinity"}
    return {
        "metadata": {
            "name": f"{metadata['name']}-{node}",
            "namespace": metadata.get("namespace", ""),
            "labels": template.get("metadata", {}).get("labels", {}),
            "ownerReferences": [owner],
        },
        "spec": {**spec, "nodeName": node},
        "status": {"phase": "Running"},
    }


def _owner(pod: Body) -> str:
    """Return the key of the pod's DaemonSet, or "" if it has none."""
    metadata = pod["metadata"]
    for owner in metadata.get("ownerReferences", ()):
        if owner["kind"] == "DaemonSet":
            return key_of({"metadata": {**metadata, "name": owner["name"]}})
    return ""


def key_of(body: Body) -> str:
    """Return the namespace and name of an object's JSON form, as namespace/name."""
    metadata = body["metadata"]
    return f"{metadata.get('namespace', '')}/{metadata['name']}"
