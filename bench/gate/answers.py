"""The worlds of the gate, by family, and Joiner's answers to them.

No answer depends on how busy the machine is: the solves have no time limit, the traces run on a
simulated clock, and the solver has one thread and a fixed seed.
"""

from __future__ import annotations

import gc
import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench import race
from bench.nodeprice import VOLUMES
from bench.parity import consolidation, engines, generated
from bench.parity.grantedpreferences import score
from bench.parity.overlaying import with_overlays
from bench.trace.sides import Joiner
from bench.trace.simulator import Simulator
from bench.trace.traces import TRACES
from controller.offline.disrupt import course_content, new_course, problem_of
from controller.offline.jsonresults import results_content
from controller.offline.solve import read
from controller.offline.world import World, load, types_file
from controller.scheduling.scheduler import schedule
from controller.scheduling.settings import from_names
from tests.oracle.disruption import played
from tests.oracle.replay import findings

CHECKOUT = Path(__file__).parents[2]
PARITY = ((0, 600, 6), (generated.RARE_FROM, 40, 3), (generated.FURTHER_FROM, 35, 2))
"""First seed and number of the generated worlds; the quick ones are multiples of the third."""

TRACE_SCALE = 0.05
TRACE_SEEDS = {"daily": 2, "batch": 4, "shrink": 2, "rolling": 2, "spot": 2}
LARGE = ("mixed 5000 #1", "mixed 5000 #3")
"""The quick worlds of more than 1,000 pods, beside the one with 2,000 existing nodes."""

CLUSTERS = {range(7100, 7124): (20, 80), range(8000, 8032): (15, 60)}
"""The seeds of the consolidation clusters, and the range of their nodes."""

ORACLE_PODS = 1_000
"""The oracle replays no answer with more pods: it is made for small worlds."""

Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Joiner's answer to one world.

    `cost` is in $/h, in $ for a trace. `digest` stands for the decisions, `texts` for the causes
    that they state. `findings` are the violations that the oracle found. `cpu` is in seconds.
    """

    cost: float
    placed: int = 0
    granted: float = 0.0
    evictions: int = 0
    digest: str = ""
    texts: str = ""
    findings: Sequence[str] = field(default=())
    cpu: float = 0.0


@dataclass(frozen=True, slots=True)
class Case:
    """A world of the gate; `quick` ones are answered by default, the others with `--full`."""

    family: str
    name: str
    quick: bool
    answer: Callable[[], Answer]


def cases() -> Iterator[Case]:
    """Yield every world of the gate."""
    yield Case("recorded", "docs/world.json", True, _recorded_answer)
    for one in race.races(race.TYPES):
        quick = one.pods <= 1_000 or one.category == "existing" or one.name in LARGE
        family = one.category if one.category != "mixed" else f"mixed {one.pods}"
        yield Case(f"race, {family}", one.name, quick, partial(_race_answer, one))
    for first, number, step in PARITY:
        for seed in range(first, first + number):
            yield Case("parity", str(seed), seed % step == 0, partial(_parity, seed))
    for seeds, sizes in CLUSTERS.items():
        for seed in seeds:
            family = f"clusters, {consolidation.category_of(seed)}"
            yield Case(
                family, str(seed), seed % 5 == 0, partial(_consolidation_answer, seed, sizes)
            )
    for trace, number in TRACE_SEEDS.items():
        for seed in range(number):
            quick = (trace, seed) in (("batch", 0), ("shrink", 0))
            yield Case(
                f"trace, {trace}", f"{trace} {seed}", quick, partial(_trace_answer, trace, seed)
            )


@cache
def _types() -> Any:
    """Return the instance types of the category `priced`, which Karpenter's Go module has."""
    return json.loads(engines.module_file(race.TYPES).read_bytes())


def _recorded_answer() -> Answer:
    return _solution(read(CHECKOUT / "docs" / "world.json"))


def _race_answer(one: race.Race) -> Answer:
    world = one.make()
    world["settings"] = {**world.get("settings", {}), "NODE_PRICE_PER_HOUR": str(VOLUMES)}
    if types_file(world) is not None:
        return _solution(load(world, types=_types()))
    loaded = load(world)
    if one.pods > ORACLE_PODS:
        return _solution(loaded)
    for offering in (each for kind in world["instanceTypes"] for each in kind["offerings"]):
        offering["price"] += VOLUMES  # the oracle knows offerings' prices only
    return _solution(loaded, world)


def _parity(seed: int) -> Answer:
    world = generated.world(seed)
    return _solution(load(world), world)


def _solution(world: World, judged: Object | None = None) -> Answer:
    """Solve a world; the oracle judges the answer if `judged`, the world's JSON, is given."""
    with _processor_time() as spent:
        results = schedule(
            [*world.pods, *world.buffer_pods],
            snapshot=world.snapshot,
            settings=from_names(world.settings),
        )
    content = results_content(results)
    answer = Answer(
        cost=results.cost,
        placed=len(world.pods) + len(world.buffer_pods) - len(results.unschedulable),
        digest=_digest([content["newNodes"], content["existingNodes"]]),
        texts=_digest(content["unschedulable"]),
        cpu=spent[0],
    )
    if judged is None:
        return answer
    found = tuple(map(str, findings(judged, content, with_overlays(judged))))
    return replace(answer, granted=score(judged, content), findings=found)


def _consolidation_answer(seed: int, sizes: tuple[int, int]) -> Answer:
    """Disrupt a cluster until it is steady, with the cost of evictions, and judge each pass."""
    world = consolidation.cluster(seed, *sizes)
    course = new_course(problem_of(load(world), now=consolidation.NOW, with_eviction_cost=True))
    ends = [0]
    with _processor_time() as spent:
        while (decision := course.decide(_never)).commands:
            course.execute(decision)
            ends.append(len(course.commands))
    course.execute(decision)
    commands = course_content(course)["commands"]
    passes = [commands[begin:end] for begin, end in pairwise(ends)]
    _, found = played(world, world["instanceTypes"], passes, consolidation.NOW)
    texts = [[one.pop("why") for one in commands], course.blocked]
    return Answer(
        cost=course.cost_after,
        evictions=sum(one["evictions"] for one in commands),
        digest=_digest(commands),
        texts=_digest(texts),
        findings=tuple(map(str, found)),
        cpu=spent[0],
    )


def _trace_answer(name: str, seed: int) -> Answer:
    trace = next(one for one in TRACES if one.name == name)
    cluster = trace.cluster(seed, node_price=VOLUMES)
    simulator = Simulator(cluster, Joiner(), length=trace.length)
    with _processor_time() as spent:
        measured = simulator.run(trace.events_of(seed, TRACE_SCALE), lambda _: None)
    return Answer(
        cost=measured.cost,
        evictions=measured.evictions,
        digest=_digest(repr(measured)),
        cpu=spent[0],
    )


def _never() -> bool:
    return False


def _digest(content: object) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:8]


@contextmanager
def _processor_time() -> Iterator[list[float]]:
    """Measure the CPU time of a block, without garbage collection, as in the live process."""
    gc.collect()
    gc.disable()
    spent = [0.0]
    began = time.process_time()
    try:
        yield spent
    finally:
        spent[0] = time.process_time() - began
        gc.enable()
