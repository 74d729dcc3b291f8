"""The world in which a plan is carried out: nodes as they will be when ready, with daemon pods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench.kubescheduler.judge import Addition, KubeScheduler
from bench.parity.livecluster import node as node_object
from bench.parity.worlds import Object
from tests.oracle.nodeinfos import existing_nodes

TOLERATED = ("not-ready", "unreachable", "disk-pressure", "memory-pressure", "pid-pressure")
"""Conditions of nodes whose taints the DaemonSet controller tolerates for every daemon pod."""


class Stage:
    """A world whose existing nodes are ready and run their daemon pods."""

    def __init__(self, world: Mapping[str, Any], judge: KubeScheduler) -> None:
        """Make the nodes of the world ready; nodes in flight join."""
        self._judge = judge
        self.world = {
            **world,
            "nodes": [node_object(info) for info in existing_nodes(world).values()],
        }
        daemons, _ = self._daemons(self.world["nodes"])
        self.world["pods"] = [*world["pods"], *daemons]

    def with_daemons(self, nodes: Sequence[Object]) -> Addition:
        """Return new nodes with the daemon pods that run there."""
        return Addition(nodes, pods=self._daemons(nodes)[0])

    def each_with_daemons(self, nodes: Sequence[Object]) -> list[Addition]:
        """Return each node as an addition of its own, except those too small for their daemons."""
        pods, full = self._daemons(nodes)
        return [
            Addition([node], pods=[pod for pod in pods if pod["spec"]["nodeName"] == name])
            for node in nodes
            if (name := node["metadata"]["name"]) not in full
        ]

    def _daemons(self, nodes: Sequence[Object]) -> tuple[list[Object], set[str]]:
        """Return the daemon pods that will run on these nodes and do not run yet.

        As in a cluster, each pod is made for one node, and kube-scheduler decides whether it runs
        there. The second value has the nodes that have no capacity left for one of them.
        """
        world = self.world
        running = {
            (owner["name"], pod["spec"].get("nodeName"))
            for pod in world["pods"]
            for owner in pod["metadata"].get("ownerReferences", [])
            if owner["kind"] == "DaemonSet"
        }
        made = {}
        for daemon in world.get("daemonSets", []):
            for node in nodes:
                name = node["metadata"]["name"]
                if (daemon["metadata"]["name"], name) not in running:
                    pod = _daemon_pod(daemon, name)
                    made[f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"] = (pod, name)
        if not made:
            return [], set()
        bound = [pod for pod in world["pods"] if pod["spec"].get("nodeName")]
        pending = [pod for pod, _ in made.values()]
        verdicts = self._judge.verdicts({**world, "nodes": nodes, "pods": [*pending, *bound]})
        pods, full = [], set()
        for key, (pod, name) in made.items():
            why = verdicts[key][name]
            if not why:
                pods.append({**pod, "spec": {**pod["spec"], "nodeName": name}})
            elif why.startswith(("NodeResourcesFit", "NodePorts")):
                full.add(name)
        return pods, full


def _daemon_pod(daemon: Object, node: str) -> Object:
    """Return the pod that the DaemonSet controller makes for a node."""
    template = daemon["spec"]["template"]
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    spec = {**template["spec"]}
    affinity = {**(spec.get("affinity") or {})}
    own = affinity.get("nodeAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution")
    terms = own["nodeSelectorTerms"] if own else [{}]
    here = [{**term, "matchFields": [field]} for term in terms]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": here}}
    spec["affinity"] = {**affinity, "nodeAffinity": required}
    spec["tolerations"] = [
        *(spec.get("tolerations") or []),
        *({"key": f"node.kubernetes.io/{name}", "operator": "Exists"} for name in TOLERATED),
        {"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"},
    ]
    metadata = {
        "name": f"{daemon['metadata']['name']}-{node}",
        "namespace": daemon["metadata"].get("namespace", "default"),
        "labels": template.get("metadata", {}).get("labels", {}),
    }
    return {"metadata": metadata, "spec": spec}
