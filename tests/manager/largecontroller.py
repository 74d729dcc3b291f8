"""A whole controller with an in-memory cluster of any size.

The test writes the controller's state of the cluster directly, without watches.
"""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from controller.apis import kinds, labels
from controller.apis.karpenter.nodeclaim import (
    INITIALIZED,
    LAUNCHED,
    REGISTERED,
    NodeClaim,
)
from controller.apis.kinds import Kind
from controller.apis.kubernetes.meta import KubernetesObject, ObjectMeta
from controller.apis.kubernetes.nodes import Node
from controller.apis.kubernetes.pods import Pod
from controller.apis.kubernetes.taints import Taint
from controller.apis.kubernetes.workloads import (
    PodDisruptionBudget,
    VolumeAttachment,
    VolumeAttachmentSource,
    VolumeAttachmentSpec,
)
from controller.apiserver.port import Change
from controller.constraints import taints
from controller.manager.assembly import Assembly
from controller.manager.loops import Loop, Singleton
from controller.options import FeatureGates
from tests.builders import (
    changed,
    make_budget,
    make_node,
    make_nodeclaim,
    make_nodeclass,
    make_nodepool,
    make_pod,
    true,
)
from tests.manager.wholecontroller import OPTIONS, WholeController

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
PODS_PER_NODE = 20
SIZE = {"cpu": "8", "memory": "32Gi", "pods": "110"}
POOLS = 10
"""NodePools that share the nodes of the cluster evenly."""

ALL_GATES = FeatureGates(
    node_repair=True,
    node_overlay=True,
    capacity_buffer=True,
    static_capacity=True,
    reserved_capacity=True,
)


class LargeController(WholeController):
    """A controller with `nodes` full nodes of ten NodePools, each with 20 pods and a volume.

    Objects that a test changes must also exist at the API server: see `at_server`.
    """

    def __init__(self, nodes: int) -> None:
        # The reconciler of unhealthy nodes runs only with legacy node repair.
        options = dataclasses.replace(OPTIONS, legacy_node_repair=True)
        super().__init__(ALL_GATES, lambda: self.now, options=options)
        self.now = NOW
        self.nodes = nodes
        self._versions = 0
        self.at_server(kinds.EC2_NODE_CLASS, make_nodeclass())
        self.at_server(kinds.NODE_POOL, *(make_nodepool(f"pool-{n}") for n in range(POOLS)))
        self.fill(kinds.NODE_CLAIM, *map(claim, range(nodes)))
        self.fill(kinds.NODE, *map(node, range(nodes)))
        for number in range(nodes):
            self.fill(kinds.POD, *(pod(number, place) for place in range(PODS_PER_NODE)))
        self.fill(kinds.VOLUME_ATTACHMENT, *map(attachment, range(nodes)))
        self.fill(kinds.POD_DISRUPTION_BUDGET, *map(budget, range(50)))
        for kind in self.cluster.mirrored:
            self.cluster._synced.add(kind)

    def fill(self, kind: Kind[Any], *objects: KubernetesObject) -> None:
        """Add objects to the controller's state."""
        for each in objects:
            self.cluster.observe(kind, each)

    def end(self, kind: Kind[Any], *objects: KubernetesObject) -> None:
        """Report objects as deleted to the controller's state."""
        for each in objects:
            self.cluster.apply(kind, Change("DELETED", each))
            self.cluster._deleted_uids.clear()  # the same uid may be added again

    def act(self) -> None:
        """Make every loop accept nudges as if it were running; none processes a key by itself."""
        assert isinstance(self.assembly, Assembly)
        self.assembly._is_acting = True
        for loop in self.loops:
            loop._is_running = True

    @property
    def loops(self) -> tuple[Loop, ...]:
        """The loops of the controller."""
        assert isinstance(self.assembly, Assembly)
        return self.assembly._loops

    @property
    def singletons(self) -> list[Singleton]:
        """The controller's periodic tasks."""
        assert isinstance(self.assembly, Assembly)
        return self.assembly._singletons

    def at_server(self, kind: Kind[Any], *objects: KubernetesObject) -> None:
        """Create objects, both at the API server and in the controller's state."""
        self.api.seed(*objects)
        for each in objects:
            metadata = each.metadata
            stored = self.api.find(kind, metadata.name, metadata.namespace)
            assert stored is not None
            self.cluster.apply(kind, Change("ADDED", stored))


def claim(number: int) -> NodeClaim:
    """Return an initialized NodeClaim."""
    return make_nodeclaim(
        f"claim-{number}",
        uid=f"claim-{number}",
        labels=node_labels(number),
        finalizers=[labels.TERMINATION_FINALIZER],
        creationTimestamp=NOW - timedelta(hours=2),
        provider_id=f"fake:///{number}",
        node=f"node-{number}",
        conditions=true(LAUNCHED, REGISTERED, INITIALIZED, "Ready", since=NOW),
        status={"capacity": SIZE, "allocatable": SIZE},
    )


def node(number: int) -> Node:
    """Return the NodeClaim's node."""
    return make_node(
        f"node-{number}",
        uid=f"node-{number}",
        labels={
            **node_labels(number),
            labels.REGISTERED: "true",
            labels.INITIALIZED: "true",
        },
        finalizers=[labels.TERMINATION_FINALIZER],
        creationTimestamp=NOW - timedelta(hours=2),
        provider_id=f"fake:///{number}",
        capacity=SIZE,
    )


def node_labels(number: int) -> dict[str, str]:
    return {
        labels.NODEPOOL: f"pool-{number % POOLS}",
        labels.ZONE: f"zone-{number % 3}",
        labels.ARCH: "amd64",
        labels.OS: "linux",
        labels.INSTANCE_TYPE: "m5.2xlarge",
        labels.CAPACITY_TYPE: "on-demand",
    }


def pod(number: int, place: int) -> Pod:
    """Return one of the pods of a node."""
    team = f"team-{(number * PODS_PER_NODE + place) % 500}"
    return make_pod(
        f"runs-{number}-{place}",
        namespace="team",
        uid=f"runs-{number}-{place}",
        labels={"app": team},
        owner=f"ReplicaSet/{team}",
        cpu="400m",
        memory="1600Mi",
        node=f"node-{number}",
        creationTimestamp=NOW - timedelta(hours=1),
        status={"startTime": NOW - timedelta(hours=1)},
    )


def attachment(number: int) -> VolumeAttachment:
    return VolumeAttachment(
        metadata=ObjectMeta(name=f"attachment-{number}", uid=f"attachment-{number}"),
        spec=VolumeAttachmentSpec(
            node_name=f"node-{number}",
            source=VolumeAttachmentSource(persistent_volume_name=f"pv-{number}"),
        ),
    )


def budget(number: int) -> PodDisruptionBudget:
    team = f"team-{number}"
    return make_budget(f"budget-{number}", namespace="team", match={"app": team}, allowed=1)


def held(value: Node) -> Node:
    """Return the node as it is before it accepts pods."""
    closed: list[Taint] = [*value.spec.taints, taints.HELD]
    return changed(value, spec={"taints": closed})


ClaimOrNode = TypeVar("ClaimOrNode", NodeClaim, Node)


def leaving(value: ClaimOrNode) -> ClaimOrNode:
    """Return the NodeClaim or node as it is while being deleted."""
    return changed(value, metadata={"deletion_timestamp": NOW})
