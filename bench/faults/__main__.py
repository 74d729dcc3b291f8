"""`make faults`: inject faults in virtual time, and audit the controller.

    python -m bench.faults --seeds 1-500 [--only FAULT] [--pods N] [--gangs N] [--jobs N]

Each seed is one run with one fault. Pods are created, their nodes are replaced, most pods are
deleted and then the rest; the fault occurs in all of these phases, or only in some. The same seed
repeats the same run. Prints the findings, how to repeat each, and `N runs, F findings`. The exit
code is 1 if there are any findings.
"""

from __future__ import annotations

import itertools
import signal
import sys
import time

from bench.arguments import add_seeds, make_parser
from bench.faults.campaign import Load
from bench.faults.injection import FAULTS
from bench.faults.runs import outcomes

PODS = 60


def main() -> int:
    """Run the campaign, print its findings and return the exit code."""
    parser = make_parser("bench.faults", __doc__)
    add_seeds(parser, "1-500")
    parser.add_argument("--only", choices=list(FAULTS), default="", metavar="FAULT",
                        help=f"only runs of this fault: {', '.join(FAULTS)}")  # fmt: skip
    parser.add_argument("--pods", type=int, default=PODS, help=f"pods of each run ({PODS})")
    parser.add_argument(
        "--gangs", type=int, default=0, help="gangs of six pods, beside those pods (0)"
    )
    parser.add_argument("--static", type=int, default=0, metavar="NODES",
                        help="nodes of a static NodePool (0)")  # fmt: skip
    parser.add_argument("--jobs", type=int, default=2, help="runs at the same time (2)")
    chosen = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # at once, instead of after the runs in progress
    began = time.monotonic()
    found = 0
    load = Load(chosen.pods, chosen.gangs, chosen.static)
    every = outcomes(chosen.seeds, chosen.only, load, jobs=chosen.jobs)
    for count, outcome in zip(itertools.count(1), every, strict=False):
        found += len(outcome.findings)
        print(
            f"[{count}/{len(chosen.seeds)}] seed {outcome.seed} {outcome.fault}: "
            f"{outcome.simulated / 60:.0f} min in {outcome.seconds:.1f} s, "
            f"{len(outcome.findings)} findings",
            flush=True,
        )
        for finding in outcome.findings:
            print(f"    {finding}")
        if outcome.findings:
            only = f" --only {chosen.only}" if chosen.only else ""
            pods = f" --pods {chosen.pods}" if chosen.pods != PODS else ""
            gangs = f" --gangs {chosen.gangs}" if chosen.gangs else ""
            static = f" --static {chosen.static}" if chosen.static else ""
            again = f"--seeds {outcome.seed}{only}{pods}{gangs}{static}"
            print(f"    again: python -m bench.faults {again}", flush=True)
    print(f"{len(chosen.seeds)} runs, {found} findings ({(time.monotonic() - began) / 60:.1f} min)")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
