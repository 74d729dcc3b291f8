"""Measure a scale-up to N nodes within EC2's rate limits: calls per API, and launch latency.

    python -m bench.launches [--nodes N] [--classes N] [--failures N]

The whole controller runs on an in-memory API server and an in-memory AWS, in virtual time. It gets
N pods, each of which needs its own node. EC2 enforces its documented token buckets and throttles
every call beyond them. The number of calls in flight is limited to the controller's number of
threads, and a CreateFleet call takes 3 s, so the figures hold for boto3 as well.

With `--classes`, the pods are of that many NodePools. Each has its own EC2NodeClass, and its pods
fit every instance type. Each instance type has its own maxPods, so an offer of all instance types
needs a launch template for each of them. With `--failures`, EC2 fails that many calls of every
fourth launch. Each of these launches has already waited for its turn and must wait again.
"""

from __future__ import annotations

import asyncio
import logging
import random
import statistics
import sys
from collections import Counter
from collections.abc import Mapping, Sequence, Sized
from contextlib import ExitStack
from datetime import datetime
from typing import Any
from unittest.mock import patch

from bench.arguments import make_parser
from bench.faults.cluster import NODE_CLASS, NODE_CLASS_REFERENCE, Surroundings, Workload
from bench.faults.processes import Process, ProcessLoop
from bench.faults.region import Region, refusal
from bench.faults.replicas import CLOCKED, EPOCH, LooseFence, Replica, make_datetime, wall_clock
from bench.faults.wires import Call
from controller.apis import kinds
from controller.apiserver.fake import FakeApiServer
from controller.aws.ratelimits import OF_RESOURCES, Size, size_of
from controller.aws.session import THREADS
from controller.cloudprovider.errors import ThrottledError

FLEET_SECONDS = 3.0
PAGE = 1000
"""Items per page. A call with more items counts once for each page."""

LONGEST = 3600.0
POD = (8500, 8192)
"""CPU in millicores and memory in MiB of one pod. No instance type of the region fits two."""

ON_DEMAND = {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]}
"""The requirement of on-demand instances.

With it, a CreateFleet request offers every instance type. One for spot omits types with a high
price.
"""

SMALL_POD = (1500, 1024)
"""CPU in millicores and memory in MiB of a pod that fits every instance type of the region."""


class StrictBucket:
    """A token bucket of EC2 that grants a whole request or refuses it."""

    def __init__(self, size: Size) -> None:
        self.size = size
        self.tokens = size.most
        self.at = 0.0

    def give(self, count: float, now: float) -> bool:
        self.tokens = min(self.tokens + (now - self.at) * self.size.per_second, self.size.most)
        self.at = now
        # Tolerate rounding: a token that is short by less than 1e-6 counts as whole.
        if count > self.tokens + 1e-6:
            return False
        self.tokens -= count
        return True


class StrictRegion(Region):
    """In-memory EC2 that enforces rate limits and latency, and records the calls.

    If instance types `differ`, each has its own maxPods.
    """

    def __init__(self, failures: int = 0, *, differ: bool = False) -> None:
        super().__init__(EPOCH, random.Random(1))
        self.failed: Counter[str] = Counter()
        """Number of internal errors that EC2 has returned, by launch."""

        self._failures = failures
        self._differ = differ
        self.calls: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.fleets: dict[str, float] = {}
        """Time of the first CreateFleet call with each ClientToken, in virtual seconds."""

        self.launches: dict[str, str] = {}
        """The ClientToken of the call that launched each instance, by its ID."""

        self._buckets: dict[str, StrictBucket] = {}
        self._threads = asyncio.Semaphore(THREADS)

    async def answer(self, operation: str, parameters: Mapping[str, Any]) -> Any:
        if operation in ("receive_message", "delete_message_batch"):
            return await super().answer(operation, parameters)
        async with self._threads:
            self._count(operation, parameters)
            if operation == "create_fleet":
                launch = parameters["ClientToken"]
                self.fleets.setdefault(launch, self.now())
                await asyncio.sleep(FLEET_SECONDS)
                self._fail(launch)
            answer = await super().answer(operation, parameters)
            if operation == "create_fleet":
                for group in answer["Instances"]:
                    self.launches |= dict.fromkeys(group["InstanceIds"], launch)
            if isinstance(answer, Sized) and not isinstance(answer, Mapping):
                self.calls[operation] += max(len(answer) - 1, 0) // PAGE
            return answer

    def describe_instance_types(self, parameters: Mapping[str, Any]) -> Any:
        rows = super().describe_instance_types(parameters)
        if self._differ:
            for index, row in enumerate(rows):
                row["NetworkInfo"]["Ipv4AddressesPerInterface"] = 8 + index
        return rows

    def _fail(self, launch: str) -> None:
        is_fourth = list(self.fleets).index(launch) % 4 == 0
        if is_fourth and self.failed[launch] < self._failures:
            self.failed[launch] += 1
            raise refusal("InternalError", "create_fleet")

    def _count(self, operation: str, parameters: Mapping[str, Any]) -> None:
        self.calls[operation] += 1
        costs = [(operation, size_of(operation), 1)]
        if operation in OF_RESOURCES:
            listed, size = OF_RESOURCES[operation]
            costs.append((f"{operation}/{listed}", size, len(parameters[listed])))
        for name, size, count in costs:
            bucket = self._buckets.setdefault(name, StrictBucket(size))
            if not bucket.give(count, self.now()):
                self.refused[operation] += 1
                raise ThrottledError(f"{operation} (RequestLimitExceeded)")


class NoFaults:
    """Fault injection that injects no faults."""

    async def before(self, call: Call) -> None: ...

    async def after(self, call: Call) -> None: ...

    def answer(self, call: Call, answer: Any) -> Any:
        return answer

    def delay(self, process: Process) -> float:
        return 0.0


class ScaleUp:
    """A scale-up of N pods that need one node each, with its measurements.

    With `classes`, the pods are of that many NodePools, each with its own EC2NodeClass.
    """

    def __init__(self, nodes: int, failures: int = 0, classes: int = 1) -> None:
        self.region = StrictRegion(failures, differ=classes > 1)
        self.api = FakeApiServer(lambda: wall_clock(EPOCH, None))
        cpu, memory = POD if classes == 1 else SMALL_POD
        self._pools = ["default", *(f"pool-{index}" for index in range(1, classes))]
        workloads = [
            Workload(f"web-{pool}", cpu, memory, replicas=nodes // classes, pool=pool)
            for pool in self._pools
        ]
        self._surroundings = Surroundings(self.api, self.region, random.Random(1), workloads)
        self.nodes = nodes
        self.created: dict[str, float] = {}
        """Time at which each NodeClaim was created, by name, in virtual seconds."""

        self._launches: dict[str, str] = {}
        """The launch of each NodeClaim, by name."""

        self.pods_at = self.seconds = 0.0

    @property
    def waits(self) -> list[float]:
        """Seconds from each NodeClaim's creation to its first CreateFleet call, ascending."""
        fleets = self.region.fleets
        return sorted(
            fleets[self._launches[claim]] - created
            for claim, created in self.created.items()
            if self._launches.get(claim) in fleets
        )

    async def play(self) -> None:
        self._create_initial_objects()
        process = Process("controller")
        replica = Replica(process, self.api, self.region, NoFaults(), 1)
        process.start(replica.live())
        loop = asyncio.get_running_loop()
        await asyncio.sleep(60)
        self.region.calls.clear()
        self.pods_at = loop.time()
        watching = asyncio.create_task(self._watch())
        while not self._surroundings.is_quiet() and loop.time() < self.pods_at + LONGEST:
            await self._surroundings.step()
            await asyncio.sleep(1)
        self.seconds = loop.time() - self.pods_at
        watching.cancel()
        process.kill()

    async def _watch(self) -> None:
        async for change in self.api.watch(kinds.NODE_CLAIM):
            if change.object is not None:
                name, provider_id = change.object.metadata.name, change.object.status.provider_id
                self.created.setdefault(name, self.region.now())
                if provider_id:
                    launched = provider_id.rpartition("/")[2]
                    self._launches[name] = self.region.launches[launched]

    def _create_initial_objects(self) -> None:
        for name in self._pools:
            self.api.store_json(kinds.EC2_NODE_CLASS, {**NODE_CLASS, "metadata": {"name": name}})
            reference = {**NODE_CLASS_REFERENCE, "name": name}
            required = [ON_DEMAND] if len(self._pools) > 1 else []
            template = {"spec": {"nodeClassRef": reference, "requirements": required}}
            pool = {"metadata": {"name": name}, "spec": {"template": template}}
            self.api.store_json(kinds.NODE_POOL, pool)


def play(nodes: int, *, failures: int = 0, classes: int = 1) -> ScaleUp:
    """Run one scale-up on its own event loop in virtual time, and return its measurements."""
    moment: type[datetime] = make_datetime(EPOCH)
    loop = ProcessLoop()
    loop.set_exception_handler(lambda *_: None)
    with ExitStack() as patched:
        patched.enter_context(patch("controller.manager.leadership.Fence", LooseFence))
        for module in CLOCKED:
            patched.enter_context(patch(f"controller.aws.{module}.datetime", moment))

        async def course() -> ScaleUp:
            scale_up = ScaleUp(nodes, failures, classes)
            await scale_up.play()
            return scale_up

        return loop.run_until_complete(course())


def report(scale_up: ScaleUp) -> str:
    """Return a Markdown report of the EC2 calls and of the NodeClaims' launch latency."""
    region = scale_up.region
    waits = scale_up.waits
    lines = [
        f"{len(region.instances)} instances for {scale_up.nodes} pods, all running after "
        f"{scale_up.seconds:.0f} s; {len(scale_up.created)} NodeClaims; EC2 failed "
        f"{region.failed.total()} launches",
        f"NodeClaim to CreateFleet: median {statistics.median(waits):.1f} s, "
        f"95 % {waits[len(waits) * 95 // 100]:.1f} s, longest {waits[-1]:.1f} s; the first "
        f"{min(region.fleets.values()) - scale_up.pods_at:.1f} s and the last "
        f"{max(region.fleets.values()) - scale_up.pods_at:.1f} s after the pods",
        "| API | calls | refused | bucket |",
        "|---|---:|---:|---|",
    ]
    for operation, count in region.calls.most_common():
        size = size_of(operation)
        bucket = f"{size.most:.0f}, {size.per_second:.0f} a second"
        lines.append(f"| {operation} | {count} | {region.refused[operation]} | {bucket} |")
    return "\n".join(lines)


def main(argv: Sequence[str]) -> int:
    """Run a scale-up and print its report. Returns 1 if EC2 throttled a call, else 0."""
    parser = make_parser("bench.launches", __doc__)
    parser.add_argument("--nodes", type=int, default=500, help="number of nodes (500)")
    parser.add_argument(
        "--failures", type=int, default=0, help="calls of every fourth launch that EC2 fails (0)"
    )
    parser.add_argument(
        "--classes", type=int, default=1, help="NodePools with an EC2NodeClass of their own (1)"
    )
    options = parser.parse_args(argv)
    logging.disable(logging.CRITICAL)
    # Coroutines that the killed controller leaves unfinished report errors when they are collected.
    sys.unraisablehook = lambda _: None
    scale_up = play(options.nodes, failures=options.failures, classes=options.classes)
    print(report(scale_up))
    return 1 if scale_up.region.refused else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
