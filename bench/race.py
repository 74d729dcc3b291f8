"""`make race`: compare Karpenter's and Joiner's scheduling engines on the same worlds, in one run.

    python -m bench.race [--only NAME] [--repeat N] [--most PODS] [--limit SECONDS] [--node-fee $/H]

Prints a table and writes race.json. Each engine is timed inside its own process, from prepared
instance types and pods to finished results. The time is the median of the repetitions. `from
nothing` is Joiner's time including reading the world and encoding the instance types. `first` is
Joiner's first solution, without time to improve it. Costs are those of whole nodes: the instance,
its volume and the fee of `--node-fee`. Karpenter knows the price of the instance only. If
Karpenter's engine has no solution within `--limit`, it is terminated, and the row says so.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.arguments import make_parser
from bench.nodeprice import VOLUMES, add_fee
from bench.parity import engines, worlds
from testbed.progress import Progress

TYPES = "kwok/examples/aws_instance_types.json"
SLOW_PODS = 20_000
"""With this many pods or more, Karpenter's engine takes minutes and runs once per world."""


@dataclass(frozen=True, slots=True)
class Race:
    """One world: its name, its category, its number of pods, and the function that builds it."""

    name: str
    category: str
    pods: int
    make: Callable[[], worlds.World]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Results of both engines on one world: seconds, $/h, pods placed, MiB.

    Karpenter's fields are None if it had no solution within `limit` seconds.
    """

    name: str
    category: str
    pods: int
    limit: float
    karpenter_seconds: float | None
    joiner_seconds: float
    joiner_seconds_from_nothing: float
    first_seconds: float
    karpenter_cost: float | None
    joiner_cost: float
    first_cost: float
    lower_bound: float
    karpenter_placed: int | None
    joiner_placed: int
    first_placed: int
    karpenter_mib: float | None
    joiner_mib: float

    @property
    def ratio(self) -> float | None:
        """Karpenter's time divided by Joiner's, or None if Karpenter had no solution."""
        return self.karpenter_seconds / self.joiner_seconds if self.karpenter_seconds else None


def races(types: str) -> Iterator[Race]:
    """Yield every world of the race, by category.

    `types` is the path of the file with the instance types of the category `priced`.
    """
    for pods in (100, 1_000, 5_000, 10_000, 20_000):
        yield Race(f"diverse {pods}", "diverse", pods, partial(worlds.diverse, pods))
    yield Race("preferences 4000", "preferences", 4_000, partial(worlds.preferences, 4_000))
    for pods in (500, 5_000, 50_000):
        for limited in (True, False):
            what = "limited" if limited else "unlimited"
            yield Race(
                f"priced {what} {pods}",
                "priced",
                pods,
                partial(worlds.priced_world, pods, types, limited=limited),
            )
    yield Race("2000 nodes, 5000 pods", "existing", 5_000, partial(worlds.many_nodes, 2_000, 5_000))
    for seed in range(20):
        pods = 500 if seed % 2 == 0 else 5_000
        yield Race(f"mixed {pods} #{seed}", "mixed", pods, partial(worlds.mixed_world, pods, seed))
    for pods in (1, 10, 20, 40):
        for seed in range(3):
            yield Race(f"few {pods} #{seed}", "few", pods, partial(worlds.mixed_world, pods, seed))
    # This world measures speed only. It is not one of the 20 whose costs are added up.
    yield Race("mixed 20000", "mixed, large", 20_000, partial(worlds.mixed_world, 20_000, 20))


def run(race: Race, folder: Path, repeat: int, limit: float, fee: float) -> Outcome:
    """Run both engines on one world, Karpenter's for at most `limit` seconds.

    `fee` is what a node costs besides its instance, in $/h.
    """
    world, made = folder / "world.json", race.make()
    settings = {**made.get("settings", {}), "NODE_PRICE_PER_HOUR": str(fee)}
    world.write_text(json.dumps({**made, "settings": settings}))
    ours = engines.joiner(world, repeat=repeat)
    first = engines.joiner(world, repeat=repeat, first=True)
    theirs: engines.Answered | None = None
    with suppress(engines.TooSlowError):
        repeat = 1 if race.pods >= SLOW_PODS else repeat
        theirs = engines.karpenter(world, repeat=repeat, limit=limit)
    return Outcome(
        name=race.name,
        category=race.category,
        pods=race.pods,
        limit=limit,
        karpenter_seconds=theirs.answer["seconds"] if theirs else None,
        joiner_seconds=ours.answer["seconds"],
        joiner_seconds_from_nothing=ours.answer["secondsFromNothing"],
        first_seconds=first.answer["seconds"],
        karpenter_cost=_whole_cost(theirs.answer, fee) if theirs else None,
        joiner_cost=ours.answer["cost"],
        first_cost=first.answer["cost"],
        lower_bound=engines.proven_bound(world),
        karpenter_placed=_placed_count(theirs.answer) if theirs else None,
        joiner_placed=_placed_count(ours.answer),
        first_placed=_placed_count(first.answer),
        karpenter_mib=theirs.peak_mib if theirs else None,
        joiner_mib=ours.peak_mib,
    )


def _whole_cost(answer: Mapping[str, Any], fee: float) -> float:
    """Return the cost of Karpenter's nodes, which it has priced by their instances."""
    cost: float = answer["cost"]
    return cost + fee * len(answer["newNodes"])


def _placed_count(answer: dict[str, object]) -> int:
    new, existing = answer["newNodes"], answer["existingNodes"]
    assert isinstance(new, list)
    assert isinstance(existing, dict)
    return sum(len(n["pods"]) for n in new) + sum(len(pods) for pods in existing.values())


def table(outcomes: list[Outcome]) -> Table:
    """Return the outcomes as a table, one row per world."""
    drawn = Table(header_style="bold")
    for column in (
        "world",
        "Karpenter s",
        "first s",
        "Joiner s",
        "from nothing",
        "faster",
        "Karpenter $/h",
        "first $/h",
        "Joiner $/h",
        "bound $/h",
        "× bound",
        "placed K / first / J",
        "MiB K / J",
    ):
        drawn.add_column(column, justify="left" if column == "world" else "right")
    for o in outcomes:
        drawn.add_row(
            o.name,
            _or_not(o.karpenter_seconds, ".3f", instead=f"none in {o.limit:.0f} s"),
            f"{o.first_seconds:.3f}",
            f"{o.joiner_seconds:.3f}",
            f"{o.joiner_seconds_from_nothing:.3f}",
            f"{_or_not(o.ratio, '.1f')} ×",
            _or_not(o.karpenter_cost, ".3f"),
            f"{o.first_cost:.3f}",
            f"{o.joiner_cost:.3f}",
            f"{o.lower_bound:.3f}",
            f"{o.joiner_cost / o.lower_bound:.4f}" if o.lower_bound else "",
            f"{_or_not(o.karpenter_placed, 'd')} / {o.first_placed} / {o.joiner_placed}",
            f"{_or_not(o.karpenter_mib, '.0f')} / {o.joiner_mib:.0f}",
        )
    return drawn


def _or_not(figure: float | None, form: str, *, instead: str = "–") -> str:
    return instead if figure is None else format(figure, form)


def totals(outcomes: list[Outcome]) -> Iterator[str]:
    """Yield lines that compare the mixed worlds' total cost with Karpenter's and the bound."""
    mixed = [o for o in outcomes if o.category == "mixed"]
    both = [(o.joiner_cost, o.karpenter_cost) for o in mixed if o.karpenter_cost]
    if both:
        ours, theirs = (sum(costs) for costs in zip(*both, strict=True))
        yield f"mixed worlds together: {ours:.2f} $/h, {ours / theirs:.3f} × Karpenter's"
    for pods in sorted({o.pods for o in mixed}):
        some = [o for o in mixed if o.pods == pods]
        cost, bound = sum(o.joiner_cost for o in some), sum(o.lower_bound for o in some)
        yield f"mixed worlds of {pods} pods: {cost / bound:.4f} × the bound"


def main() -> int:
    """Run the race and return the exit code."""
    parser = make_parser("bench.race", __doc__)
    parser.add_argument("--only", default="", help="only worlds whose name begins with this")
    parser.add_argument(
        "--repeat", type=int, default=3, help="solves per world; the median counts (3)"
    )
    parser.add_argument("--most", type=int, default=10**9, help="leave out worlds with more pods")
    parser.add_argument(
        "--limit",
        type=float,
        default=300,
        help="seconds for Karpenter's answers to one world, all repetitions (300)",
    )
    add_fee(parser)
    chosen = parser.parse_args()
    console = Console(markup=False, emoji=False, width=None if sys.stdout.isatty() else 200)
    progress = Progress(console)
    engines.binary("parity", progress)
    types = str(engines.module_file(TYPES, progress))
    wanted = [r for r in races(types) if r.name.startswith(chosen.only) and r.pods <= chosen.most]
    outcomes: list[Outcome] = []
    written = Path("race.json")
    with tempfile.TemporaryDirectory(prefix="joiner-race-") as folder:
        for number, race in enumerate(wanted, 1):
            console.print(f"[{number}/{len(wanted)}] {race.name} …")
            fee = VOLUMES + chosen.node_fee
            last = run(race, Path(folder), chosen.repeat, chosen.limit, fee)
            outcomes.append(last)
            faster = f"{last.ratio:.1f} × faster" if last.ratio else "no answer of Karpenter's"
            console.print(
                f"    {faster}, {last.joiner_cost:.3f} against "
                f"{_or_not(last.karpenter_cost, '.3f')} $/h, bound {last.lower_bound:.3f}",
                highlight=False,
            )
            # Written after each world, so that an aborted race keeps its results.
            written.write_text(
                json.dumps([asdict(o) | {"ratio": o.ratio} for o in outcomes], indent=1) + "\n"
            )
    console.print(table(outcomes))
    for line in totals(outcomes):
        console.print(line, highlight=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
