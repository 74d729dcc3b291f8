"""The traces: the load on the cluster over hours and days, generated from seeds.

At scale 1 a trace has the size that `Trace.what` describes. The same seed and scale always give the
same trace, for either side.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from bench.parity.worlds import ARCH, CAPACITY_TYPE, Object
from bench.trace import market
from bench.trace.cluster import Cluster
from bench.trace.simulator import Simulator, TraceEvent
from bench.trace.workloads import Workload
from controller.apis import labels
from controller.apis.kubernetes.taints import Requirement
from controller.scheduling.results import NewNode

MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0
TOLERANCE = 0.1
"""Relative deviation of the load below which the pod autoscaler keeps the number of replicas."""


@dataclass(frozen=True, slots=True)
class Trace:
    """A scenario: `make` returns its events.

    The arguments of `make` are a random number generator, the scale and the instance types. `what`
    describes the load at scale 1. `length` is in seconds.
    """

    name: str
    what: str
    length: float
    capacity_types: tuple[str, ...]
    make: Callable[[random.Random, float, Sequence[Object]], Iterator[TraceEvent]]

    def cluster(
        self, seed: int, *, policy: str = "WhenEmptyOrUnderutilized", node_price: float = 0.0
    ) -> Cluster:
        """Return the cluster at the beginning of the trace.

        `node_price` is what a node costs besides its instance, in $/h.
        """
        return Cluster(
            types=market.types(seed),
            pools=[market.pool(*self.capacity_types, policy=policy)],
            node_price=node_price,
        )

    def events_of(self, seed: int, scale: float) -> list[TraceEvent]:
        """Return the events for a seed and a scale."""
        chance = random.Random(f"{self.name}-{seed}")
        return list(self.make(chance, scale, market.types(seed)))


def _deployments(
    chance: random.Random, pods: float, *, mixed: bool = False, prefix: str = "web"
) -> list[Workload]:
    """Return Deployments with this total number of pods.

    If the capacity is `mixed`, some must not run on spot.
    """
    found: list[Workload] = []
    left = max(8, round(pods))
    while left > 0:
        replicas = min(left, max(2, int(chance.lognormvariate(2.7, 0.8))))
        left -= replicas
        cpu = chance.choice((250, 500, 500, 1000, 1000, 2000))
        draw = chance.random()
        selector: dict[str, str] = {}
        if mixed and chance.random() < 0.25:
            selector[CAPACITY_TYPE] = labels.ON_DEMAND
        elif draw > 0.9:
            selector[ARCH] = "amd64"
        found.append(
            Workload(
                f"{prefix}-{len(found)}",
                cpu=cpu,
                memory=cpu * chance.choice((1, 2, 4, 4, 8)),
                replicas=replicas,
                selector=selector,
                spread=draw < 0.12,
                apart=0.12 <= draw < 0.18 and replicas <= 12,
            )
        )
    return found


def _deploy(workloads: Sequence[Workload]) -> TraceEvent:
    def action(simulator: Simulator) -> None:
        for one in workloads:
            simulator.add(one)
            simulator.scale(one.name, one.replicas)

    return TraceEvent(0.0, action)


def _scale(at: float, name: str, replicas: int) -> TraceEvent:
    return TraceEvent(at, lambda simulator: simulator.scale(name, replicas))


def _fall(at: float, until: float) -> TraceEvent:
    return TraceEvent(at, lambda simulator: simulator.fall(until))


def _follow_load(
    chance: random.Random,
    workloads: Sequence[Workload],
    load: Callable[[float], float],
    *,
    length: float,
    every: float,
) -> Iterator[TraceEvent]:
    """Yield the scaling of a pod autoscaler that follows a load; 1 is the load at deployment."""
    have = {one.name: one.replicas for one in workloads}
    turn = {one.name: chance.uniform(0, every) for one in workloads}
    for step in range(1, int(length / every)):
        for one in workloads:
            at = step * every + turn[one.name]
            wanted = max(2, round(one.replicas * load(at) * chance.uniform(0.95, 1.05)))
            if abs(wanted - have[one.name]) > TOLERANCE * have[one.name]:
                have[one.name] = wanted
                yield _scale(round(at), one.name, wanted)


def _day(at: float) -> float:
    """Return the load of a web site at a time of day: 0.4 at night, 1 in the afternoon."""
    hour = at % DAY / HOUR
    return 0.4 + 0.6 * max(0.0, math.sin(math.pi * (hour - 6) / 16)) if 6 < hour < 22 else 0.4


def _daily(chance: random.Random, scale: float, rows: Sequence[Object]) -> Iterator[TraceEvent]:
    workloads = _deployments(chance, 1500 * scale)
    yield _deploy(workloads)
    yield from _follow_load(chance, workloads, _day, length=26 * HOUR, every=15 * MINUTE)
    yield _fall(22.5 * HOUR, 26 * HOUR)


def _batch(chance: random.Random, scale: float, rows: Sequence[Object]) -> Iterator[TraceEvent]:
    yield _deploy(_deployments(chance, 200 * scale))
    for burst, at in enumerate((0.5 * HOUR, 2 * HOUR, 3.5 * HOUR)):
        yield from _burst(chance, f"burst-{burst}", at, chance.uniform(2000, 5000) * scale)
    yield _fall(5.5 * HOUR, 6 * HOUR)


def _burst(chance: random.Random, name: str, at: float, cores: float) -> Iterator[TraceEvent]:
    """Yield Jobs with this total number of cores.

    They start within five minutes and run 10 to 40 minutes each.
    """
    for number in range(8):
        cpu = chance.choice((2, 4, 8, 16)) * 1000
        job = Workload(
            f"{name}-{number}",
            cpu=cpu - 200,
            memory=cpu * chance.choice((1, 2, 3, 6)),
            unavailable=None,
            run_for=round(chance.uniform(10 * MINUTE, 40 * MINUTE)),
            protected=number % 2 == 0,
        )
        pods = max(1, round(cores / 8 / (cpu / 1000)))
        yield _submit(at + round(chance.uniform(0, 5 * MINUTE)), job, pods)


def _submit(at: float, job: Workload, pods: int) -> TraceEvent:
    return TraceEvent(at, lambda simulator: simulator.submit(job, pods))


def _shrink(chance: random.Random, scale: float, rows: Sequence[Object]) -> Iterator[TraceEvent]:
    workloads = _deployments(chance, 2400 * scale)
    yield _deploy(workloads)
    sizes = [row for row in rows if row["capacity"]["cpu"] in ("4", "8", "16")]

    def create_initial_workloads(simulator: Simulator) -> None:
        while simulator.cluster.waiting:
            row = chance.choice(sizes)
            offering = chance.choice(
                [o for o in row["offerings"] if o["requirements"][CAPACITY_TYPE] == "on-demand"]
            )
            simulator.give(
                NewNode(
                    "general",
                    (row["name"],),
                    tuple(
                        Requirement(key=key, operator="In", values=[value])
                        for key, value in offering["requirements"].items()
                    ),
                    offering["price"],
                    (),
                    {},
                )
            )

    yield TraceEvent(0.0, create_initial_workloads)
    for one in workloads:
        yield _scale(MINUTE, one.name, max(1, round(0.4 * one.replicas)))
    yield _fall(MINUTE, 7 * HOUR)


def _rollouts(chance: random.Random, scale: float, rows: Sequence[Object]) -> Iterator[TraceEvent]:
    workloads = _deployments(chance, 1200 * scale)
    yield _deploy(workloads)
    at = HOUR
    while at < 8 * HOUR:
        yield _roll(at, chance.choice(workloads).name)
        at += round(chance.uniform(5 * MINUTE, 25 * MINUTE))


def _roll(at: float, name: str) -> TraceEvent:
    return TraceEvent(at, lambda simulator: simulator.roll(name))


def _spot(chance: random.Random, scale: float, rows: Sequence[Object]) -> Iterator[TraceEvent]:
    workloads = _deployments(chance, 1200 * scale, mixed=True)
    yield _deploy(workloads)
    yield from _follow_load(
        chance,
        workloads,
        lambda at: 1 + 0.25 * math.sin(2 * math.pi * at / (4 * HOUR)),
        length=12 * HOUR,
        every=30 * MINUTE,
    )
    yield from _interruptions(chance, rows, length=12 * HOUR, every=15 * MINUTE)


def _interruptions(
    chance: random.Random, rows: Sequence[Object], *, length: float, every: float
) -> Iterator[TraceEvent]:
    """Yield interruptions of spot offerings: random ones of the 50 cheapest per CPU."""
    price = {
        (row["name"], one["requirements"][labels.ZONE], one["requirements"][CAPACITY_TYPE]): (
            one["price"] / int(row["capacity"]["cpu"])
        )
        for row in rows
        for one in row["offerings"]
    }
    cheap = sorted(market.markets(rows, labels.SPOT), key=lambda one: (price[one], one))[:50]
    at = HOUR
    while at < length:
        yield _interrupt(round(at), chance.choice(cheap))
        at += chance.expovariate(1 / every)


def _interrupt(at: float, taken: tuple[str, str, str]) -> TraceEvent:
    return TraceEvent(at, lambda simulator: simulator.interrupt(taken))


def _image(chance: random.Random, scale: float, rows: Sequence[Object]) -> Iterator[TraceEvent]:
    yield _deploy(_deployments(chance, 1200 * scale))
    yield TraceEvent(HOUR, lambda simulator: simulator.drift())


def _week(chance: random.Random, scale: float, rows: Sequence[Object]) -> Iterator[TraceEvent]:
    workloads = _deployments(chance, 600 * scale, mixed=True)
    yield _deploy(workloads)

    def load(at: float) -> float:
        return _day(at) * (1.0 if at < 5 * DAY else 0.6)

    yield from _follow_load(chance, workloads, load, length=7 * DAY, every=HOUR)
    yield from _interruptions(chance, rows, length=7 * DAY, every=3 * HOUR)
    yield TraceEvent(2 * DAY + 10 * HOUR, lambda simulator: simulator.drift())
    for day in range(7):
        at = day * DAY + 2 * HOUR
        yield from _burst(chance, f"night-{day}", at, chance.uniform(200, 500) * scale)
        for _ in range(3 if day < 5 else 0):
            at = day * DAY + round(chance.uniform(9, 17) * HOUR)
            yield _roll(at, chance.choice(workloads).name)


ON_DEMAND = (labels.ON_DEMAND,)
BOTH = (labels.SPOT, labels.ON_DEMAND)

TRACES = (
    Trace("daily", "26 hours of a web site of 1,500 pods", 26 * HOUR, ON_DEMAND, _daily),
    Trace("batch", "three bursts of 2,000 to 5,000 cores", 6 * HOUR, BOTH, _batch),
    Trace("shrink", "300 steady nodes, deployments shrink by 60 %", 7 * HOUR, ON_DEMAND, _shrink),
    Trace("rolling", "1,200 pods, a rollout every quarter hour", 8 * HOUR, ON_DEMAND, _rollouts),
    Trace("spot", "1,200 pods, spot markets that are reclaimed", 12 * HOUR, BOTH, _spot),
    Trace("image", "1,200 pods, a new AMI", 8 * HOUR, ON_DEMAND, _image),
    Trace("week", "a week of 600 pods: all of that", 7 * DAY, BOTH, _week),
)  # fmt: skip
