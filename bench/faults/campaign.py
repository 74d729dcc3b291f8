"""One run: pods are created, nodes are replaced, pods are deleted, all while faults occur."""

from __future__ import annotations

import asyncio
import gc
import random
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from bench.faults import auditor
from bench.faults.auditor import Auditor, View
from bench.faults.cluster import (
    NAMESPACE,
    NODE_CLASS,
    NODE_CLASS_REFERENCE,
    Surroundings,
    Workload,
    allocatable_of,
)
from bench.faults.foreign import FOREIGN, SECOND_POOL, ForeignObjects
from bench.faults.injection import FAULTS, PHASES, Phase, Scene
from bench.faults.processes import Process, ProcessLoop
from bench.faults.region import CLUSTER, ROLE, SIZES, Region
from bench.faults.replicas import (
    CLOCKED,
    EPOCH,
    FENCES,
    LEASE,
    Controllers,
    LooseFence,
    make_datetime,
    wall_clock,
)
from bench.faults.replicas import NAMESPACE as LEASE_NAMESPACE
from bench.faults.replicas import PATIENCE as LEADER_PATIENCE
from bench.faults.wires import Call
from controller.apis import kinds
from controller.apiserver.fake import FakeApiServer

WINDOW = 120.0
"""Seconds of each phase during which faults occur."""

LARGE = (8500, 8192)
"""Millicores and MiB of a pod that has a node of its own."""

PATIENCE = 3 * 3600.0
"""Seconds without faults within which the cluster must become stable."""

CHECK_SECONDS = 3
"""Seconds between two checks of the auditor."""

REST = 45.0
"""Seconds without inconsistencies after which the cluster counts as stable."""

LATE = 1.0
"""Seconds after a process resumes during which calls that it had started may still arrive."""

GANG_SIZE = 6
"""Pods of a gang."""

STATIC_POOL = "fixed"
"""The static NodePool, if a run has one."""

GANG_SHARES: dict[Phase, float] = {
    "launch": 1.0,
    "replacement": 1.0,
    "consolidation": 1.0,
    "termination": 0.0,
}
"""Share of the gangs' pods that is wanted in each phase."""

SHARES: dict[Phase, float] = {
    "launch": 1.0,
    "replacement": 1.0,
    "consolidation": 0.4,
    "termination": 0.0,
}
"""Share of the pods that is wanted in each phase."""

INSTANCE_TYPES = [auditor.InstanceType(*allocatable_of(size), size.price) for size in SIZES]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a run: seconds of wall-clock time, and seconds of virtual time."""

    seed: int
    fault: str
    findings: Sequence[str]
    seconds: float
    simulated: float


@dataclass(frozen=True, slots=True)
class Load:
    """What the cluster of a run holds.

    `gangs` is the number of gangs beside the pods, `static` the number of nodes of a static
    NodePool; with 0 there is none.
    """

    pods: int
    gangs: int = 0
    static: int = 0


def make_workloads(load: Load) -> list[Workload]:
    """Return workloads of four pod sizes, two of them with a PodDisruptionBudget, and gangs."""
    pods = load.pods
    return [
        *(
            Workload(f"gang{number}", 1500, 3072, replicas=GANG_SIZE, is_gang=True)
            for number in range(load.gangs)
        ),
        Workload("web", 500, 1024, max_unavailable=max(1, pods // 20), replicas=pods // 2),
        Workload("api", 1000, 3072, max_unavailable=2, replicas=pods // 3),
        Workload("batch", 2000, 4096, replicas=pods - pods // 2 - pods // 3),
        # No instance type fits two of them: equal NodeClaims, which share a launch.
        Workload("large", *LARGE, replicas=max(2, pods // 10)),
    ]


class Run:
    """One run of one fault."""

    def __init__(self, seed: int, fault: str, number: int, load: Load) -> None:
        self._loop = asyncio.get_running_loop()
        self._static = load.static
        self._replicas = load.static
        self.chance = random.Random(f"{seed}/{fault}")
        # Makes the names of NodeClaims and of history records repeatable.
        random.seed(f"{seed}/{fault}")
        self.fault = FAULTS[fault](self.chance, number)
        self.fault_is_on = False
        self.region = Region(EPOCH, random.Random(f"{seed}/region"))
        self.api = FakeApiServer(lambda: wall_clock(EPOCH, None))
        workloads = make_workloads(load)
        self._wanted = {w.name: w.replicas for w in workloads}
        self.surroundings = Surroundings(
            self.api, self.region, random.Random(f"{seed}/cluster"), workloads
        )
        # With odd seeds the stack creates the role's instance profile, otherwise the controller.
        if seed % 2:
            owned = {"Key": f"kubernetes.io/cluster/{CLUSTER}", "Value": "owned"}
            self.region.add_profile(ROLE, path="/", tags=[owned], roles=[ROLE])
        self.controllers = Controllers(self.api, self.region, self, seed)
        self.scene = Scene(
            self.api,
            self.region,
            self.surroundings,
            self.controllers,
            ForeignObjects(self.api, self.region),
            self.chance,
        )
        self.auditor = Auditor(INSTANCE_TYPES)

    # Fault injection: faults apply to calls while the fault is on.

    async def before(self, call: Call) -> None:
        self._witness(call)
        if self.fault_is_on:
            await self.fault.before(call)

    async def after(self, call: Call) -> None:
        if call.verb == "evict":
            self._count(call.name)
        if self.fault_is_on:
            await self.fault.after(call)

    def answer(self, call: Call, answer: Any) -> Any:
        return self.fault.answer(call, answer) if self.fault_is_on else answer

    def delay(self, process: Process) -> float:
        return self.fault.delay() if self.fault_is_on else 0.0

    def _witness(self, call: Call) -> None:
        """Check a call: its replica holds the Lease, and no pod is deleted instead of evicted.

        If it deletes a NodeClaim, check that whole gangs are disrupted.
        """
        if not call.acts:
            return
        lease = self.api.find(kinds.LEASE, LEASE, LEASE_NAMESPACE)
        holder = lease.spec.holder_identity if lease is not None else ""
        now = self._loop.time()
        late = now <= call.process.resumed_at + LATE
        late |= now <= self.controllers.lease_edited_at + LEADER_PATIENCE
        if holder != call.process.name and not late:
            self.auditor.find(f"{call.verb} {call.kind} by a replica that does not hold the Lease")
        if (call.verb, call.kind) == ("delete", "Pod"):
            self.auditor.find("a pod was deleted rather than evicted")
        if (call.verb, call.kind) == ("delete", "NodeClaim"):
            bodies = self.api.bodies
            self.auditor.check_disruption(
                call.name, [*bodies(kinds.NODE_CLAIM)], bodies(kinds.NODE), bodies(kinds.POD),
                announced=self.region.announced,
            )  # fmt: skip

    def _count(self, evicted: str) -> None:
        """Check that an eviction leaves a workload as many pods as its budget requires."""
        workload = next(w for w in self.surroundings.workloads if evicted.startswith(w.name))
        if workload.max_unavailable is None:
            return
        serving = sum(1 for _ in self.surroundings.healthy(workload.name))
        self.auditor.check_eviction(
            workload.name, serving, workload.replicas - workload.max_unavailable
        )

    # The phases of a run.

    @property
    def _pools(self) -> tuple[str, ...]:
        return ("default", STATIC_POOL) if self._static else ("default",)

    async def play(self) -> Sequence[str]:
        self._create_initial_objects()
        world = asyncio.create_task(self._world())
        try:
            for phase in PHASES:
                await self._phase(phase)
                if not await self._come_to_rest(phase):
                    break
            else:
                await self._tear_down()
        finally:
            world.cancel()
            with suppress(asyncio.CancelledError):
                await world
        return self.auditor.findings

    async def _world(self) -> None:
        while True:
            for _ in range(CHECK_SECONDS):
                self.controllers.supervise()
                await self.surroundings.step()
                await asyncio.sleep(1)
            self.auditor.check(self._view())

    async def _phase(self, phase: Phase) -> None:
        for workload in self.surroundings.workloads:
            share = (GANG_SHARES if workload.is_gang else SHARES)[phase]
            workload.replicas = round(self._wanted[workload.name] * share)
        if self._static:
            self._replicas = round(self._static * SHARES[phase])
            scaled = {"spec": {"replicas": self._replicas}}
            await self.api.patch(kinds.NODE_POOL, STATIC_POOL, scaled)
        if phase == "replacement":
            rolled = {"spec": {"template": {"metadata": {"labels": {"rolled": "once"}}}}}
            for pool in self._pools:
                await self.api.patch(kinds.NODE_POOL, pool, rolled)
        if phase not in self.fault.phases:
            return
        self.fault_is_on = True
        injection = asyncio.create_task(self.fault.inject(self.scene))
        await asyncio.sleep(WINDOW)
        injection.cancel()
        await asyncio.wait([injection])
        if not injection.cancelled() and (failure := injection.exception()) is not None:
            raise failure
        self.fault_is_on = False
        self.fault.end(self.scene)

    async def _come_to_rest(self, phase: Phase) -> bool:
        began = self._loop.time()
        rested_since: float | None = None
        while True:
            await asyncio.sleep(5)
            now = self._loop.time()
            missing = self._find_missing(phase)
            if missing:
                rested_since = None
            elif rested_since is None:
                rested_since = now
            elif now >= rested_since + REST:
                return True
            if now > began + PATIENCE:
                for finding in missing:
                    self.auditor.find(f"after {phase}: {finding}")
                return False

    def _find_missing(self, phase: Phase) -> list[str]:
        view = self._view()
        missing = auditor.inconsistencies(view)
        if phase == "replacement":
            kept = auditor.too_many(view)
            missing += [
                f"NodeClaim {c['metadata']['name']} was never rolled"
                for c in view.claims
                if not auditor.is_foreign(c) and "rolled" not in c["metadata"]["labels"]
                if c["metadata"]["name"] not in kept
            ]
        if phase == "consolidation":
            missing += auditor.unneeded_instances(view, INSTANCE_TYPES)
        if phase == "termination":
            missing += [f"{i.id} is left" for i in view.instances if i.lives and not i.foreign]
        return missing

    async def _tear_down(self) -> None:
        """Delete the NodePool and the EC2NodeClass: nothing of them may remain."""
        for pool in self._pools:
            await self.api.delete(kinds.NODE_POOL, pool)
        await self.api.delete(kinds.EC2_NODE_CLASS, "default")
        await asyncio.sleep(300)
        for kind in (kinds.NODE_POOL, kinds.EC2_NODE_CLASS):
            for body in self.api.bodies(kind):
                if not auditor.is_foreign(body):
                    self.auditor.find(f"{kind.name} {body['metadata']['name']} cannot go")
        for name in self.region.templates:
            self.auditor.find(f"launch template {name} is left")
        for name in self.region.profiles:
            if name not in (ROLE, SECOND_POOL):
                self.auditor.find(f"instance profile {name} is left")

    def _view(self) -> View:
        now = self._loop.time()
        claims = self.api.bodies(kinds.NODE_CLAIM)
        owners = {
            claim.get("status", {}).get("providerID", ""): claim["metadata"]["name"]
            for claim in claims
        }
        prices = {size.name: size.price for size in SIZES}
        return View(
            at=now,
            pools=self.api.bodies(kinds.NODE_POOL),
            claims=claims,
            nodes=self.api.bodies(kinds.NODE),
            pods=self.api.bodies(kinds.POD),
            instances=[
                auditor.Instance(
                    id=m.id,
                    provider_id=m.provider_id,
                    state=m.state(now),
                    claim=m.tags.get("karpenter.sh/nodeclaim") or owners.get(m.provider_id, ""),
                    price=prices[m.type],
                    node=m.hostname,
                    foreign=FOREIGN in m.tags,
                    tags=dict(m.tags),
                    touched=m.touched_by_hand,
                    is_static=m.tags.get("karpenter.sh/nodepool") == STATIC_POOL,
                )
                for m in self.region.instances.values()
            ],
            templates=len(self.region.templates),
            wanted={w.name: w.replicas for w in self.surroundings.workloads},
            gangs=[w.name for w in self.surroundings.workloads if w.is_gang],
            replicas={STATIC_POOL: self._replicas} if self._static else {},
            foreign=self.scene.foreign.placed,
        )

    # The initial state.

    def _create_initial_objects(self) -> None:
        store = self.api.store_json
        store(kinds.EC2_NODE_CLASS, NODE_CLASS)
        capacity = {"key": "karpenter.sh/capacity-type", "operator": "In"}
        requirements = [{**capacity, "values": ["spot", "on-demand"]}]
        template = {"spec": {"nodeClassRef": NODE_CLASS_REFERENCE, "requirements": requirements}}
        disruption = {"consolidateAfter": "30s", "budgets": [{"nodes": f"{auditor.SURGE:.0%}"}]}
        for pool in self._pools:
            spec: dict[str, Any] = {"template": template, "disruption": disruption}
            if pool == STATIC_POOL:
                spec["replicas"] = self._static
            store(kinds.NODE_POOL, {"metadata": {"name": pool}, "spec": spec})
        for workload in self.surroundings.workloads:
            if workload.is_gang:
                policy = {"gang": {"minCount": GANG_SIZE}}
                store(
                    kinds.POD_GROUP,
                    {
                        "metadata": {"name": workload.name, "namespace": NAMESPACE},
                        "spec": {"schedulingPolicy": policy},
                    },
                )
            if workload.max_unavailable is not None:
                store(
                    kinds.POD_DISRUPTION_BUDGET,
                    {
                        "metadata": {"name": workload.name, "namespace": NAMESPACE},
                        "spec": {
                            "maxUnavailable": workload.max_unavailable,
                            "selector": {"matchLabels": {"app": workload.name}},
                        },
                    },
                )
        self.scene.foreign.create()


def play(seed: int, fault: str, number: int, load: Load) -> Outcome:
    """Run one seed on its own event loop and return its outcome.

    `number` counts the runs with the same fault, from 0.
    """
    began = time.perf_counter()
    FENCES.clear()
    loop = ProcessLoop()
    loop.set_exception_handler(lambda *_: None)
    moment = make_datetime(EPOCH)
    with ExitStack() as patched:
        enter = patched.enter_context
        enter(patch("controller.manager.leadership.Fence", LooseFence))
        for module in CLOCKED:
            enter(patch(f"controller.aws.{module}.datetime", moment))

        async def course() -> Sequence[str]:
            return await Run(seed, fault, number, load).play()

        try:
            findings = loop.run_until_complete(course())
        finally:
            simulated = loop.time()
            _forget(loop)
    return Outcome(seed, fault, findings, time.perf_counter() - began, simulated)


def _forget(loop: ProcessLoop) -> None:
    """Release what killed processes left in the middle of a step.

    They are released one by one. The garbage collector releases them in no particular order, which
    has crashed the interpreter.
    """
    before, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        for task in asyncio.all_tasks(loop):
            with suppress(BaseException):
                task.get_coro().close()
        loop.close()
        gc.collect()
    finally:
        sys.unraisablehook = before
