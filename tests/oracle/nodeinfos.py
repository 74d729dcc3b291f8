"""Nodes as kube-scheduler sees them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.oracle.rules import Amounts, Object, Port, amounts

HOSTNAME = "kubernetes.io/hostname"
ZONE = "topology.kubernetes.io/zone"
INSTANCE_TYPE = "node.kubernetes.io/instance-type"


@dataclass(frozen=True, slots=True)
class Choice:
    """An instance type and an offering with which the cloud may launch a NodeClaim."""

    kind: Object
    offering: Object


@dataclass(slots=True)
class NodeInfo:
    """A node, the resources of its daemons, and its pods."""

    name: str
    labels: dict[str, str]
    taints: Sequence[Object]
    allocatable: Amounts
    daemons: Amounts = field(default_factory=dict)
    daemon_ports: tuple[Port, ...] = ()
    attachable: dict[str, int] = field(default_factory=dict)
    pods: list[Object] = field(default_factory=list)


STARTED = {"karpenter.sh/registered": "true", "karpenter.sh/initialized": "true"}
"""The labels that Joiner sets on every node while it starts."""


def existing_nodes(world: Object) -> dict[str, NodeInfo]:
    """Return the existing nodes, and those in flight under the name of their NodeClaim."""
    claims = {
        claim["status"]["providerID"]: claim
        for claim in world.get("nodeClaims", [])
        if claim.get("status", {}).get("providerID")
    }
    node_infos: dict[str, NodeInfo] = {}
    for node in world.get("nodes", []):
        claim = claims.pop(node["spec"].get("providerID", ""), None)
        node_infos[node["metadata"]["name"]] = _node_info(node, claim)
    for claim in claims.values():
        name = claim["metadata"]["name"]
        labels = {**claim["metadata"].get("labels", {}), HOSTNAME: name, **STARTED}
        node_infos[name] = NodeInfo(
            name,
            with_aliases(labels),
            claim["spec"].get("taints", []),
            amounts(claim["status"].get("allocatable")),
        )
    for pod in world["pods"]:
        node_info = node_infos.get(pod["spec"].get("nodeName", ""))
        if node_info and pod.get("status", {}).get("phase") not in ("Succeeded", "Failed"):
            node_info.pods.append(pod)
    for csi_node in world.get("csiNodes", []):
        if node_info := node_infos.get(csi_node["metadata"]["name"]):
            node_info.attachable = {
                driver["name"]: driver["allocatable"]["count"]
                for driver in csi_node["spec"]["drivers"]
                if driver.get("allocatable")
            }
    return node_infos


EPHEMERAL = (
    "node.kubernetes.io/not-ready",
    "node.kubernetes.io/unreachable",
    "node.cloudprovider.kubernetes.io/uninitialized",
    "karpenter.sh/unregistered",
)


def _node_info(node: Object, claim: Object | None) -> NodeInfo:
    """Return a node as it will be when ready, without startup taints."""
    name = node["metadata"]["name"]
    labels = {HOSTNAME: name, **node["metadata"].get("labels", {})}
    taints = list(node["spec"].get("taints", []))
    allocatable = amounts(node["status"].get("allocatable"))
    cordon = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    if node["spec"].get("unschedulable") and cordon not in taints:
        taints.append(cordon)
    if claim is not None and labels.get("karpenter.sh/initialized") != "true":
        passing = [
            (taint["key"], taint["effect"]) for taint in claim["spec"].get("startupTaints", [])
        ]
        taints = [
            taint
            for taint in taints
            if taint["key"] not in EPHEMERAL and (taint["key"], taint["effect"]) not in passing
        ]
        promised = amounts(claim["status"].get("allocatable"))
        allocatable = {**promised, **{k: v for k, v in allocatable.items() if v}}
    return NodeInfo(name, with_aliases(labels), taints, allocatable)


ALIASES = {
    ZONE: "failure-domain.beta.kubernetes.io/zone",
    "topology.kubernetes.io/region": "failure-domain.beta.kubernetes.io/region",
    "kubernetes.io/arch": "beta.kubernetes.io/arch",
    "kubernetes.io/os": "beta.kubernetes.io/os",
    INSTANCE_TYPE: "beta.kubernetes.io/instance-type",
}
"""Deprecated labels that kubelets and cloud providers still set next to the current ones."""


def with_aliases(labels: dict[str, str]) -> dict[str, str]:
    """Add the deprecated labels."""
    return {**{old: labels[new] for new, old in ALIASES.items() if new in labels}, **labels}
