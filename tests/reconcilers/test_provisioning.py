"""Pending pods get nodes once, within limits, and a reason if they cannot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from controller.apis import kinds, labels
from controller.apis.karpenter import hashes
from controller.apis.karpenter.ec2nodeclass import EC2NodeClass
from controller.apis.karpenter.nodeclaim import NodeClaim
from controller.apis.karpenter.nodepool import NodePool
from controller.apis.kubernetes.conditions import Condition
from controller.apis.kubernetes.meta import ObjectMeta, to_wire
from controller.apis.kubernetes.pods import Affinity, Pod
from controller.apis.kubernetes.quantities import MILLI
from controller.apis.kubernetes.taints import Requirement, Toleration
from controller.apiserver.errors import ForbiddenError, UnavailableError
from controller.cloudprovider.provider import Instance
from controller.reconcilers.provisioning.unplaced import Unplaced
from controller.scheduling.results import CauseKind, PoolCause, Results
from controller.scheduling.settings import BEST_EFFORT, STRICT, Settings
from controller.state.snapshot import Snapshot
from tests.builders import (
    changed,
    make_nodeclass,
    make_nodepool,
    make_offering,
    make_pod,
    make_type,
    make_types,
    needs,
)
from tests.reconcilers.scenarios import ProvisioningScenario
from tests.reconcilers.world import World


@pytest.fixture
def scenario() -> ProvisioningScenario:
    scenario = ProvisioningScenario()
    scenario.world.seed(make_nodeclass(), make_nodepool())
    return scenario


async def test_a_pending_pod_gets_a_claim_with_its_pool_and_class(
    scenario: ProvisioningScenario,
) -> None:
    scenario.world.seed(make_pod("web"))

    await scenario.round()

    (claim,) = scenario.world.claims()
    assert claim.metadata.labels[labels.NODEPOOL] == "default"
    assert claim.metadata.labels[labels.EC2NODECLASS] == "default"
    assert [o.uid for o in claim.metadata.owner_references] == ["uid-of-default"]
    assert claim.spec.resources.requests["cpu"]
    types = [r for r in claim.spec.requirements if r.key == labels.INSTANCE_TYPE]
    assert types
    assert types[0].values
    assert await scenario.world.events("Nominated")


async def test_claims_for_the_most_important_pods_are_created_first(
    scenario: ProvisioningScenario,
) -> None:
    """If EC2 launches fewer instances than NodeClaims that share a call, the first get them."""
    # Each of these pods needs a node of its own.
    scenario.world.seed(
        make_pod("low", cpu="3500m", memory="1Gi"),
        make_pod("high", cpu="3500m", memory="1Gi", priority=9),
        make_pod("middle", cpu="3500m", memory="1Gi", priority=5),
    )

    await scenario.round()

    claims = sorted(scenario.world.claims(), key=lambda c: int(c.metadata.resource_version))
    pods_of = {
        n: [p.metadata.name for p in scenario.world.cluster.nominated_for(n)]
        for n in (claim.metadata.name for claim in claims)
    }
    assert [*pods_of.values()] == [["high"], ["middle"], ["low"]]


@pytest.mark.parametrize("arrives", [True, False], ids=["response lost", "request lost"])
async def test_a_pod_gets_one_claim_despite_a_lost_response(
    scenario: ProvisioningScenario, arrives: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario.world.seed(make_pod("web"))
    create, requests = scenario.world.api.create, 0

    async def create_unheard(kind: Any, *arguments: Any, **named: Any) -> Any:
        nonlocal requests
        requests += kind == kinds.NODE_CLAIM
        is_lost = kind == kinds.NODE_CLAIM and requests == 1
        answer = await create(kind, *arguments, **named) if arrives or not is_lost else None
        if is_lost:
            raise UnavailableError("no answer in time")
        return answer

    monkeypatch.setattr(scenario.world.api, "create", create_unheard)

    await scenario.round()

    assert len(scenario.world.claims()) == 1
    assert await scenario.world.events("Nominated")


def of_team(name: str) -> NodePool:
    """A pool whose nodes bear the label of a team."""
    pool = make_nodepool()
    return changed(pool, spec={"template": {"metadata": {"labels": {"team": name}}}})


async def test_a_pool_that_changes_during_a_solve_gets_claims_with_its_current_template() -> None:
    class Changing(ProvisioningScenario):
        async def _solve(self, pods: Sequence[Pod], snapshot: Snapshot) -> Results:
            if not self.asked:
                self.world.seed(of_team("blue"))
            return await super()._solve(pods, snapshot)

    scenario = Changing()
    scenario.world.seed(make_nodeclass(), of_team("red"), make_pod("web"))
    await scenario.round()

    assert scenario.world.claims() == []

    await scenario.round()

    (claim,) = scenario.world.claims()
    assert claim.metadata.labels["team"] == "blue"


async def test_a_claim_has_the_hash_of_its_template(
    scenario: ProvisioningScenario,
) -> None:
    pool = make_nodepool()
    stale = {labels.NODEPOOL_HASH: "of what it was", labels.NODEPOOL_HASH_VERSION: "v0"}
    scenario.world.seed(changed(pool, metadata={"annotations": stale}), make_pod("web"))

    await scenario.round()

    (claim,) = scenario.world.claims()
    assert claim.metadata.annotations[labels.NODEPOOL_HASH] == hashes.node_pool_hash(pool)
    assert claim.metadata.annotations[labels.NODEPOOL_HASH_VERSION] == hashes.NODE_POOL_VERSION


async def test_the_next_batch_launches_nothing_for_scheduled_pods(
    scenario: ProvisioningScenario,
) -> None:
    scenario.world.seed(*(make_pod(f"web-{n}") for n in range(10)))
    await scenario.round()
    bought = len(scenario.world.claims())

    scenario.world.seed(make_pod("late", cpu="10m", memory="1Mi"))
    await scenario.round()

    assert scenario.asked[1] == ["default/late"]
    assert len(scenario.world.claims()) - bought <= 1


async def launch(world: World, claim: NodeClaim) -> Instance:
    """Launch a claim's instance; its node does not join."""
    instance = await world.cloud.launch(claim, make_nodeclass())
    launched = {
        "providerID": instance.provider_id,
        "capacity": dict(instance.capacity),
        "allocatable": dict(instance.allocatable),
    }
    await world.api.patch(
        kinds.NODE_CLAIM, claim.metadata.name, {"status": launched}, subresource="status"
    )
    return instance


@pytest.mark.parametrize("shares", [False, True], ids=["too large to share", "small enough"])
async def test_pods_of_an_unregistered_node_use_its_capacity(
    scenario: ProvisioningScenario, shares: bool
) -> None:
    world = scenario.world
    world.seed(make_pod("first"))
    await scenario.round()
    (claim,) = world.claims()
    whole = (await launch(world, claim)).allocatable["cpu"]

    world.seed(make_pod("second", cpu="1m" if shares else str(whole), memory="1Mi"))
    await scenario.round()

    assert len(world.claims()) == (1 if shares else 2)


async def test_pods_of_an_unregistered_node_apply_their_anti_affinity(
    scenario: ProvisioningScenario,
) -> None:
    def make_repelling(name: str) -> Pod:
        pod = make_pod(name, cpu="1m", memory="1Mi")
        term = {"topologyKey": labels.HOSTNAME, "labelSelector": {"matchLabels": {"app": "web"}}}
        repelling = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
        return changed(
            pod,
            metadata={"labels": {"app": "web"}},
            spec={"affinity": msgspec.convert(repelling, Affinity)},
        )

    world = scenario.world
    world.seed(make_repelling("first"))
    await scenario.round()
    (claim,) = world.claims()
    await launch(world, claim)

    world.seed(make_repelling("second"))
    await scenario.round()

    assert len(world.claims()) == 2


@pytest.fixture
async def succession(scenario: ProvisioningScenario) -> ProvisioningScenario:
    """A claim is written and not launched yet; a new leader has looked at it once."""
    scenario.world.seed(make_pod("web"))
    await scenario.round()
    scenario.change_leader()
    await scenario.round()
    return scenario


async def test_a_new_leader_does_not_repeat_claims_that_were_only_created(
    succession: ProvisioningScenario,
) -> None:
    world = succession.world
    (claim,) = world.claims()
    assert len(succession.asked) == 1

    await launch(world, claim)
    await succession.round()
    assert succession.asked == [["default/web"], ["default/web"]]
    assert len(world.claims()) == 1


async def test_a_new_leader_waits_a_limited_time_for_a_stuck_launch(
    succession: ProvisioningScenario,
) -> None:
    succession.world.pass_time(seconds=31)
    await succession.round()

    assert len(succession.asked) == 2
    assert len(succession.world.claims()) == 1, (
        "it may wait for its turn with the cloud for minutes"
    )


async def test_a_new_leader_waits_a_limited_time_if_the_clock_is_set_back(
    succession: ProvisioningScenario,
) -> None:
    succession.world.pass_time(minutes=-30)
    await succession.round()
    assert len(succession.asked) == 1
    succession.world.pass_time(seconds=31)
    await succession.round()

    assert len(succession.asked) == 2


async def test_a_claim_that_is_not_launched_serves_other_pods_if_its_own_are_deleted(
    scenario: ProvisioningScenario,
) -> None:
    world = scenario.world
    world.seed(make_pod("first"))
    await scenario.round()
    world.seed(make_pod("second"))
    await scenario.round()
    bought = {claim.metadata.name for claim in world.claims()}
    assert len(bought) == 2
    await world.api.delete(kinds.POD, "first", namespace="default")

    world.seed(make_pod("third"))
    await scenario.round()
    assert {claim.metadata.name for claim in world.claims()} == bought

    world.seed(make_pod("fourth"))
    await scenario.round()
    assert len(world.claims()) == 3


async def test_a_claim_that_is_not_launched_serves_no_larger_pod(
    scenario: ProvisioningScenario,
) -> None:
    world = scenario.world
    world.seed(make_pod("small", cpu="500m"))
    await scenario.round()
    await world.api.delete(kinds.POD, "small", namespace="default")

    world.seed(make_pod("large", cpu="2"))
    await scenario.round()

    assert len(world.claims()) == 2


async def test_pods_of_a_deleted_claim_are_scheduled_again(
    scenario: ProvisioningScenario,
) -> None:
    scenario.world.seed(make_pod("web"))
    await scenario.round()
    (claim,) = scenario.world.claims()
    await scenario.world.api.patch(
        kinds.NODE_CLAIM, claim.metadata.name, {"metadata": {"finalizers": []}}
    )
    await scenario.world.api.delete(kinds.NODE_CLAIM, claim.metadata.name)

    await scenario.round()

    assert scenario.asked == [["default/web"], ["default/web"]]
    assert len(scenario.world.claims()) == 1


async def test_pods_of_a_deleting_node_get_another_node_before_their_eviction(
    scenario: ProvisioningScenario,
) -> None:
    scenario.world.seed(make_pod("web"))
    await scenario.round()
    (claim,) = scenario.world.claims()
    node_class = make_nodeclass()
    instance = await scenario.world.cloud.launch(claim, node_class)
    await scenario.world.api.patch(
        kinds.NODE_CLAIM,
        claim.metadata.name,
        {
            "status": {
                "providerID": instance.provider_id,
                "capacity": dict(instance.capacity),
                "allocatable": dict(instance.allocatable),
            }
        },
        subresource="status",
    )
    claim = scenario.world.claims()[0]
    node = scenario.world.join(claim)
    waiting = scenario.world.api.find(kinds.POD, "web", "default")
    assert waiting is not None
    scenario.world.seed(
        msgspec.structs.replace(
            make_pod("web", node=node.metadata.name),
            metadata=ObjectMeta(name="web", namespace="default", uid=waiting.metadata.uid),
        )
    )
    await scenario.world.api.delete(kinds.NODE_CLAIM, claim.metadata.name)

    await scenario.round()

    assert len(scenario.world.claims()) == 2


async def test_an_unschedulable_pod_reports_the_reason(scenario: ProvisioningScenario) -> None:
    scenario.world.seed(make_pod("huge", cpu="10000"))

    await scenario.round()

    assert scenario.world.claims() == []
    (message,) = await scenario.world.events("FailedScheduling")
    assert "cpu" in message


async def test_without_a_ready_pool_the_pod_reports_it() -> None:
    scenario = ProvisioningScenario()
    scenario.world.seed(make_pod("web"))

    await scenario.round()

    (message,) = await scenario.world.events("FailedScheduling")
    assert "NodePool" in message or "nodepool" in message


async def test_a_pod_reports_pools_that_are_not_ready_with_the_reason(
    scenario: ProvisioningScenario,
) -> None:
    lacks = Condition(
        type="NodeClassReady", status="False", reason="NodeClassNotFound", message="create it"
    )
    pool = make_nodepool("unready")
    scenario.world.seed(changed(pool, status={"conditions": [lacks]}))
    scenario.world.seed(make_pod("giant", cpu="9999"))

    await scenario.round()

    (message,) = await scenario.world.events("FailedScheduling")
    assert "NodePool default: " in message
    assert "NodePool unready is not ready: create it" in message


@pytest.mark.parametrize(
    ("selector", "tolerations", "first"),
    [
        ({}, [Toleration(operator="Exists")], "gpu"),
        ({labels.NODEPOOL: "gpu"}, [Toleration(operator="Exists")], "gpu"),
        ({}, [], "default"),
        ({labels.NODEPOOL: "default"}, [Toleration(operator="Exists")], "default"),
        ({"team": "mine"}, [Toleration(operator="Exists")], "default"),
    ],
)
async def test_a_pool_that_would_hold_the_pod_if_it_were_ready_is_reported_first(
    scenario: ProvisioningScenario,
    selector: dict[str, str],
    tolerations: list[Toleration],
    first: str,
) -> None:
    wire = to_wire(make_nodepool("gpu"))
    wire["spec"]["template"]["spec"]["taints"] = [{"key": "gpu", "effect": "NoSchedule"}]
    wire["status"]["conditions"] = [
        {"type": "NodeClassReady", "status": "False", "reason": "NodeClassNotFound"}
    ]
    giant = make_pod("giant", cpu="9999")
    scenario.world.seed(
        msgspec.convert(wire, NodePool),
        changed(giant, spec={"node_selector": selector, "tolerations": tolerations}),
    )

    await scenario.round()

    (message,) = await scenario.world.events("FailedScheduling")
    assert message.startswith(f"Failed to schedule pod, NodePool {first}")
    assert "NodePool gpu is not ready" in message


QUOTA = "the account's quota of Standard instances, on-demand, leaves less than 32 vCPUs"
AT_LIMIT = PoolCause.of("default", "limit of cpu reached (4 of 4 in use)", CauseKind.LIMIT)
SHIFT = "ARC has shifted traffic away from us-west-2a (usw2-az1)"


def refusing_class(**refusals: str) -> EC2NodeClass:
    node_class = make_nodeclass()
    said = [
        Condition(type=kind, status="False", reason="Refused", message=message)
        for kind, message in refusals.items()
    ]
    conditions = [*node_class.status.conditions, *said]
    return changed(node_class, status={"conditions": conditions})


def pool_of_capacity_type(name: str, capacity_type: str, **more: Any) -> NodePool:
    pool = make_nodepool(name, **more)
    only = Requirement(key=labels.CAPACITY_TYPE, operator="In", values=[capacity_type])
    pool.spec.template.spec.requirements.append(only)
    return pool


def sell_no(scenario: ProvisioningScenario, *capacity_types: str) -> None:
    for known in scenario.world.cloud.types:
        for offering in known.offerings:
            if offering.capacity_type in capacity_types:
                scenario.world.cloud.mark_unavailable(
                    known.name, offering.zone, offering.capacity_type
                )


async def test_a_pod_reports_refused_launches_of_its_nodeclass(
    scenario: ProvisioningScenario,
) -> None:
    scenario.world.seed(refusing_class(WithinQuotas=QUOTA), make_pod("web"))
    sell_no(scenario, labels.ON_DEMAND, labels.SPOT)

    await scenario.round()

    (message,) = await scenario.world.events("FailedScheduling")
    assert "without capacity now; EC2NodeClass default: the account's quota" in message


async def test_a_pod_too_large_for_every_type_does_not_report_refused_launches(
    scenario: ProvisioningScenario,
) -> None:
    scenario.world.seed(refusing_class(WithinQuotas=QUOTA), make_pod("giant", cpu="9999"))

    await scenario.round()

    (message,) = await scenario.world.events("FailedScheduling")
    assert "too small for cpu 9999" in message
    assert "quota" not in message


async def test_a_reached_limit_is_reported_before_the_quota_of_another_pool() -> None:
    scenario = ProvisioningScenario()
    scenario.world.seed(
        refusing_class(LaunchSucceeded=QUOTA, WithinQuotas=QUOTA),
        pool_of_capacity_type("apps", labels.ON_DEMAND),
        pool_of_capacity_type("batch", labels.ON_DEMAND),
        pool_of_capacity_type("spot", labels.SPOT, limits={"cpu": "1"}),
        make_pod("web"),
    )
    sell_no(scenario, labels.ON_DEMAND)

    await scenario.round()

    (message,) = await scenario.world.events("FailedScheduling")
    first = "NodePool spot: limit of cpu reached (0 of 1 in use); "
    assert message.startswith(f"Failed to schedule pod, {first}")
    assert message.count(QUOTA) == 1
    assert message.index("without capacity now") < message.index(QUOTA)


async def test_a_pool_reports_only_refusals_of_its_capacity_types() -> None:
    scenario = ProvisioningScenario()
    scenario.world.seed(
        refusing_class(WithinQuotas=QUOTA),
        pool_of_capacity_type("spot", labels.SPOT),
        make_pod("web"),
    )
    sell_no(scenario, labels.SPOT)

    await scenario.round()

    (message,) = await scenario.world.events("FailedScheduling")
    assert "without capacity now" in message
    assert "quota" not in message


def test_a_zonal_shift_is_reported_if_it_excludes_the_pods_zone() -> None:
    unplaced = Unplaced([make_nodepool()], [refusing_class(ZonesInUse=SHIFT)])
    spread = "no domain satisfies the topology spread over topology.kubernetes.io/zone (maxSkew 1)"
    spec = make_pod("web").spec

    assert unplaced.message(spec, (spread,)) == f"{spread}; EC2NodeClass default: {SHIFT}"
    assert unplaced.message(spec, (AT_LIMIT,)) == AT_LIMIT


def not_ready(name: str, **options: Any) -> NodePool:
    """Return a NodePool that is not ready because no instance type meets its requirements."""
    pool = make_nodepool(name, **options)
    why = "no instance type meets instance-family In [m55]"
    pool.status.conditions.append(Condition(type="InstanceTypes", status="False", message=why))
    return pool


def test_the_nodepool_that_a_pod_asks_for_comes_first_if_it_is_not_ready() -> None:
    pools = [make_nodepool(), not_ready("t1", labels={"team": "t1"}), not_ready("t2")]
    spec = make_pod("web", node_selector={"team": "t1"}).spec
    why = "7 instance types: 7 excluded by the pod's requirement team In [t1]"
    other = PoolCause.of("default", why)

    causes = Unplaced(pools, []).in_order(spec, (other,), met=("the last attempt",))

    assert causes == (
        "NodePool t1 is not ready: no instance type meets instance-family In [m55]",
        "the last attempt",
    )


def test_a_nodepool_that_is_not_ready_hides_no_typo_in_a_label_that_it_does_not_state() -> None:
    zones = Requirement(key=labels.ZONE, operator="In", values=["zone-a"])
    pools = [make_nodepool(requirements=[zones]), not_ready("t1")]
    spec = make_pod("web", node_selector={labels.ZONE: "zone-x"}).spec
    why = "7 instance types: 7 excluded by the pod's requirement zone In [x]"
    typo = PoolCause.of("default", why)

    assert typo in Unplaced(pools, []).in_order(spec, (typo,))


def test_a_nodepool_that_is_not_ready_comes_after_those_that_are_for_a_pod_without_selector() -> (
    None
):
    causes = Unplaced([make_nodepool(), not_ready("t2")], []).in_order(
        make_pod("web").spec, (AT_LIMIT,), met=(str(AT_LIMIT),)
    )

    assert causes[0] == AT_LIMIT
    assert causes[1].startswith("NodePool t2 is not ready")


def lines(caplog: pytest.LogCaptureFixture, begin: str) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.getMessage().startswith(begin)]


async def test_a_webhook_that_refuses_nodeclaims_is_reported_on_pods_and_pool_and_logged_once(
    scenario: ProvisioningScenario, caplog: pytest.LogCaptureFixture
) -> None:
    world = scenario.world
    world.seed(*(make_pod(f"web-{n}", cpu="12") for n in range(4)))
    why = 'admission webhook "policy.example.com" denied the request: no owner label'

    world.api.refuse("create", ForbiddenError(why, status=403), kind=kinds.NODE_CLAIM, times=8)

    await scenario.round()
    await scenario.round()

    assert world.claims() == []
    assert await world.events("FailedCreate") == [f"Error creating NodeClaim: {why}"]
    messages = await world.events("FailedScheduling")
    pod_message = f"Failed to schedule pod, NodePool default: error creating NodeClaim: {why}"
    assert messages == [pod_message] * 4
    assert lines(caplog, "cannot create nodeclaim") == [f"cannot create nodeclaim: {why}"]


async def test_the_reason_of_unschedulable_pods_is_logged_once_per_change(
    scenario: ProvisioningScenario, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    scenario.world.seed(*(make_pod(f"giant-{n}", cpu="9999") for n in range(12)))

    for _ in range(3):
        await scenario.round()

    too_large = (
        "could not schedule pods: NodePool default: 7 instance types: 7 too small for cpu 9999 "
        "(largest: 15920m)"
    )
    assert lines(caplog, "could not schedule") == [too_large]
    (record,) = [r for r in caplog.records if r.getMessage() == too_large]
    assert record.__dict__["pods"] == 12
    assert record.__dict__["Pods"].startswith("default/giant-0, default/giant-1")

    scenario.world.seed(make_pod("giant-12", cpu="9999"))
    await scenario.round()
    assert lines(caplog, "could not schedule") == [too_large] * 2


async def test_a_pool_reports_the_requirement_that_no_type_satisfies() -> None:
    scenario = ProvisioningScenario()
    pool = make_nodepool()
    wanted = Requirement(key=labels.INSTANCE_TYPE, operator="In", values=["m5.moonshot"])
    pool.spec.template.spec.requirements.append(wanted)
    scenario.world.seed(make_nodeclass(), pool, make_pod("web"))

    await scenario.round()

    (message,) = await scenario.world.events("NoCompatibleInstanceTypes")
    assert f"no instance type meets {labels.INSTANCE_TYPE} In [m5.moonshot]" in message


TOO_FEW_VALUES = (
    "NodePool requirements filtered out all compatible available instance types due to minValues "
    "incompatibility"
)


@pytest.mark.parametrize(
    ("policy", "least", "messages"),
    [
        pytest.param(STRICT, 3, [TOO_FEW_VALUES], id="too few"),
        pytest.param(STRICT, 2, [], id="enough"),
        pytest.param(BEST_EFFORT, 3, [], id="relaxed"),
    ],
)
async def test_a_pool_reports_that_too_few_instance_types_are_available_for_its_minvalues(
    policy: str, least: int, messages: list[str]
) -> None:
    scenario = ProvisioningScenario()
    scenario.settings = Settings(min_values_policy=policy)
    scenario.provisioner.min_values_policy = policy
    full = make_offering("a", labels.ON_DEMAND, 0.1, available=False)
    scenario.world.cloud.types = (*make_types(2, 4), make_type("full", offerings=[full]))
    pool = make_nodepool()
    flexible = Requirement(key=labels.INSTANCE_TYPE, operator="Exists", min_values=least)
    pool.spec.template.spec.requirements.append(flexible)
    scenario.world.seed(make_nodeclass(), pool, make_pod("web"))

    await scenario.round()

    assert await scenario.world.events("NoCompatibleInstanceTypes") == messages
    assert bool(scenario.world.claims()) is not bool(messages)


NO_COMPATIBLE = "NodePool requirements filtered out all compatible available instance types"


@pytest.mark.parametrize(
    ("restriction", "messages"),
    [
        pytest.param(
            {"labels": {labels.ZONE: "a"}},
            [f"{NO_COMPATIBLE}: all offerings are unavailable"],
            id="by a label",
        ),
        pytest.param(
            {"requirements": [needs(labels.ZONE, "In", "a")]},
            [f"{NO_COMPATIBLE}: all offerings are unavailable"],
            id="by a requirement",
        ),
        pytest.param({}, [], id="another zone is available"),
    ],
)
async def test_a_pool_reports_that_all_its_offerings_are_unavailable(
    restriction: dict[str, Any], messages: list[str]
) -> None:
    scenario = ProvisioningScenario()
    full = make_offering("a", labels.ON_DEMAND, 0.1, available=False)
    free = make_offering("b", labels.ON_DEMAND, 0.1)
    scenario.world.cloud.types = (make_type("m5.large", offerings=[full, free]),)
    scenario.world.seed(make_nodeclass(), make_nodepool(**restriction), make_pod("web"))

    await scenario.round()

    assert await scenario.world.events("NoCompatibleInstanceTypes") == messages
    assert bool(scenario.world.claims()) is not bool(messages)


async def test_a_pool_of_a_full_reservation_names_it() -> None:
    scenario = ProvisioningScenario()
    reserved = make_offering("a", labels.RESERVED, 0.1, reservation="cr-1", count=1)
    full = reserved.with_reservation_capacity(0)
    scenario.world.cloud.types = (make_type("m5.large", offerings=[full]),)
    scenario.world.seed(make_nodeclass(), make_nodepool(), make_pod("web"))

    await scenario.round()

    assert await scenario.world.events("NoCompatibleInstanceTypes") == [
        f"{NO_COMPATIBLE}: capacity reservation cr-1 is full"
    ]


@pytest.mark.parametrize(("least", "kept"), [(3, 2), (2, 2), (1, 1)])
async def test_a_claim_demands_no_more_instance_types_than_it_names(least: int, kept: int) -> None:
    scenario = ProvisioningScenario()
    scenario.settings = Settings(min_values_policy=BEST_EFFORT)
    scenario.world.cloud.types = make_types(2, 4)
    pool = make_nodepool()
    known = [instance_type.name for instance_type in scenario.world.cloud.types]
    wanted = Requirement(
        key=labels.INSTANCE_TYPE, operator="In", values=[*known, "moonshot"], min_values=least
    )
    pool.spec.template.spec.requirements.append(wanted)
    scenario.world.seed(make_nodeclass(), pool, make_pod("web"))

    await scenario.round()

    (claim,) = scenario.world.claims()
    (types,) = (r for r in claim.spec.requirements if r.key == labels.INSTANCE_TYPE)
    assert set(types.values) == set(known)
    assert types.min_values == kept


async def test_a_pool_never_exceeds_its_limits() -> None:
    scenario = ProvisioningScenario()
    scenario.world.seed(make_nodeclass(), make_nodepool(limits={"cpu": "4"}))
    scenario.world.seed(*(make_pod(f"web-{n}") for n in range(30)))

    for _ in range(3):
        await scenario.round()

    cpus = 0
    for claim in scenario.world.claims():
        instance = await scenario.world.cloud.launch(claim, make_nodeclass())
        cpus += int(instance.capacity["cpu"])
    assert 0 < cpus <= 4
    assert await scenario.world.events("FailedScheduling")


def at_most(scenario: ProvisioningScenario) -> int:
    """Return how many CPUs all claims come to if each gets the largest type that it names."""
    cpus = {known.name: known.capacity["cpu"] for known in scenario.world.cloud.types}
    return sum(
        max(cpus[name] for name in requirement.values) // MILLI
        for claim in scenario.world.claims()
        for requirement in claim.spec.requirements
        if requirement.key == labels.INSTANCE_TYPE
    )


async def test_a_claim_that_waits_for_its_launch_counts_with_its_largest_type() -> None:
    scenario = ProvisioningScenario()
    scenario.world.seed(make_nodeclass(), make_nodepool(limits={"cpu": "40"}))

    for batch in range(4):
        scenario.world.seed(*(make_pod(f"web-{batch}-{n}") for n in range(12)))
        await scenario.round()
        scenario.world.pass_time(minutes=1)

    assert len(scenario.asked) == 4
    assert 20 < at_most(scenario) <= 40


async def test_limits_that_were_lowered_during_a_solve_are_respected() -> None:
    scenario = ProvisioningScenario()
    scenario.world.seed(make_nodeclass(), make_nodepool())
    scenario.world.seed(*(make_pod(f"web-{n}", cpu="3") for n in range(8)))
    solve = scenario.provisioner.solve

    async def solve_slowly(pods: Sequence[Pod], snapshot: Snapshot) -> Results:
        results = await solve(pods, snapshot)
        scenario.world.seed(make_nodepool(limits={"cpu": "20"}))
        scenario.world.see()
        return results

    scenario.provisioner.solve = solve_slowly

    await scenario.round()

    assert 0 < at_most(scenario) <= 20


async def test_instance_types_are_read_once_while_no_pod_is_pending(
    scenario: ProvisioningScenario,
) -> None:
    await scenario.round()
    await scenario.round()

    assert scenario.read == [["default"]]
    assert scenario.asked == []


async def test_changed_instance_types_are_read_again(
    scenario: ProvisioningScenario,
) -> None:
    await scenario.round()
    scenario.world.seed(make_nodepool("spot"))
    await scenario.round()

    assert scenario.read == [["default"], ["default", "spot"]]


async def test_a_pool_without_types_is_not_reported_while_no_pod_is_pending(
    scenario: ProvisioningScenario,
) -> None:
    scenario.world.cloud.types = ()
    await scenario.round()
    assert await scenario.world.events("NoCompatibleInstanceTypes") == []

    scenario.world.seed(make_pod("web"))
    await scenario.round()

    assert await scenario.world.events("NoCompatibleInstanceTypes") != []
