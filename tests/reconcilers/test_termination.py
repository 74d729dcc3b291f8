"""A deleted node drains gracefully, and its pods are evicted in order."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest

from controller.apis import kinds, labels
from controller.apis.karpenter.nodeclaim import DRAINED, INSTANCE_TERMINATING
from controller.apis.kubernetes import conditions
from controller.apis.kubernetes.meta import ObjectMeta, OwnerReference, to_wire
from controller.apis.kubernetes.nodes import Node
from controller.apis.kubernetes.workloads import (
    VolumeAttachment,
    VolumeAttachmentSource,
    VolumeAttachmentSpec,
)
from controller.apiserver.errors import ConflictError, ForbiddenError
from controller.cloudprovider.errors import CloudProviderError
from controller.disruption.pods import DISRUPTED
from controller.reconcilers.termination.eviction import Eviction, pause
from controller.reconcilers.termination.terminator import Terminator
from tests.builders import changed, make_budget, make_nodeclaim, make_nodeclass, make_pod
from tests.reconcilers.world import Unprepared, World, make_lifecycle

NODE = "node-of-claim"


class TerminationScenario:
    """One initialized node with its NodeClaim, and the loops that terminate it."""

    def __init__(self) -> None:
        self.world = world = World()
        self.lifecycle = make_lifecycle(world, Unprepared())
        self.terminator = Terminator(world.ports, Eviction(world.ports))

    async def up(self, **spec: object) -> None:
        self.world.seed(make_nodeclass(), make_nodeclaim(pool="", spec=spec))
        await self.lifecycle.reconcile("claim")
        launched = self.world.claim("claim")
        assert launched is not None
        self.world.join(launched)
        await self.lifecycle.reconcile("claim")

    async def delete_node(self) -> None:
        await self.world.api.delete(kinds.NODE, NODE)
        self.world.see()

    async def lose_instance(self) -> Node:
        """Terminate the instance outside Kubernetes; returns its node, which is no longer Ready."""
        claim = self.world.claim("claim")
        assert claim is not None
        self.world.cloud.vanish(claim.status.provider_id)
        silent = {"type": "Ready", "status": "Unknown", "reason": "Gone"}
        return await self.world.api.patch(
            kinds.NODE, NODE, {"status": {"conditions": [silent]}}, subresource="status"
        )

    async def patch_finalizers(self, finalizers: Sequence[str]) -> None:
        await self.world.api.patch(kinds.NODE, NODE, {"metadata": {"finalizers": finalizers}})

    async def work(self, seconds: int = 1) -> None:
        """Run both loops each second; retry after a conflict, as the loops do."""
        for _ in range(seconds):
            for _ in range(2):
                with suppress(ConflictError):
                    await self.terminator.reconcile(NODE)
                self.world.see()
                with suppress(ConflictError):
                    await self.lifecycle.reconcile("claim")
                self.world.see()
            self.world.pass_time(seconds=1)

    async def set_deadline(self) -> None:
        """Make the drain delete the remaining pods now."""
        deadline = {labels.TERMINATION_TIMESTAMP: self.world.clock().isoformat()}
        annotated = {"metadata": {"annotations": deadline}}
        await self.world.api.patch(kinds.NODE_CLAIM, "claim", annotated)
        self.world.see()

    def holds(self, condition: str) -> bool:
        """Whether a condition of the claim is True."""
        claim = self.world.claim("claim")
        return claim is not None and conditions.is_true(claim.status.conditions, condition)

    def writes_of_claim(self) -> int:
        """How often the claim or its status was written."""
        return sum(
            verb.startswith("patch") and name == "claim" for verb, _, name in self.world.api.calls
        )

    def is_going(self, pod: str) -> bool:
        """Whether a pod that is there is on its way out."""
        there = self.world.api.find(kinds.POD, pod, "default")
        assert there is not None
        return there.metadata.is_deleting

    def evicted(self) -> list[str]:
        return [name for verb, _, name in self.world.api.calls if verb == "evict"]


@pytest.fixture
async def scenario() -> TerminationScenario:
    scenario = TerminationScenario()
    await scenario.up()
    return scenario


@pytest.fixture
async def held(scenario: TerminationScenario) -> TerminationScenario:
    """The same node while it is deleted, with a pod that its budget does not let evict."""
    scenario.world.seed(
        make_budget(allowed=0, match={"app": "web"}),
        make_pod("web", node=NODE, labels={"app": "web"}),
    )
    await scenario.delete_node()
    return scenario


async def test_the_largest_pods_are_evicted_first(scenario: TerminationScenario) -> None:
    """Their replacements are bound one by one, and large pods need unfragmented capacity."""
    sizes = {"a": ("250m", "512Mi"), "b": ("1", "1Gi"), "c": ("100m", "7Gi"), "d": ("500m", "1Gi")}
    for name, (cpu, memory) in sizes.items():
        asking = make_pod(name, cpu=cpu, memory=memory).spec.containers
        pod = make_pod(name, node=NODE)
        scenario.world.seed(changed(pod, spec={"containers": asking}))
    await scenario.delete_node()

    await scenario.work()

    assert scenario.evicted() == [f"default/{name}" for name in "cbda"]


async def test_a_deleted_node_is_tainted_before_its_pods_are_evicted(
    scenario: TerminationScenario,
) -> None:
    scenario.world.seed(make_pod("web", node=NODE))
    await scenario.delete_node()

    await scenario.work()

    node = scenario.world.node(NODE)
    assert node is not None
    assert [t.effect for t in node.spec.taints if t.key == labels.DISRUPTED_TAINT] == ["NoSchedule"]
    assert node.metadata.labels[labels.EXCLUDE_FROM_LOAD_BALANCERS] == "karpenter"
    assert scenario.evicted() == ["default/web"]


async def test_pods_are_evicted_even_if_the_cloud_does_not_answer(
    scenario: TerminationScenario,
) -> None:
    scenario.world.seed(make_pod("web", node=NODE))
    await scenario.delete_node()
    scenario.world.cloud.fail("get", CloudProviderError("its zone is shifted away"), times=100)

    await scenario.work()

    assert scenario.evicted() == ["default/web"]


async def test_the_instance_is_terminated_after_the_last_pod(
    scenario: TerminationScenario,
) -> None:
    scenario.world.seed(make_pod("web", node=NODE))
    await scenario.delete_node()

    await scenario.work(seconds=20)
    assert scenario.world.cloud.instances_by_id

    scenario.world.api.finish_pods()
    scenario.world.see()
    await scenario.work(seconds=5)

    assert not scenario.world.cloud.instances_by_id
    assert scenario.world.node(NODE) is None
    assert scenario.world.claim("claim") is None


async def test_an_empty_node_waits_for_the_scheduler_to_see_the_taint(
    scenario: TerminationScenario,
) -> None:
    await scenario.delete_node()

    await scenario.work(seconds=4)
    assert scenario.world.cloud.instances_by_id

    await scenario.work(seconds=5)
    assert not scenario.world.cloud.instances_by_id


async def test_a_drain_takes_no_longer_if_the_clock_is_set_back(
    scenario: TerminationScenario,
) -> None:
    await scenario.delete_node()
    await scenario.work(seconds=2)

    scenario.world.pass_time(minutes=-30)
    await scenario.work(seconds=9)

    assert not scenario.world.cloud.instances_by_id


async def test_a_pod_disruption_budget_delays_the_drain_and_is_named(
    held: TerminationScenario,
) -> None:
    await held.work(seconds=10)

    assert held.world.cloud.instances_by_id
    assert not held.is_going("web")
    events = await held.world.events("FailedDraining")
    refused = "Failed to drain node, evicting pod violates a PDB (Pod=default/web): "
    assert any(event.startswith(refused) for event in events)


async def test_what_a_drain_waits_for_is_reported_every_two_minutes(
    scenario: TerminationScenario,
) -> None:
    held = {labels.DO_NOT_DISRUPT: "true"}
    pods = [make_pod(f"web-{number}", node=NODE, annotations=held) for number in range(3)]
    scenario.world.seed(*pods)
    await scenario.delete_node()
    await scenario.work(seconds=60)
    await scenario.world.api.delete(kinds.POD, "web-0", namespace="default", grace_period_seconds=0)
    scenario.world.see()
    await scenario.work(seconds=70)

    assert await scenario.world.events("FailedDraining") == [
        "Failed to drain node, 2 pods are waiting to be evicted, pod has "
        '"karpenter.sh/do-not-disrupt" annotation (Pod=default/web-1)'
    ]
    reported = scenario.world.api.objects(kinds.EVENT)
    assert [event.count for event in reported if event.reason == "FailedDraining"] == [2]


async def test_a_refused_eviction_is_retried_with_growing_pauses(
    held: TerminationScenario,
) -> None:
    await held.work(seconds=120)
    assert 10 <= len(held.evicted()) <= 20

    held.world.seed(make_budget(allowed=1, match={"app": "web"}))
    await held.work(seconds=10)
    assert held.is_going("web")


async def test_a_refused_eviction_is_retried_even_if_the_clock_is_set_back(
    held: TerminationScenario,
) -> None:
    await held.work(seconds=10)

    held.world.pass_time(minutes=-30)
    held.world.seed(make_budget(allowed=1, match={"app": "web"}))
    await held.work(seconds=10)

    assert held.is_going("web")


async def test_a_refused_eviction_delays_no_other_pod_of_the_node(
    held: TerminationScenario,
) -> None:
    await held.work(seconds=60)

    held.world.seed(make_pod("late", node=NODE))
    await held.work()
    assert "default/late" in held.evicted()


async def test_an_eviction_with_an_unknown_error_is_retried_with_growing_pauses(
    scenario: TerminationScenario,
) -> None:
    scenario.world.seed(make_pod("web", node=NODE))
    await scenario.delete_node()
    denied = ForbiddenError("the webhook says no", status=403)
    scenario.world.api.refuse("evict", denied, kind=kinds.POD, times=1_000)

    failures = 0
    for _ in range(120):
        try:
            await scenario.terminator.reconcile(NODE)
        except ForbiddenError:
            failures += 1
        except ConflictError:
            pass
        scenario.world.see()
        scenario.world.pass_time(seconds=1)
    assert 10 <= failures <= 20
    assert any("the webhook says no" in m for m in await scenario.world.events("FailedDraining"))
    claim = scenario.world.claim("claim")
    assert claim is not None
    drained = conditions.find(claim.status.conditions, DRAINED)
    assert drained is not None
    assert (drained.status, drained.reason) == ("Unknown", "EvictionRefused")
    assert "the webhook says no" in drained.message


@pytest.mark.parametrize("with_node", [True, False])
async def test_a_refused_termination_is_an_event_and_a_condition(
    scenario: TerminationScenario, with_node: bool
) -> None:
    if with_node:
        await scenario.delete_node()
    else:
        await scenario.patch_finalizers([])
        await scenario.delete_node()
        await scenario.world.api.delete(kinds.NODE_CLAIM, "claim")
        scenario.world.see()
    refusal = CloudProviderError("not authorized: ec2:TerminateInstances", reason="Unauthorized")
    scenario.world.cloud.fail("terminate", refusal)

    with pytest.raises(CloudProviderError):
        await scenario.work(seconds=60)

    scenario.world.see()
    assert any("not authorized" in m for m in await scenario.world.events("TerminationFailed"))
    claim = scenario.world.claim("claim")
    assert claim is not None
    asked = conditions.find(claim.status.conditions, INSTANCE_TERMINATING)
    assert asked is not None
    assert (asked.status, asked.reason) == ("False", "Unauthorized")

    await scenario.work(seconds=60)

    assert scenario.world.claim("claim") is None


async def test_pods_of_a_terminating_namespace_delay_no_other_pod_of_the_node(
    scenario: TerminationScenario,
) -> None:
    scenario.world.seed(make_pod("leaving", node=NODE), make_pod("web", node=NODE))
    await scenario.delete_node()
    gone = "unable to create new content in namespace default because it is being terminated"
    refused = ForbiddenError(f'pods "leaving" is forbidden: {gone}', status=403)
    scenario.world.api.refuse("evict", refused, kind=kinds.POD)

    await scenario.work()

    assert scenario.evicted() == ["default/web"]
    assert not any(
        "violates a PDB" in message for message in await scenario.world.events("FailedDraining")
    )


def test_pauses_between_evictions_grow_up_to_ten_seconds() -> None:
    pauses = [pause(times).total_seconds() for times in range(1, 10_000)]
    assert pauses[:3] == [0.1, 0.2, 0.4]
    assert pauses == sorted(pauses)
    assert pauses[-1] == 10


async def test_a_finalizer_removed_by_another_controller_is_a_conflict(
    scenario: TerminationScenario,
) -> None:
    """As the garbage collector does with a node that was deleted in the foreground."""
    node = await scenario.lose_instance()
    ours = node.metadata.finalizers
    await scenario.patch_finalizers([*ours, "foregroundDeletion"])
    await scenario.delete_node()
    await scenario.terminator.reconcile(NODE)  # deletes the claim
    scenario.world.see()
    await scenario.patch_finalizers(ours)

    with pytest.raises(ConflictError):
        await scenario.terminator.reconcile(NODE)

    scenario.world.see()
    await scenario.work()
    assert scenario.world.node(NODE) is None


async def test_daemonset_pods_are_evicted_after_workloads(scenario: TerminationScenario) -> None:
    owner = OwnerReference(api_version="apps/v1", kind="DaemonSet", name="cni", uid="d")
    scenario.world.seed(
        make_pod("web", node=NODE), make_pod("cni", node=NODE, ownerReferences=[owner])
    )
    await scenario.delete_node()

    await scenario.work(seconds=2)
    assert scenario.evicted() == ["default/web"]

    scenario.world.api.finish_pods("default/web")
    scenario.world.see()
    await scenario.work(seconds=2)
    assert scenario.evicted() == ["default/web", "default/cni"]


async def test_a_pod_that_forbids_disruption_is_not_evicted(scenario: TerminationScenario) -> None:
    scenario.world.seed(make_pod("batch", node=NODE, annotations={labels.DO_NOT_DISRUPT: "true"}))
    await scenario.delete_node()

    await scenario.work(seconds=10)

    assert scenario.evicted() == []
    assert scenario.world.cloud.instances_by_id


async def test_the_termination_grace_period_overrides_every_protection() -> None:
    scenario = TerminationScenario()
    await scenario.up(termination_grace_period="1m")
    scenario.world.seed(make_pod("batch", node=NODE, annotations={labels.DO_NOT_DISRUPT: "true"}))
    await scenario.world.api.delete(kinds.NODE_CLAIM, "claim")
    scenario.world.see()

    await scenario.lifecycle.reconcile("claim")  # writes the deadline, deletes the node
    scenario.world.see()
    assert len(await scenario.world.events("TerminationGracePeriodExpiring")) == 2
    await scenario.work(seconds=20)
    pod = scenario.world.api.find(kinds.POD, "batch", "default")
    assert pod is not None
    assert not pod.metadata.is_deleting, "its own 30 s of grace have not begun yet"

    await scenario.work(seconds=20)

    pod = scenario.world.api.find(kinds.POD, "batch", "default")
    assert pod is None or pod.metadata.is_deleting


async def test_a_pod_with_the_longest_grace_period_is_deleted_before_a_deadline() -> None:
    scenario = TerminationScenario()
    await scenario.up(termination_grace_period="1h")
    longest = {"terminationGracePeriodSeconds": 2**63 - 1}
    scenario.world.seed(make_pod("patient", node=NODE, spec=longest))
    await scenario.world.api.delete(kinds.NODE_CLAIM, "claim")
    scenario.world.see()

    await scenario.work(seconds=2)

    pod = scenario.world.api.find(kinds.POD, "patient", "default")
    assert pod is None or pod.metadata.is_deleting
    assert scenario.evicted() == []


@pytest.mark.parametrize("deadline", ["soon", "2026-11-21T12:00:00", ""])
async def test_an_invalid_termination_timestamp_is_rewritten(
    deadline: str,
) -> None:
    scenario = TerminationScenario()
    await scenario.up(termination_grace_period="1m")
    scenario.world.seed(make_pod("batch", node=NODE, annotations={labels.DO_NOT_DISRUPT: "true"}))
    by_hand = {"metadata": {"annotations": {labels.TERMINATION_TIMESTAMP: deadline}}}
    await scenario.world.api.patch(kinds.NODE_CLAIM, "claim", by_hand)
    await scenario.world.api.delete(kinds.NODE_CLAIM, "claim")
    scenario.world.see()

    await scenario.work(seconds=40)

    assert scenario.is_going("batch")


async def test_a_node_whose_instance_is_gone_is_finalized_at_once(
    scenario: TerminationScenario,
) -> None:
    scenario.world.seed(make_pod("web", node=NODE))
    await scenario.lose_instance()
    await scenario.delete_node()

    await scenario.work()

    assert scenario.world.node(NODE) is None
    assert scenario.evicted() == []


async def test_a_ready_node_is_drained_though_the_cloud_does_not_list_its_instance(
    held: TerminationScenario,
) -> None:
    """An instance whose kubelet reports still runs, even if DescribeInstances omits it."""
    (instance,) = held.world.cloud.instances_by_id
    held.world.cloud.vanish(instance)

    await held.work(seconds=60)
    assert held.world.node(NODE) is not None

    held.world.seed(make_budget(allowed=1, match={"app": "web"}))
    await held.work(seconds=15)
    held.world.api.finish_pods()
    held.world.see()
    await held.work(seconds=10)
    assert "default/web" in held.evicted()
    assert held.world.node(NODE) is None


async def test_a_drain_stops_if_the_instance_is_gone_and_the_kubelet_silent(
    held: TerminationScenario,
) -> None:
    await held.work(seconds=3)

    await held.lose_instance()
    held.world.see()
    await held.work(seconds=3)

    assert held.world.node(NODE) is None
    assert not held.is_going("web"), "nothing but its budget kept the node"


async def test_a_pod_that_is_bound_after_the_drain_is_drained_too(
    scenario: TerminationScenario,
) -> None:
    """kube-scheduler may bind a pod before it sees the taint; here a volume delays the end."""
    attachment = VolumeAttachment(
        metadata=ObjectMeta(name="attachment"),
        spec=VolumeAttachmentSpec(
            node_name=NODE, source=VolumeAttachmentSource(persistent_volume_name="data")
        ),
    )
    scenario.world.seed(attachment)
    await scenario.delete_node()
    await scenario.work(seconds=10)
    assert scenario.holds(DRAINED)

    scenario.world.seed(make_pod("late", node=NODE))
    await scenario.world.api.delete(kinds.VOLUME_ATTACHMENT, "attachment")
    scenario.world.see()
    await scenario.work(seconds=10)
    assert scenario.evicted() == ["default/late"]
    assert scenario.world.cloud.count("terminate") == 0
    assert not scenario.holds(DRAINED)

    scenario.world.api.finish_pods()
    scenario.world.see()
    await scenario.work(seconds=3)
    assert scenario.world.node(NODE) is None
    assert not scenario.world.cloud.instances_by_id


async def test_a_pod_that_is_bound_while_the_conditions_are_written_is_drained_too(
    scenario: TerminationScenario,
) -> None:
    await scenario.delete_node()
    await scenario.work(seconds=5)
    assert not scenario.holds(DRAINED)

    world, patch = scenario.world, scenario.world.api.patch

    async def bind_meanwhile(*call: Any, **more: Any) -> Any:
        patched = await patch(*call, **more)
        if world.api.find(kinds.POD, "late", "default") is None:
            late = make_pod("late", node=NODE)
            world.api.seed(late)
            world.cluster.observe(kinds.POD, late)
        return patched

    with pytest.MonkeyPatch.context() as change:
        change.setattr(world.api, "patch", bind_meanwhile)
        await scenario.work(seconds=3)

    assert scenario.evicted() == ["default/late"]
    assert world.cloud.count("terminate") == 0


async def test_a_pod_that_a_late_watch_does_not_report_is_drained_too(
    scenario: TerminationScenario,
) -> None:
    await scenario.delete_node()
    await scenario.work(seconds=5)
    assert not scenario.holds(DRAINED)

    scenario.world.api.seed(make_pod("late", node=NODE), make_pod("other", node="other"))
    for _ in range(3):  # without `see`, so that the cluster state lacks the pods
        await scenario.terminator.reconcile(NODE)
        scenario.world.pass_time(seconds=1)

    assert set(scenario.evicted()) == {"default/late"}
    assert scenario.world.cloud.count("terminate") == 0
    assert scenario.world.cluster.pod("default/other") is None


async def test_the_pods_of_a_drained_node_are_listed_once(
    scenario: TerminationScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed, list_ = list[Any](), scenario.world.api.list

    async def counted(*call: Any, **more: Any) -> Any:
        listed.append((*call, more))
        return await list_(*call, **more)

    monkeypatch.setattr(scenario.world.api, "list", counted)
    scenario.world.seed(make_pod("web", node=NODE))
    await scenario.delete_node()
    await scenario.work(seconds=10)
    assert listed == []

    scenario.world.api.finish_pods()
    scenario.world.see()
    await scenario.work(seconds=5)

    assert scenario.world.node(NODE) is None
    assert listed == [(kinds.POD, {"field_selector": f"spec.nodeName={NODE}"})]


async def test_the_progress_of_a_drain_is_not_written_for_each_pod(
    scenario: TerminationScenario,
) -> None:
    names = [f"web-{number}" for number in range(20)]
    scenario.world.seed(*(make_pod(name, node=NODE) for name in names))
    await scenario.delete_node()
    await scenario.work(seconds=2)
    before = scenario.writes_of_claim()

    for name in names:
        scenario.world.api.finish_pods(f"default/{name}")
        scenario.world.see()
        await scenario.work()

    draining_to_terminated = 3  # Drained, VolumesDetached, InstanceTerminating
    end_of_claim = 1
    assert scenario.writes_of_claim() - before <= draining_to_terminated + end_of_claim


async def test_a_pod_is_deleted_once_after_the_deadline_and_counted_once() -> None:
    scenario = TerminationScenario()
    await scenario.up()
    names = [f"batch-{number}" for number in range(10)]
    protected = {labels.DO_NOT_DISRUPT: "true"}
    held = ["example.com/held"]
    scenario.world.seed(
        *(make_pod(n, node=NODE, annotations=protected, finalizers=held) for n in names)
    )
    await scenario.set_deadline()  # as node repair does
    await scenario.world.api.delete(kinds.NODE_CLAIM, "claim")
    scenario.world.see()

    await scenario.work(seconds=90)

    calls = scenario.world.api.calls
    deleted = [name for verb, kind, name in calls if (verb, kind) == ("delete", "Pod")]
    assert sorted(deleted) == [f"default/{name}" for name in names]
    assert scenario.world.node(NODE) is None, "pods that hang do not hold it for ever"
    value, reason = scenario.world.metrics.registry.get_sample_value, "Forceful Termination"
    assert value("karpenter_pods_drained_total", {"reason": reason}) == len(names)


async def test_an_earlier_deadline_deletes_pods_earlier() -> None:
    scenario = TerminationScenario()
    await scenario.up(termination_grace_period="1m")
    scenario.world.seed(make_pod("batch", node=NODE, annotations={labels.DO_NOT_DISRUPT: "1h"}))
    await scenario.world.api.delete(kinds.NODE_CLAIM, "claim")
    scenario.world.see()
    await scenario.work(seconds=32)

    await scenario.set_deadline()
    await scenario.work(seconds=2)

    pod = scenario.world.api.find(kinds.POD, "batch", "default")
    assert pod is not None
    assert pod.metadata.deletion_timestamp is not None
    assert pod.metadata.deletion_timestamp <= scenario.world.clock()


async def test_a_failed_eviction_leaves_no_other_request_running(
    scenario: TerminationScenario,
) -> None:
    scenario.world.seed(make_pod("denied", node=NODE), make_pod("slow", node=NODE))
    await scenario.delete_node()
    await scenario.terminator.reconcile(NODE)  # deletes the claim
    scenario.world.see()
    evict = scenario.world.api.evict

    async def answer(name: str, namespace: str, **more: Any) -> None:
        if name == "denied":
            raise ForbiddenError("the webhook denies it", status=403)
        await asyncio.sleep(0.1)
        await evict(name, namespace, **more)

    with pytest.MonkeyPatch.context() as change:
        change.setattr(scenario.world.api, "evict", answer)
        with pytest.raises(ForbiddenError):
            await scenario.terminator.reconcile(NODE)

    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert scenario.is_going("slow")


async def test_a_node_already_tainted_by_disruption_is_drained_the_same_way(
    scenario: TerminationScenario,
) -> None:
    taints = {"spec": {"taints": [to_wire(DISRUPTED)]}}
    await scenario.world.api.patch(kinds.NODE, NODE, taints)
    await scenario.delete_node()

    await scenario.work(seconds=4)
    node = scenario.world.node(NODE)
    assert node is not None
    assert node.metadata.labels[labels.EXCLUDE_FROM_LOAD_BALANCERS] == "karpenter"
    assert node.spec.taints == [DISRUPTED]
    assert scenario.world.cloud.instances_by_id, (
        "a pod may have been bound a moment before the taint"
    )

    await scenario.work(seconds=5)
    assert not scenario.world.cloud.instances_by_id


async def test_a_claim_waits_for_a_node_with_foreign_finalizers(
    scenario: TerminationScenario,
) -> None:
    node = scenario.world.node(NODE)
    assert node is not None
    await scenario.patch_finalizers([*node.metadata.finalizers, "example.com/holds"])
    scenario.world.see()
    await scenario.delete_node()
    await scenario.work(seconds=20)

    held = scenario.world.node(NODE)
    assert held is not None
    assert held.metadata.finalizers == ["example.com/holds"]
    assert scenario.world.claim("claim") is not None

    await scenario.patch_finalizers([])
    scenario.world.see()
    await scenario.work(seconds=3)
    assert scenario.world.claim("claim") is None


async def test_a_node_removed_with_its_finalizers_is_no_longer_drained(
    held: TerminationScenario,
) -> None:
    # As with Karpenter: no Node is left to evict pods from, and the pod garbage collector deletes
    # the pods. An instance that waited for them would never be terminated.
    await held.work(seconds=10)
    assert held.world.cloud.instances_by_id
    assert not held.is_going("web")

    await held.patch_finalizers([])
    held.world.see()
    await held.work(seconds=3)

    assert not held.world.cloud.instances_by_id
    assert held.world.claim("claim") is None
