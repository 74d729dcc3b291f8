"""Scenarios that several tests share: a world, its loops, and methods for what the tests do."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from controller.apis import kinds, labels
from controller.apis.karpenter.nodeclaim import (
    CONSOLIDATABLE,
    INITIALIZED,
    NodeClaim,
)
from controller.apis.kubernetes.pods import Pod
from controller.reconcilers.newnodes.plan import PlacementPlan
from controller.reconcilers.provisioning.batchwindow import BatchWindow
from controller.reconcilers.provisioning.nomination import Nomination
from controller.reconcilers.provisioning.provisioner import Provisioner
from controller.reconcilers.provisioning.startupgate import StartupGate
from controller.scheduling.results import Results
from controller.scheduling.scheduler import schedule
from controller.scheduling.settings import Settings
from controller.state.snapshot import Snapshot
from controller.state.spreads import DefaultSpreads
from tests.builders import (
    changed,
    make_node,
    make_nodeclaim,
    make_nodeclass,
    make_nodepool,
    make_pod,
    true,
)
from tests.reconcilers.disrupting import Loops
from tests.reconcilers.world import World, make_lifecycle

NO_WAIT = timedelta(milliseconds=1)


class ProvisioningScenario:
    """A provisioner that runs on request and records its scheduling problems."""

    def __init__(self, *features: kinds.Kind[Any]) -> None:
        self.world = world = World(*features)
        self.settings = Settings()
        self.asked: list[list[str]] = []
        self.read: list[list[str]] = []
        """The NodePools whose instance types the engine read while no pod was pending."""
        self.provisioner = Provisioner(
            ports=world.ports,
            solve=self._solve,
            batch_window=BatchWindow(NO_WAIT, NO_WAIT),
            nomination=timedelta(seconds=20),
            registration_backoff=world.registration_backoff,
        )

    async def _solve(self, pods: Sequence[Pod], snapshot: Snapshot) -> Results:
        if pods:
            self.asked.append(sorted(p.key for p in pods))
        else:
            self.read.append(sorted(snapshot.instance_types))
        return schedule(pods, snapshot=snapshot, settings=self.settings)

    def change_leader(self) -> None:
        """Continue with a new leader, which knows only what the cluster shows."""
        self.provisioner = dataclasses.replace(
            self.provisioner,
            batch_window=BatchWindow(NO_WAIT, NO_WAIT),
            plan=PlacementPlan(),
            _inherited=None,
        )

    async def round(self) -> None:
        self.world.see()
        self.provisioner.batch_window.nudge(f"round-{len(self.asked)}")
        await self.provisioner.run_once()
        self.world.see()


class NominationScenario(ProvisioningScenario):
    """A provisioner with the lifecycle of its NodeClaims.

    It records the taints of nodes as pods saw them.
    """

    def __init__(self, *features: kinds.Kind[Any]) -> None:
        super().__init__(*features)
        world = self.world
        self.nomination = Nomination(
            world.ports, self.provisioner.plan, DefaultSpreads((), world.cluster)
        )
        self.startup_gate = StartupGate(world.ports, self.nomination)
        self.lifecycle = make_lifecycle(world, self.startup_gate)
        world.seed(make_nodeclass(), make_nodepool())

    async def launch(self) -> NodeClaim:
        """Launch the only NodeClaim."""
        (claim,) = self.world.claims()
        await self.lifecycle.reconcile(claim.metadata.name)
        (claim,) = self.world.claims()
        return claim

    async def join(self) -> str:
        """Launch the only NodeClaim, register its node and return the node's name."""
        return await self.bring(await self.launch())

    async def nominate(self, name: str) -> str:
        """Nominate a pending pod for a node that was launched for it; return the node's name."""
        self.world.seed(make_pod(name))
        await self.round()
        return await self.join()

    async def bring(self, claim: NodeClaim) -> str:
        """Register the node of a launched NodeClaim; return its name."""
        node = self.world.join(claim)
        await self.lifecycle.reconcile(claim.metadata.name)
        self.world.see()
        return node.metadata.name

    def pod(self, name: str) -> Pod:
        pod = self.world.api.find(kinds.POD, name, "default")
        assert pod is not None
        return pod


class DisruptionScenario(Loops):
    """Consolidatable nodes of one NodePool, and the disruption loop."""

    def __init__(self, nodes: int, **disruption: object) -> None:
        super().__init__()
        self.world.seed(make_nodeclass(), make_nodepool(**disruption))  # type: ignore[arg-type]
        for number in range(nodes):
            self.add(number)

    def add(self, number: int) -> None:
        known = {labels.NODEPOOL: "default", labels.REGISTERED: "true", labels.INITIALIZED: "true"}
        provider_id = f"fake:///{number}"
        when = self.world.clock()
        claim = make_nodeclaim(
            f"claim-{number}",
            labels=known,
            finalizers=[labels.TERMINATION_FINALIZER],
            provider_id=provider_id,
            node=f"node-{number}",
            conditions=true(INITIALIZED, CONSOLIDATABLE, since=when),
        )
        node = make_node(f"node-{number}", labels=known, provider_id=provider_id)
        self.world.seed(claim, node)

    def going(self) -> list[str]:
        return [c.metadata.name for c in self.world.claims() if c.metadata.is_deleting]


def nominated(pod: Pod, node: str) -> Pod:
    return changed(pod, status={"nominatedNodeName": node})
