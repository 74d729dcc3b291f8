"""Static NodePools keep their number of nodes, independently of pods."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from controller.apis import kinds, labels
from controller.apis.karpenter.ec2nodeclass import CapacityReservationStatus
from controller.apis.karpenter.nodeclaim import NodeClaim, NodeClaimStatus
from controller.apis.karpenter.nodepool import NodePool
from controller.apis.kubernetes.taints import Requirement
from controller.apiserver.errors import ForbiddenError, UnavailableError
from controller.cloudprovider.errors import InsufficientCapacityError
from controller.cloudprovider.instancetypes import Offering
from controller.disruption.costs import eviction_cost, lifetime_remaining
from controller.disruption.problem import DisruptionSettings
from controller.reconcilers.staticcapacity.replication import (
    AT_THE_LIMIT,
    PERIOD,
    Replication,
)
from tests.builders import (
    changed,
    make_nodeclass,
    make_nodepool,
    make_offering,
    make_pod,
    make_type,
    make_types,
)
from tests.reconcilers.scenarios import DisruptionScenario, ProvisioningScenario
from tests.reconcilers.world import Unprepared, World, make_lifecycle

PLAIN = DisruptionSettings()


def make_static(replicas: int, **spec: Any) -> NodePool:
    return make_nodepool("fixed", spec={"replicas": replicas, **spec})


async def replicated(world: World) -> timedelta | None:
    world.see()
    pause = await Replication(world.ports, world.registration_backoff).reconcile("fixed")
    world.see()
    return pause


def make_world(replicas: int, **spec: Any) -> World:
    world = World()
    world.seed(make_nodeclass(), make_static(replicas, **spec))
    return world


def leaving(world: World) -> set[str]:
    """The claims that the mirror holds for on their way out."""
    nodes = world.cluster.state_nodes(world.clock())
    return {node.claim.metadata.name for node in nodes if node.claim and node.deleting}


def staying(world: World) -> list[str]:
    return [c.metadata.name for c in world.claims() if not c.metadata.is_deleting]


async def test_a_static_pool_gets_exactly_its_replicas() -> None:
    world = make_world(3)

    assert await replicated(world) == PERIOD
    assert await replicated(world) == PERIOD

    assert len(world.claims()) == 3


@pytest.mark.parametrize(
    ("left", "also", "created"),
    [
        pytest.param(0, (), 0, id="full"),
        pytest.param(1, (), 1, id="with room"),
        pytest.param(0, (make_offering("a", labels.ON_DEMAND, 0.1),), 1, id="on demand otherwise"),
    ],
)
async def test_a_static_pool_waits_while_the_only_reservations_that_it_can_use_are_full(
    left: int, also: tuple[Offering, ...], created: int
) -> None:
    world = make_world(1)
    reservation = CapacityReservationStatus(id="cr-1")
    world.seed(changed(make_nodeclass(), status={"capacityReservations": [reservation]}))
    reserved = make_offering("a", labels.RESERVED, 0.0, reservation="cr-1")
    reserved = reserved.with_reservation_capacity(left)
    world.cloud.types = (make_type("m5.large", offerings=[reserved, *also]),)

    pause = await replicated(world)

    assert len(world.claims()) == created
    assert pause == (PERIOD if created else AT_THE_LIMIT)


@pytest.mark.parametrize("capacity_type", [labels.ON_DEMAND, labels.SPOT])
async def test_a_static_pool_waits_while_all_its_offerings_are_unavailable(
    capacity_type: str,
) -> None:
    world = make_world(1)
    refused = make_offering("a", capacity_type, 0.1, available=False)
    world.cloud.types = (make_type("m5.large", offerings=[refused]),)

    assert await replicated(world) == AT_THE_LIMIT
    assert world.claims() == []
    (message,) = await world.events("NoCompatibleInstanceTypes")
    assert message.startswith(
        "NodePool requirements filtered out all compatible available instance types"
    )

    world.cloud.types = (make_type("m5.large", offerings=[replace(refused, available=True)]),)
    assert await replicated(world) == PERIOD
    assert len(world.claims()) == 1


async def test_a_static_pool_waits_while_its_minvalues_are_not_met() -> None:
    world = World()
    pool = make_static(1)
    flexible = Requirement(key=labels.INSTANCE_TYPE, operator="Exists", min_values=3)
    pool.spec.template.spec.requirements.append(flexible)
    world.seed(make_nodeclass(), pool)
    world.cloud.types = make_types(2, 4)

    assert await replicated(world) == AT_THE_LIMIT

    (message,) = await world.events("NoCompatibleInstanceTypes")
    assert message.endswith("due to minValues incompatibility")


async def refusing(world: World) -> tuple[timedelta | None, int]:
    """Reconcile the pool, refuse every launch; returns the pause and the number of NodeClaims."""
    pause = await replicated(world)
    claims = world.claims()
    lifecycle = make_lifecycle(world, Unprepared())
    refusal = InsufficientCapacityError("no capacity")
    world.cloud.fail("launch", refusal, times=len(claims))
    for claim in claims:
        await lifecycle.reconcile(claim.metadata.name)
        world.see()
        await lifecycle.reconcile(claim.metadata.name)
    world.see()
    assert world.claims() == []
    return pause, len(claims)


async def test_a_static_pool_waits_longer_after_each_refused_launch() -> None:
    world = make_world(2)

    assert await refusing(world) == (PERIOD, 2)
    world.pass_time(seconds=0.1)
    assert await refusing(world) == (PERIOD, 2)
    for pause in (1, 2, 4, 8, 16, 30, 30):
        assert await refusing(world) == (timedelta(seconds=pause), 0)
        world.pass_time(seconds=pause)
        assert await refusing(world) == (PERIOD, 2)

    assert "no capacity (InsufficientCapacity)" in await world.events("LaunchFailed")


async def test_a_launched_node_ends_the_wait_of_a_static_pool() -> None:
    world = make_world(1)
    await refusing(world)
    await refusing(world)
    world.pass_time(seconds=1)
    await replicated(world)
    (claim,) = world.claims()
    await make_lifecycle(world, Unprepared()).reconcile(claim.metadata.name)
    world.seed(make_static(2))

    assert await replicated(world) == PERIOD

    assert len(world.claims()) == 2


async def test_claims_of_a_static_pool_have_only_the_template() -> None:
    world = World()
    pool = make_static(1)
    template = pool.spec.template
    terms = [
        Requirement(key=labels.INSTANCE_TYPE, operator="In", values=["m5.large", "m5.xlarge"]),
        Requirement(key="example.com/rack", operator="In", values=["r1", "r2"]),
    ]
    template = changed(template, spec={"requirements": terms}, metadata={"labels": {"team": "red"}})
    world.seed(make_nodeclass(), changed(pool, spec={"template": template}))

    await replicated(world)

    (claim,) = world.claims()
    asked = {r.key: sorted(r.values) for r in claim.spec.requirements}
    assert asked[labels.INSTANCE_TYPE] == ["m5.large", "m5.xlarge"]
    assert asked["team"] == ["red"]
    assert asked[labels.NODEPOOL] == ["fixed"]
    assert claim.metadata.labels["example.com/rack"] == "r1"
    assert not claim.spec.resources.requests
    instance = await world.cloud.launch(claim, make_nodeclass())
    assert instance.instance_type == "m5.large"


async def test_the_node_limit_counts_deleting_nodes_too() -> None:
    world = make_world(5, limits={"nodes": "4"})
    assert await replicated(world) == AT_THE_LIMIT
    assert len(world.claims()) == 4

    await world.api.delete(kinds.NODE_CLAIM, world.claims()[0].metadata.name)
    assert await replicated(world) == AT_THE_LIMIT

    assert len(world.claims()) == 4
    assert len(staying(world)) == 3


@pytest.mark.parametrize(("replicas", "is_too_low"), [(5, True), (4, False)])
async def test_a_node_limit_below_the_replicas_is_reported_on_the_pool(
    replicas: int, is_too_low: bool
) -> None:
    world = make_world(4, limits={"nodes": "4"})
    await replicated(world)
    await world.api.delete(kinds.NODE_CLAIM, world.claims()[0].metadata.name)
    await world.api.patch(kinds.NODE_POOL, "fixed", {"spec": {"replicas": replicas}})
    world.see()

    assert await replicated(world) == AT_THE_LIMIT

    expected = (
        "spec.limits.nodes (4) is less than spec.replicas (5): raise spec.limits.nodes, or lower "
        "spec.replicas"
    )
    assert await world.events("NodeLimitReached") == ([expected] if is_too_low else [])


async def test_a_webhook_that_refuses_claims_is_reported_on_the_pool() -> None:
    world = make_world(2)
    why = 'admission webhook "policy.example.com" denied the request: no owner label'
    world.api.refuse("create", ForbiddenError(why, status=403), kind=kinds.NODE_CLAIM)

    with pytest.raises(ForbiddenError):
        await replicated(world)

    assert await world.events("FailedCreate") == [f"Error creating NodeClaim: {why}"]


async def test_a_deleted_claim_of_a_static_pool_is_replaced() -> None:
    world = make_world(2)
    await replicated(world)
    gone = staying(world)[0]

    await world.api.delete(kinds.NODE_CLAIM, gone)
    await replicated(world)

    assert len(staying(world)) == 2
    assert gone not in staying(world)


async def test_a_static_pool_that_is_not_ready_only_scales_down() -> None:
    world = make_world(2)
    await replicated(world)
    unready = make_static(1)
    status = msgspec.structs.replace(unready.status, conditions=[])
    world.seed(msgspec.structs.replace(unready, status=status))

    await replicated(world)
    assert len(staying(world)) == 1

    unready = msgspec.structs.replace(make_static(3), status=status)
    world.seed(unready)
    assert await replicated(world) is None
    assert len(staying(world)) == 1


async def _joined(world: World, claim: NodeClaim) -> str:
    instance = await world.cloud.launch(claim, make_nodeclass())
    status = {"status": {"providerID": instance.provider_id}}
    launched = await world.api.patch(
        kinds.NODE_CLAIM, claim.metadata.name, status, subresource="status"
    )
    node = world.join(launched)
    known = {labels.NODEPOOL: "fixed", labels.REGISTERED: "true", labels.INITIALIZED: "true"}
    world.seed(changed(node, metadata={"labels": known}))
    return node.metadata.name


async def test_scale_down_deletes_the_least_disruptive_claims_first() -> None:
    """Unborn, then empty but for daemons, then by what its pods cost, protected ones last."""
    world = make_world(5)
    await replicated(world)
    unborn, empty, cheap, dear, kept = world.claims()
    nodes = {
        claim.metadata.name: await _joined(world, claim) for claim in (empty, cheap, dear, kept)
    }
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d"}
    world.seed(
        make_pod("agent", node=nodes[empty.metadata.name], ownerReferences=[owner]),
        make_pod("one", node=nodes[cheap.metadata.name]),
        make_pod("two", node=nodes[dear.metadata.name]),
        make_pod("three", node=nodes[dear.metadata.name]),
        make_pod(
            "mine", node=nodes[kept.metadata.name], annotations={labels.DO_NOT_DISRUPT: "true"}
        ),
    )
    went: list[str] = []
    for replicas in (4, 3, 2, 1, 0):
        before = set(staying(world))
        world.seed(make_static(replicas))
        await replicated(world)
        went.append(*(before - set(staying(world))))

    assert went == [c.metadata.name for c in (unborn, empty, cheap, dear, kept)]


async def _replacing(world: World, protected: bool = False) -> tuple[NodeClaim, NodeClaim]:
    """A node that has drifted, and the claim that an earlier leader made in its place."""
    await replicated(world)
    (old,) = world.claims()
    node = await _joined(world, old)
    kept = {labels.DO_NOT_DISRUPT: "true"} if protected else {}
    world.seed(make_pod("web", node=node, annotations=kept))
    world.seed(
        changed(
            old,
            metadata={
                "name": "replacement",
                "uid": "replacement",
                "annotations": {labels.REPLACES: node},
            },
            status=NodeClaimStatus(),
        )
    )
    replacement = next(claim for claim in world.claims() if claim.metadata.name == "replacement")
    return old, replacement


async def test_a_former_leaders_replacement_in_a_static_pool_is_awaited() -> None:
    world = make_world(1)
    old, replacement = await _replacing(world)

    await replicated(world)

    assert set(staying(world)) == {old.metadata.name, replacement.metadata.name}


async def test_a_node_of_a_static_pool_is_deleted_once_its_replacement_is_ready() -> None:
    world = make_world(1)
    _, replacement = await _replacing(world)
    await _joined(world, replacement)

    await replicated(world)

    assert staying(world) == [replacement.metadata.name]


async def test_a_protected_node_of_a_static_pool_stays_despite_its_replacement() -> None:
    world = make_world(1)
    old, replacement = await _replacing(world, protected=True)
    await _joined(world, replacement)

    await replicated(world)

    assert staying(world) == [old.metadata.name]


async def test_pods_never_scale_a_static_pool() -> None:
    scenario = ProvisioningScenario()
    scenario.world.seed(make_nodeclass(), make_static(0), make_pod("web"))

    await scenario.round()

    assert not scenario.world.claims()
    assert await scenario.world.events("FailedScheduling")


async def test_an_empty_node_of_a_static_pool_stays() -> None:
    scenario = DisruptionScenario(1, budgets=[{"nodes": "100%"}])
    pool = make_nodepool()
    scenario.world.seed(changed(pool, spec={"replicas": 1}))

    await scenario.work(seconds=60)

    assert scenario.going() == []


@pytest.mark.parametrize(
    ("annotation", "priority", "cost"),
    [
        ("", None, 1.0),
        ("134217728", None, 2.0),
        ("-134217728", None, 0.0),
        ("", 33554432, 2.0),
        ("", 2_000_000_000, 10.0),
        ("much", None, 1.0),
        ("1.5e8", None, 1.0),
        ("2147483648", None, 1.0),
        ("-2147483648", None, -10.0),
    ],
)
def test_the_eviction_cost_of_a_pod_follows_its_annotations(
    annotation: str, priority: int | None, cost: float
) -> None:
    annotations = {labels.POD_DELETION_COST: annotation} if annotation else {}
    pod = make_pod("p", node="n", annotations=annotations)
    pod = changed(pod, spec={"priority": priority})

    assert eviction_cost(pod, PLAIN) == cost


def test_deletion_costs_written_by_joiner_do_not_change_the_eviction_cost() -> None:
    written = DisruptionSettings(writes_deletion_costs=True)
    annotations = {labels.POD_DELETION_COST: "134217728"}

    assert eviction_cost(make_pod("p", node="n", annotations=annotations), written) == 1.0
    annotations[labels.DISRUPTION_COST] = "134217728"
    assert eviction_cost(make_pod("p", node="n", annotations=annotations), written) == 2.0


def test_the_disruption_cost_of_a_pod_is_read_first() -> None:
    annotations = {labels.DISRUPTION_COST: "134217728", labels.POD_DELETION_COST: "1342177280"}

    assert eviction_cost(make_pod("p", node="n", annotations=annotations), PLAIN) == 2.0
    annotations[labels.DISRUPTION_COST] = "much"
    assert eviction_cost(make_pod("p", node="n", annotations=annotations), PLAIN) == 1.0


@pytest.mark.parametrize(
    ("expire_after", "left"), [("Never", 1.0), ("100h", 0.75), ("20h", 0.0), ("0s", 0.0)]
)
async def test_the_remaining_lifetime_of_a_claim_shrinks_with_its_age(
    expire_after: str, left: float
) -> None:
    world = make_world(1)
    await replicated(world)
    (claim,) = world.claims()
    spec = msgspec.structs.replace(claim.spec, expire_after=expire_after)
    world.pass_time(hours=25)

    remaining = lifetime_remaining(msgspec.structs.replace(claim, spec=spec), world.now)

    assert remaining == pytest.approx(left)


async def test_if_a_claim_cannot_be_deleted_another_one_is() -> None:
    world = make_world(3)
    await replicated(world)
    first = staying(world)[0]
    world.seed(make_static(2))
    world.api.refuse("delete", ForbiddenError("the webhook says no", status=403))

    await replicated(world)

    assert first in staying(world)
    assert len(staying(world)) == 2
    assert leaving(world) == {c.metadata.name for c in world.claims() if c.metadata.is_deleting}


@pytest.mark.parametrize("is_seen", [True, False], ids=["seen", "not seen yet"])
@pytest.mark.parametrize("lands", [True, False], ids=["heard", "unheard"])
@pytest.mark.parametrize("losses", [1, 2, 3])
async def test_a_creation_with_a_lost_response_creates_no_extra_node(
    lands: bool, is_seen: bool, losses: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(3)
    world.see()
    replication = Replication(world.ports, world.registration_backoff)
    create, left = world.api.create, losses

    async def lost(kind: Any, *arguments: Any, **named: Any) -> Any:
        nonlocal left
        left -= kind == kinds.NODE_CLAIM
        answer = await create(kind, *arguments, **named) if lands or left < 0 else None
        if kind == kinds.NODE_CLAIM and left >= 0:
            raise UnavailableError("no answer in time")
        return answer

    monkeypatch.setattr(world.api, "create", lost)

    for _ in range(3):
        with suppress(UnavailableError):
            await replication.reconcile("fixed")
        if is_seen:
            world.see()

    assert len(world.claims()) == 3
    assert len(world.cluster.claims_of("fixed")) == 3


@pytest.mark.parametrize("lands", [True, False], ids=["heard", "unheard"])
async def test_a_deletion_with_a_lost_response_deletes_no_other_claim(
    lands: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(3)
    await replicated(world)
    nodes = {claim.metadata.name: await _joined(world, claim) for claim in world.claims()}
    world.seed(make_static(2))
    replication = Replication(world.ports, world.registration_backoff)
    delete = world.api.delete

    async def lost(*arguments: Any, **named: Any) -> None:
        if lands:
            await delete(*arguments, **named)
        raise UnavailableError("no answer in time")

    monkeypatch.setattr(world.api, "delete", lost)
    first = staying(world)[0]
    with pytest.raises(UnavailableError):
        await replication.reconcile("fixed")
    assert leaving(world) == set(), "nothing changes until the state is known"
    monkeypatch.setattr(world.api, "delete", delete)
    # The cluster state lacks the deletion, and the new pod makes the other nodes cheaper to delete.
    pod = make_pod("late", node=nodes[first])
    world.api.seed(pod)
    world.cluster.observe(kinds.POD, pod)

    await replication.reconcile("fixed")
    world.see()
    await replication.reconcile("fixed")
    world.see()

    assert first not in staying(world)
    assert len(staying(world)) == 2
