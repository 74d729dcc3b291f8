"""Underutilized nodes are removed once their replacements are initialized."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pytest

from controller.apis import kinds, labels
from controller.apis.karpenter import durations
from controller.apis.karpenter.nodeclaim import (
    CONSOLIDATABLE,
    DISRUPTION_REASON,
    DRIFTED,
    INITIALIZED,
    LAUNCHED,
    REGISTERED,
    NodeClaim,
)
from controller.apis.karpenter.nodepool import WHEN_EMPTY
from controller.apis.kubernetes.conditions import Condition, find, with_condition
from controller.apis.kubernetes.taints import Requirement
from controller.apiserver.errors import ForbiddenError, NotFoundError, UnavailableError
from controller.cloudprovider.fake import ZONES
from controller.disruption.commands import Confirmation, Decision
from controller.disruption.methods.rollout import AMI_DRIFT
from controller.disruption.problem import DisruptionProblem, DisruptionSettings
from controller.manager.watches import GANGS
from controller.reconcilers.disruption.disruptor import MAX_CONSOLIDATION_DELAY
from controller.state.registrations import PAUSES, Failure
from tests.builders import (
    changed,
    make_node,
    make_nodeclaim,
    make_nodeclass,
    make_nodepool,
    make_pod,
    true,
)
from tests.reconcilers.disrupting import Loops, SameProcess, make_disruptor

SETTLED = (LAUNCHED, REGISTERED, INITIALIZED, CONSOLIDATABLE, "Ready")
SIZES = {"c5.large": ("2", "4Gi", "29"), "m5.4xlarge": ("16", "64Gi", "234")}
"""The smallest and the largest of the cloud's types."""

ON_DEMAND = Requirement(key=labels.CAPACITY_TYPE, operator="In", values=[labels.ON_DEMAND])
REFUSED = ForbiddenError("the webhook says no", status=403)
VALIDATION = 15


class ConsolidationScenario(Loops):
    """Consolidatable on-demand nodes of one NodePool, and the loops that may disrupt them."""

    def __init__(self, **disruption: object) -> None:
        super().__init__(*GANGS)
        self.world.seed(make_nodeclass())
        pool = {"requirements": [ON_DEMAND], "budgets": [{"nodes": "100%"}]}
        self.world.seed(make_nodepool(**{**pool, **disruption}))  # type: ignore[arg-type]

    def add(
        self,
        name: str,
        kind: str,
        *,
        pods: int = 0,
        pool: str = "default",
        drifted: bool = False,
        replaces: str = "",
    ) -> None:
        """Add a node that runs so many pods of one CPU each; `replaces` names that in whose place
        it was made.
        """
        cpu, memory, count = SIZES[kind]
        amounts = {"cpu": cpu, "memory": memory, "pods": count}
        known = {
            labels.NODEPOOL: pool,
            labels.INSTANCE_TYPE: kind,
            labels.ZONE: ZONES[0],
            labels.CAPACITY_TYPE: labels.ON_DEMAND,
            labels.ARCH: "amd64",
            labels.OS: "linux",
        }
        joined = {labels.REGISTERED: "true", labels.INITIALIZED: "true", labels.HOSTNAME: name}
        holds = (*SETTLED, DRIFTED) if drifted else SETTLED
        claim = make_nodeclaim(
            f"claim-of-{name}",
            labels=known,
            annotations={labels.REPLACES: replaces} if replaces else {},
            finalizers=[labels.TERMINATION_FINALIZER],
            provider_id=f"fake:///{name}",
            node=name,
            conditions=true(*holds, since=self.world.now),
            status={"capacity": amounts, "allocatable": amounts},
        )
        node = make_node(
            name, labels={**known, **joined}, provider_id=f"fake:///{name}", capacity=amounts
        )
        running = (make_pod(f"{name}-{n}", node=name) for n in range(pods))
        self.world.seed(claim, node, *running)

    def settle(self, name: str, *, seconds: int) -> None:
        """Record a pod event on a node, so that it becomes consolidatable after this time."""
        claim = self.world.claim(f"claim-of-{name}")
        assert claim is not None
        pool = self.world.api.objects(kinds.NODE_POOL)[0]
        wait = durations.parse(pool.spec.disruption.consolidate_after)
        assert wait is not None
        after = with_condition(
            claim.status.conditions,
            CONSOLIDATABLE,
            "False" if seconds else "True",
            now=self.world.now,
        )
        last = self.world.now + timedelta(seconds=seconds) - wait
        self.world.seed(changed(claim, status={"conditions": after, "lastPodEventTime": last}))

    def change_pool(self, **spec: object) -> None:
        """Change parts of the pool's spec."""
        pool = self.world.api.objects(kinds.NODE_POOL)[0]
        self.world.seed(changed(pool, spec=spec))

    async def protect(self, name: str, value: str | None = "true") -> None:
        """Set do-not-disrupt on a node; None removes it."""
        annotations = {labels.DO_NOT_DISRUPT: value}
        await self.world.api.patch(kinds.NODE, name, {"metadata": {"annotations": annotations}})
        self.world.see()

    def going(self) -> list[str]:
        return [c.status.node_name for c in self.world.claims() if c.metadata.is_deleting]

    def made(self) -> list[NodeClaim]:
        """The claims that the loops have made."""
        return [c for c in self.world.claims() if not c.metadata.name.startswith("claim-of-")]

    def join(self, claim: NodeClaim) -> None:
        """Register the node of a new NodeClaim; it is not ready."""
        self._become(claim, LAUNCHED, REGISTERED)

    def make_ready(self, claim: NodeClaim) -> None:
        """Initialize the node of a new NodeClaim."""
        self._become(claim, *SETTLED)

    def drift(self, claim: NodeClaim, reason: str) -> None:
        """Mark a NodeClaim as drifted for a reason."""
        after = with_condition(
            claim.status.conditions, DRIFTED, "True", reason=reason, now=self.world.now
        )
        self.world.seed(changed(claim, status={"conditions": after}))

    def _become(self, claim: NodeClaim, *held: str) -> None:
        after: Sequence[Condition] = claim.status.conditions
        for kind in held:
            after = with_condition(after, kind, "True", now=self.world.now)
        self.world.seed(changed(claim, status={"conditions": after}))

    def change_leader(self, engine: SameProcess | None = None) -> None:
        """Replace the leader by a process that knows only the state of the cluster."""
        self.world.cluster.unmark(*(c.metadata.name for c in self.world.claims()))
        self.engine = engine or SameProcess()
        self.disruptor = make_disruptor(self.world, self.engine)

    async def lose(self, claim: NodeClaim) -> None:
        """Delete a new NodeClaim, as after a failed launch."""
        await self.world.api.patch(
            kinds.NODE_CLAIM, claim.metadata.name, {"metadata": {"finalizers": None}}
        )
        await self.world.api.delete(kinds.NODE_CLAIM, claim.metadata.name)
        self.world.see()

    def is_marked(self, name: str) -> bool:
        """Whether the node or its claim says that it is being disrupted."""
        node, claim = self.world.node(name), self.world.claim(f"claim-of-{name}")
        assert node is not None
        assert claim is not None
        tainted = any(taint.key == labels.DISRUPTED_TAINT for taint in node.spec.taints)
        return tainted or find(claim.status.conditions, DISRUPTION_REASON) is not None

    def counted(self, metric: str, **metric_labels: str) -> float:
        return sum(
            sample.value
            for family in self.world.metrics.registry.collect()
            for sample in family.samples
            if sample.name == metric and metric_labels.items() <= sample.labels.items()
        )


def oversized() -> ConsolidationScenario:
    """A large node runs one pod, for which a small one would do."""
    scenario = ConsolidationScenario()
    scenario.add("big", "m5.4xlarge", pods=1)
    return scenario


def unrecorded(**disruption: object) -> ConsolidationScenario:
    """A cluster that does not know the kind Disruption, in which decisions are written down."""
    scenario = ConsolidationScenario(**disruption)
    unknown = NotFoundError("the server could not find the requested resource", status=404)
    for verb in ("list", "create"):
        scenario.world.api.refuse(verb, unknown, kind=kinds.DISRUPTION, times=100)
    return scenario


async def replaced(scenario: ConsolidationScenario) -> NodeClaim:
    """Run the loops until they replace the node; return the replacement's NodeClaim."""
    await scenario.work(VALIDATION + 2)
    (replacement,) = scenario.made()
    return replacement


async def test_a_node_whose_pods_fit_on_other_nodes_is_deleted() -> None:
    scenario = ConsolidationScenario()
    scenario.add("a", "m5.4xlarge", pods=12)
    scenario.add("b", "c5.large", pods=1)
    await scenario.protect("a")

    await scenario.work(VALIDATION - 1)
    assert scenario.going() == []
    await scenario.work(3)

    assert scenario.going() == ["b"]
    assert scenario.made() == []
    decisions = "karpenter_voluntary_disruption_decisions_total"
    assert scenario.counted(decisions, decision="delete", reason="underutilized") == 1
    moved = "karpenter_pods_disruption_initiated_total"
    policy = "when_empty_or_underutilized"
    assert scenario.counted(moved, reason="underutilized", consolidation_policy=policy) == 1


async def spacious() -> ConsolidationScenario:
    """Two nodes whose pods fit on a third, which stays."""
    scenario = ConsolidationScenario(consolidateAfter="30s")
    for name in ("a", "b", "home"):
        scenario.add(name, "m5.4xlarge", pods=5)
    await scenario.protect("home")
    return scenario


async def test_nodes_that_become_consolidatable_together_are_disrupted_together() -> None:
    scenario = await spacious()
    scenario.settle("b", seconds=10)

    await scenario.work(10)
    assert not await scenario.world.events("ConsolidationCandidate")
    scenario.settle("b", seconds=0)
    await scenario.work(VALIDATION + 3)

    assert sorted(scenario.going()) == ["a", "b"]


async def test_consolidation_does_not_wait_for_a_node_that_is_consolidatable_much_later() -> None:
    scenario = await spacious()
    scenario.settle("b", seconds=MAX_CONSOLIDATION_DELAY.seconds + 2)

    await scenario.work(VALIDATION + 3)

    assert scenario.going() == ["a"]


async def test_a_node_with_constant_pod_changes_delays_others_only_briefly() -> None:
    scenario = await spacious()

    for _ in range(MAX_CONSOLIDATION_DELAY.seconds + VALIDATION + 5):
        scenario.settle("b", seconds=5)
        await scenario.work(1)

    assert scenario.going() == ["a"]


async def test_a_former_saving_does_not_shorten_the_wait() -> None:
    scenario = await spacious()
    scenario.settle("b", seconds=10)
    await scenario.work(2)
    await scenario.protect("a")
    await scenario.work(60)
    await scenario.protect("a", None)
    scenario.settle("b", seconds=10)

    await scenario.work(10)

    assert not await scenario.world.events("ConsolidationCandidate")


async def test_consolidation_does_not_wait_for_a_node_with_when_empty() -> None:
    scenario = await spacious()
    scenario.world.seed(
        make_nodepool("kept", consolidationPolicy=WHEN_EMPTY, consolidateAfter="30s")
    )
    scenario.add("c", "m5.4xlarge", pods=5, pool="kept")
    await scenario.protect("b")
    scenario.settle("c", seconds=10)

    await scenario.work(VALIDATION + 3)

    assert scenario.going() == ["a"]


async def test_a_node_stays_until_its_replacement_is_initialized() -> None:
    scenario = oversized()

    replacement = await replaced(scenario)

    assert replacement.metadata.labels[labels.NODEPOOL] == "default"
    (types,) = (r.values for r in replacement.spec.requirements if r.key == labels.INSTANCE_TYPE)
    assert "m5.4xlarge" not in types
    assert scenario.is_marked("big"), "nothing new is placed there"
    await scenario.work(120)
    assert scenario.going() == []
    assert await scenario.world.events("DisruptionWaitingReadiness")

    scenario.make_ready(scenario.made()[0])
    await scenario.work(2)

    assert scenario.going() == ["big"]
    assert await scenario.world.events("DisruptionLaunching")
    assert await scenario.world.events("DisruptionTerminating")
    created = "karpenter_nodeclaims_created_total"
    assert scenario.counted(created, reason="underutilized") == 1


async def test_a_node_does_not_count_as_leaving_before_its_replacement_is_created() -> None:
    scenario = oversized()
    scenario.world.api.refuse("create", REFUSED, kind=kinds.NODE_CLAIM, times=100)

    await scenario.work(VALIDATION + 3)

    assert not scenario.leaves("big")
    assert not scenario.is_marked("big")
    failures = "karpenter_voluntary_disruption_queue_failures_total"
    assert scenario.counted(failures, decision="replace", reason="underutilized") == 1


async def test_a_repeatedly_refused_replacement_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scenario = oversized()
    scenario.world.api.refuse("create", REFUSED, kind=kinds.NODE_CLAIM, times=100)

    await scenario.work(300)

    failures = "karpenter_voluntary_disruption_queue_failures_total"
    assert scenario.counted(failures, decision="replace", reason="underutilized") > 1
    refused = "cannot create replacement nodeclaim"
    assert len([r for r in caplog.records if r.message.startswith(refused)]) == 1


async def test_a_node_whose_replacement_failed_is_untainted_and_retried() -> None:
    scenario = oversized()
    replacement = await replaced(scenario)
    assert scenario.leaves("big")

    await scenario.lose(replacement)
    await scenario.work(3)

    assert not scenario.is_marked("big")
    assert not scenario.leaves("big")
    assert scenario.going() == []
    failures = "karpenter_voluntary_disruption_queue_failures_total"
    assert scenario.counted(failures, decision="replace", consolidation_type="single") == 1
    await scenario.work(60 + 10 + VALIDATION + 2)
    assert len(scenario.made()) == 1


async def test_a_replacement_that_is_not_ready_in_time_is_deleted_and_the_node_stays() -> None:
    scenario = oversized()
    replacement = await replaced(scenario)

    await scenario.work(10 * 60)

    assert scenario.leaves(replacement.metadata.name)
    assert not scenario.leaves("big")
    assert not scenario.is_marked("big")


async def test_a_replacement_is_not_empty_while_its_pods_are_moving() -> None:
    scenario = oversized()
    replacement = await replaced(scenario)
    scenario.make_ready(replacement)
    await scenario.work(2)
    node = scenario.world.join(scenario.made()[0])
    scenario.world.seed(
        changed(node, metadata={"labels": {
                labels.NODEPOOL: "default", labels.REGISTERED: "true", labels.INITIALIZED: "true",
            }})
    )  # fmt: skip

    await scenario.work(60)

    assert [c.metadata.name for c in scenario.made() if c.metadata.is_deleting] == []


async def test_a_replacement_respects_the_limits_of_its_pool() -> None:
    scenario = oversized()
    scenario.change_pool(limits={"cpu": "8"})

    await scenario.work(60)

    assert scenario.made() == []
    assert not scenario.is_marked("big")


async def test_a_pool_that_changed_during_the_decision_gets_no_outdated_replacement() -> None:
    scenario = oversized()

    class Slow(SameProcess):
        async def confirm(self, problem: DisruptionProblem, decision: Decision) -> Confirmation:
            if self.asked == 1:
                template = scenario.world.api.objects(kinds.NODE_POOL)[0].spec.template
                scenario.change_pool(
                    template=changed(template, metadata={"labels": {"team": "blue"}})
                )
            return await super().confirm(problem, decision)

    scenario.change_leader(Slow())
    await scenario.work(VALIDATION + 2)

    assert scenario.made() == []

    await scenario.work(90 + VALIDATION)

    assert [claim.metadata.labels["team"] for claim in scenario.made()] == ["blue"]


async def test_new_pods_make_the_validation_of_a_command_fail() -> None:
    scenario = oversized()
    await scenario.work(10)

    scenario.world.seed(*(make_pod(f"late-{n}", node="big") for n in range(12)))
    await scenario.work(10)

    assert not scenario.is_marked("big")
    assert await scenario.world.events("ConsolidationRejected")
    rejected = "karpenter_voluntary_disruption_failed_validations_total"
    assert scenario.counted(rejected, consolidation_type="single") == 1


async def test_a_steady_cluster_is_evaluated_with_growing_intervals() -> None:
    scenario = ConsolidationScenario()
    scenario.add("a", "c5.large", pods=1)

    await scenario.work(60)
    assert scenario.engine.asked == 3
    await scenario.work(10 * 60)
    assert scenario.engine.asked == 7
    await scenario.work(10 * 60)
    assert scenario.engine.asked == 9

    scenario.world.seed(make_pod("new"))
    await scenario.work(1)
    assert scenario.engine.asked == 10


async def test_a_clock_set_back_triggers_an_evaluation() -> None:
    scenario = ConsolidationScenario()
    scenario.add("a", "c5.large", pods=1)
    await scenario.work(2)

    scenario.world.pass_time(minutes=-30)
    await scenario.work(1)

    assert scenario.engine.asked == 2


async def test_a_decision_does_not_wait_for_a_clock_that_was_set_back() -> None:
    scenario = oversized()
    await scenario.work(10)

    scenario.world.pass_time(minutes=-30)
    await scenario.work(20)

    assert scenario.made()


async def test_a_command_that_only_time_blocked_is_found_soon() -> None:
    scenario = oversized()
    until = scenario.world.clock() + timedelta(seconds=20)
    scenario.world.seed(make_pod("expected", cpu="100"))
    scenario.world.cluster.nominate("big", scenario.world.cluster.pending_pods(), until)

    await scenario.work(60)

    assert scenario.made()


async def test_changed_prices_trigger_an_evaluation() -> None:
    scenario = ConsolidationScenario()
    scenario.add("a", "c5.large", pods=1)
    await scenario.work(2)

    scenario.world.cloud.types = scenario.world.cloud.types[:3]
    await scenario.work(1)

    assert scenario.engine.asked == 2


async def test_a_command_that_a_budget_blocks_is_evaluated_again() -> None:
    scenario = ConsolidationScenario(budgets=[{"nodes": "0", "reasons": ["Underutilized"]}])
    scenario.add("big", "m5.4xlarge", pods=1)

    await scenario.work(3)

    assert scenario.engine.asked == 3


async def test_the_reason_is_reported_for_a_node_that_stays() -> None:
    scenario = ConsolidationScenario()
    scenario.add("a", "c5.large", pods=1)

    await scenario.work(1)

    (why, _) = await scenario.world.events("Unconsolidatable")
    assert "Can't replace with a cheaper node" in why


async def test_a_changed_reason_is_reported_for_a_node_that_stays() -> None:
    scenario = ConsolidationScenario(budgets=[{"nodes": "0"}])
    scenario.add("old", "c5.large", pods=1, drifted=True)
    await scenario.work(2)

    scenario.world.cloud.types = ()
    scenario.change_pool(disruption=make_nodepool(budgets=[{"nodes": "1"}]).spec.disruption)
    await scenario.work(12)

    metric_labels = await scenario.world.events("Unconsolidatable")
    assert [why for why in metric_labels if "due to blocking budget" in why]
    assert [why for why in metric_labels if "not all pods would schedule" in why]


async def test_the_event_of_a_pool_names_the_invalid_budget_that_blocks_it() -> None:
    never = {"nodes": "1", "schedule": "0 0 31 2 *", "duration": "1h"}
    scenario = ConsolidationScenario(budgets=[{"nodes": "100%"}, never])
    scenario.add("a", "c5.large")

    await scenario.work(1)

    assert (
        "No allowed disruptions for disruption reasons Empty, Underutilized, Drifted, Unhealthy "
        "due to blocking budget: spec.disruption.budgets[1]: schedule '0 0 31 2 *' never occurs: "
        "no month that it names has such a day"
    ) in await scenario.world.events("DisruptionBlocked")


async def test_savings_below_their_eviction_cost_are_not_executed() -> None:
    scenario = oversized()
    scenario.engine.settings = DisruptionSettings(eviction_price=1000.0)

    await scenario.work(60)

    assert scenario.made() == []


async def test_a_drifted_node_is_replaced_without_validation_delay() -> None:
    scenario = ConsolidationScenario(consolidateAfter="Never")
    scenario.add("old", "c5.large", pods=1, drifted=True)

    await scenario.work(1)

    (replacement,) = scenario.made()
    assert scenario.is_marked("old")
    scenario.make_ready(replacement)
    await scenario.work(2)
    assert scenario.going() == ["old"]
    disrupted = "karpenter_nodeclaims_disrupted_total"
    assert scenario.counted(disrupted, reason="drifted") == 1


async def test_drift_proceeds_node_by_node_within_its_budget() -> None:
    scenario = ConsolidationScenario(budgets=[{"nodes": "2"}])
    for number in range(5):
        scenario.add(f"old-{number}", "c5.large", pods=1, drifted=True)

    await scenario.work(10)

    assert [scenario.is_marked(f"old-{n}") for n in range(5)].count(True) == 2


async def test_after_a_lost_replacement_no_second_node_tries_the_new_ami() -> None:
    """The replacement may be lost before the controller has seen it."""
    scenario = ConsolidationScenario()
    scenario.engine.settings = DisruptionSettings()
    for name in ("old-0", "old-1"):
        scenario.add(name, "c5.large", pods=2, drifted=True)
        claim = scenario.world.claim(f"claim-of-{name}")
        assert claim is not None
        scenario.drift(claim, AMI_DRIFT)
    await scenario.work(1)
    for replacement in scenario.made():
        await scenario.lose(replacement)

    await scenario.disruptor.run_once()

    assert not scenario.made()
    assert [scenario.is_marked(name) for name in ("old-0", "old-1")].count(True) == 1


async def test_a_pool_in_registration_backoff_retries_with_the_replacement_of_a_drifted_node() -> (
    None
):
    """Where no pod waits nothing else would ever find out that its nodes join again."""
    scenario = ConsolidationScenario()
    for number in range(3):
        scenario.add(f"old-{number}", "c5.large", pods=1, drifted=True)
    failure = Failure("RegistrationFailed", "it said no", scenario.world.clock())
    for _ in range(2):
        scenario.world.registrations.record_failure("default", failure)
    await scenario.work(5)
    assert not scenario.made()

    scenario.world.pass_time(seconds=PAUSES[0].total_seconds())
    await scenario.work(5)

    assert len(scenario.made()) == 1


async def test_a_drifted_node_of_a_static_pool_gets_its_own_replacement() -> None:
    scenario = ConsolidationScenario()
    scenario.add("old", "c5.large", pods=1, drifted=True)
    scenario.add("new", "c5.large", pods=1)
    scenario.change_pool(replicas=2)

    await scenario.work(5)

    (replacement,) = scenario.made()
    assert not [r for r in replacement.spec.requirements if r.key == labels.INSTANCE_TYPE]
    assert scenario.leaves("old")
    assert not scenario.leaves("new")


async def test_a_new_leader_continues_the_former_leaders_commands() -> None:
    scenario = oversized()
    replacement = await replaced(scenario)

    scenario.change_leader(SameProcess(DisruptionSettings(eviction_price=1e6)))
    await scenario.work(5)
    assert scenario.leaves("big")
    assert scenario.going() == []
    scenario.make_ready(scenario.made()[0])
    await scenario.work(2)

    assert scenario.going() == ["big"]
    assert [claim.metadata.uid for claim in scenario.made()] == [replacement.metadata.uid]


async def test_a_new_leader_retries_if_the_history_cannot_be_read() -> None:
    scenario = oversized()
    await replaced(scenario)
    away = UnavailableError("connection refused", status=0)
    scenario.world.api.refuse("list", away, kind=kinds.DISRUPTION, times=2)

    scenario.change_leader()
    await scenario.work(5)

    assert scenario.leaves("big")
    assert len(scenario.made()) == 1


async def test_a_new_leader_reverts_unrecorded_commands() -> None:
    scenario = unrecorded()
    scenario.add("big", "m5.4xlarge", pods=1)
    await replaced(scenario)

    scenario.change_leader(SameProcess(DisruptionSettings(eviction_price=1e6)))
    await scenario.work(1)

    assert not scenario.is_marked("big")


async def test_a_registered_replacement_that_is_not_ready_is_kept() -> None:
    scenario = oversized()
    replacement = await replaced(scenario)
    scenario.join(replacement)

    await scenario.work(15 * 60)

    assert not scenario.is_marked("big")
    (kept,) = scenario.made()
    assert kept.metadata.uid == replacement.metadata.uid
    assert not kept.metadata.is_deleting


async def test_an_unneeded_replacement_stays_if_a_pod_is_nominated_for_it() -> None:
    scenario = oversized()
    replacement = await replaced(scenario)
    waiting = make_pod("other")
    scenario.world.seed(waiting)
    until = scenario.world.now + timedelta(hours=1)
    scenario.world.cluster.nominate(replacement.metadata.name, [waiting], until)

    await scenario.work(10 * 60)

    assert not scenario.is_marked("big")
    assert [c.metadata.name for c in scenario.made() if not c.metadata.is_deleting] == [
        replacement.metadata.name
    ]


async def test_a_new_leader_waits_for_the_former_leaders_replacements() -> None:
    scenario = unrecorded(consolidateAfter="Never")
    scenario.add("old", "c5.large", pods=1, drifted=True)
    await scenario.work(1)
    (replacement,) = scenario.made()
    scenario.change_leader()

    await scenario.work(60)

    assert len(scenario.made()) == 1
    assert not scenario.leaves("old")
    (why, *_) = await scenario.world.events("DisruptionBlocked")
    assert replacement.metadata.name in why


async def test_a_new_leader_uses_the_former_leaders_replacements() -> None:
    scenario = ConsolidationScenario()
    scenario.add("old", "c5.large", pods=1, drifted=True)
    scenario.add("replacement", "c5.large", replaces="old")

    await scenario.work(VALIDATION + 2)

    assert scenario.made() == []
    assert scenario.going() == ["old"]


async def test_the_replacement_of_a_deleted_node_can_be_empty() -> None:
    scenario = ConsolidationScenario()
    scenario.add("replacement", "c5.large", replaces="gone")

    await scenario.work(VALIDATION + 2)

    assert scenario.going() == ["replacement"]


async def test_a_new_leader_creates_another_replacement_if_the_former_leaders_fails() -> None:
    scenario = ConsolidationScenario(consolidateAfter="Never")
    scenario.add("old", "c5.large", pods=1, drifted=True)
    await scenario.work(1)
    (first,) = scenario.made()
    scenario.change_leader()

    await scenario.lose(first)
    await scenario.work(20)

    (second,) = scenario.made()
    assert second.metadata.uid != first.metadata.uid
    assert scenario.leaves("old")


async def test_a_steady_cluster_reports_its_distance_from_the_bound() -> None:
    scenario = ConsolidationScenario()
    scenario.engine.settings = DisruptionSettings(eviction_price=1000.0)
    scenario.add("large", "m5.4xlarge", pods=2)
    scenario.add("small", "c5.large", pods=1)
    value = scenario.world.metrics.registry.get_sample_value
    await scenario.disruptor.run_once()

    cost = value("joiner_cluster_cost_dollars_per_hour")
    bound = value("joiner_cluster_lower_bound_dollars_per_hour")
    assert cost is not None
    assert bound is not None
    assert 0 < bound < cost
    now = scenario.world.clock().timestamp()
    assert value("joiner_disruption_last_look_timestamp_seconds") == now
