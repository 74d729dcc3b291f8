"""Other controllers with NodePools and NodeClaims in a cluster, as plain JSON.

One is EKS Auto Mode with its built-in pools (EKS user guide, "Enable or Disable Built-in
NodePools"). The other is a Karpenter of another provider. Both use the same kinds as Joiner with
node classes of their own kinds, and tag their instances with the cluster's name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Wire = dict[str, Any]

SIZE = {"cpu": "2", "memory": "7Gi", "pods": "29"}
UP = ("Launched", "Registered", "Initialized", "Ready", "Consolidatable")
SINCE = "2026-01-01T00:00:00Z"
TAINT = {"key": "others", "effect": "NoSchedule"}
"""Keeps Joiner's pods off their nodes."""


@dataclass(frozen=True, kw_only=True)
class Neighbour:
    """One of these controllers."""

    pools: Mapping[str, Sequence[Wire]]
    """The requirements of each NodePool, by name."""

    class_group: str
    class_kind: str
    class_plural: str
    node_labels: Mapping[str, str] = field(default_factory=dict)
    pool_tag: str
    class_tag: str
    """The tag that names the node class of an instance."""

    @property
    def reference(self) -> Wire:
        """Return the nodeClassRef of NodePools and NodeClaims."""
        return {"group": self.class_group, "kind": self.class_kind, "name": "default"}

    def definition(self) -> Wire:
        """Return the CustomResourceDefinition of its node class, which accepts anything."""
        anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        return {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{self.class_plural}.{self.class_group}"},
            "spec": {
                "group": self.class_group,
                "scope": "Cluster",
                "names": {"kind": self.class_kind, "plural": self.class_plural},
                "versions": [
                    {
                        "name": "v1",
                        "served": True,
                        "storage": True,
                        "schema": {"openAPIV3Schema": anything},
                    }
                ],
            },
        }

    def node_class(self) -> Wire:
        """Return the node class of all its NodePools."""
        return {
            "apiVersion": f"{self.class_group}/v1",
            "kind": self.class_kind,
            "metadata": {"name": "default", "finalizers": [f"{self.class_group}/termination"]},
            "spec": {"role": "theirs"},
        }

    def node_pool(self, name: str) -> Wire:
        """Return a NodePool whose budgets let all nodes be disrupted at once."""
        return {
            "apiVersion": "karpenter.sh/v1",
            "kind": "NodePool",
            "metadata": {"name": name},
            "spec": {
                "template": {
                    "spec": {
                        "nodeClassRef": self.reference,
                        "requirements": [*self.pools[name]],
                        "expireAfter": "1h",
                    }
                },
                "disruption": {"consolidateAfter": "0s", "budgets": [{"nodes": "100%"}]},
            },
        }

    def claim(self, name: str, pool: str, *, provider_id: str, node: str) -> Wire:
        """Return an initialized NodeClaim that Joiner would act on if it were its own."""
        return {
            "apiVersion": "karpenter.sh/v1",
            "kind": "NodeClaim",
            "metadata": {
                "name": name,
                "labels": {"karpenter.sh/nodepool": pool, **self.node_labels},
                "finalizers": ["karpenter.sh/termination"],
            },
            "spec": {
                "nodeClassRef": self.reference,
                "requirements": [*self.pools[pool]],
                "expireAfter": "1h",
            },
            "status": {
                "providerID": provider_id,
                "nodeName": node,
                "conditions": [
                    {
                        "type": kind,
                        "status": "True",
                        "reason": kind,
                        "message": "",
                        "lastTransitionTime": SINCE,
                    }
                    for kind in UP
                ],
            },
        }

    def node(self, name: str, pool: str, *, provider_id: str) -> Wire:
        """Return a NodeClaim's node."""
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": name,
                "labels": {
                    "kubernetes.io/hostname": name,
                    "kubernetes.io/os": "linux",
                    "kubernetes.io/arch": "amd64",
                    "karpenter.sh/nodepool": pool,
                    "karpenter.sh/registered": "true",
                    "karpenter.sh/initialized": "true",
                    **self.node_labels,
                },
                "finalizers": ["karpenter.sh/termination"],
            },
            "spec": {"providerID": provider_id, "taints": [TAINT]},
            "status": {
                "capacity": SIZE,
                "allocatable": SIZE,
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }

    def tags(self, cluster: str, pool: str, claim: str) -> dict[str, str]:
        """Return the tags of a NodeClaim's instance."""
        return {
            "Name": f"{cluster}/{pool}",
            "eks:eks-cluster-name": cluster,
            f"kubernetes.io/cluster/{cluster}": "owned",
            "karpenter.sh/nodeclaim": claim,
            "karpenter.sh/nodepool": pool,
            self.pool_tag: pool,
            self.class_tag: "default",
        }


def _within(key: str, *values: str) -> Wire:
    return {"key": key, "operator": "In", "values": [*values]}


_ALL_BUILT_IN = (
    _within("karpenter.sh/capacity-type", "on-demand"),
    _within("eks.amazonaws.com/instance-category", "c", "m", "r"),
    {"key": "eks.amazonaws.com/instance-generation", "operator": "Gt", "values": ["4"]},
)
AUTO_MODE = Neighbour(
    pools={
        "general-purpose": (*_ALL_BUILT_IN, _within("kubernetes.io/arch", "amd64")),
        "system": (*_ALL_BUILT_IN, _within("kubernetes.io/arch", "amd64", "arm64")),
    },
    class_group="eks.amazonaws.com",
    class_kind="NodeClass",
    class_plural="nodeclasses",
    node_labels={
        "eks.amazonaws.com/compute-type": "auto",
        "eks.amazonaws.com/nodeclass": "default",
    },
    pool_tag="eks:kubernetes-node-pool-name",
    class_tag="eks:kubernetes-node-class-name",
)
OTHER_KARPENTER = Neighbour(
    pools={"spare": (_within("kubernetes.io/os", "linux"),)},
    class_group="karpenter.kwok.sh",
    class_kind="KWOKNodeClass",
    class_plural="kwoknodeclasses",
    # The tags equal those of Joiner's instances: none names the controller that launched it.
    pool_tag="karpenter.sh/nodepool",
    class_tag="karpenter.k8s.aws/ec2nodeclass",
)
NEIGHBOURS = (AUTO_MODE, OTHER_KARPENTER)
