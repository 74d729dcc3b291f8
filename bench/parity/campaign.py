"""Solve many generated worlds with both engines, and print the comparison.

    python -m bench.parity.campaign --seeds 2000 [--first 0] [--keep DIRECTORY]

Prints the failures by seed with the features of each world, the faults that the oracle finds in
Karpenter's answers, and totals. With `--keep`, the world of each failing seed is written there as
`SEED.json`. The exit code is 1 if anything failed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path

from bench.arguments import make_parser
from bench.parity import comparison, engines, generated

BATCH = 100
"""Worlds per batch: enough to amortize starting a process, few enough to hold in memory."""


def verdicts(seeds: Sequence[int]) -> Iterator[tuple[int, comparison.Verdict]]:
    """Yield the verdict on the world of each seed."""
    for begin in range(0, len(seeds), BATCH):
        part = seeds[begin : begin + BATCH]
        theirs = engines.karpenter_batch(generated.world(seed) for seed in part)
        yield from zip(part, verdicts_in_parallel(part, theirs), strict=True)


def verdicts_in_parallel(
    seeds: Sequence[int], theirs: Sequence[comparison.Answer]
) -> Iterator[comparison.Verdict]:
    """Yield verdicts on the worlds of the seeds, computed on every processor.

    `theirs` are Karpenter's answers to these worlds, in their order.
    """
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as processes:
        yield from processes.map(_judge, seeds, theirs, chunksize=8)


def _judge(seed: int, their: comparison.Answer) -> comparison.Verdict:
    return comparison.solve_and_compare(
        generated.world(seed), their, features=generated.features(seed)
    )


@dataclass(slots=True)
class Totals:
    """Sums over all worlds so far."""

    worlds: int = 0
    failing: int = 0
    different: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    cost: float = 0.0
    cost_of_karpenter: float = 0.0

    def add(self, verdict: comparison.Verdict) -> None:
        """Add the verdict on one world."""
        self.worlds += 1
        self.failing += bool(verdict.failures)
        self.different += bool(verdict.differences)
        self.failed.update(kinds(verdict))
        self.faults.update({fault.rule for fault in verdict.faults_of_karpenter})
        self.cost += verdict.cost
        self.cost_of_karpenter += verdict.cost_of_karpenter


def kinds(verdict: comparison.Verdict) -> set[str]:
    """Return the kinds of failures, such as `rule broken`: the beginnings of their texts."""
    return {failure.split(":")[0] for failure in verdict.failures}


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = make_parser("bench.parity.campaign", __doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="number of worlds (1000)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (0)")
    parser.add_argument(
        "--about", help="only worlds with one of these features, such as taints,limits"
    )
    parser.add_argument("--keep", type=Path, help="folder for the worlds that failed")
    return parser.parse_args(argv)


def seeds_of(options: argparse.Namespace) -> list[int]:
    """Return the seeds to run: all of them, or those whose worlds are about a given feature."""
    seeds = range(options.first, options.first + options.seeds)
    if options.about is None:
        return list(seeds)
    wanted = set(options.about.split(","))
    return [seed for seed in seeds if wanted & set(generated.features(seed))]


def main(argv: Sequence[str]) -> int:
    """Run the campaign and return the exit code."""
    options = arguments(argv)
    began = time.monotonic()
    totals = Totals()
    for seed, verdict in verdicts(seeds_of(options)):
        totals.add(verdict)
        _print(seed, verdict)
        if verdict.failures and options.keep:
            options.keep.mkdir(parents=True, exist_ok=True)
            (options.keep / f"{seed}.json").write_text(json.dumps(generated.world(seed), indent=1))
    print(f"{totals.worlds} worlds in {time.monotonic() - began:.0f} s")
    print(f"failing: {totals.failing} {dict(totals.failed)}")
    print(f"different on purpose: {totals.different}")
    print(f"worlds in which Karpenter breaks a rule, by rule: {dict(totals.faults)}")
    print(f"cost: ours {totals.cost:.2f} $/h, Karpenter's {totals.cost_of_karpenter:.2f} $/h")
    return 1 if totals.failing else 0


def _print(seed: int, verdict: comparison.Verdict) -> None:
    lines = [f"  FAILED {failure}" for failure in verdict.failures]
    lines += [f"  differs {difference}" for difference in verdict.differences]
    lines += [f"  Karpenter: {fault}" for fault in verdict.faults_of_karpenter]
    if lines:
        print(f"seed {seed} ({', '.join(generated.features(seed))})", *lines, sep="\n")
        sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
