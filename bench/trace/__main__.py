"""`make trace`: run Joiner and Karpenter on the same traces, on a simulated clock.

    python -m bench.trace [--only NAME] [--seeds N] [--scale S] [--jobs N] [--node-fee $/H]
        [--policy POLICY] [--deletion-costs] [--protected SHARE] [--json trace.json]

Prints a table and whether the targets are met, and writes everything as JSON. Each side runs each
trace twice: as it is, and with NodePools that consolidate only empty nodes. The difference is what
moving pods has saved. At scale 1 the traces have the sizes that `bench/trace/traces.py` describes.
At the default scale, two cores finish in half an hour.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from bench.arguments import make_parser
from bench.nodeprice import VOLUMES, add_fee
from bench.parity import engines
from bench.trace.report import Pair, as_json, table, verdicts
from bench.trace.runs import Conditions, outcomes
from bench.trace.traces import TRACES
from testbed.progress import Progress

DEFAULT_SCALE = 0.1


def main() -> int:
    """Run the traces and return the exit code."""
    # One thread per process, because there are as many processes as cores.
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
    parser = make_parser("bench.trace", __doc__)
    parser.add_argument("--only", default="", help="only traces whose name begins with this")
    parser.add_argument("--seeds", type=int, default=1, help="seeds 0 to N-1 of each trace (1)")
    parser.add_argument(
        "--policy",
        default="WhenEmptyOrUnderutilized",
        choices=("WhenEmpty", "WhenEmptyOrUnderutilized", "Balanced"),
        help="consolidationPolicy of the NodePool (WhenEmptyOrUnderutilized)",
    )
    parser.add_argument(
        "--deletion-costs",
        action="store_true",
        help="Joiner writes the pods' deletion costs (feature gate PodDeletionCostManagement)",
    )
    parser.add_argument(
        "--scale",
        type=float,
        default=DEFAULT_SCALE,
        help=f"size of the load, 1 for the described one ({DEFAULT_SCALE})",
    )
    parser.add_argument("--jobs", type=int, default=2, help="runs at the same time (2)")
    parser.add_argument(
        "--json",
        type=Path,
        default=Path("trace.json"),
        metavar="FILE",
        help="file for the results (trace.json)",
    )
    add_fee(parser)
    parser.add_argument(
        "--protected",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="share of the Deployments whose pods have do-not-disrupt (0)",
    )
    chosen = parser.parse_args()
    console = Console(markup=False, emoji=False, width=None if sys.stdout.isatty() else 200)
    progress = Progress(console)
    engines.binary("parity", progress)
    traces = [one for one in TRACES if one.name.startswith(chosen.only)]
    if not traces:
        parser.error(f"--only {chosen.only}: the traces are {', '.join(t.name for t in TRACES)}")
    conditions = Conditions(
        scale=chosen.scale,
        node_price=VOLUMES + chosen.node_fee,
        protected=chosen.protected,
        deletion_costs=chosen.deletion_costs,
    )
    pairs: list[Pair] = []
    for pair in outcomes(
        traces,
        conditions,
        seeds=range(chosen.seeds),
        policy=chosen.policy,
        jobs=chosen.jobs,
        progress=progress,
    ):
        pairs.append(pair)
        progress.note(
            f"{pair.name}: {pair.joiner.measured.cost:.2f} $ against "
            f"{pair.karpenter.measured.cost:.2f}, {pair.joiner.measured.evictions} evictions "
            f"against {pair.karpenter.measured.evictions}"
        )
        # Written after each trace, so that an aborted run keeps its results.
        answer = as_json(pairs, policy=chosen.policy, **asdict(conditions))
        chosen.json.write_text(json.dumps(answer, indent=1) + "\n")
    order = [one.name for one in TRACES]
    pairs.sort(key=lambda one: (order.index(one.trace), one.seed))
    console.print(table(pairs))
    for line in verdicts(pairs):
        console.print(line, highlight=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
