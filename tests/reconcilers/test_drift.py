"""Nodes that no longer match their NodePool or node class are marked as drifted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from controller.apis import kinds, labels
from controller.apis.karpenter import hashes
from controller.apis.karpenter.nodeclaim import (
    DRIFTED,
    LAUNCHED,
)
from controller.apis.karpenter.nodepool import NodePool
from controller.apis.kubernetes import conditions
from controller.apis.kubernetes.conditions import Condition
from controller.cloudprovider.errors import CloudProviderError, NodeClaimNotFoundError
from controller.cloudprovider.fake import ZONES
from controller.reconcilers.nodeclaim.drift import PERIOD, Drift
from tests.builders import changed, make_nodeclaim, make_nodeclass, make_nodepool, needs
from tests.reconcilers.world import World

BOUGHT = {
    labels.NODEPOOL: "default",
    labels.INSTANCE_TYPE: "m5.large",
    labels.ZONE: ZONES[0],
    labels.CAPACITY_TYPE: labels.ON_DEMAND,
}


def hashed(pool: NodePool, *, version: str = hashes.NODE_POOL_VERSION) -> NodePool:
    """Return the pool as its own reconciler leaves it."""
    written = {
        labels.NODEPOOL_HASH: hashes.node_pool_hash(pool),
        labels.NODEPOOL_HASH_VERSION: version,
    }
    return changed(pool, metadata={"annotations": written})


def requiring(key: str, operator: str, *values: str) -> NodePool:
    return make_nodepool(requirements=[needs(key, operator, *values)])


def expiring(after: str) -> NodePool:
    return make_nodepool(template={"expireAfter": after})


class DriftScenario:
    """A claim that was launched from a pool a while ago."""

    def __init__(
        self, carried: Mapping[str, str] | None = None, *, is_launched: bool = True
    ) -> None:
        self.world = world = World()
        self.drift = Drift(world.ports)
        pool = hashed(make_nodepool())
        launched = Condition(type=LAUNCHED, status="True" if is_launched else "Unknown")
        claim = make_nodeclaim(
            labels={**BOUGHT, **(carried or {})},
            annotations=pool.metadata.annotations,
            creation_timestamp=world.now,
            provider_id="fake:///1",
            conditions=[launched],
        )
        world.seed(make_nodeclass(), pool, claim)

    async def reason(self) -> str:
        """Reconcile, and return why the NodeClaim has drifted; empty if it has not."""
        assert await self.drift.reconcile("claim") in (PERIOD, None)
        self.world.see()
        claim = self.world.claim("claim")
        assert claim is not None
        drifted = conditions.find(claim.status.conditions, DRIFTED)
        return drifted.reason if drifted is not None else ""


async def test_an_unchanged_claim_has_not_drifted() -> None:
    scenario = DriftScenario()

    assert await scenario.reason() == ""
    scenario.world.pass_time(hours=2)
    assert await scenario.reason() == ""


async def test_a_changed_pool_drifts_its_nodes_until_it_is_changed_back() -> None:
    scenario = DriftScenario()
    before = scenario.world.api.objects(kinds.NODE_POOL)[0]

    scenario.world.seed(hashed(expiring("10h")))
    assert await scenario.reason() == "NodePoolDrifted"

    scenario.world.seed(before)
    assert await scenario.reason() == ""


async def test_hashes_of_different_versions_are_not_compared() -> None:
    scenario = DriftScenario()

    scenario.world.seed(hashed(expiring("10h"), version="v99"))

    assert await scenario.reason() == ""


@pytest.mark.parametrize(
    ("pool", "reason"),
    [
        pytest.param(requiring(labels.ZONE, "In", ZONES[0]), "", id="still met"),
        pytest.param(requiring(labels.ZONE, "In", ZONES[1]), "RequirementsDrifted", id="zone"),
        pytest.param(requiring("team", "In", "a"), "RequirementsDrifted", id="lacks a label"),
        pytest.param(requiring("team", "NotIn", "a"), "", id="lacks what it may not be"),
        pytest.param(requiring("team", "DoesNotExist"), "", id="lacks what must not be"),
    ],
)
async def test_labels_outside_the_pools_requirements_are_drift(pool: NodePool, reason: str) -> None:
    scenario = DriftScenario()

    scenario.world.seed(hashed(pool))

    assert await scenario.reason() == reason


CPU = f"{labels.AWS_GROUP}/instance-cpu"


@pytest.mark.parametrize(
    ("pool", "reason"),
    [
        pytest.param(requiring(CPU, "Gt", "1"), "", id="met by the type"),
        pytest.param(requiring(CPU, "Exists"), "", id="exists"),
        pytest.param(requiring(CPU, "Gt", "4"), "RequirementsDrifted", id="not met"),
        pytest.param(requiring(CPU, "NotIn", "2"), "RequirementsDrifted", id="excluded"),
        pytest.param(requiring(CPU, "DoesNotExist"), "RequirementsDrifted", id="must not be"),
        pytest.param(requiring(labels.ZONE_ID, "In", "id-a"), "", id="zone ID"),
        pytest.param(requiring(labels.ZONE_ID, "In", "id-b"), "RequirementsDrifted", id="other"),
    ],
)
async def test_a_label_that_an_older_node_lacks_follows_from_its_instance_type(
    pool: NodePool, reason: str
) -> None:
    scenario = DriftScenario()
    (kind,) = (each for each in scenario.world.cloud.types if each.name == "m5.large")
    scenario.world.cloud.types = (
        replace(
            kind,
            requirements=(needs(CPU, "In", "2"),),
            offerings=tuple(
                replace(
                    each, requirements={**each.requirements, labels.ZONE_ID: f"id-{each.zone[-1]}"}
                )
                for each in kind.offerings
            ),
        ),
    )
    scenario.world.seed(hashed(pool))

    assert await scenario.reason() == reason


async def test_a_changed_pool_drifts_its_nodes_also_without_an_answer_of_the_cloud() -> None:
    scenario = DriftScenario()
    scenario.world.cloud.fail("instance_types", CloudProviderError("throttled"))

    required = needs(CPU, "Exists")
    scenario.world.seed(
        hashed(make_nodepool(requirements=[required], template={"expireAfter": "10h"}))
    )

    assert await scenario.reason() == "NodePoolDrifted"


@pytest.mark.parametrize(
    "carried",
    [
        pytest.param({labels.INSTANCE_TYPE: "m1.gone"}, id="type"),
        pytest.param({labels.ZONE: "elsewhere"}, id="zone"),
    ],
)
async def test_a_type_that_is_no_longer_offered_drifts_after_an_hour(
    carried: dict[str, str],
) -> None:
    scenario = DriftScenario(carried)

    assert await scenario.reason() == ""
    scenario.world.pass_time(hours=1, seconds=1)
    assert await scenario.reason() == "InstanceTypeNotFound"


async def test_an_expired_reservation_leaves_an_on_demand_node() -> None:
    scenario = DriftScenario({labels.CAPACITY_TYPE: labels.RESERVED})
    scenario.world.pass_time(hours=2)

    assert await scenario.reason() == ""


async def test_drift_reported_by_the_cloud_keeps_its_message() -> None:
    scenario = DriftScenario()
    scenario.world.cloud.drift["fake:///1"] = "AMIDrift"

    assert await scenario.reason() == "AMIDrift"
    since = scenario.world.now
    scenario.world.pass_time(minutes=5)
    assert await scenario.reason() == "AMIDrift"
    claim = scenario.world.claim("claim")
    assert claim is not None
    drifted = conditions.find(claim.status.conditions, DRIFTED)
    assert drifted is not None
    assert drifted.last_transition_time == since, "the oldest go first"


@pytest.mark.parametrize(
    ("error", "after"),
    [
        pytest.param(CloudProviderError("throttled"), "AMIDrift", id="cannot tell"),
        pytest.param(NodeClaimNotFoundError("gone"), "", id="instance gone"),
    ],
)
async def test_without_an_answer_of_the_cloud_drift_is_unchanged(
    error: CloudProviderError, after: str
) -> None:
    scenario = DriftScenario()
    scenario.world.cloud.drift["fake:///1"] = "AMIDrift"
    assert await scenario.reason() == "AMIDrift"

    scenario.world.cloud.fail("drift_reason", error)

    assert await scenario.reason() == after


async def test_a_claim_that_is_not_launched_has_not_drifted() -> None:
    scenario = DriftScenario(is_launched=False)
    scenario.world.seed(hashed(expiring("10h")))

    assert await scenario.reason() == ""


async def test_a_claim_without_an_existing_pool_does_not_drift() -> None:
    scenario = DriftScenario({labels.NODEPOOL: "gone"})
    scenario.world.cloud.drift["fake:///1"] = "AMIDrift"

    assert await scenario.reason() == ""
