"""The name of the nodes' role, which must not change under nodes that run.

Another name is another role: the one there is loses its instance profile and its way into the
cluster, and with it every node that runs by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pulumi
from pulumi.dynamic import DiffResult, Resource

from infra.clusterapi import ClusterLocation
from infra.ekscluster import EksCluster
from infra.leftovers import Leftovers
from infra.statefulprovider import StatefulProvider


class NodesRunError(Exception):
    """The role would be taken from nodes that run; says how to do without them."""

    def __init__(self, before: str, after: str, nodes: int) -> None:
        super().__init__(
            f"{nodes} nodes run by the role {before}, and joiner:nodeRoleName would make it "
            f"{after}: they would lose their access to the cluster at once. Nothing has been "
            f"changed. In stages: set joiner:nodeRoleName back to {before}, take the NodePools out "
            "(joiner:defaultNodePool false, or an empty folder in joiner:nodePools) and run "
            "`pulumi up`: the nodes are drained and end; then set the new name, put the "
            "NodePools back and run `pulumi up` again"
        )


class NodeRoleName(Resource):
    """Remembers by which role the nodes run; comes before the role, and before it goes."""

    def __init__(
        self,
        name: str,
        cluster: EksCluster,
        *,
        installation: str,
        role_name: pulumi.Input[str],
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        props = {**cluster.location, "installation": installation, "role_name": role_name}
        super().__init__(_NodeRoleNameProvider(), name, props, opts)


class _NodeRoleNameProvider(StatefulProvider):
    """Refuses another name while there are nodes, in a preview already."""

    kind = "node-role-name"

    def diff(self, _id: str, olds: dict[str, Any], news: dict[str, Any]) -> DiffResult:
        found = super().diff(_id, olds, news)
        before, after = olds["role_name"], news.get("role_name")
        if isinstance(after, str) and before != after and (nodes := _nodes(olds)):
            raise NodesRunError(before, after, nodes)
        return found


def _nodes(props: Mapping[str, Any]) -> int:
    """Count the instances that run for the installation."""
    return len(Leftovers(ClusterLocation.of(props), props["installation"]).instances())
