"""Ask kube-scheduler's own plugins about Joiner's answers to many generated worlds.

    python -m bench.kubescheduler --seeds 3000 [--first 0] [--family existing]
    python -m bench.kubescheduler --shrink SEED --family existing > SMALL.json

Prints each world that differs with its features, and totals by family and feature. The exit code
is 1 if any differs.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence

from bench.arguments import make_parser
from bench.kubescheduler.campaign import FAMILIES, Totals, cases, smallest
from bench.kubescheduler.judge import KubeScheduler, kube_scheduler


def main(argv: Sequence[str]) -> int:
    """Run the campaign and return the exit code."""
    options = _arguments(argv)
    with kube_scheduler() as judge:
        if options.shrink is not None:
            small = smallest(options.family or "existing", options.shrink, judge)
            json.dump(small, sys.stdout, indent=1)
            return 0
        families = [options.family] if options.family else list(FAMILIES)
        return max(_run(family, options, judge) for family in families)


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = make_parser("bench.kubescheduler", __doc__)
    parser.add_argument("--seeds", type=int, default=300, help="number of worlds (300)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (0)")
    parser.add_argument("--family", choices=sorted(FAMILIES), help="one family alone")
    parser.add_argument("--about", help="only worlds with one of these features")
    parser.add_argument("--shrink", type=int, metavar="SEED", help="print a small world instead")
    return parser.parse_args(argv)


def _run(family: str, options: argparse.Namespace, judge: KubeScheduler) -> int:
    began = time.monotonic()
    seeds: Sequence[int] = range(options.first, options.first + options.seeds)
    if options.about:
        about = set(options.about.split(","))
        seeds = [seed for seed in seeds if about & set(FAMILIES[family].features(seed))]
    totals = Totals.none()
    for case in cases(family, seeds, judge):
        totals.add(case)
        if case.differences:
            print(f"{family} {case.seed} ({', '.join(case.features)})")
            print(*(f"  {text}" for text in case.differences), sep="\n", flush=True)
    seconds = time.monotonic() - began
    print(f"{family}: {totals.differing} of {totals.worlds} worlds differ, in {seconds:.0f} s")
    for feature, number in totals.by_feature.most_common():
        print(f"  {number:4} {feature}")
    return 1 if totals.differing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
