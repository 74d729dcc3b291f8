"""A cluster that Karpenter has managed continues under Joiner with its nodes."""

from __future__ import annotations

import asyncio
import dataclasses
from datetime import UTC, datetime, timedelta

import pytest

from controller.apis import kinds, labels
from controller.apis.karpenter import hashes
from controller.apis.karpenter.nodeclaim import (
    INITIALIZED,
    LAUNCHED,
    REGISTERED,
)
from controller.cloudprovider.provider import Instance
from tests.builders import (
    make_node,
    make_nodeclaim,
    make_nodeclass,
    make_nodepool,
    make_pod,
    true,
)
from tests.manager.wholecontroller import OPTIONS, WholeController

pytestmark = pytest.mark.virtual_clock

BEGIN = datetime(2026, 11, 21, 12, tzinfo=UTC)
YESTERDAY = BEGIN - timedelta(days=1)
PROVIDER_ID = "aws:///us-west-2a/i-0123456789abcdef0"
ALLOCATABLE = {"cpu": "2", "memory": "7Gi", "pods": "29"}
OURS = "organization/joiner/prod"


def clock() -> datetime:
    return BEGIN + timedelta(seconds=asyncio.get_running_loop().time())


def settle(world: WholeController) -> None:
    """Create what Karpenter leaves: NodePool, EC2NodeClass, NodeClaim, node and instance."""
    pool, node_class = make_nodepool(consolidateAfter="Never"), make_nodeclass()
    made_from = {
        labels.NODEPOOL_HASH: hashes.node_pool_hash(pool),
        labels.NODEPOOL_HASH_VERSION: hashes.NODE_POOL_VERSION,
        labels.NODECLASS_HASH: hashes.node_class_hash(node_class, ca_bundle=""),
        labels.NODECLASS_HASH_VERSION: hashes.NODE_CLASS_VERSION,
    }
    is_what = {
        labels.NODEPOOL: "default",
        labels.EC2NODECLASS: "default",
        labels.INSTANCE_TYPE: "m5.large",
        labels.CAPACITY_TYPE: labels.ON_DEMAND,
        labels.ZONE: "us-west-2a",
    }
    claim = make_nodeclaim(
        "default-x7k2p",
        uid="uid-of-the-claim",
        creationTimestamp=YESTERDAY,
        labels=is_what,
        annotations={**made_from, labels.TAGGED: "true", labels.CLUSTER_NAME_TAGGED: "true"},
        finalizers=[labels.TERMINATION_FINALIZER],
        provider_id=PROVIDER_ID,
        node="node-1",
        conditions=true(LAUNCHED, REGISTERED, INITIALIZED, since=YESTERDAY),
        status={"capacity": ALLOCATABLE, "allocatable": ALLOCATABLE},
    )
    node = make_node(
        "node-1",
        labels={**is_what, labels.REGISTERED: "true", labels.INITIALIZED: "true"},
        annotations=made_from,
        finalizers=[labels.TERMINATION_FINALIZER],
        provider_id=PROVIDER_ID,
        capacity=ALLOCATABLE,
    )
    world.cloud.instances_by_id[PROVIDER_ID] = Instance(
        provider_id=PROVIDER_ID,
        instance_type="m5.large",
        zone="us-west-2a",
        capacity_type=labels.ON_DEMAND,
        launched_at=YESTERDAY,
        is_ours=False,
        tags={labels.TAG_NODECLAIM: claim.metadata.name, labels.TAG_CLUSTER_NAME: "joiner"},
    )
    world.api.seed(node_class, pool, claim, node, make_pod("web", node="node-1"))


async def test_nodes_of_karpenter_are_kept_and_adopted() -> None:
    options = dataclasses.replace(OPTIONS, installation=OURS)
    world = WholeController(clock=clock, options=options)
    settle(world)
    life = asyncio.create_task(world.live())

    await asyncio.sleep(1800)

    life.cancel()
    await asyncio.wait([life])
    (claim,) = world.api.objects(kinds.NODE_CLAIM)
    (instance,) = world.cloud.instances_by_id.values()
    (node,) = world.api.objects(kinds.NODE)
    assert claim.metadata.uid == "uid-of-the-claim"
    assert not claim.metadata.is_deleting
    assert not instance.deleting
    assert node.spec.taints == []
    assert world.cloud.count("launch") == world.cloud.count("terminate") == 0
    assert instance.tags[labels.TAG_INSTALLATION] == OURS
    assert claim.metadata.annotations[labels.TAG_INSTALLATION] == OURS
