"""`make race`: both engines on the same worlds, one after the other, in one run.

    python -m tests.benchmarks.race [--only NAME] [--repeat N] [--quick]

Prints a table and writes race.json. Each side is timed inside its own process from
prepared types and pods to finished results, the median of the repetitions; `from
nothing` is ours with the world read and the types encoded too.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from testbed.progress import Terminal
from tests.parity import engines, worlds

TYPES = "kwok/examples/aws_instance_types.json"
SLOW_PODS = 20_000
"""From this many pods on Karpenter's engine takes minutes: one repetition each."""


@dataclass(frozen=True, slots=True)
class Race:
    """One world: its kind, its size, and how to make it."""

    name: str
    kind: str
    pods: int
    make: Callable[[], worlds.World]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Both sides on one world: seconds, $/h, pods placed, MiB."""

    name: str
    kind: str
    pods: int
    karpenter_seconds: float
    joiner_seconds: float
    joiner_seconds_from_nothing: float
    ratio: float
    karpenter_cost: float
    joiner_cost: float
    lower_bound: float
    karpenter_placed: int
    joiner_placed: int
    karpenter_mib: float
    joiner_mib: float


def races(types: str) -> Iterator[Race]:
    """Return every world of the race, small ones first within a kind."""
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
                partial(worlds.priced, pods, types, limited=limited),
            )
    yield Race("2000 nodes, 5000 pods", "existing", 5_000, partial(worlds.existing, 2_000, 5_000))
    for seed in range(20):
        pods = 500 if seed % 2 == 0 else 5_000
        yield Race(f"mixed {pods} #{seed}", "mixed", pods, partial(worlds.mixed, pods, seed))


def run(race: Race, folder: Path, repeat: int) -> Outcome:
    """Ask both sides."""
    world = folder / "world.json"
    world.write_text(json.dumps(race.make()))
    theirs = engines.karpenter(world, repeat=1 if race.pods >= SLOW_PODS else repeat)
    ours = engines.joiner(world, repeat=repeat)
    return Outcome(
        name=race.name,
        kind=race.kind,
        pods=race.pods,
        karpenter_seconds=theirs.answer["seconds"],
        joiner_seconds=ours.answer["seconds"],
        joiner_seconds_from_nothing=ours.answer["secondsFromNothing"],
        ratio=theirs.answer["seconds"] / ours.answer["seconds"],
        karpenter_cost=theirs.answer["cost"],
        joiner_cost=ours.answer["cost"],
        lower_bound=ours.answer["lowerBound"],
        karpenter_placed=_placed(theirs.answer),
        joiner_placed=_placed(ours.answer),
        karpenter_mib=theirs.peak_mib,
        joiner_mib=ours.peak_mib,
    )


def _placed(answer: dict[str, object]) -> int:
    new, existing = answer["newNodes"], answer["existingNodes"]
    assert isinstance(new, list)
    assert isinstance(existing, dict)
    return sum(len(n["pods"]) for n in new) + sum(len(pods) for pods in existing.values())


def table(outcomes: list[Outcome]) -> Table:
    """Draw the outcomes."""
    drawn = Table(header_style="bold")
    for column in (
        "world",
        "Karpenter s",
        "Joiner s",
        "from nothing",
        "faster",
        "Karpenter $/h",
        "Joiner $/h",
        "bound $/h",
        "× bound",
        "placed K / J",
        "MiB K / J",
    ):
        drawn.add_column(column, justify="left" if column == "world" else "right")
    for o in outcomes:
        drawn.add_row(
            o.name,
            f"{o.karpenter_seconds:.3f}",
            f"{o.joiner_seconds:.3f}",
            f"{o.joiner_seconds_from_nothing:.3f}",
            f"{o.ratio:.1f} ×",
            f"{o.karpenter_cost:.3f}",
            f"{o.joiner_cost:.3f}",
            f"{o.lower_bound:.3f}",
            f"{o.joiner_cost / o.lower_bound:.4f}" if o.lower_bound else "",
            f"{o.karpenter_placed} / {o.joiner_placed}",
            f"{o.karpenter_mib:.0f} / {o.joiner_mib:.0f}",
        )
    return drawn


def totals(outcomes: list[Outcome]) -> Iterator[str]:
    """Say what the mixed worlds amount to together."""
    mixed = [o for o in outcomes if o.kind == "mixed"]
    if mixed:
        ours, theirs = sum(o.joiner_cost for o in mixed), sum(o.karpenter_cost for o in mixed)
        yield f"mixed worlds together: {ours:.2f} $/h, {ours / theirs:.3f} × Karpenter's"
    for pods in sorted({o.pods for o in mixed}):
        some = [o for o in mixed if o.pods == pods]
        cost, bound = sum(o.joiner_cost for o in some), sum(o.lower_bound for o in some)
        yield f"mixed worlds of {pods} pods: {cost / bound:.4f} × the bound"


def main() -> int:
    """Run the race."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", default="", help="worlds whose name begins so")
    parser.add_argument("--repeat", type=int, default=3, help="repetitions; the median counts")
    parser.add_argument("--most", type=int, default=10**9, help="leave out larger worlds")
    chosen = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 200)
    progress = Terminal(console)
    engines.binary("parity", progress)
    types = str(engines.module_file(TYPES, progress))
    wanted = [r for r in races(types) if r.name.startswith(chosen.only) and r.pods <= chosen.most]
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="joiner-race-") as folder:
        for number, race in enumerate(wanted, 1):
            console.print(f"[{number}/{len(wanted)}] {race.name} …", markup=False)
            outcomes.append(run(race, Path(folder), chosen.repeat))
            last = outcomes[-1]
            console.print(
                f"    {last.ratio:.1f} × faster, {last.joiner_cost:.3f} against "
                f"{last.karpenter_cost:.3f} $/h, bound {last.lower_bound:.3f}",
                highlight=False,
            )
    console.print(table(outcomes))
    for line in totals(outcomes):
        console.print(line, highlight=False)
    Path("race.json").write_text(json.dumps([asdict(o) for o in outcomes], indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
