"""Empty nodes go, calmly and within budgets; others stay."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from controller.apis import kinds, labels
from controller.apis.conditions import Condition, find
from controller.apis.meta import ObjectMeta
from controller.apis.nodeclaim import (
    CONSOLIDATABLE,
    DISRUPTION_REASON,
    INITIALIZED,
    NodeClaim,
    NodeClaimSpec,
    NodeClaimStatus,
)
from controller.apis.nodes import Node, NodeSpec, NodeStatus
from controller.apis.taints import Taint
from controller.apiserver.errors import ApiError, ForbiddenError, UnavailableError
from controller.reconcilers.nodeclaim.consolidatable import Consolidatable
from tests.reconcilers.disrupting import Loops
from tests.reconcilers.world import (
    CLASS,
    READY,
    make_class,
    make_pool,
    make_running_pod,
    make_waiting_pod,
)


class Scenario(Loops):
    """Some nodes of one pool, quiet for long enough, and the loop that may take them."""

    def __init__(self, nodes: int, **disruption: object) -> None:
        super().__init__()
        self.world.seed(make_class(), make_pool(**disruption))  # type: ignore[arg-type]
        for number in range(nodes):
            self.add(number)

    def add(self, number: int) -> None:
        known = {labels.NODEPOOL: "default", labels.REGISTERED: "true", labels.INITIALIZED: "true"}
        provider_id = f"fake:///{number}"
        when = self.world.clock()
        conditions = [
            Condition(type=kind, status="True", reason=kind, last_transition_time=when)
            for kind in (INITIALIZED, CONSOLIDATABLE)
        ]
        claim = NodeClaim(
            metadata=ObjectMeta(
                name=f"claim-{number}", labels=known, finalizers=[labels.TERMINATION_FINALIZER]
            ),
            spec=NodeClaimSpec(node_class_ref=CLASS),
            status=NodeClaimStatus(
                provider_id=provider_id, node_name=f"node-{number}", conditions=conditions
            ),
        )
        node = Node(
            metadata=ObjectMeta(name=f"node-{number}", labels=known),
            spec=NodeSpec(provider_id=provider_id),
            status=NodeStatus(conditions=READY),
        )
        self.world.seed(claim, node)

    def going(self) -> list[str]:
        return [c.metadata.name for c in self.world.claims() if c.metadata.is_deleting]


async def test_an_empty_node_goes_once_it_has_proved_to_stay_empty() -> None:
    scenario = Scenario(1, budgets=[{"nodes": "100%"}])

    await scenario.work(seconds=10)
    assert scenario.going() == []

    await scenario.work(seconds=10)
    assert scenario.going() == ["claim-0"]
    node = scenario.world.node("node-0")
    assert node is not None
    assert [t for t in node.spec.taints if t.key == labels.DISRUPTED_TAINT]


async def test_a_node_with_a_pod_that_needs_a_home_stays() -> None:
    scenario = Scenario(1, budgets=[{"nodes": "100%"}])
    scenario.world.seed(make_running_pod("web", "node-0"))

    await scenario.work(seconds=30)

    assert scenario.going() == []


async def test_a_pod_that_comes_meanwhile_keeps_its_node() -> None:
    scenario = Scenario(1, budgets=[{"nodes": "100%"}])
    await scenario.work(seconds=10)

    scenario.world.seed(make_running_pod("web", "node-0"))
    await scenario.work(seconds=20)

    assert scenario.going() == []


async def test_a_budget_lets_only_so_many_go_at_once() -> None:
    scenario = Scenario(10, budgets=[{"nodes": "2"}])

    await scenario.work(seconds=40)

    assert len(scenario.going()) == 2


async def test_a_budget_that_cannot_be_read_lets_none_go() -> None:
    scenario = Scenario(3, budgets=[{"nodes": "100%", "schedule": "@never", "duration": "1h"}])

    await scenario.work(seconds=40)

    assert scenario.going() == []


@pytest.mark.parametrize("reasons", [["Empty"], []], ids=["of its reason", "of any reason"])
async def test_a_budget_of_zero_keeps_every_node(reasons: list[str]) -> None:
    scenario = Scenario(3, budgets=[{"nodes": "0", "reasons": reasons}])

    await scenario.work(seconds=40)

    assert scenario.going() == []


async def test_a_nominated_node_is_left_alone() -> None:
    scenario = Scenario(1, budgets=[{"nodes": "100%"}])
    scenario.world.seed(make_waiting_pod("web"))
    until = scenario.world.now + timedelta(minutes=5)
    scenario.world.cluster.nominate("node-0", scenario.world.cluster.pending_pods(), until)

    await scenario.work(seconds=40)

    assert scenario.going() == []


async def test_a_node_whose_pods_will_never_come_is_not_kept_for_them() -> None:
    scenario = Scenario(1, budgets=[{"nodes": "100%"}])
    scenario.world.seed(make_waiting_pod("web"))
    until = scenario.world.now + timedelta(minutes=5)
    scenario.world.cluster.nominate("node-0", scenario.world.cluster.pending_pods(), until)
    await scenario.world.api.delete(kinds.POD, "web", namespace="default", grace_period_seconds=0)
    scenario.world.see()

    await scenario.work(seconds=40)

    assert scenario.going() == ["claim-0"]


async def test_a_node_marked_do_not_disrupt_says_so_and_stays() -> None:
    scenario = Scenario(1, budgets=[{"nodes": "100%"}])
    await scenario.world.api.patch(
        kinds.NODE, "node-0", {"metadata": {"annotations": {labels.DO_NOT_DISRUPT: "true"}}}
    )
    scenario.world.see()

    await scenario.work(seconds=40)

    assert scenario.going() == []
    assert await scenario.world.events("DisruptionBlocked")


async def test_a_taint_left_by_a_controller_that_died_is_taken_off() -> None:
    scenario = Scenario(1, budgets=[{"nodes": "0"}])
    node = scenario.world.node("node-0")
    assert node is not None
    taint = Taint(key=labels.DISRUPTED_TAINT, effect="NoSchedule")
    scenario.world.seed(
        msgspec.structs.replace(node, spec=msgspec.structs.replace(node.spec, taints=[taint]))
    )

    await scenario.work(seconds=1)

    mended = scenario.world.node("node-0")
    assert mended is not None
    assert mended.spec.taints == []


@pytest.mark.parametrize(
    ("after", "quiet", "consolidatable"),
    [
        pytest.param("0s", 0, True, id="at once"),
        pytest.param("5m", 299, False, id="not yet"),
        pytest.param("5m", 300, True, id="in time"),
        pytest.param("Never", 10**6, False, id="never"),
    ],
)
async def test_a_node_becomes_consolidatable_when_it_has_been_quiet_long_enough(
    after: str, quiet: int, consolidatable: bool
) -> None:
    scenario = Scenario(1, consolidateAfter=after)
    world = scenario.world
    loop = Consolidatable(world.api, world.cluster, world.clock)
    world.pass_time(seconds=quiet)

    await loop.reconcile("claim-0")

    claim = world.claim("claim-0")
    assert claim is not None
    found = [c for c in claim.status.conditions if c.type == CONSOLIDATABLE]
    assert bool(found) is consolidatable


def is_marked(scenario: Scenario, number: int = 0) -> bool:
    """Whether the node or its claim says that it is being disrupted."""
    node, claim = scenario.world.node(f"node-{number}"), scenario.world.claim(f"claim-{number}")
    assert node is not None
    assert claim is not None
    tainted = any(taint.key == labels.DISRUPTED_TAINT for taint in node.spec.taints)
    return tainted or find(claim.status.conditions, DISRUPTION_REASON) is not None


REFUSED = ForbiddenError("the webhook says no", status=403)
DOWN = UnavailableError("no answer in time", status=0)


async def test_a_node_whose_deletion_is_refused_is_given_back() -> None:
    scenario = Scenario(1, budgets=[{"nodes": "1"}])
    scenario.world.api.refuse("delete", REFUSED, kind=kinds.NODE_CLAIM)

    await scenario.work(seconds=18)

    assert scenario.going() == []
    assert not is_marked(scenario)
    assert not scenario.leaves("node-0")
    told = {"decision": "delete", "reason": "empty", "consolidation_type": "empty"}
    failures = "karpenter_voluntary_disruption_queue_failures_total"
    assert scenario.world.metrics.registry.get_sample_value(failures, told) == 1
    await scenario.work(seconds=120)
    assert scenario.going() == ["claim-0"], "it has been tried again"


async def test_a_node_whose_deletion_is_refused_costs_the_others_no_budget() -> None:
    scenario = Scenario(2, budgets=[{"nodes": "1"}])
    scenario.world.api.refuse("delete", REFUSED, kind=kinds.NODE_CLAIM)

    await scenario.work(seconds=60)

    assert scenario.going() == ["claim-1"]
    assert not is_marked(scenario)


async def test_a_deletion_whose_answer_was_lost_is_not_taken_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scenario = Scenario(1, budgets=[{"nodes": "1"}])
    delete = scenario.world.api.delete

    async def lost(*arguments: Any, **named: Any) -> None:
        await delete(*arguments, **named)
        raise DOWN

    monkeypatch.setattr(scenario.world.api, "delete", lost)

    await scenario.work(seconds=40)

    assert scenario.going() == ["claim-0"]
    assert is_marked(scenario)
    metric = "karpenter_nodeclaims_disrupted_total"
    found = [
        sample.value
        for family in scenario.world.metrics.registry.collect()
        for sample in family.samples
        if sample.name == metric
    ]
    assert found == [1]


async def test_a_deletion_that_nobody_answers_is_tried_again() -> None:
    scenario = Scenario(1, budgets=[{"nodes": "1"}])
    scenario.world.api.refuse("delete", DOWN, kind=kinds.NODE_CLAIM, times=5)

    await scenario.work(seconds=30)

    assert scenario.going() == ["claim-0"]


async def test_a_deletion_that_nobody_ever_answers_is_given_up() -> None:
    scenario = Scenario(1, budgets=[{"nodes": "1"}])
    scenario.world.api.refuse("delete", DOWN, kind=kinds.NODE_CLAIM, times=10_000)

    await scenario.work(seconds=20)
    assert scenario.leaves("node-0")

    await scenario.work(seconds=600)
    assert not scenario.leaves("node-0")
    assert not is_marked(scenario)


@pytest.mark.parametrize(
    ("verb", "kind"), [("patch", kinds.NODE), ("patch/status", kinds.NODE_CLAIM)]
)
@pytest.mark.parametrize("error", [REFUSED, DOWN])
async def test_a_node_that_cannot_be_marked_is_as_it_was(
    verb: str, kind: kinds.Kind[Any], error: ApiError
) -> None:
    scenario = Scenario(2, budgets=[{"nodes": "1"}])
    scenario.world.api.refuse(verb, error, kind=kind)

    await scenario.work(seconds=18)

    assert not is_marked(scenario)
    assert not scenario.leaves("node-0")
    await scenario.work(seconds=30)
    assert scenario.going() == ["claim-1"], "the other does not wait for it"


@pytest.mark.parametrize(
    ("verb", "kind"), [("patch", kinds.NODE), ("patch/status", kinds.NODE_CLAIM)]
)
async def test_a_mark_that_cannot_be_taken_back_is_tried_again(
    verb: str, kind: kinds.Kind[Any]
) -> None:
    scenario = Scenario(1, budgets=[{"nodes": "1"}])
    scenario.world.api.refuse("delete", REFUSED, kind=kinds.NODE_CLAIM)
    await scenario.work(seconds=16)
    assert is_marked(scenario)
    scenario.world.api.refuse(verb, DOWN, kind=kind, times=3)

    await scenario.work(seconds=10)

    assert not is_marked(scenario)


async def test_what_is_refused_for_ever_is_not_tried_without_a_pause() -> None:
    scenario = Scenario(3, budgets=[{"nodes": "1"}])
    scenario.world.api.refuse("patch", REFUSED, kind=kinds.NODE, times=10_000)
    await scenario.work(seconds=15)

    pauses = [await scenario.disruptor.run_once() for _ in range(10)]

    assert min(pauses) > timedelta(0)
