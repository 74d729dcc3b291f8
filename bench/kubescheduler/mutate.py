"""Break the engine deliberately, one rule at a time, and check that kube-scheduler notices.

    python -m bench.kubescheduler.mutate [--only NAME]

The mutations are those of `bench.parity.mutate`, and some about rules that Karpenter does not have.
A mutation is found if a world differs that did not differ before. Prints a table. The exit code is
1 if a mutation was not found, except those in `NOT_JUDGED`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.arguments import make_parser
from bench.parity import mutate
from tests.mutations import Mutation, MutationFailedError, broken, copied

SCHEDULING = "controller/scheduling"

MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        "an empty selector of a spread counts all pods",
        f"{SCHEDULING}/topology/groups.py",
        "if selectors.is_empty(selector):",
        "if False:",
    ),
    Mutation(
        "a node over its capacity takes no pods",
        f"{SCHEDULING}/nodes/existing.py",
        "needed = requests > 0",
        "needed = requests >= 0",
    ),
    Mutation(
        "pods that share a node ignore rules about zones",
        f"{SCHEDULING}/topology/spread.py",
        "while counted < most and admits(pins, rules):",
        "while counted < most:",
    ),
    Mutation(
        "ended pods use capacity",
        f"{SCHEDULING}/nodes/existing.py",
        "if index is None or is_terminal(pod):",
        "if index is None:",
    ),
    Mutation(
        "cordoned nodes take pods",
        f"{SCHEDULING}/nodes/existing.py",
        "if not node.spec.unschedulable and not lifecycle_event(node):",
        "if True:",
    ),
    Mutation(
        "an expression on the name of a node is not read",
        f"{SCHEDULING}/pods/nodeaffinity.py",
        "return [*term.match_expressions, *names]",
        "return [*term.match_expressions]",
    ),
    Mutation(
        "a new node has no hostname",
        f"{SCHEDULING}/catalog/offerings.py",
        "{**labels.LIFECYCLE, labels.HOSTNAME: NEW_NAME}",
        "{**labels.LIFECYCLE}",
    ),
    Mutation(
        "one pod need not match all affinity terms",
        f"{SCHEDULING}/topology/groups.py",
        "selector=selectors.conjunction([_selector_of(term, own_labels) for term in terms]),",
        "selector=_selector_of(terms[0], own_labels),",
    ),
    Mutation(
        "every node meets the taints policy of a spread",
        f"{SCHEDULING}/topology/groups.py",
        'honors_taints = constraint.node_taints_policy == "Honor"',
        "honors_taints = False",
    ),
    Mutation(
        "spreads count pods on nodes that the pod cannot use",
        f"{SCHEDULING}/topology/groups.py",
        'honors_affinity = constraint.node_affinity_policy != "Ignore"',
        "honors_affinity = False",
    ),
)

NOT_JUDGED = frozenset(
    {
        "pools have no limits",
        "preferences are given up at once",
        "pods join cheaper nodes whatever the weight of their pool",
        "daemons cost nothing",
        "a NodePool may contradict itself",
    }
)
"""Mutations of rules that are not kube-scheduler's."""

RUNS = (("existing", 600), ("existing", 3000), ("launched", 400))
"""Families and numbers of seeds, one after the other until a world differs."""

DIFFERING = re.compile(r"^\w+ (\d+) \(", re.M)


def differing_seeds(checkout: Path, family: str, seeds: int) -> set[str]:
    """Return the seeds whose worlds differ.

    Raises:
        MutationFailedError: the campaign ended before it had run all worlds.

    """
    command = [sys.executable, "-m", "bench.kubescheduler", "--family", family]
    done = subprocess.run(
        [*command, "--seeds", str(seeds)],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": str(checkout)},
        capture_output=True,
        text=True,
    )
    if done.returncode not in (0, 1) or " worlds differ" not in done.stdout:
        raise MutationFailedError(done.stderr[-2000:])
    return set(DIFFERING.findall(done.stdout))


def find_evidence(checkout: Path, mutation: Mutation) -> str:
    """Return what reveals a mutation, or an empty string; the files are restored afterwards."""
    with broken(checkout, mutation):
        for family, seeds in RUNS:
            if found := differing_seeds(checkout, family, seeds):
                return f"{len(found)} of {seeds} {family}"
    return ""


def main(argv: Sequence[str]) -> int:
    """Try every mutation, print the table and return the exit code."""
    parser = make_parser("bench.kubescheduler.mutate", __doc__)
    parser.add_argument("--only", default="", help="only mutations whose name contains this")
    options = parser.parse_args(argv)
    missed = 0
    with copied() as copy:
        for mutation in (*MUTATIONS, *mutate.MUTATIONS):
            if options.only in mutation.name and mutation.name not in NOT_JUDGED:
                seen = find_evidence(copy, mutation)
                missed += not seen
                print(f"| {mutation.name} | {seen or 'NOT FOUND'} |", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
