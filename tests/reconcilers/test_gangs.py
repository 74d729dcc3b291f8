"""A gang gets all of its nodes, or none that stays."""

from __future__ import annotations

import pytest

from controller.apis import kinds, labels
from controller.apis.karpenter.nodeclaim import DISRUPTION_REASON
from controller.apis.kubernetes.meta import ObjectMeta, to_wire
from controller.apis.kubernetes.workloads import (
    GangPolicy,
    PodGroup,
    PodGroupPolicy,
    PodGroupSpec,
)
from controller.apiserver.errors import ConflictError
from controller.cloudprovider.fake import make_instance_type
from controller.disruption.problem import EVICTIONS_FREE
from controller.scheduling.settings import Settings
from tests.builders import changed, make_pod
from tests.reconcilers.disrupting import SameProcess
from tests.reconcilers.scenarios import NominationScenario
from tests.reconcilers.test_consolidation import ConsolidationScenario

TRAIN = ObjectMeta(name="train", namespace="default")


class GangScenario(NominationScenario):
    """A gang whose pods need a node each, and the lifecycle of their NodeClaims."""

    def __init__(self, pods: int, *, least: int | None = None) -> None:
        super().__init__(kinds.POD_GROUP, kinds.COSCHEDULING_POD_GROUP)
        self.settings = Settings(gangs=True)
        self.world.cloud.types = (
            make_instance_type("a.large", capacity_types=(labels.ON_DEMAND,), zones=("zone-a",)),
        )
        policy = PodGroupPolicy(gang=GangPolicy(min_count=least or pods))
        self.world.seed(
            PodGroup(
                metadata=TRAIN,
                spec=PodGroupSpec(scheduling_policy=policy),
            ),
        )
        for number in range(pods):
            self.add(f"worker-{number}")

    def add(self, name: str) -> None:
        group = {"schedulingGroup": {"podGroupName": "train"}}
        self.world.seed(make_pod(name, cpu="1500m", spec=group))

    async def launch_up_to(self, count: int) -> None:
        """Reconcile every NodeClaim; EC2 has capacity for so many."""
        for claim in self.world.claims():
            if len(self.world.cloud.instances_by_id) == count:
                self.world.cloud.exhaust()
            await self.lifecycle.reconcile(claim.metadata.name)
        self.world.see()

    @property
    def staying(self) -> list[str]:
        return [c.metadata.name for c in self.world.claims() if not c.metadata.is_deleting]


async def test_if_one_instance_of_a_gang_cannot_launch_all_its_nodes_are_released() -> None:
    scenario = GangScenario(pods=4)
    await scenario.round()
    assert len(scenario.staying) == 4
    await scenario.launch_up_to(3)

    await scenario.round()

    assert scenario.staying == []
    (message,) = set(await scenario.world.events("GangReleased"))
    assert message == "Deleting NodeClaim: gang default/train cannot be scheduled as a whole"


async def test_a_released_gang_is_launched_again_as_a_whole() -> None:
    scenario = GangScenario(pods=4)
    await scenario.round()
    await scenario.launch_up_to(3)
    await scenario.round()
    scenario.world.cloud.restock()
    for claim in scenario.world.claims():
        await scenario.lifecycle.reconcile(claim.metadata.name)

    await scenario.round()
    await scenario.launch_up_to(100)

    claims = [c for c in scenario.world.claims() if not c.metadata.is_deleting]
    assert len(claims) == 4
    assert all(claim.status.provider_id for claim in claims)
    assert {c.metadata.annotations[labels.GANG] for c in claims} == {"default/train"}


async def test_a_missing_node_of_a_gang_is_launched_elsewhere_and_the_others_stay() -> None:
    scenario = GangScenario(pods=3)
    await scenario.round()
    before = set(scenario.staying)
    await scenario.launch_up_to(2)
    scenario.world.cloud.restock()

    await scenario.round()

    assert len(scenario.staying) == 3
    assert len(before & set(scenario.staying)) == 2


async def test_a_node_that_runs_pods_stays_when_its_gang_is_released() -> None:
    scenario = GangScenario(pods=2)
    await scenario.round()
    await scenario.launch_up_to(1)
    (claim,) = [c for c in scenario.world.claims() if c.status.provider_id]
    node = scenario.world.join(claim)
    scenario.world.seed(make_pod("other", node=node.metadata.name))

    await scenario.round()

    assert scenario.staying == [claim.metadata.name]


class MoveScenario(ConsolidationScenario):
    """A gang on two nodes, one of which has drifted, and the loops that may disrupt them."""

    def __init__(self, **disruption: object) -> None:
        super().__init__(**{"consolidateAfter": "Never", **disruption})
        self.start_leader()
        for name in ("old", "new"):
            self.add(name, "c5.large", drifted=name == "old")
            member = {labels.COSCHEDULING_GROUP: "train"}
            self.world.seed(make_pod(f"worker-{name}", node=name, labels=member))

    def start_leader(self) -> None:
        self.change_leader(SameProcess(EVICTIONS_FREE, Settings(gangs=True)))


async def test_all_nodes_of_a_gang_stay_until_all_their_replacements_are_initialized() -> None:
    scenario = MoveScenario()
    await scenario.work(1)
    first, *others = scenario.made()
    for replacement in others:
        scenario.make_ready(replacement)
    await scenario.work(5)

    assert scenario.is_marked("old")
    assert scenario.is_marked("new")
    assert scenario.going() == []

    scenario.make_ready(first)
    await scenario.work(2)

    assert sorted(scenario.going()) == ["new", "old"]


@pytest.mark.parametrize("is_resumed", [False, True], ids=["same leader", "new leader"])
async def test_a_gang_whose_pending_pod_starts_elsewhere_before_its_nodes_go_is_not_split(
    is_resumed: bool,
) -> None:
    scenario = MoveScenario()
    await scenario.work(1)
    if is_resumed:
        scenario.start_leader()
        await scenario.work(1)
    member = {labels.COSCHEDULING_GROUP: "train"}
    scenario.add("late", "c5.large")
    scenario.world.seed(make_pod("worker-late", node="late", labels=member))
    for replacement in scenario.made():
        scenario.make_ready(replacement)

    await scenario.work(2)
    assert scenario.going() == []
    assert not scenario.is_marked("old")

    scenario.world.pass_time(minutes=2)  # a failed disruption is retried after a pause
    for _ in range(3):
        await scenario.work(2)
        for replacement in scenario.made():
            scenario.make_ready(replacement)
    assert {"late", "new", "old"} <= set(scenario.going())


@pytest.mark.parametrize(
    ("group", "is_going"),
    [
        pytest.param((), False, id="a gang"),
        pytest.param((PodGroup(metadata=TRAIN),), True, id="a PodGroup without a gang policy"),
    ],
)
async def test_a_gang_that_starts_on_a_node_after_the_decision_is_not_split(
    group: tuple[PodGroup, ...], is_going: bool
) -> None:
    scenario = ConsolidationScenario(consolidateAfter="Never")
    scenario.world.seed(*group)
    scenario.change_leader(SameProcess(EVICTIONS_FREE, Settings(gangs=True)))
    scenario.add("old", "c5.large", drifted=True)
    scenario.add("new", "c5.large")
    for name in ("old", "new"):
        scenario.world.seed(make_pod(f"web-{name}", cpu="1.5", node=name))
    await scenario.work(1)
    assert scenario.made()

    for name in ("old", "new"):
        member = {labels.COSCHEDULING_GROUP: "train"}
        scenario.world.seed(make_pod(f"worker-{name}", node=name, labels=member))
    for replacement in scenario.made():
        scenario.make_ready(replacement)
    await scenario.work(2)

    assert scenario.going() == ["old"] * is_going
    assert scenario.is_marked("old") is is_going


async def test_a_new_leader_does_not_resume_a_command_that_marked_a_part_of_a_gangs_nodes() -> None:
    scenario = MoveScenario()
    await scenario.work(1)
    claim = scenario.world.claim("claim-of-new")
    assert claim is not None
    unmarked = [one for one in claim.status.conditions if one.type != DISRUPTION_REASON]
    scenario.world.seed(changed(claim, status={"conditions": to_wire(unmarked)}))
    await scenario.world.api.patch(kinds.NODE, "new", {"spec": {"taints": None}})

    scenario.start_leader()
    for replacement in scenario.made():
        scenario.make_ready(replacement)
    await scenario.work(1)
    assert scenario.going() == []

    for _ in range(15):
        scenario.world.pass_time(minutes=1)
        await scenario.work(2)
        for replacement in scenario.made():
            scenario.make_ready(replacement)
    assert {"new", "old"} <= set(scenario.going())


async def test_a_gang_that_budgets_do_not_admit_is_named_in_the_event_of_its_nodes() -> None:
    scenario = MoveScenario(budgets=[{"nodes": "1"}])

    await scenario.work(2)

    assert scenario.going() == []
    assert (
        "Gang default/train runs on 2 nodes, which are disrupted together: "
        "2 of them are in NodePool default, whose budgets allow 1 now"
    ) in await scenario.world.events("Unconsolidatable")


async def test_the_event_of_a_blocked_gang_names_the_node_that_stays() -> None:
    scenario = MoveScenario()
    await scenario.protect("new")

    await scenario.work(2)

    (blocked,) = {
        message
        for message in await scenario.world.events("DisruptionBlocked")
        if message.startswith("Gang")
    }
    assert "; node new: Disruption is blocked through" in blocked


async def test_if_one_node_of_a_gang_cannot_be_marked_none_is_disrupted() -> None:
    scenario = MoveScenario()
    # An existing node has capacity for both pods, so no replacement is created.
    scenario.add("free", "m5.4xlarge")
    conflict = ConflictError("changed", status=409)
    scenario.world.api.refuse("patch", conflict, kind=kinds.NODE, times=1)

    await scenario.work(1)
    assert scenario.going() == []

    await scenario.work(2)
    assert sorted(scenario.going()) == ["new", "old"]
