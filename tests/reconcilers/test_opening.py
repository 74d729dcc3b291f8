"""Nodes launched together open before kube-scheduler reaches the pods of closed ones.

The tests model kube-scheduler after its source. When a node opens, kube-scheduler tries all pending
pods, in the order in which it tried them last. A pod is bound to its nominated node if that is
open. Otherwise it goes to any node with enough capacity beside the pods nominated for it. A pod
that fits nowhere loses its nomination.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from controller.apis import kinds, labels
from controller.apis.kubernetes.conditions import Condition
from controller.constraints import taints
from tests.builders import changed, make_pod
from tests.reconcilers.scenarios import NominationScenario, nominated

ZONES = ("us-west-2a", "us-west-2b", "us-west-2c")
HEAD_PODS, TAIL_PODS = 40, 20

TRY, WRITE, ANSWER = 0.001, 0.004, 0.060
"""Seconds that a try takes the scheduler, a write the API server, and its answer until it is read
by a controller that is busy with what others write."""


class Scheduler:
    """kube-scheduler, for nodes with capacity for exactly the pods planned for each."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.capacity = Counter(batch.planned.values())
        self.waiting = list(batch.planned)
        self.active: list[str] = []
        self.bound: dict[str, str] = {}

    def wake(self) -> None:
        """Try all pending pods again after a node has opened."""
        self.active += [name for name in self.waiting if name not in self.active]

    async def run(self) -> None:
        while self.waiting:
            await asyncio.sleep(TRY)
            if self.active:
                self._try(self.active.pop(0))

    def _try(self, name: str) -> None:
        pod = self.batch.pod(name)
        wanted = pod.status.nominated_node_name
        self.waiting.remove(name)
        chosen = next((n for n in (wanted, *sorted(self.capacity)) if self._fits(n)), None)
        if chosen is None:
            self.waiting.append(name)
            self.batch.world.seed(nominated(pod, ""))
            return
        self.bound[name] = chosen
        self.batch.world.seed(changed(pod, spec={"node_name": chosen}))

    def _fits(self, node: str) -> bool:
        found = self.batch.world.node(node)
        if found is None or taints.is_held(found.spec.taints):
            return False
        others = sum(
            self.batch.pod(other).status.nominated_node_name == node for other in self.waiting
        )
        return list(self.bound.values()).count(node) + others < self.capacity[node]


class Batch(NominationScenario):
    """Three nodes that were bought together, one a zone: the head of the queue is planned for two
    of them, by turns, the tail for the third.
    """

    planned: dict[str, str]

    async def buy(self) -> None:
        """Launch the nodes, and initialize them."""
        for zone in ZONES:
            pod = make_pod(zone)
            self.world.seed(changed(pod, spec={"node_selector": {labels.ZONE: zone}}))
        await self.round()
        first, second, third = self.world.claims()
        for claim, zone in zip((first, second, third), ZONES, strict=True):
            await self.lifecycle.reconcile(claim.metadata.name)
            await self.world.api.delete(kinds.POD, zone, namespace="default")
        self.planned = {}
        for number in range(HEAD_PODS + TAIL_PODS):
            claim = third if number >= HEAD_PODS else (first, second)[number % 2]
            name = f"pod-{number:02}"
            self.world.seed(make_pod(name))
            self.provisioner.plan.expect(self.pod(name), claim.metadata.name)
            self.planned[name] = f"node-of-{claim.metadata.name}"
        for claim in self.world.claims():
            self.world.join(claim, ready=False)
            await self.lifecycle.reconcile(claim.metadata.name)
        for node in self.world.api.objects(kinds.NODE):
            ready = [Condition(type="Ready", status="True", reason="Kubelet")]
            self.world.seed(changed(node, status={"conditions": ready}))


@pytest.mark.virtual_clock
async def test_each_pod_is_bound_to_its_planned_node(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = Batch()
    await batch.buy()
    scheduler = Scheduler(batch)
    patch, turn = batch.world.api.patch, asyncio.Lock()

    async def carried_out(kind: kinds.Kind[Any], name: str, *args: Any, **kwargs: Any) -> Any:
        if kind != kinds.NODE:
            return await patch(kind, name, *args, **kwargs)
        async with turn:
            await asyncio.sleep(WRITE)
            written = await patch(kind, name, *args, **kwargs)
            scheduler.wake()
        await asyncio.sleep(ANSWER)
        return written

    monkeypatch.setattr(batch.world.api, "patch", carried_out)
    scheduling = asyncio.create_task(scheduler.run())

    await batch.lifecycle.reconcile(batch.world.claims()[-1].metadata.name)
    await scheduling

    assert scheduler.bound == batch.planned
