"""A gang that loses a node restarts as a whole, and nothing else is evicted."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from controller.apis import kinds, labels
from controller.apis.kubernetes.pods import Pod
from controller.apiserver.errors import ConflictError
from controller.reconcilers.nodeclaim.expiration import Expiration
from controller.reconcilers.nodehealth.repair import Repair
from controller.reconcilers.termination.eviction import Eviction
from controller.reconcilers.termination.gangrestart import GangRestart
from controller.reconcilers.termination.terminator import Terminator
from tests.builders import changed, make_budget, make_pod
from tests.reconcilers.test_gangs import GangScenario
from tests.reconcilers.world import make_listener


class RestartScenario(GangScenario):
    """A gang with a pod on each of its nodes, and the loops that end nodes."""

    def __init__(self, pods: int, *, least: int | None = None) -> None:
        super().__init__(pods, least=least)
        self.start_terminator()

    def start_terminator(self) -> None:
        """Start a new terminator, which knows only what the cluster shows."""
        ports = self.world.ports
        eviction = Eviction(ports)
        self.terminator = Terminator(ports, eviction, None, GangRestart(ports, eviction))

    async def run_gang(self) -> None:
        """Launch the nodes of the gang and bind a pod to each."""
        await self.round()
        await self.launch_up_to(100)
        for number, claim in enumerate(self.world.claims()):
            self.bind(f"worker-{number}", await self.bring(claim))
            await self.lifecycle.reconcile(claim.metadata.name)
        self.world.see()

    def bind(self, name: str, node: str, **metadata: Any) -> None:
        """Let a pod of the gang run on a node, from now on if it is new."""
        group = {"schedulingGroup": {"podGroupName": "train"}}
        made = self.world.now
        self.world.seed(
            make_pod(name, cpu="1500m", node=node, spec=group, creationTimestamp=made, **metadata)
        )

    async def work(self, seconds: int = 3) -> None:
        for _ in range(seconds):
            for node in self.world.api.objects(kinds.NODE):
                with suppress(ConflictError):
                    await self.terminator.reconcile(node.metadata.name)
            self.world.see()
            for claim in self.world.claims():
                with suppress(ConflictError):
                    await self.lifecycle.reconcile(claim.metadata.name)
            self.world.see()
            self.world.pass_time(seconds=1)

    async def interrupt(self, number: int = 0) -> None:
        claim = self.world.claims()[number]
        self.world.cloud.interrupt(claim.status.provider_id)
        await make_listener(self.world).run_once()
        self.world.see()
        await self.work()

    def node_of(self, number: int) -> str:
        """Return the node on which a pod of the gang was started."""
        return f"node-of-{self.world.claims()[number].metadata.name}"

    def leaving(self) -> list[str]:
        """Return the names of the pods that are terminating."""
        pods: Sequence[Pod] = self.world.api.objects(kinds.POD)
        return sorted(pod.metadata.name for pod in pods if pod.metadata.is_deleting)

    def evicted(self) -> list[str]:
        return sorted(name for verb, _, name in self.world.api.calls if verb == "evict")


@pytest.fixture
async def scenario() -> RestartScenario:
    scenario = RestartScenario(pods=3)
    await scenario.run_gang()
    return scenario


async def test_the_interruption_of_one_node_restarts_the_whole_gang(
    scenario: RestartScenario,
) -> None:
    scenario.world.seed(make_pod("other", cpu="100m", node=scenario.node_of(1)))

    await scenario.interrupt()

    assert scenario.leaving() == ["worker-0", "worker-1", "worker-2"]
    assert len(scenario.staying) == 2
    (message,) = set(await scenario.world.events("GangRestarted"))
    assert message == (
        f"Gang default/train lost pods on node {scenario.node_of(0)} and restarts as a whole"
    )


@pytest.mark.parametrize("how", ["expiration", "repair", "deletion"])
async def test_a_gang_restarts_however_one_of_its_nodes_ends(
    scenario: RestartScenario, how: str
) -> None:
    world, (claim, *_) = scenario.world, scenario.world.claims()
    if how == "expiration":
        world.seed(changed(claim, spec={"expire_after": "1m"}))
        world.pass_time(minutes=2)
        await Expiration(world.ports).reconcile(claim.metadata.name)
    elif how == "repair":
        node = world.node(scenario.node_of(0))
        assert node is not None
        silent = {"type": "Ready", "status": "False", "reason": "KubeletNotReady"}
        since = (world.now - timedelta(hours=1)).isoformat()
        await world.api.patch(
            kinds.NODE,
            node.metadata.name,
            {"status": {"conditions": [{**silent, "lastTransitionTime": since}]}},
            subresource="status",
        )
        world.see()
        await Repair(world.ports).reconcile(node.metadata.name)
    else:
        await world.api.delete(kinds.NODE, scenario.node_of(0))
    world.see()

    await scenario.work(4)

    assert scenario.leaving() == ["worker-0", "worker-1", "worker-2"]
    assert len(scenario.staying) == 2


async def test_a_gang_restarts_if_the_instance_of_a_node_is_gone(
    scenario: RestartScenario,
) -> None:
    world, (claim, *_) = scenario.world, scenario.world.claims()
    world.cloud.vanish(claim.status.provider_id)
    silent = {"type": "Ready", "status": "Unknown", "reason": "Gone"}
    await world.api.patch(
        kinds.NODE, scenario.node_of(0), {"status": {"conditions": [silent]}}, subresource="status"
    )
    await world.api.delete(kinds.NODE, scenario.node_of(0))
    world.see()

    await scenario.work(4)

    assert {"worker-1", "worker-2"} <= set(scenario.leaving())


async def test_pods_of_the_restarted_gang_are_not_evicted_again(
    scenario: RestartScenario,
) -> None:
    await scenario.interrupt()
    scenario.world.api.finish_pods("default/worker-1", "default/worker-2")
    scenario.world.see()
    for number in (1, 2):
        scenario.bind(f"new-{number}", scenario.node_of(number))

    await scenario.work()
    scenario.start_terminator()
    await scenario.work()

    assert scenario.leaving() == ["worker-0"]


async def test_a_gang_restarts_if_a_lost_pod_has_the_longest_grace_period(
    scenario: RestartScenario,
) -> None:
    patient = scenario.world.api.find(kinds.POD, "worker-0", "default")
    assert patient is not None
    longest = {"termination_grace_period_seconds": 2**63 - 1}
    # The API server adds the period to the time of the request; the sum overflows.
    deleted = {"deletion_timestamp": scenario.world.now - timedelta(seconds=1)}
    scenario.world.seed(changed(patient, spec=longest, metadata=deleted))

    await scenario.interrupt()

    assert scenario.leaving() == ["worker-0", "worker-1", "worker-2"]


async def test_another_controller_continues_the_restart(scenario: RestartScenario) -> None:
    scenario.world.seed(make_budget(allowed=1, match={"guarded": "yes"}))
    for number in range(3):
        scenario.bind(f"worker-{number}", scenario.node_of(number), labels={"guarded": "yes"})
    await scenario.interrupt()
    assert scenario.leaving() == ["worker-0"]

    scenario.start_terminator()
    scenario.world.seed(make_budget(allowed=2, match={"guarded": "yes"}))
    await scenario.work()

    assert scenario.leaving() == ["worker-0", "worker-1", "worker-2"]


async def test_a_disruption_budget_applies_to_the_restart_and_is_named(
    scenario: RestartScenario,
) -> None:
    scenario.world.seed(make_budget(allowed=0, match={"guarded": "yes"}))
    scenario.bind("worker-1", scenario.node_of(1), labels={"guarded": "yes"})

    await scenario.interrupt()

    assert scenario.leaving() == ["worker-0", "worker-2"]
    refused = "Failed to restart gang default/train, evicting pod violates a PDB"
    messages = await scenario.world.events("FailedDraining")
    assert any(message.startswith(refused) for message in messages)


async def test_do_not_disrupt_does_not_keep_the_pods_of_a_broken_gang(
    scenario: RestartScenario,
) -> None:
    kept = {labels.DO_NOT_DISRUPT: "true"}
    scenario.bind("worker-1", scenario.node_of(1), annotations=kept)

    await scenario.interrupt()

    assert "worker-1" in scenario.leaving()


async def test_while_no_pod_of_a_gang_leaves_its_others_stay(scenario: RestartScenario) -> None:
    kept = {labels.DO_NOT_DISRUPT: "true"}
    scenario.bind("worker-0", scenario.node_of(0), annotations=kept)

    await scenario.interrupt()

    assert scenario.evicted() == []


async def test_a_gang_that_still_has_its_minimum_does_not_restart() -> None:
    scenario = RestartScenario(pods=3, least=2)
    await scenario.run_gang()

    await scenario.interrupt()

    assert scenario.leaving() == ["worker-0"]


async def test_the_nodes_of_a_restarting_gang_stay_until_its_pods_are_created_again(
    scenario: RestartScenario,
) -> None:
    await scenario.interrupt()
    scenario.world.api.finish_pods()
    scenario.world.see()
    scenario.add("again-0")

    await scenario.round()

    assert len(scenario.staying) == 2


async def test_a_restarted_gang_gets_only_the_node_that_it_lost(
    scenario: RestartScenario,
) -> None:
    await scenario.interrupt()
    before = set(scenario.staying)
    scenario.world.api.finish_pods()
    scenario.world.see()
    for number in range(3):
        scenario.add(f"again-{number}")

    await scenario.round()

    assert before < set(scenario.staying)
    assert len(scenario.staying) == 3
