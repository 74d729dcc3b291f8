"""Nodes launched together accept pods together, once the pods are nominated."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from controller.apis import kinds, labels
from controller.apis.karpenter.nodeclaim import INITIALIZED, LAUNCHED, REGISTERED, NodeClaim
from controller.apis.kubernetes import conditions
from controller.apis.kubernetes.conditions import Condition
from controller.apis.kubernetes.nodes import Node
from controller.apis.kubernetes.pods import Pod
from controller.apis.kubernetes.taints import Toleration
from controller.apiserver.errors import ConflictError
from controller.constraints import taints
from controller.reconcilers.newnodes.plan import MOST_RENOMINATIONS
from controller.reconcilers.provisioning import startupgate
from controller.reconcilers.provisioning.startupgate import AGAIN, PATIENCE
from tests.builders import changed, make_daemonset, make_pod
from tests.reconcilers.scenarios import NominationScenario, nominated

ARCHITECTURES = {"web": "amd64", "arm": "arm64"}
NODE_PATCH = ("patch", "Node")


class Batch(NominationScenario):
    """Two pods that no one node can hold, and the two claims that were made for them."""

    async def buy(self) -> None:
        for name, arch in ARCHITECTURES.items():
            pod = make_pod(name)
            self.world.seed(changed(pod, spec={"node_selector": {labels.ARCH: arch}}))
        await self.round()
        for claim in self.world.claims():
            await self.lifecycle.reconcile(claim.metadata.name)
        self.world.see()

    def claim_for(self, pod: str) -> NodeClaim:
        (claim,) = (
            claim
            for claim in self.world.claims()
            if claim.metadata.labels[labels.ARCH] == ARCHITECTURES[pod]
        )
        return claim

    def node_for(self, pod: str) -> Node:
        node = self.world.node(f"node-of-{self.claim_for(pod).metadata.name}")
        assert node is not None
        return node

    async def join_not_ready(self, *pods: str) -> None:
        """Join the nodes launched for these pods; their kubelets are not ready yet."""
        for pod in pods:
            self.world.join(self.claim_for(pod), ready=False)
            await self.look(pod)

    def get_ready(self, *pods: str) -> None:
        for pod in pods:
            node = self.node_for(pod)
            ready = [Condition(type="Ready", status="True", reason="Kubelet")]
            self.world.seed(changed(node, status={"conditions": ready}))

    async def look(self, pod: str) -> timedelta | None:
        """Reconcile the NodeClaim that was created for this pod."""
        pause = await self.lifecycle.reconcile(self.claim_for(pod).metadata.name)
        self.world.see()
        return pause

    def is_held(self, pod: str) -> bool:
        return taints.is_held(self.node_for(pod).spec.taints)

    def forget(self, *pods: str) -> None:
        """Mark pods as unschedulable, as kube-scheduler does."""
        self.world.seed(*(nominated(self.pod(pod), "") for pod in pods))


@pytest.fixture
async def batch() -> Batch:
    batch = Batch()
    await batch.buy()
    return batch


async def test_nodes_launched_together_register_at_once_and_stay_tainted(batch: Batch) -> None:
    await batch.join_not_ready("web", "arm")

    for pod in ARCHITECTURES:
        node = batch.node_for(pod)
        assert [t.key for t in node.spec.taints] == [labels.NOMINATING_TAINT]
        assert node.metadata.labels[labels.REGISTERED] == "true"
        assert conditions.is_true(batch.claim_for(pod).status.conditions, REGISTERED)


async def test_a_node_launched_alone_is_not_held() -> None:
    scenario = NominationScenario()
    scenario.world.seed(make_pod("web"))
    await scenario.round()

    name = await scenario.join()

    node = scenario.world.node(name)
    assert node is not None
    assert node.spec.taints == []


async def test_held_nodes_open_together_after_their_pods_are_nominated(batch: Batch) -> None:
    await batch.join_not_ready("web", "arm")
    batch.get_ready("web", "arm")
    batch.forget("web", "arm")
    batch.world.api.calls.clear()

    await batch.look("web")

    assert not batch.is_held("web")
    assert not batch.is_held("arm")
    verbs = [verb for verb, kind, _ in batch.world.api.calls if kind in ("Pod", "Node")]
    assert verbs[:4] == ["patch/status", "patch/status", "patch", "patch"]
    for pod in ARCHITECTURES:
        assert batch.pod(pod).status.nominated_node_name == batch.node_for(pod).metadata.name


@pytest.mark.parametrize("urgent", list(ARCHITECTURES))
async def test_the_node_whose_pods_are_tried_first_opens_first(batch: Batch, urgent: str) -> None:
    pod = batch.pod(urgent)
    batch.world.seed(changed(pod, spec={"priority": 1000}))
    await batch.join_not_ready("web", "arm")
    batch.get_ready("web", "arm")
    batch.world.api.calls.clear()

    await batch.look("arm")

    opened = [name for verb, kind, name in batch.world.api.calls if (verb, kind) == NODE_PATCH]
    assert opened[0] == batch.node_for(urgent).metadata.name


async def test_a_node_that_has_opened_is_initialized_in_the_same_pass(batch: Batch) -> None:
    await batch.join_not_ready("web", "arm")
    batch.get_ready("web", "arm")

    await batch.look("web")

    assert conditions.is_true(batch.claim_for("web").status.conditions, INITIALIZED)


async def test_a_ready_node_waits_briefly_for_the_others(batch: Batch) -> None:
    await batch.join_not_ready("web", "arm")
    batch.get_ready("web")

    assert await batch.look("web") == PATIENCE
    assert batch.is_held("web")


async def test_a_ready_node_waits_for_a_node_that_just_registered(batch: Batch) -> None:
    await batch.join_not_ready("web")
    batch.get_ready("web")
    batch.world.join(batch.claim_for("arm"), ready=False)

    assert await batch.look("web") == PATIENCE
    assert batch.is_held("web")


async def test_a_ready_node_waits_for_an_instance_launched_with_it(batch: Batch) -> None:
    await batch.join_not_ready("web")
    batch.get_ready("web")

    assert await batch.look("web") == PATIENCE
    assert batch.is_held("web")

    await batch.join_not_ready("arm")
    batch.get_ready("arm")
    await batch.look("arm")

    assert not batch.is_held("web")
    assert not batch.is_held("arm")


async def test_a_ready_node_does_not_wait_for_an_instance_launched_later(batch: Batch) -> None:
    claim = batch.claim_for("arm")
    launched = conditions.find(claim.status.conditions, LAUNCHED)
    assert launched is not None
    later = batch.world.clock() + PATIENCE + timedelta(seconds=1)
    batch.world.seed(
        changed(
            claim,
            status={"conditions": [msgspec.structs.replace(launched, last_transition_time=later)]},
        )
    )
    await batch.join_not_ready("web")
    batch.get_ready("web")

    await batch.look("web")

    assert not batch.is_held("web")


async def test_a_ready_node_opens_after_the_maximum_wait(batch: Batch) -> None:
    await batch.join_not_ready("web", "arm")
    batch.get_ready("web")
    await batch.look("web")
    batch.world.now += PATIENCE

    await batch.look("web")

    assert not batch.is_held("web")
    assert batch.is_held("arm")


async def test_a_ready_node_waits_no_longer_if_the_clock_is_set_back(batch: Batch) -> None:
    await batch.join_not_ready("web", "arm")
    batch.get_ready("web")
    await batch.look("web")
    batch.world.pass_time(minutes=-30)

    assert await batch.look("web") == PATIENCE


def untried(pod: Pod) -> Pod:
    """The pod before the scheduler has come to it."""
    return changed(pod, status={"conditions": []})


async def test_held_nodes_wait_until_kube_scheduler_has_tried_every_pod(
    batch: Batch,
) -> None:
    """It drops their nominations, and comes to whom it has not tried before all others."""
    tried = batch.pod("web")
    await batch.join_not_ready("web", "arm")
    batch.get_ready("web", "arm")
    batch.world.seed(untried(batch.pod("web")))

    assert await batch.look("arm") == AGAIN
    assert batch.is_held("web")
    assert batch.is_held("arm")

    batch.world.seed(tried)
    await batch.look("arm")

    assert not batch.is_held("web")
    assert not batch.is_held("arm")


async def test_held_nodes_wait_for_a_slow_scheduler_no_longer_than_for_each_other(
    batch: Batch,
) -> None:
    await batch.join_not_ready("web", "arm")
    batch.get_ready("web", "arm")
    batch.world.seed(untried(batch.pod("web")))
    await batch.look("arm")
    batch.world.now += PATIENCE

    await batch.look("arm")

    assert not batch.is_held("web")


async def test_held_nodes_do_not_wait_if_many_pods_are_untried(
    batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(startupgate, "TRIED_WITHIN_PATIENCE", 0)
    await batch.join_not_ready("web", "arm")
    batch.get_ready("web", "arm")
    batch.world.seed(untried(batch.pod("web")))

    await batch.look("arm")

    assert not batch.is_held("web")


async def test_a_node_that_is_not_ready_stays_held_and_reports_the_reason(batch: Batch) -> None:
    await batch.join_not_ready("web", "arm")

    await batch.look("web")
    batch.world.pass_time(seconds=5)
    await batch.look("web")

    assert batch.is_held("web")
    initialized = conditions.find(batch.claim_for("web").status.conditions, INITIALIZED)
    assert initialized is not None
    assert initialized.reason == "NodeNotReady"


async def test_held_nodes_do_not_wait_for_a_deleting_node(batch: Batch) -> None:
    await batch.join_not_ready("web", "arm")
    batch.get_ready("web")
    arm = batch.node_for("arm")
    batch.world.seed(changed(arm, metadata={"deletion_timestamp": batch.world.now}))

    await batch.look("web")

    assert not batch.is_held("web")


async def test_a_node_with_a_write_conflict_is_opened_next_time(batch: Batch) -> None:
    await batch.join_not_ready("web", "arm")
    batch.get_ready("web", "arm")
    batch.world.api.refuse("patch", ConflictError("it has changed", status=409), kind=kinds.NODE)

    await batch.look("web")
    assert batch.is_held("web")
    assert not batch.is_held("arm")

    await batch.look("web")

    assert not batch.is_held("web")


async def test_a_new_leader_opens_the_former_leaders_held_nodes(batch: Batch) -> None:
    await batch.join_not_ready("web", "arm")
    batch.get_ready("web", "arm")
    successor = Batch()
    successor.world = batch.world
    successor.nomination = replace(batch.nomination, plan=successor.provisioner.plan)
    startup_gate = replace(batch.startup_gate, nomination=successor.nomination)
    successor.lifecycle = replace(batch.lifecycle, preparation=startup_gate)

    await successor.look("web")

    assert not batch.is_held("web")
    assert not batch.is_held("arm")


@pytest.mark.parametrize(
    ("toleration", "is_held"),
    [
        pytest.param(Toleration(operator="Exists"), True, id="tolerates all"),
        pytest.param(Toleration(key="other", operator="Exists"), True, id="waits for Ready anyway"),
        pytest.param(
            Toleration(key=labels.NOT_READY_TAINT, operator="Exists"), False, id="not-ready alone"
        ),
    ],
)
async def test_no_node_is_held_if_that_keeps_off_a_daemonset_it_needs_to_become_ready(
    batch: Batch, toleration: Toleration, is_held: bool
) -> None:
    batch.world.seed(make_daemonset(requests={}, tolerations=[toleration]))

    await batch.join_not_ready("web", "arm")

    assert batch.is_held("web") == is_held


async def test_a_pod_that_loses_its_nomination_after_its_node_opened_is_nominated_again(
    batch: Batch,
) -> None:
    await batch.join_not_ready("web", "arm")
    batch.get_ready("web", "arm")
    await batch.look("web")
    batch.forget("web")
    node = batch.node_for("web").metadata.name

    await batch.nomination.reconcile(node)

    assert batch.pod("web").status.nominated_node_name == node


async def test_a_pod_that_loses_its_nomination_while_its_node_opens_is_nominated_again(
    batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    await batch.join_not_ready("web", "arm")
    batch.get_ready("web", "arm")
    node = batch.node_for("web").metadata.name
    patch = batch.world.api.patch

    async def tried_in_vain(kind: kinds.Kind[Any], name: str, *args: Any, **kwargs: Any) -> Any:
        if name == node and batch.is_held("web"):
            batch.forget("web")
            batch.world.see()
        return await patch(kind, name, *args, **kwargs)

    monkeypatch.setattr(batch.world.api, "patch", tried_in_vain)

    await batch.look("arm")

    assert batch.pod("web").status.nominated_node_name == node


async def test_a_pod_that_loses_its_nomination_is_nominated_before_its_node_opens(
    batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    await batch.join_not_ready("web", "arm")
    batch.get_ready("web", "arm")
    batch.forget("arm")
    batch.world.see()
    patch = batch.world.api.patch
    tried: list[str] = []

    async def tried_in_vain(kind: kinds.Kind[Any], name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "arm" and not tried:
            tried.append("web")
            batch.forget("web")
            batch.world.see()
        return await patch(kind, name, *args, **kwargs)

    monkeypatch.setattr(batch.world.api, "patch", tried_in_vain)
    batch.world.api.calls.clear()

    await batch.look("arm")

    assert tried == ["web"]
    write_call = batch.world.api.calls.index(("patch/status", "Pod", "default/web"))
    opened = batch.world.api.calls.index((*NODE_PATCH, batch.node_for("web").metadata.name))
    assert write_call < opened


async def test_a_pod_is_not_nominated_again_while_its_node_is_held(batch: Batch) -> None:
    await batch.join_not_ready("web", "arm")
    batch.forget("web")

    await batch.nomination.reconcile(batch.node_for("web").metadata.name)

    assert batch.pod("web").status.nominated_node_name == ""


async def test_a_pod_that_keeps_losing_its_nomination_is_left_to_kube_scheduler(
    batch: Batch,
) -> None:
    await batch.join_not_ready("web", "arm")
    batch.get_ready("web", "arm")
    await batch.look("web")
    write_call = []
    for _ in range(MOST_RENOMINATIONS + 1):
        batch.forget("web")
        batch.world.see()
        await batch.nomination.reconcile(batch.node_for("web").metadata.name)
        write_call.append(batch.pod("web").status.nominated_node_name != "")

    assert write_call == [*[True] * MOST_RENOMINATIONS, False]
