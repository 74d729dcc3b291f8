"""A builder of snapshots of a cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from controller.apis.karpenter.nodepool import NodePool
from controller.apis.kubernetes.nodes import Node
from controller.cloudprovider.instancetypes import InstanceType
from controller.state.nodes import StateNode
from controller.state.snapshot import Snapshot
from tests.builders.instancetypes import make_types


def make_snapshot(
    *node_pools: NodePool,
    types: Sequence[InstanceType] | Mapping[str, Sequence[InstanceType]] = (),
    nodes: Sequence[StateNode | Node] = (),
    **parts: Any,
) -> Snapshot:
    """Return a snapshot of a cluster.

    One list of instance types serves every NodePool unless they are given by NodePool.
    """
    if not isinstance(types, Mapping):
        shared = tuple(types or make_types())
        types = {pool.metadata.name: shared for pool in node_pools}
    return Snapshot(
        nodes=tuple(
            node if isinstance(node, StateNode) else StateNode(node=node) for node in nodes
        ),
        node_pools=tuple(node_pools),
        instance_types={name: tuple(listed) for name, listed in types.items()},
        **parts,
    )
