"""`make faults`: everything that goes wrong, on virtual time, and an auditor that looks.

    python -m tests.faults --seeds 1-500 [--only KIND] [--pods N] [--jobs N]

Each seed is one run of one kind of fault: pods come, their nodes roll, most pods go and then all,
and something goes wrong in each phase. The same seed does the same again. Prints what was found,
how to repeat it, and `N runs, F findings`; it fails when there are any.
"""

from __future__ import annotations

import argparse
import itertools
import signal
import sys
import time

from tests.faults.injection import KINDS
from tests.faults.runs import outcomes

PODS = 60


def parse_seeds(text: str) -> list[int]:
    """Read `7`, `1-500` or `1-5,9`."""
    seeds: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        seeds += range(int(first), int(last or first) + 1)
    return seeds


def main() -> int:
    """Play the runs and tell what was found."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--seeds", type=parse_seeds, default=parse_seeds("1-500"), metavar="1-500")
    parser.add_argument("--only", choices=list(KINDS), default="", metavar="KIND",
                        help=f"one of {', '.join(KINDS)}")  # fmt: skip
    parser.add_argument("--pods", type=int, default=PODS, help=f"pods of each run ({PODS})")
    parser.add_argument("--jobs", type=int, default=2, help="runs at the same time (2)")
    chosen = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # at once, rather than after the runs at hand
    began = time.monotonic()
    found = 0
    every = outcomes(chosen.seeds, chosen.only, pods=chosen.pods, jobs=chosen.jobs)
    for count, outcome in zip(itertools.count(1), every, strict=False):
        found += len(outcome.findings)
        print(
            f"[{count}/{len(chosen.seeds)}] seed {outcome.seed} {outcome.kind}: "
            f"{outcome.simulated / 60:.0f} min in {outcome.seconds:.1f} s, "
            f"{len(outcome.findings)} findings",
            flush=True,
        )
        for finding in outcome.findings:
            print(f"    {finding}")
        if outcome.findings:
            only = f" --only {chosen.only}" if chosen.only else ""
            pods = f" --pods {chosen.pods}" if chosen.pods != PODS else ""
            print(
                f"    again: python -m tests.faults --seeds {outcome.seed}{only}{pods}", flush=True
            )
    print(f"{len(chosen.seeds)} runs, {found} findings ({(time.monotonic() - began) / 60:.1f} min)")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
